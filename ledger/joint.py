"""Joint rules: what binds the machines to each other. Data, checked after the tables and before any reducer.

A rule names the events it guards and says why one is illegal, or None.
"""

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from kvsweep.ledger.draft import Draft
from kvsweep.ledger.events import (
    BlocksSelected,
    Event,
    OwnersCommitted,
    PrefixAttached,
    PrefixPublished,
    RequestClosed,
    RequestFinished,
    RequestPreempted,
    ResidencyCommitted,
    RetainPlanned,
    SourcesRegistered,
    StoreStarted,
    TailOpened,
)
from kvsweep.ledger.phases import ABORTABLE, PASSED_THROUGH
from kvsweep.ledger.state import RequestState


class JointRule(Struct, frozen=True):
    name: str
    clause: str
    events: tuple[type[Event], ...]
    reason: Callable[[Draft, RequestState, Event], str | None]


def _lanes_free(draft: Draft, request: RequestState, event: Event) -> str | None:
    if request.life != "RUNNING":
        return f"life is {request.life}"
    other = request.retain if type(event) is BlocksSelected else request.upload
    return None if other.phase == "IDLE" else f"the other view-changing lane is {other.phase}"


def _on_planned_view(draft: Draft, request: RequestState, event: Event) -> str | None:
    lane = request.upload if type(event) is ResidencyCommitted else request.retain
    if request.life != "RUNNING":
        return f"life is {request.life}"
    if lane.open is None:
        return "no operation is open"
    planned, current = lane.open.operation, (draft.pool.pool_generation, request.map_revision)
    if (planned.pool_generation, planned.map_revision) != current:
        return (
            f"planned on (pool generation, map revision) {planned.pool_generation, planned.map_revision}, now {current}"
        )
    return None


def _lanes_turned_back(draft: Draft, request: RequestState, event: Event) -> str | None:
    lanes = {"upload": request.upload, "retain": request.retain}
    if isinstance(event, RequestFinished):
        lanes["store"] = request.store
    if request.upload.phase in PASSED_THROUGH:
        return f"upload is {request.upload.phase}: its start batch is not complete"
    for name, lane in lanes.items():
        if lane.phase in ABORTABLE[name]:
            return f"{name} is {lane.phase} and was not aborted first"
    return None


def _nothing_held(draft: Draft, request: RequestState, event: Event) -> str | None:
    for what, held in (
        ("an operation is open", request.open_operations()),
        ("an operation settles", request.settling),
        ("a view is held", request.views),
        ("a tail block is held", request.tail),
        ("a fence is closed", request.fences),
        ("resources are held", draft.holders(request.key)),
    ):
        if held:
            return what
    return None


def _may_write(draft: Draft, request: RequestState, event: Event) -> str | None:
    allowed = (
        ("RUNNING",) if isinstance(event, TailOpened | PrefixPublished | PrefixAttached) else ("RUNNING", "PREEMPTED")
    )
    return None if request.life in allowed else f"life is {request.life}"


JOINT: Final = (
    JointRule("one view-changing operation at a time", "G1", (BlocksSelected, RetainPlanned), _lanes_free),
    JointRule("commit only on the view planned on", "F2", (ResidencyCommitted, OwnersCommitted), _on_planned_view),
    JointRule("turn back before the life changes", "G3", (RequestPreempted, RequestFinished), _lanes_turned_back),
    JointRule("close only when nothing is held", "B6", (RequestClosed,), _nothing_held),
    JointRule(
        "only a living request writes",
        "G4",
        (TailOpened, StoreStarted, SourcesRegistered, PrefixPublished, PrefixAttached),
        _may_write,
    ),
)
