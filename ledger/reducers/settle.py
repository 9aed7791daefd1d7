"""Reducers of aborts and of what settles after them. Quarantine is `dst(op)` while the operation settles."""

import copy

from msgspec.structs import replace

from kvsweep.ledger.draft import Draft
from kvsweep.ledger.events import (
    AckIgnored,
    AckRefused,
    CommandRefused,
    PlanRefused,
    RetainAborted,
    StoreAborted,
    TransferSettled,
    UploadAborted,
)
from kvsweep.ledger.ownership import Holder
from kvsweep.ledger.reducers.shared import close, open_in, refuse
from kvsweep.ledger.state import Lane, OpenOperation, RequestState


def upload_aborted(draft: Draft, request: RequestState, event: UploadAborted) -> None:
    _settle(draft, request, request.upload, open_in(request, request.upload, event, event.operation), event.reason)


def retain_aborted(draft: Draft, request: RequestState, event: RetainAborted) -> None:
    _settle(draft, request, request.retain, open_in(request, request.retain, event, event.operation), event.reason)


def store_aborted(draft: Draft, request: RequestState, event: StoreAborted) -> None:
    _settle(draft, request, request.store, open_in(request, request.store, event, event.operation), event.reason)


def _settle(draft: Draft, request: RequestState, lane: Lane, opened: OpenOperation, reason: str) -> None:
    """Keep all held until each rank is terminal; an operation never sent, or ended everywhere, is quiet at once."""
    lane.open = None
    request.commands = {
        key: replace(known, aborted=reason) if known.operation == opened.operation else known
        for key, known in request.commands.items()
    }
    if {rank for rank, _ in opened.ranks} <= {rank for rank, _ in opened.outcomes}:
        _quiet(draft, request, opened)
    else:
        request.settling = (*request.settling, opened)


def _quiet(draft: Draft, request: RequestState, opened: OpenOperation) -> None:
    number, holders = opened.operation.operation_id, draft.holders(request.key)
    drop = tuple(holder for holder in (Holder("dst", number), Holder("src", number)) if holder in holders)
    draft.change(request.key, drop=drop)
    lane = copy.copy(request.lane(opened.lane))
    going_on = lane.open
    close(draft, lane, opened)
    lane.open = going_on  # the next operation of the lane may have begun since
    setattr(request, opened.lane, lane)


def settled(draft: Draft, request: RequestState, event: TransferSettled) -> None:
    opened = next((one for one in request.settling if one.operation == event.operation), None)
    if opened is None:
        refuse(request, event, f"operation {event.operation} does not settle")
    if (event.rank, event.process_epoch) not in opened.ranks or event.rank in dict(opened.outcomes):
        refuse(request, event, f"rank {event.rank} is not awaited: ranks {opened.ranks}, terminal {opened.outcomes}")
    opened = replace(opened, outcomes=tuple(sorted((*opened.outcomes, (event.rank, event.outcome)))))
    others = tuple(other for other in request.settling if other.operation != event.operation)
    if len(opened.outcomes) == len(opened.ranks):
        request.settling = others
        _quiet(draft, request, opened)
    else:
        request.settling = (*others, opened)


def noted(draft: Draft, request: RequestState, event: AckIgnored | AckRefused | PlanRefused | CommandRefused) -> None:
    """Recorded, and nothing else."""
