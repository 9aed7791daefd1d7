"""Reducers of a request's life."""

from kvsweep.ledger.draft import Draft
from kvsweep.ledger.events import (
    BlocksRetired,
    RequestClosed,
    RequestFinished,
    RequestOpened,
    RequestPreempted,
    RequestResumed,
)
from kvsweep.ledger.ownership import Holder
from kvsweep.ledger.reducers.shared import refuse, replaced_views
from kvsweep.ledger.state import CLOSED_KEPT, RequestState


def opened(draft: Draft, request: RequestState, event: RequestOpened) -> None:
    if event.pool_generation != draft.pool.pool_generation:
        refuse(request, event, f"pool generation is {draft.pool.pool_generation}, got {event.pool_generation}")
    if event.rows < 2:
        refuse(request, event, f"expected at least 2 table rows, got {event.rows}")
    name, closed_ids = event.request.request_id, draft.pool.closed
    if name in closed_ids:
        draft.own_pool().closed = tuple(known for known in closed_ids if known != name)
    request.rows = event.rows


def preempted(draft: Draft, request: RequestState, event: RequestPreempted) -> None:
    """The view loses its place; its keep map names slots that are gone."""
    request.views = replaced_views(request, "preempt")
    request.current = 0
    request.map_revision += 1
    request.keep_map = None


def resumed(draft: Draft, request: RequestState, event: RequestResumed) -> None:
    """Only the phase moves."""


def finished(draft: Draft, request: RequestState, event: RequestFinished) -> None:
    """CPU blocks go with the view: only leases of operations in flight still hold some of them."""
    owner = Holder("owner")
    if owner in draft.holders(request.key):
        draft.change(request.key, drop=(owner,))
    request.views = replaced_views(request, "finish")
    request.current = 0
    request.map_revision += 1
    request.keep_map = None
    request.source = request.stale = b""


def closed(draft: Draft, request: RequestState, event: RequestClosed) -> None:
    pool, names = draft.own_pool(), (*draft.pool.closed, request.key.request_id)
    if len(names) > CLOSED_KEPT:
        oldest, names = names[0], names[1:]
        forgotten = draft.latest(oldest)
        if forgotten is not None:
            pool.epoch_floor = max(pool.epoch_floor, forgotten.key.request_epoch)
        draft.requests[oldest] = None
    pool.closed = names


def retired(draft: Draft, request: RequestState, event: BlocksRetired) -> None:
    """The fence rule: a generation that is not current and that no open step was handed is released."""
    lane = request.retain.open
    replaced = lane is not None and lane.replaced == event.generation
    if replaced != (event.cause == "retain"):  # the lane waits for this very event
        said = "replaced this generation" if replaced else "did not replace this generation"
        refuse(request, event, f"the retain lane {said}, got cause {event.cause}")
    if event.generation == 0:  # a first retain replaced nothing
        if event.cause != "retain" or any(event.freed):
            refuse(request, event, "generation 0 is no view: only a retain that replaced nothing retires it")
        return
    view = next((view for view in request.views if view.generation == event.generation), None)
    if view is None or event.generation == request.current:
        refuse(request, event, f"generation {event.generation} is not a replaced view; current is {request.current}")
    if event.cause != view.replaced_by:
        refuse(request, event, f"expected cause {view.replaced_by}, got {event.cause}")
    holder = Holder("view", event.generation)
    if draft.freed_by(request.key, holder).freed != event.freed:
        refuse(request, event, "the blocks said to be freed are not those that lost their last holder")
    draft.change(request.key, drop=(holder,))
    request.views = tuple(view for view in request.views if view.generation != event.generation)
