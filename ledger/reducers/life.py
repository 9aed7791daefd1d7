"""Reducers of a request's life."""

from msgspec.structs import replace

from kvsweep.ledger.events import (
    BlocksRetired,
    RequestClosed,
    RequestFinished,
    RequestOpened,
    RequestPreempted,
    RequestResumed,
)
from kvsweep.ledger.ownership import Holder
from kvsweep.ledger.reducers.shared import adopt, refuse, replaced_views
from kvsweep.ledger.state import CLOSED_KEPT, RequestState, State


def opened(state: State, request: RequestState, event: RequestOpened) -> State:
    if event.pool_generation != state.pool.pool_generation:
        refuse(request, event, f"pool generation is {state.pool.pool_generation}, got {event.pool_generation}")
    if event.rows < 2:
        refuse(request, event, f"expected at least 2 table rows, got {event.rows}")
    name, pool = event.request.request_id, state.pool
    if name in pool.closed:
        pool = replace(pool, closed=tuple(known for known in pool.closed if known != name))
    return adopt(state, replace(request, rows=event.rows), pool=pool)


def preempted(state: State, request: RequestState, event: RequestPreempted) -> State:
    """The view loses its place; its keep map names slots that are gone."""
    views = replaced_views(request, "preempt")
    return adopt(state, replace(request, views=views, current=0, map_revision=request.map_revision + 1, keep_map=None))


def resumed(state: State, request: RequestState, event: RequestResumed) -> State:
    return adopt(state, request)


def finished(state: State, request: RequestState, event: RequestFinished) -> State:
    """CPU blocks go with the view: only leases of operations in flight still hold some of them."""
    owner = Holder("owner")
    drop = (owner,) if owner in state.ownership.holders(request.key) else ()
    ownership = state.ownership.change(request.key, state.pool.layout, drop=drop)
    gone = replace(
        request,
        views=replaced_views(request, "finish"),
        current=0,
        map_revision=request.map_revision + 1,
        keep_map=None,
        source=b"",
        stale=b"",
    )
    return adopt(state, gone, ownership=ownership)


def closed(state: State, request: RequestState, event: RequestClosed) -> State:
    names = (*state.pool.closed, request.key.request_id)
    requests, floor = state.requests, state.pool.epoch_floor
    if len(names) > CLOSED_KEPT:
        oldest, names = names[0], names[1:]
        floor = max(floor, requests[oldest].key.request_epoch)
        requests = {name: kept for name, kept in requests.items() if name != oldest}
    pool = replace(state.pool, closed=names, epoch_floor=floor)
    return adopt(replace(state, requests=requests), request, pool=pool)


def retired(state: State, request: RequestState, event: BlocksRetired) -> State:
    """The fence rule: a generation that is not current and that no open step was handed is released."""
    lane = request.retain.open
    replaced = lane is not None and lane.replaced == event.generation
    if replaced != (event.cause == "retain"):  # the lane waits for this very event
        said = "replaced this generation" if replaced else "did not replace this generation"
        refuse(request, event, f"the retain lane {said}, got cause {event.cause}")
    if event.generation == 0:  # a first retain replaced nothing
        if event.cause != "retain" or any(event.freed):
            refuse(request, event, "generation 0 is no view: only a retain that replaced nothing retires it")
        return adopt(state, request)
    views = {view.generation: view for view in request.views}
    if event.generation == request.current or event.generation not in views:
        refuse(request, event, f"generation {event.generation} is not a replaced view; current is {request.current}")
    if event.cause != views[event.generation].replaced_by:
        refuse(request, event, f"expected cause {views[event.generation].replaced_by}, got {event.cause}")
    layout = state.pool.layout
    ownership = state.ownership.change(request.key, layout, drop=(Holder("view", event.generation),))
    freed = ownership.freed_blocks(state.ownership, request.key, layout)
    if freed != event.freed:
        refuse(request, event, "the blocks said to be freed are not those that lost their last holder")
    left = tuple(view for view in request.views if view.generation != event.generation)
    return adopt(state, replace(request, views=left), ownership=ownership)
