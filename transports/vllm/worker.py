"""One rank inside vLLM's worker process: performs a step's plans before the model runs, and says what has completed."""

from collections.abc import Sequence
from typing import Any

from kvsweep.ledger.errors import Busy
from kvsweep.ledger.ids import RequestKey
from kvsweep.ledger.messages import Heard, RankWork
from kvsweep.transports.rank import RankWorker
from kvsweep.transports.vllm.attention import Rebuild, replaced_metadata, rows_by_last_block
from kvsweep.transports.vllm.device import EngineDevice
from kvsweep.transports.vllm.faults import FaultSettings, FaultyWay
from kvsweep.transports.vllm.memory import RankMemory
from kvsweep.transports.vllm.messages import Ack, Completion, StepMeta
from kvsweep.transports.vllm.scoring import Scoring
from kvsweep.transports.wire import BadFrame, decode_to_rank

PROBE_STEPS = 8
"""Steps after which reports that nobody has heard are sent again."""


class WorkerHalf:
    """The worker's side of one engine step: `begin`, then `tables` while the model runs, then `finish`."""

    def __init__(
        self,
        memory: RankMemory,
        *,
        rank: int,
        process_epoch: int,
        block_size: int,
        poison: bool,
        faults: FaultSettings,
        rebuild: Rebuild,
        scoring: Scoring | None = None,
    ) -> None:
        """
        block_size  tokens
        poison      overwrite blocks that were given back, so that a late reader shows
        rebuild     makes the kernel's scheduling data for lengths that are not vLLM's
        scoring     of blocks, where a policy needs it
        """
        self.scoring = scoring
        self.device = EngineDevice(memory)
        self.worker = RankWorker(self.device, rank=rank, process_epoch=process_epoch)
        self.rank = rank
        self.poisoned = 0
        self._block_size, self._poison, self._rebuild = block_size, poison, rebuild
        self._way = FaultyWay(faults, rank=rank)
        self._meta: StepMeta | None = None
        self._forgotten: set[RequestKey] = set()
        self._turn = 0

    def begin(self, meta: StepMeta) -> None:
        """Before the model runs: poison what was given back, do what was planned. A step's plans are performed once."""
        if self._meta is meta:
            return
        self._meta = meta
        if self._poison and meta.poison:
            self.device.memory.poison(meta.poison)
            self.poisoned += len(meta.poison)
        for rank, number in meta.heard:
            if rank == self.rank:
                self.worker.acknowledge(number)
        frames: Sequence[object] = meta.frames  # what came by pickle may be anything
        for frame in frames:
            if not isinstance(frame, bytes):
                self.worker.note_frame(f"expected bytes, got {type(frame).__name__}")
                continue
            try:
                message = decode_to_rank(frame)
                if isinstance(message, RankWork):
                    self.worker.perform([message])
                elif isinstance(message, Heard):
                    self.worker.acknowledge(message.operation_id)
            except (BadFrame, Busy) as error:
                self.worker.note_frame(str(error))
        self.device.advance()
        self._forgotten.update(meta.forget)
        if self.scoring is not None:
            for request in meta.forget:
                self.scoring.forget(request)
        self._forgotten = {key for key in self._forgotten if not self.device.try_forget(key)}

    def has_begun(self, meta: object) -> bool:
        """Whether this step's plans have been performed: what must hold before a layer reads."""
        return self._meta is meta

    @property
    def has_views(self) -> bool:
        """Whether some request of this step reads a view."""
        return self._meta is not None and bool(self._meta.handed)

    def tables(self, metadata: Any) -> list[Any]:
        """vLLM's metadata for each layer, with the tables of this step's views; see `replaced_metadata`."""
        meta = self._meta
        handed = meta.handed if meta is not None else ()
        return replaced_metadata(metadata, handed, self.device, self._block_size, self._rebuild)

    def ask(self, metadata: Any) -> None:
        """Before the first layer: whose blocks this step scores, and where their last tokens stand in the batch."""
        meta = self._meta
        if self.scoring is None or meta is None or not meta.score:
            return
        import torch

        rows = rows_by_last_block(metadata.block_table.numpy(), metadata.seq_lens.numpy(), self._block_size)
        asked = [(request, blocks, rows[last]) for request, blocks, last in meta.score if last in rows]
        ends = [int(metadata.query_start_loc[row + 1]) - 1 for _, _, row in asked]
        self.scoring.ask([(request, blocks) for request, blocks, _ in asked], torch.tensor(ends, dtype=torch.int64))

    def note_layer(self, layer: int, cache: Any) -> None:
        """After a layer's attention: the bounds of blocks that have become whole. cache: vLLM's of that layer."""
        if self.scoring is not None and self._meta is not None and self._meta.sealed:
            self.scoring.note_layer(layer, cache, self._meta.sealed)

    def finish(self) -> Ack:
        """After the model has run: this step is done here, and so are these operations."""
        self._turn += 1
        if self._turn % PROBE_STEPS == 0 and self.worker.unheard:
            self.worker.probe()
        digests = self.device.digests
        reports = [
            Completion(done=done, digest=digests.get(done.operation.operation_id, "")) for done in self.worker.poll()
        ]
        step = self._meta.step if self._meta is not None else 0
        return Ack(
            steps=((self.rank, step),),
            completions=tuple(self._way.carry(reports)),
            scores=self.scoring.take() if self.scoring is not None else (),
            counts=((self.rank, tuple(self.counts().items())),),
        )

    def counts(self) -> dict[str, int]:
        """Running counts of this rank."""
        memory, way = self.device.memory, self._way
        return {
            "checked": memory.checked,
            "wrong": memory.wrong,
            "poisoned": self.poisoned,
            "dropped": way.dropped,
            "duplicated": way.duplicated,
            "delayed": way.delayed,
            "notes": len(self.worker.notes),
        }

    @property
    def notes(self) -> Sequence[str]:
        """What was refused or went wrong here, oldest first."""
        return [note.what for note in self.worker.notes]
