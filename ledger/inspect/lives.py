"""Folding a few lives of a ledger without the others, to the same states.

Requests meet in four places only: the pool's facts, the counter of operations, shared prefixes, and the blocks that are
free. The first are folded along, the second is read off the events, lives that share a prefix are taken together, and
that a block was free is what the running coordinator has checked. So a question about one request costs its own events.
"""

from collections.abc import Collection, Iterator
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from kvsweep.ledger import events as e
from kvsweep.ledger.errors import KvsweepError, LayoutError, LogCorrupt
from kvsweep.ledger.events import Event
from kvsweep.ledger.fold import apply
from kvsweep.ledger.ids import POOL, RequestKey
from kvsweep.ledger.ownership import Ownership
from kvsweep.ledger.state import EMPTY, State
from kvsweep.ledger.store.log import LogStore, Position, Record
from kvsweep.ledger.store.query import Where


class Frame(Struct, frozen=True, kw_only=True, gc=False):
    """One event with the state before and after it."""

    position: Position
    event: Event
    before: State
    after: State


def follow(state: State, record: Record) -> State:
    """State after a stored event. Raises LogCorrupt with its position for one that is illegal where it stands."""
    try:
        return apply(state, record.event)
    except KvsweepError as error:
        raise LogCorrupt(record.position, str(error)) from error
    except (LookupError, ValueError) as error:  # a reducer that meets what it never expected
        raise LogCorrupt(record.position, repr(error)) from error


OPENS_OPERATION: Final = (e.UploadPlanned, e.KeepMapPublished, e.RetainPlanned, e.StoreStarted)
"""Events that take the next number of the coordinator's counter."""

SHARES: Final = ("PrefixPublished", "PrefixAttached")


def fold_lives(
    log: LogStore, lives: Collection[RequestKey], *, until: Position, since: Position = 0, sharing: bool = False
) -> Iterator[Frame]:
    """A frame for each event of these lives, of those they share a prefix with, and of the pool, up to `until`.

    In every frame the lives' own state, what they hold and own, the pool's ranks and epochs, and for an event that
    begins an operation the operation counter, are those of a fold of the whole ledger. Other requests are absent; a
    life that is closed stays until the next one of its id begins.

    since    frames up to there are not needed: the fold may begin at a snapshot
    sharing  take every life that shares a prefix, whoever was asked for

    Raises LogCorrupt for a ledger that does not hold.
    """
    yield from fold_from(log, start(log, lives, until=until, since=since, sharing=sharing), until=until)


def lives_at(log: LogStore, lives: Collection[RequestKey], *, at: Position, sharing: bool = False) -> State:
    """The state of these lives just after a position, as `fold_lives` has it, with the whole ledger's counter."""
    begun = start(log, lives, until=at, since=at, sharing=sharing)
    state = begun.state
    for frame in fold_from(log, begun, until=at):
        state = frame.after
    return replace(state, pool=replace(state.pool, next_operation_id=operations_begun(log, until=at)))


class Start(Struct, frozen=True, kw_only=True):
    """Where the fold of a few lives begins: their state at a position, and who is folded with them."""

    state: State
    position: Position
    lives: tuple[RequestKey, ...]


def start(
    log: LogStore, lives: Collection[RequestKey], *, until: Position, since: Position = 0, sharing: bool = False
) -> Start:
    """The newest snapshot at or before `since`, with the lives that a fold up to `until` has to take together."""
    state, position = begin(log, since)
    together = with_sharers(log, lives, state, after=position, until=until, sharing=sharing)
    return Start(state=_only(state, together), position=position, lives=together)


def fold_from(log: LogStore, begun: Start, *, until: Position) -> Iterator[Frame]:
    """A frame for each event of its lives and of the pool, up to a position."""
    state = begun.state
    for record in log.find(Where(lives=(POOL, *begun.lives), after=begun.position, until=until)):
        event = record.event
        before = _as_in_the_whole(state, event)
        state = _skip(before, event) if _is_elsewhere(before, event) else follow(before, record)
        yield Frame(position=record.position, event=event, before=before, after=state)


def begin(log: LogStore, since: Position) -> tuple[State, Position]:
    """The newest state that is stored at or before a position, and where it stands; at the start the empty one."""
    snapshot = log.snapshot(max(since, log.header.first - 1))
    return (EMPTY, 0) if snapshot is None else (snapshot.state, snapshot.position)


def bound(log: LogStore, until: Position | None) -> Position:
    """A position up to which a ledger can be folded; None is its end. Raises LayoutError for one that it cannot."""
    low, last = log.header.first - 1, log.durable()
    if until is not None and not low <= until <= last:
        raise LayoutError("until", f"a position from {low} to {last}", str(until))
    return last if until is None else until


def with_sharers(
    log: LogStore,
    lives: Collection[RequestKey],
    state: State = EMPTY,
    *,
    until: Position,
    after: Position = 0,
    sharing: bool = False,
) -> tuple[RequestKey, ...]:
    """The lives, and if one of them shares a prefix, every life that does: they hold the same blocks.

    state  at position `after`, with those that shared by then
    """
    own = tuple(life for life in dict.fromkeys(lives) if life != POOL)
    already = _sharing(state)
    asked = not already.isdisjoint(own) or any(True for _ in log.find(_shares(own, after=after, until=until)))
    if not (sharing or asked):
        return own
    return tuple(dict.fromkeys((*own, *sorted(already), *sharers(log, after=after, until=until))))


def sharers(log: LogStore, *, after: Position = 0, until: Position) -> tuple[RequestKey, ...]:
    """Every life that has published or attached a prefix between two positions."""
    found = (record.event.request for record in log.find(_shares(None, after=after, until=until)))
    return tuple(dict.fromkeys(found))


def open_lives(log: LogStore, *, until: Position) -> tuple[RequestKey, ...]:
    """Lives that had begun and were not closed."""
    state, after = begin(log, until)
    found = {request.key: None for request in state.requests.values() if request.life != "CLOSED"}
    for record in log.find(Where(types=("RequestOpened", "RequestClosed"), after=after, until=until)):
        if isinstance(record.event, e.RequestOpened):
            found[record.event.request] = None
        else:
            found.pop(record.event.request, None)
    return tuple(found)


def operations_begun(log: LogStore, *, until: Position) -> int:
    """The number that the next operation after position `until` gets."""
    types = tuple(kind.__name__ for kind in OPENS_OPERATION)
    state, after = begin(log, until)
    for record in log.find(Where(types=types, after=after, until=until), newest_first=True):
        if isinstance(record.event, OPENS_OPERATION):
            return record.event.operation.operation_id + 1
    return state.pool.next_operation_id


def _shares(lives: tuple[RequestKey, ...] | None, *, after: Position, until: Position) -> Where:
    return Where(lives=lives, types=SHARES, after=after, until=until)


def _sharing(state: State) -> frozenset[RequestKey]:
    """Lives that hold a shared block."""
    if state.pool.run is None or not state.ownership.shared:
        return frozenset()
    layout, shared = state.pool.layout, state.ownership.shared_blocks(state.pool.layout)
    return frozenset(
        key
        for key, holders in state.ownership.held.items()
        if key != POOL
        and any(
            bool(np.isin(ids, shared[layout.layers[layer].group]).any())
            for holding in holders.values()
            for layer, ids in holding.areas.items()
        )
    )


def _only(state: State, lives: tuple[RequestKey, ...]) -> State:
    """The state without other requests; their blocks would seem taken for ever."""
    if state is EMPTY:
        return state
    kept, relation = set(lives), state.ownership
    sharing = bool(relation.shared) and _sharing(state) <= kept
    held = {key: holders for key, holders in relation.held.items() if key in kept or (sharing and key == POOL)}
    areas = {key: groups for key, groups in relation.areas.items() if key in kept}
    requests = {name: request for name, request in state.requests.items() if request.key in kept}
    closed = tuple(name for name in state.pool.closed if name in requests)
    pool = replace(state.pool, closed=closed, prefixes=state.pool.prefixes if sharing else ())
    shared, sources = (relation.shared, relation.shared_sources) if sharing else ((), b"")
    left = Ownership(held=held, areas=areas, shared=shared, shared_sources=sources)
    return State(pool=pool, requests=requests, ownership=left)


def _as_in_the_whole(state: State, event: Event) -> State:
    """What requests that are absent have changed, as far as this event depends on it."""
    if isinstance(event, OPENS_OPERATION):
        return replace(state, pool=replace(state.pool, next_operation_id=event.operation.operation_id))
    if isinstance(event, e.RequestOpened):
        known = state.requests.get(event.request.request_id)
        if known is None or known.key.request_epoch + 1 != event.request.request_epoch:
            others = {name: one for name, one in state.requests.items() if name != event.request.request_id}
            pool = replace(state.pool, epoch_floor=event.request.request_epoch - 1)
            return replace(state, requests=others, pool=pool)
    return state


def _is_elsewhere(state: State, event: Event) -> bool:
    """A prefix of requests that are absent."""
    return isinstance(event, e.PrefixEvicted) and all(one.number != event.number for one in state.pool.prefixes)


def _skip(state: State, event: Event) -> State:
    return replace(state, pool=replace(state.pool, seq=event.seq + 1))
