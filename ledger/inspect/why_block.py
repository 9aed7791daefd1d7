"""One block of the device pool through a ledger: who owned it, who held its areas, and what was written to it."""

from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from kvsweep.ledger import events as e
from kvsweep.ledger.errors import LayoutError
from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import POOL, Int32, RequestKey, int32_view
from kvsweep.ledger.inspect.causes import EventLine, event_line
from kvsweep.ledger.inspect.lives import Frame, begin, bound, fold_from, sharers, start
from kvsweep.ledger.layout import Layout
from kvsweep.ledger.ownership import Holder, Holding
from kvsweep.ledger.state import EMPTY, RequestState, State
from kvsweep.ledger.store.log import LogStore, Position, Record
from kvsweep.ledger.store.query import RESERVES, Block, Where, reserves


class Owner(Struct, frozen=True, kw_only=True):
    """A time in which one life had the block to itself, from the event that reserved it on.

    It ends when the block is free, or when it is shared as a prefix: nobody owns a shared block.
    """

    request: str
    epoch: int
    since: Position
    until: Position | None = None  # None: to the end of what was read
    shared: bool = False  # it ended because the block is shared from there on


class Hold(Struct, frozen=True, kw_only=True):
    """A time in which one holder had one area: one layer's part of the block."""

    layer: int
    kind: str  # view | tail | destination | source | fence | prefix
    number: int  # generation, logical block, operation id, fence or prefix
    logical: int | None  # block of the sequence that the area holds or is to hold
    request: str
    epoch: int
    since: Position
    until: Position | None = None


class Write(Struct, frozen=True, kw_only=True):
    """From the beginning of `hold` on its area may be written, and `before` had it last, as far as was looked."""

    hold: Hold  # a destination, or a tail block that the life opened itself
    before: Hold | None


_KINDS: Final = {"dst": "destination", "src": "source"}

_Key: TypeAlias = tuple[RequestKey, Holder, int]
"""Whose, holder, layer."""


class Watch:
    """Sees the frames of one fold after another. `begin` stands before each."""

    def __init__(self, block: Block, layout: Layout) -> None:
        self.events_seen = 0
        self._block, self._layout = block, layout
        self._layers = layout.group_layers(block.group)
        self._open: dict[_Key, Hold] = {}
        self._ended: list[Hold] = []
        self._written: list[Hold] = []
        self._owned: dict[RequestKey, Owner] = {}
        self._owners: list[Owner] = []
        self._events: dict[Position, EventLine] = {}

    def begin(self, position: Position, state: State) -> None:
        """A fold begins here: what is held, is held at least since then."""
        self._compare(position, EMPTY, state)

    def see(self, frame: Frame) -> None:
        self.events_seen += 1
        reported = self._reports(frame.event)
        if self._compare(frame.position, frame.before, frame.after) or reported:
            self._events[frame.position] = event_line(Record(position=frame.position, event=frame.event))

    def _reports(self, event: Event) -> bool:
        """A report on an operation that holds the block now."""
        operation = getattr(event, "operation", None)
        return operation is not None and any(
            key == operation.request and holder.kind in _KINDS and holder.number == operation.operation_id
            for key, holder, _ in self._open
        )

    def _compare(self, position: Position, before: State, after: State) -> bool:
        """Note who began and who ceased to hold or own the block; whether anybody did."""
        if before.ownership is after.ownership:
            return False
        began: list[_Key] = []
        ended: list[_Key] = []
        for key in {**before.ownership.held, **after.ownership.held}:
            old, new = before.ownership.holders(key), after.ownership.holders(key)
            if old is new:
                continue
            for holder in {**old, **new}:
                had, has = old.get(holder), new.get(holder)
                if had is not has:
                    were, are = self._held_layers(had), self._held_layers(has)
                    ended += [(key, holder, layer) for layer in sorted(were - are)]
                    began += [(key, holder, layer) for layer in sorted(are - were)]
        for one in began:
            hold = self._open[one] = self._hold(position, after, *one)
            if hold.kind == "destination" or (hold.kind == "tail" and self._owns(after, one[0])):
                self._written.append(hold)  # a tail block of a shared prefix is attached, and nobody writes it
        for one in ended:
            self._ended.append(replace(self._open.pop(one), until=position))
        return self._compare_owners(position, before, after) or bool(began or ended)

    def _hold(self, position: Position, state: State, key: RequestKey, holder: Holder, layer: int) -> Hold:
        return Hold(
            layer=layer,
            kind=_KINDS.get(holder.kind, holder.kind),
            number=holder.number,
            logical=self._logical(state, key, holder, layer),
            request=key.request_id,
            epoch=key.request_epoch,
            since=position,
        )

    def _held_layers(self, holding: Holding | None) -> set[int]:
        if holding is None or not holding.areas.size:
            return set()
        block = self._block.block
        return {layer for layer, ids in holding.areas.items() if layer in self._layers and block in ids}

    def _compare_owners(self, position: Position, before: State, after: State) -> bool:
        changed = False
        for key in {**before.ownership.own, **after.ownership.own}:
            had, has = self._owns(before, key), self._owns(after, key)
            if has and not had:
                self._owned[key] = Owner(request=key.request_id, epoch=key.request_epoch, since=position)
            elif had and not has:
                shared = after.ownership.shared_blocks(self._layout)[self._block.group]
                owner = replace(self._owned.pop(key), until=position, shared=self._block.block in shared)
                self._owners.append(owner)
            changed |= had != has
        return changed

    def _owns(self, state: State, key: RequestKey) -> bool:
        own = state.ownership.own.get(key)
        return own is not None and self._block.block in int32_view(own[self._block.group])

    # ---- answers, in order of position

    def owners(self) -> tuple[Owner, ...]:
        return tuple(sorted((*self._owners, *self._owned.values()), key=lambda one: one.since))

    def holds(self) -> tuple[Hold, ...]:
        return tuple(sorted((*self._ended, *self._open.values()), key=lambda one: (one.since, one.layer, one.kind)))

    def events(self) -> tuple[EventLine, ...]:
        return tuple(self._events[position] for position in sorted(self._events))

    def writes(self) -> tuple[Write, ...]:
        written = {(hold.since, hold.layer, hold.kind, hold.number) for hold in self._written}
        found, last = [], dict[int, Hold]()  # layer -> of the holds that began before, the one that ends last
        for hold in self.holds():
            before = last.get(hold.layer)
            if (hold.since, hold.layer, hold.kind, hold.number) in written:
                found.append(Write(hold=hold, before=before))
            if before is None or (before.until is not None and (hold.until is None or hold.until >= before.until)):
                last[hold.layer] = hold
        return tuple(found)

    # ---- what an area holds

    def _logical(self, state: State, key: RequestKey, holder: Holder, layer: int) -> int | None:
        if holder.kind == "tail":
            return holder.number
        if holder.kind == "prefix":
            return next((one.logical for one in state.pool.prefixes if one.number == holder.number), None)
        if holder.kind == "fence":  # what it holds stood in the tail until this event
            tails = (hold for (of, by, at), hold in self._open.items() if (of, by.kind, at) == (key, "tail", layer))
            return next((hold.logical for hold in tails), None)
        request = state.request(key)
        if request is None:
            return None
        if holder.kind == "view":
            for view in request.views:
                if view.generation == holder.number:
                    return self._beside(view.physical.row(layer), view.logical.row(layer))
        return self._of_operation(request, holder, layer)

    def _of_operation(self, request: RequestState, holder: Holder, layer: int) -> int | None:
        for one in (*request.open_operations(), *request.settling):
            if one.operation.operation_id != holder.number:
                continue
            if holder.kind == "dst" and one.lane == "upload":
                return self._beside(one.destination.row(layer), one.logical.row(layer))
            if holder.kind == "dst":
                return self._beside(one.table.row(layer), one.table_logical.row(layer))
        group = self._block.group
        return next((tail.logical for tail in request.tail if tail.physical[group] == self._block.block), None)

    def _beside(self, physical: Int32, logical: Int32) -> int | None:
        """The logical block in the slot of this block."""
        at = (physical == self._block.block).nonzero()[0]
        return int(logical[at[0]]) if at.size else None


LIVES_FOLDED: Final = 8
EVENTS_FOLDED: Final = 20_000
"""How much of a long ledger one answer looks into; earlier times of ownership are counted."""


class BlockLife(Struct, frozen=True, kw_only=True):
    """Everything in the order of positions, per layer where it differs.

    `left_out` times of ownership, the earliest, belong to lives that were not looked into.
    """

    group: int
    block: int
    layers: tuple[int, ...]  # of the group: the block has an area in each
    until: Position
    owners: tuple[Owner, ...]
    holds: tuple[Hold, ...]
    writes: tuple[Write, ...]
    events: tuple[EventLine, ...]  # those that changed who holds it, and the reports on its operations in between
    left_out: int

    def at(self, position: Position) -> tuple[Hold, ...]:
        """Who held which area just after a position."""
        return tuple(
            hold for hold in self.holds if hold.since <= position and (hold.until is None or hold.until > position)
        )


def run_of(log: LogStore) -> e.RunConfigured:
    """The run's configuration. Raises LayoutError for a ledger that does not begin with one."""
    state, _ = begin(log, 0)
    if state.pool.run is not None:  # the first events were dropped
        return state.pool.run
    for record in log.find(Where(types=("RunConfigured",), until=1)):
        if isinstance(record.event, e.RunConfigured):
            return record.event
    raise LayoutError("ledger", "RunConfigured as its first event", "none")


def expect_in_pool(run: e.RunConfigured, block: Block) -> None:
    """Raise LayoutError for a block that the run's pool does not have."""
    sizes = run.device_blocks
    if not (0 <= block.group < len(sizes) and 0 <= block.block < sizes[block.group]):
        pools = ", ".join(f"{group}:0 to {group}:{size - 1}" for group, size in enumerate(sizes))
        raise LayoutError("block", f"GROUP:ID within {pools}", f"{block.group}:{block.block}")


def why_block(
    log: LogStore,
    block: Block,
    *,
    until: Position | None = None,
    lives: int = LIVES_FOLDED,
    events: int = EVENTS_FOLDED,
) -> BlockLife:
    """The life of one block up to position `until`, or to the end.

    Looks into its latest owners: into at most `lives` lives, and into no further one once `events` events have been
    folded. Lives that share a prefix count as one. Raises LayoutError for a block that the pool does not have and for
    a position beyond the end.
    """
    run = run_of(log)
    expect_in_pool(run, block)
    end = bound(log, until)
    reserved = list(_reservations(log, block, run, end))
    watch, folded = Watch(block, run.layout), set[RequestKey]()
    for together, since, upper in _folds(log, reserved, lives, end):
        if watch.events_seen >= events:
            break
        begun = start(log, together, until=upper, since=since, sharing=POOL in together)
        watch.begin(begun.position, begun.state)
        for frame in fold_from(log, begun, until=upper):
            watch.see(frame)
        folded.update(together)
    return BlockLife(
        group=block.group,
        block=block.block,
        layers=run.layout.group_layers(block.group),
        until=end,
        owners=watch.owners(),
        holds=watch.holds(),
        writes=watch.writes(),
        events=watch.events(),
        left_out=sum(life not in folded for _, life in reserved),
    )


def _reservations(
    log: LogStore, block: Block, run: e.RunConfigured, end: Position
) -> Iterator[tuple[Position, RequestKey]]:
    """(position, life) of every reservation of the block that is kept, and who held it where the ledger begins: the
    pool, too, if it is shared."""
    state, begun = begin(log, 0)
    layers = run.layout.group_layers(block.group)
    for life, holders in state.ownership.held.items():
        if any(
            block.block in ids
            for holding in holders.values()
            for layer, ids in holding.areas.items()
            if layer in layers
        ):
            yield begun, life
    for record in log.find(Where(types=RESERVES, block=block, until=end)):
        if reserves(record.event, run.layout, block):
            yield record.position, record.event.request


def _folds(
    log: LogStore, reserved: Sequence[tuple[Position, RequestKey]], lives: int, end: Position
) -> Iterator[tuple[tuple[RequestKey, ...], Position, Position]]:
    """(lives to fold together, since where, up to where), the latest owners first.

    Nobody else has the block while one owns it; a shared one is followed to the end.
    """
    newest = list(dict.fromkeys(life for _, life in reversed(reserved)))
    sharing = {POOL, *sharers(log, until=end)} if newest else set()
    together = tuple(life for life in newest if life in sharing)
    taken = 0
    for life in newest:
        if taken == lives:
            return
        if life in sharing and life != together[0]:
            continue
        taken += 1
        group = together if life in sharing else (life,)
        own = [position for position, of in reserved if of in group]
        others = (position - 1 for position, of in reserved if position > own[-1] and of not in group)
        yield group, max(own[0] - 1, 0), end if life in sharing else min(others, default=end)
