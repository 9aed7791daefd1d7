"""What the two halves tell each other inside vLLM's own messages: plans with a step, completions with its output."""

from typing import Any

from msgspec import Struct

from kvsweep.ledger.ids import RequestKey
from kvsweep.ledger.messages import Done
from kvsweep.transports.handshake import Capabilities


class Handed(Struct, frozen=True, kw_only=True):
    """One request of a step whose committed view replaces the first blocks of vLLM's own table."""

    request: RequestKey
    row: int  # table row that shows the generation
    generation: int
    replaced: int  # leading logical blocks that vLLM's table does not name any more: the view stands in for them
    last_block: int  # id of the block that this step writes last: no other request has it, so it names the batch row


class StepMeta(Struct, frozen=True, kw_only=True):
    """Scheduler half to every worker half, with one step.

    Performed in the order of the fields, before the model runs: what was given back is overwritten before anything is
    copied into it.
    """

    step: int
    poison: tuple[int, ...] = ()  # blocks that were given back and that nobody reads: overwritten where that is wanted
    frames: tuple[bytes, ...] = ()  # commands for ranks, in order
    heard: tuple[tuple[int, int], ...] = ()  # (rank, operation) whose report has arrived
    forget: tuple[RequestKey, ...] = ()  # closed lives
    handed: tuple[Handed, ...] = ()
    score: tuple[tuple[RequestKey, int, int], ...] = ()  # (request, its first blocks to score, id of its last block)
    sealed: tuple[tuple[RequestKey, int, int], ...] = ()  # (request, logical, block): whole from this step on


class Completion(Struct, frozen=True, kw_only=True):
    """A rank's terminal report on one operation, with what it copied and the digest of those bytes.

    Two reports on one operation by one rank in one process that differ in bytes or digest contradict each other.
    """

    done: Done
    digest: str  # CRC-32 over the CRC-32 of every block copied, in the plan's order; "" where nothing was copied

    @property
    def identity(self) -> tuple[int, int, int, int, str]:
        """(operation, rank, process epoch, bytes, digest)."""
        done = self.done
        copied = done.h2d_bytes + done.unpack_bytes + done.d2h_bytes + done.resident_moved_bytes
        return (done.operation.operation_id, done.rank, done.process_epoch, copied, self.digest)


class Scores(Struct, frozen=True, kw_only=True):
    """One rank's scores of a request's whole blocks: the sum over its heads."""

    request: RequestKey
    rank: int
    blocks: int
    values: bytes  # '<f4' [layers, blocks]


class Ack(Struct, frozen=True, kw_only=True):
    """Worker halves to the scheduler half, with a step's output. Joining keeps every identity; nothing is counted."""

    steps: tuple[tuple[int, int], ...]  # (rank, step that it has done)
    completions: tuple[object, ...] = ()  # Completion each; what is not one is not believed
    scores: tuple[Scores, ...] = ()
    counts: tuple[tuple[int, tuple[tuple[str, int], ...]], ...] = ()  # (rank, (name, value) ...): its running counts

    def aggregate(self, other: object) -> "Ack":
        """vLLM joins the outputs of one step with this. What is not ours is left out; nothing is raised."""
        if not isinstance(other, Ack):
            return self
        return Ack(
            steps=_joined(self.steps, other.steps),
            completions=_joined(self.completions, other.completions),
            scores=_joined(self.scores, other.scores),
            counts=_joined(self.counts, other.counts),
        )


def _joined(ours: object, theirs: object) -> tuple[Any, ...]:
    """Both, as far as they are tuples: what came by pickle may be anything."""
    return tuple(item for items in (ours, theirs) if isinstance(items, tuple) for item in items)


class WorkerHandshake(Struct, frozen=True, kw_only=True):
    """What one rank shows before anything is sent (contract D4)."""

    rank: int
    process_epoch: int
    capabilities: Capabilities
    self_test: tuple[tuple[str, str], ...] = ()  # what was checked at start, and what was found
