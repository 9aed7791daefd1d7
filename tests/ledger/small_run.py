"""One whole small run that folds: two requests, upload, remap, stored tail, verdicts, abort, end, new life."""

from typing import Any

from msgspec.structs import replace

from kvsweep.ledger import events as e
from kvsweep.ledger.events import Event, Measured
from kvsweep.ledger.fold import apply
from kvsweep.ledger.ids import POOL, Operation, RequestKey, Rows, int32_bytes, no_rows
from kvsweep.ledger.layout import LayerLayout, Layout
from kvsweep.ledger.state import EMPTY, State
from kvsweep.ledger.store.digest import Digest

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
        e.UploadPlanned, key, operation=op, kind="diff", source_kind="source_only",
        logical=Rows.of(logical), measured=Measured(plan_s=0.25),
    )  # fmt: skip
    w.emit(e.UploadStaged, key, operation=op, generation=1, row=0)
    w.emit(
        e.BlocksLeased, key, operation=op, adopted=no_rows((0, 2)), reserved=(int32_bytes(blocks), b""),
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


def small_run() -> Writer:
    """The events, the state that they give, and the digests that were recorded on the way."""
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
