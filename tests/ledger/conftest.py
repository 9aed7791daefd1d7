"""What ledger tests share: arbitrary events built from their definitions, and one real history that folds."""

import types
import typing
from collections.abc import Callable
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from msgspec import Struct
from msgspec.structs import replace

from kvsweep.ledger import events as e
from kvsweep.ledger.digest import Digest
from kvsweep.ledger.event_base import Event, Measured
from kvsweep.ledger.fold import apply
from kvsweep.ledger.ids import POOL, Operation, RequestKey, Rows, int32_bytes, no_rows
from kvsweep.ledger.layout import LayerLayout, Layout
from kvsweep.ledger.state import EMPTY, State

MakeEvent = Callable[..., Event]
WORDS = ("", "a-b-c", "@pool", "요청/7", "nul\0inside", "🙂 " * 9, "'); DROP TABLE log; --")
LAYOUT = Layout.of(
    model_hash="a model",
    dtype="float32",
    block_size=16,
    layers=(
        LayerLayout(layer=0, group=0, kind="full", kv_heads=2, head_dim=8),
        LayerLayout(layer=1, group=1, kind="sliding", kv_heads=2, head_dim=8, window_tokens=32),
        LayerLayout(layer=2, group=0, kind="full", kv_heads=2, head_dim=8),
    ),
)


def arbitrary(annotation: Any, rng: np.random.Generator) -> Any:
    """A value of a field's type, as the encoding allows it; whether it makes sense is the fold's business."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is int:
        return int(rng.choice([0, 1, 127, 128, 65536, 2**31, 2**63 - 1]))
    if annotation is float:
        return float(rng.random())
    if annotation is str:
        return str(rng.choice(WORDS))
    if annotation is bytes:
        return int32_bytes(rng.integers(0, 2**31, size=rng.integers(0, 5)))
    if annotation is Layout:
        return LAYOUT
    if Rows in (annotation, origin):
        layers = sorted(rng.choice(40, size=rng.integers(0, 4), replace=False).tolist())
        return Rows.of({layer: rng.integers(0, 2**31, size=rng.integers(0, 40)) for layer in layers})
    if origin is Literal:
        return str(rng.choice(arguments))
    if origin in (typing.Union, types.UnionType):
        return None if rng.random() < 0.5 else arbitrary(arguments[0], rng)
    if origin is tuple and arguments[1:] == (...,):
        items = [arbitrary(arguments[0], rng) for _ in range(rng.integers(0, 4))]
        if arguments[0] == tuple[int, int]:
            items = [(rank, epoch) for rank, (_, epoch) in enumerate(items)]
        return tuple(items)
    if origin is tuple:
        return tuple(arbitrary(part, rng) for part in arguments)
    if annotation is RequestKey:
        return RequestKey(str(rng.choice(WORDS)), int(rng.integers(0, 2**40)))
    if isinstance(annotation, type) and issubclass(annotation, Struct):
        return annotation(**{name: arbitrary(part, rng) for name, part in get_type_hints(annotation).items()})
    raise TypeError(f"no arbitrary value of {annotation!r}")


@pytest.fixture(scope="session")
def make_event() -> MakeEvent:
    """(event type, generator, request=None, seq=None) -> an arbitrary event of that type."""

    def make(
        kind: type[Event], rng: np.random.Generator, request: RequestKey | None = None, seq: int | None = None
    ) -> Event:
        event: Event = arbitrary(kind, rng)
        return replace(event, request=request or event.request, seq=event.seq if seq is None else seq)

    return make


class Writer:
    """Folds what it emits, as a coordinator does: each event gets the next number of its stream."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.state: State = EMPTY
        self.digest = Digest()

    def emit(self, fact: type[Event], request: RequestKey = POOL, /, **fields: Any) -> None:
        known = self.state.request(request)
        seq = self.state.pool.seq if request == POOL else known.seq if known else 0
        event = fact(request=request, seq=seq, **fields)
        self.state = apply(self.state, event)
        self.digest.update(event)
        self.events.append(event)

    def record_digest(self) -> None:
        position, digest = len(self.events), self.digest.value(self.state)
        self.emit(e.DigestRecorded, position=position, digest=digest)

    def operation(self, request: RequestKey) -> Operation:
        known = self.state.request(request)
        assert known is not None
        return Operation(
            request=request,
            operation_id=self.state.pool.next_operation_id,
            pool_generation=self.state.pool.pool_generation,
            map_revision=known.map_revision,
        )


RANKS = ((0, 101), (1, 102))


def open_life(w: Writer, key: RequestKey, first_source: int) -> None:
    w.emit(e.RequestOpened, key, pool_generation=1, rows=3)
    w.emit(
        e.SourcesRegistered,
        key,
        logical=int32_bytes([0, 1, 2, 3]),
        source=int32_bytes(list(range(first_source, first_source + 4))),
    )


def upload(w: Writer, key: RequestKey, first_source: int, blocks: list[int]) -> Operation:
    op = w.operation(key)
    w.emit(e.BlocksSelected, key, selection_revision=1, digest="d", whole_blocks=4, effective_budget_blocks=2)
    logical: dict[int, list[int]] = {0: [0, 2], 2: [1, 2]}
    w.emit(
        e.UploadPlanned, key, operation=op, generation=1, kind="diff", source_kind="source_only",
        logical=Rows.of(logical), measured=Measured(plan_s=0.25),
    )  # fmt: skip
    w.emit(
        e.BlocksLeased, key, operation=op, adopted=no_rows((0, 2)), row=0, reserved=(int32_bytes(blocks), b""),
        source=Rows.of({layer: [first_source + block for block in ids] for layer, ids in logical.items()}),
        destination=Rows.of({0: blocks, 2: blocks}),
    )  # fmt: skip
    w.emit(e.TransferStarted, key, operation=op, ranks=RANKS)
    return op


def commit_upload(w: Writer, key: RequestKey, op: Operation) -> None:
    for rank, epoch in RANKS:
        w.emit(
            e.RankTransferred, key, operation=op, rank=rank, process_epoch=epoch, h2d_bytes=4096, unpack_bytes=0,
            table_updates=4, measured=Measured(wait_s=0.5 + rank),
        )  # fmt: skip
    w.emit(e.TransferCompleted, key, operation=op)
    w.emit(e.ResidencyCommitted, key, operation=op, generation=1)
    w.emit(e.UploadAcknowledged, key, operation=op, process_epoch=7)


def retain(w: Writer, key: RequestKey) -> None:
    op = w.operation(key)
    w.emit(
        e.RetainPlanned, key, operation=op, generation=2, mode="layer", attention="same",
        keep=Rows.of({0: [0], 2: [1]}), adopted=no_rows((0, 2)), moved_from=no_rows((0, 2)), moved_to=no_rows((0, 2)),
        row=1, reserved=(b"", b""), selection_revision=1,
    )  # fmt: skip
    w.emit(e.ReadersDrained, key, operation=op, row=1, ranks=RANKS)
    for rank, epoch in RANKS:
        w.emit(
            e.TablesApplied, key, operation=op, rank=rank, process_epoch=epoch, resident_moved_bytes=0, table_updates=2
        )
    w.emit(e.AllRanksApplied, key, operation=op)
    w.emit(e.OwnersCommitted, key, operation=op, generation=2)
    w.emit(e.BlocksRetired, key, generation=1, cause="retain", freed=(b"", b""))
    w.emit(e.RetainAcknowledged, key, operation=op, process_epoch=7)


def tail(w: Writer, key: RequestKey) -> None:
    w.emit(e.TailOpened, key, logical=4, physical_by_group=int32_bytes([5, 1]))
    w.emit(e.TailSealed, key, logical=4)
    op = w.operation(key)
    w.emit(e.StoreStarted, key, operation=op, logical=int32_bytes([4]), source=int32_bytes([30]), ranks=RANKS)
    for rank, epoch in RANKS:
        w.emit(e.RankStored, key, operation=op, rank=rank, process_epoch=epoch, d2h_bytes=512)
    w.emit(e.StoreCompleted, key, operation=op)
    w.emit(e.TailDropped, key, group=0, logical=int32_bytes([4]), fence=1)
    w.emit(e.FenceOpened, key, fence=1, freed=(int32_bytes([5]), b""))
    w.emit(e.TailDropped, key, group=1, logical=int32_bytes([4]), fence=2)
    w.emit(e.FenceOpened, key, fence=2, freed=(b"", int32_bytes([1])))


@pytest.fixture(scope="session")
def written() -> Writer:
    """A whole small run: two requests, an upload, a remap, a stored tail, verdicts, an abort, an end, a second life."""
    w = Writer()
    first, second = RequestKey("a-b-c", 1), RequestKey("@pool", 1)
    w.emit(
        e.RunConfigured, layout=LAYOUT, ranks=RANKS, producer_epoch=7, device_blocks=(8, 4), cpu_full_blocks=32,
        cpu_total_blocks=32, evidence="{}",
    )  # fmt: skip
    open_life(w, first, 0)
    op = upload(w, first, 0, [0, 1])
    open_life(w, second, 4)
    commit_upload(w, first, op)
    w.record_digest()
    retain(w, first)
    tail(w, first)
    ack: dict[str, Any] = {"operation": op, "rank": 1, "process_epoch": 102, "outcome": "completed"}
    w.emit(e.AckIgnored, first, **ack, verdict="stale", rule="not open, not settling")
    ack["operation"] = replace(op, operation_id=99)
    w.emit(e.AckRefused, first, **ack, verdict="future", rule="newer operation", expected="below 4", got="99")
    w.emit(e.PlanRefused, second, lane="upload", reason="no_space", needed=9, vacant=0, free=4)
    w.emit(e.CommandRefused, second, command="Resume", state="running/idle/idle/idle", reason="it runs")
    op = upload(w, second, 4, [2, 3])
    w.record_digest()
    w.emit(e.UploadAborted, second, operation=op, reason="deadline")
    for rank, epoch in RANKS:
        w.emit(e.TransferSettled, second, operation=op, rank=rank, process_epoch=epoch, outcome="cancelled")
    w.emit(e.RequestFinished, first)
    w.emit(e.BlocksRetired, first, generation=2, cause="finish", freed=(int32_bytes([0, 1]), b""))
    w.emit(e.RequestClosed, first)
    w.record_digest()
    w.emit(e.RequestOpened, RequestKey("a-b-c", 2), pool_generation=1, rows=2)
    return w
