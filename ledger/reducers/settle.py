"""Reducers of aborts and of what settles after them. Quarantine is `dst(op)` while the operation settles."""

from msgspec.structs import replace

from kvsweep.ledger.events import (
    AckIgnored,
    AckRefused,
    CommandRefused,
    LaneName,
    PlanRefused,
    RetainAborted,
    StoreAborted,
    TransferSettled,
    UploadAborted,
)
from kvsweep.ledger.ownership import Holder
from kvsweep.ledger.reducers.shared import adopt, closed_record, open_in, refuse
from kvsweep.ledger.state import Lane, OpenOperation, RequestState, State


def upload_aborted(state: State, request: RequestState, event: UploadAborted) -> State:
    opened = open_in(request, request.upload, event, event.operation)
    return _settle(state, replace(request, upload=replace(request.upload, open=None)), opened, event.reason)


def retain_aborted(state: State, request: RequestState, event: RetainAborted) -> State:
    opened = open_in(request, request.retain, event, event.operation)
    return _settle(state, replace(request, retain=replace(request.retain, open=None)), opened, event.reason)


def store_aborted(state: State, request: RequestState, event: StoreAborted) -> State:
    opened = open_in(request, request.store, event, event.operation)
    return _settle(state, replace(request, store=replace(request.store, open=None)), opened, event.reason)


def _settle(state: State, request: RequestState, opened: OpenOperation, reason: str) -> State:
    """Keep all held until each rank is terminal; an operation never sent, or ended everywhere, is quiet at once."""
    commands = tuple(
        replace(known, aborted=reason) if known.operation == opened.operation else known for known in request.commands
    )
    request = replace(request, commands=commands)
    if {rank for rank, _ in opened.ranks} <= {rank for rank, _ in opened.outcomes}:
        return _quiet(state, request, opened)
    return adopt(state, replace(request, settling=(*request.settling, opened)))


def _quiet(state: State, request: RequestState, opened: OpenOperation) -> State:
    number = opened.operation.operation_id
    holders = state.ownership.holders(request.key)
    drop = [holder for holder in (Holder("dst", number), Holder("src", number)) if holder in holders]
    ownership = state.ownership.change(request.key, state.pool.layout, drop=drop)
    lane = replace(request.lane(opened.lane), closed=closed_record(opened))
    return adopt(state, _with_lane(request, opened.lane, lane), ownership=ownership)


def _with_lane(request: RequestState, name: LaneName, lane: Lane) -> RequestState:
    if name == "upload":
        return replace(request, upload=lane)
    if name == "retain":
        return replace(request, retain=lane)
    return replace(request, store=lane)


def settled(state: State, request: RequestState, event: TransferSettled) -> State:
    found = [opened for opened in request.settling if opened.operation == event.operation]
    if not found:
        refuse(request, event, f"operation {event.operation} does not settle")
    opened = found[0]
    if (event.rank, event.process_epoch) not in opened.ranks or event.rank in dict(opened.outcomes):
        refuse(request, event, f"rank {event.rank} is not awaited: ranks {opened.ranks}, terminal {opened.outcomes}")
    opened = replace(opened, outcomes=tuple(sorted((*opened.outcomes, (event.rank, event.outcome)))))
    others = tuple(other for other in request.settling if other.operation != event.operation)
    if len(opened.outcomes) == len(opened.ranks):
        return _quiet(state, replace(request, settling=others), opened)
    return adopt(state, replace(request, settling=(*others, opened)))


def noted(state: State, request: RequestState, event: AckIgnored | AckRefused | PlanRefused | CommandRefused) -> State:
    """Recorded, and nothing else."""
    return adopt(state, request)
