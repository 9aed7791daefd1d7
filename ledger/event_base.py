"""What all events share: identities, small vocabularies, and the parent of every fact."""

from typing import Literal, TypeAlias

from msgspec import Struct

from kvsweep.ledger.ids import RequestKey

RankEpochs: TypeAlias = tuple[tuple[int, int], ...]
"""(rank, process epoch) pairs, ranks ascending: the set that an operation waits for."""

BlocksByGroup: TypeAlias = tuple[bytes, ...]
"""One '<i4' list of physical block ids a KV-cache group."""

PlanKind = Literal["diff", "full"]
SourceKind = Literal["source_only", "copy"]
RetainMode = Literal["shared", "layer", "move", "pack"]
Attention = Literal["same", "union"]
Outcome = Literal["completed", "failed", "cancelled", "epoch_ended"]
LaneName = Literal["upload", "retain", "store"]
RetireCause = Literal["upload", "retain", "preempt", "finish"]


class Measured(Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Seconds that a clock measured. Never part of a digest."""

    wait_s: float = 0.0  # from the start of the operation to this report
    plan_s: float = 0.0


class Implementation(Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """What did the work where several do the same, bit for bit. Never part of a digest, so that runs compare."""

    kernels: str = ""  # "numpy", or "native" with its instruction set, threads and SHA-256


class Event(Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Parent of all facts."""

    request: RequestKey
    seq: int  # dense within (request, epoch), from 0
