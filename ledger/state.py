"""State of the core: what the fold of all facts gives.

Records of requests, lanes and the pool are changed by a draft alone, which copies each before it touches it: one that
has been adopted never changes again. Everything else is frozen.
"""

from typing import Literal

import msgspec
from msgspec import Struct

from kvsweep.ledger.events import Attention, LaneName, PlanKind, RankEpochs, RetainMode, RetireCause, RunConfigured
from kvsweep.ledger.ids import HOLE, Logical, Operation, Physical, RequestKey, Rows, Slot, int32_view, no_rows
from kvsweep.ledger.layout import Layout
from kvsweep.ledger.ownership import NOTHING_OWNED, Ownership

CLOSED_KEPT = 1024
"""Closed requests whose last life is remembered; the oldest is forgotten first, its epoch raises the floor."""

PREFIXES_KEPT = 4096
"""Shared blocks in the prefix cache; a further one is refused until one is evicted."""

COMMANDS_KEPT = 64
"""Idempotency keys remembered a request."""


class View(Struct, frozen=True, kw_only=True, gc=False):
    """One generation: per active layer, which logical block each slot holds and where. Never changed, only replaced."""

    generation: int
    logical: Rows[Logical]
    physical: Rows[Physical]
    row: int
    replaced_by: RetireCause | None = None  # what took its place; None while it is the current one


class OpenOperation(Struct, frozen=True, kw_only=True, gc=False):
    """One attempt and what its plan fixed. `outcomes` holds each distinct rank's terminal word."""

    operation: Operation
    lane: LaneName
    generation: int = 0
    ranks: RankEpochs = ()
    outcomes: tuple[tuple[int, str], ...] = ()
    kind: PlanKind = "diff"
    mode: RetainMode = "layer"
    attention: Attention = "same"
    logical: Rows[Logical] = no_rows()
    destination: Rows[Physical] = no_rows()
    adopted: Rows[Logical] = no_rows()
    table: Rows[Physical] = no_rows()  # the new view's physical rows
    table_logical: Rows[Logical] = no_rows()
    row: int = HOLE
    replaced: int = 0  # generation that a commit replaces; 0 = there was none
    stored: bytes = b""  # '<i4' logical blocks of a store
    stored_to: bytes = b""  # '<i4' their CPU blocks


class ClosedOperation(Struct, frozen=True, kw_only=True, gc=False):
    """What is remembered of a lane's last ended operation: enough to know a repeated ACK from a stale one."""

    operation: Operation
    outcomes: tuple[tuple[int, str], ...]


class Lane(Struct, kw_only=True, gc=False):
    phase: str = "IDLE"
    open: OpenOperation | None = None
    closed: ClosedOperation | None = None


class TailBlock(Struct, frozen=True, kw_only=True, gc=False):
    """A device-written block, not part of any generation. HOLE where a group has already dropped its block."""

    logical: int
    physical: tuple[int, ...]  # one a group
    phase: Literal["open", "dirty", "clean", "lost"] = "open"


class KeepMap(Struct, frozen=True, kw_only=True, gc=False):
    """The published keep slots; bound to the residency they name slots of."""

    selection_revision: int
    map_revision: int
    keep: Rows[Slot]


class Remembered(Struct, frozen=True, kw_only=True, gc=False):
    """Answer already given to an idempotency key."""

    what: str  # digest of what was asked
    operation: Operation
    aborted: str = ""  # why it ended without a commit


class RequestState(Struct, kw_only=True):
    key: RequestKey
    seq: int = 0  # of the next event
    life: str = "NEW"
    rows: int = 0
    map_revision: int = 0
    selection_revision: int = 0
    selected: tuple[str, str] = ("", "")  # (idempotency key, digest) of the selection in the upload lane
    next_generation: int = 1
    next_fence: int = 1
    current: int = 0  # generation of the current view; 0 = none
    views: tuple[View, ...] = ()
    upload: Lane = msgspec.field(default_factory=Lane)
    retain: Lane = msgspec.field(default_factory=Lane)
    store: Lane = msgspec.field(default_factory=Lane)
    settling: tuple[OpenOperation, ...] = ()
    tail: tuple[TailBlock, ...] = ()
    fences: tuple[int, ...] = ()
    source: bytes = b""  # '<i4' valid CPU block of each logical block, HOLE where there is none
    stale: bytes = b""  # '<i4' CPU blocks still held whose bytes a producer restart made invalid
    whole_blocks: int = 0  # of the sequence at the last selection
    keep_map: KeepMap | None = None
    commands: dict[str, Remembered] = {}  # by idempotency key, oldest first; never changed, only replaced

    @property
    def view(self) -> View | None:
        """The current view."""
        for view in self.views:
            if view.generation == self.current:
                return view
        return None

    def lane(self, name: LaneName) -> Lane:
        lane: Lane = getattr(self, name)
        return lane

    def source_of(self, logical: int) -> int:
        """CPU block of a logical block, or HOLE."""
        sources = int32_view(self.source)
        return int(sources[logical]) if 0 <= logical < sources.size else HOLE

    def open_operations(self) -> tuple[OpenOperation, ...]:
        lanes = (self.upload, self.retain, self.store)
        return tuple(lane.open for lane in lanes if lane.open is not None)

    def describe(self) -> str:
        """life/upload/retain/store, as errors name it."""
        return "/".join((self.life, self.upload.phase, self.retain.phase, self.store.phase)).lower()


class Prefix(Struct, frozen=True, kw_only=True, gc=False):
    """One shared block of the prefix cache."""

    number: int
    key: str
    logical: int
    physical: tuple[int, ...]  # one a group
    source: int


class PoolState(Struct, kw_only=True, gc=False):
    """Facts of the whole pool."""

    seq: int = 0
    run: RunConfigured | None = None
    pool_generation: int = 1
    ranks: RankEpochs = ()  # known process epoch of each rank
    lost: tuple[int, ...] = ()  # ranks whose process has ended and not come back
    producer_epoch: int = 0
    next_operation_id: int = 1
    closed: tuple[str, ...] = ()  # ids of closed requests, oldest first
    epoch_floor: int = 0  # no forgotten life had a higher epoch
    prefixes: tuple[Prefix, ...] = ()  # oldest first
    next_prefix: int = 1

    @property
    def layout(self) -> Layout:
        if self.run is None:
            raise LookupError("the pool is not configured: a ledger begins with RunConfigured")
        return self.run.layout

    def process_epoch(self, rank: int) -> int | None:
        for known, epoch in self.ranks:
            if known == rank:
                return epoch
        return None


class State(Struct, frozen=True, kw_only=True, gc=False):
    pool: PoolState = msgspec.field(default_factory=PoolState)
    requests: dict[str, RequestState] = {}  # by id: the latest life
    ownership: Ownership = NOTHING_OWNED

    def request(self, key: RequestKey) -> RequestState | None:
        """The state of exactly this life, or None."""
        found = self.requests.get(key.request_id)
        return found if found is not None and found.key == key else None

    def latest(self, request_id: str) -> RequestState | None:
        """The latest life of this id, or None."""
        return self.requests.get(request_id)

    def canonical(self) -> object:
        """A value without unordered parts, for digests."""
        return [self.pool, sorted(self.requests.items()), self.ownership.canonical()]


EMPTY = State()


class Residency(Struct, frozen=True, kw_only=True):
    """What one request has on the device now (contract D1). `valid_blocks_by_layer` is '<i4', a row an active layer."""

    request_epoch: int
    pool_generation: int
    map_revision: int
    view_generation: int
    logical_by_slot_by_layer: Rows[Logical]
    physical_by_slot_by_layer: Rows[Physical]
    valid_blocks_by_layer: bytes
    pending_upload: Operation | None
    pending_retain: Operation | None


def residency(state: State, request: RequestState) -> Residency:
    """Contract D1's residency, read from the core state."""
    view = request.view
    empty = state.pool.layout.active_layers
    logical: Rows[Logical] = view.logical if view else no_rows(empty)
    physical: Rows[Physical] = view.physical if view else no_rows(empty)
    return Residency(
        request_epoch=request.key.request_epoch,
        pool_generation=state.pool.pool_generation,
        map_revision=request.map_revision,
        view_generation=request.current,
        logical_by_slot_by_layer=logical,
        physical_by_slot_by_layer=physical,
        valid_blocks_by_layer=logical.counts.astype("<i4").tobytes(),
        pending_upload=request.upload.open.operation if request.upload.open else None,
        pending_retain=request.retain.open.operation if request.retain.open else None,
    )
