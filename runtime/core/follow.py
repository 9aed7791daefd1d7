"""What follows from the state by itself: completions, commits, retirements, closing. Each step is one more event."""

from typing import Final

import numpy as np

from kvsweep.ledger import events as e
from kvsweep.ledger.draft import Draft
from kvsweep.ledger.events import LaneName
from kvsweep.ledger.fold import emit
from kvsweep.ledger.ids import HOLE, Operation, int32_bytes, int32_view
from kvsweep.ledger.messages import Acknowledge, Cancel, Release
from kvsweep.ledger.ownership import Holder
from kvsweep.ledger.phases import ABORTABLE
from kvsweep.ledger.state import OpenOperation, RequestState
from kvsweep.runtime.core.expect import Context


def follow(draft: Draft, context: Context, request: RequestState) -> None:
    """Take every step that nothing waits for, until none is left. `request` is the draft's own record."""
    while _step(draft, context, request):
        pass


def _step(draft: Draft, context: Context, request: RequestState) -> bool:
    for lane, moving, completed, moved, committed in (
        (request.upload, "MOVING", e.TransferCompleted, "MOVED", e.ResidencyCommitted),
        (request.retain, "APPLYING", e.AllRanksApplied, "APPLIED", e.OwnersCommitted),
        (request.store, "MOVING", e.StoreCompleted, "", None),
    ):
        if lane.open is None:
            continue
        if lane.phase == moving and _all_done(lane.open):
            emit(draft, completed, request, operation=lane.open.operation)
            return True
        if lane.phase == moved and committed is not None:
            _commit(draft, request, lane.open, committed)
            return True
    old = len(request.views) > 1 or not request.current
    if (old or request.fences or request.retain.phase == "COMMITTED") and _retire(draft, context, request):
        return True
    return request.life != "RUNNING" and _end(draft, context, request)


def _all_done(opened: OpenOperation) -> bool:
    """Every distinct rank of the set has completed."""
    return len(opened.outcomes) >= len(opened.ranks) and dict(opened.ranks).keys() == dict(opened.outcomes).keys()


def _commit(draft: Draft, request: RequestState, opened: OpenOperation, kind: type[e.Event]) -> None:
    """Switch to the new view where it still builds on the current one."""
    emit(draft, kind, request, operation=opened.operation, generation=opened.generation)
    if kind is e.ResidencyCommitted:
        draft.effects.append(Acknowledge(operation=opened.operation, generation=opened.generation))
    drop_considered_tail(draft, request)


def drop_considered_tail(draft: Draft, request: RequestState) -> None:
    """Clean tail blocks that the last selection has seen leave the active groups: adopted, or kept by the CPU alone."""
    layout = draft.pool.layout
    if not request.tail:
        return
    for group in range(layout.groups):
        if layout.group_kind(group) == "full":
            seen = [
                block.logical
                for block in request.tail
                if block.phase == "clean" and block.logical < request.whole_blocks and block.physical[group] != HOLE
            ]
            drop_tail(draft, request, group, seen)


def drop_tail(draft: Draft, request: RequestState, group: int, logical: list[int]) -> None:
    """These blocks leave the group's tail into a fence, which opens when the steps that were handed them have ended."""
    if logical:
        fence = request.next_fence
        emit(draft, e.TailDropped, request, group=group, logical=int32_bytes(logical), fence=fence)


def _retire(draft: Draft, context: Context, request: RequestState) -> bool:
    """Release what no open step was handed: replaced generations, and fences of tail blocks."""
    key, replaced = request.key, request.retain.open
    if request.retain.phase == "COMMITTED" and replaced is not None and replaced.replaced == 0:
        nothing = (b"",) * draft.pool.layout.groups
        emit(draft, e.BlocksRetired, request, generation=0, cause="retain", freed=nothing)
        _acknowledge_retain(draft, replaced.operation, replaced.generation)
        return True
    for view in request.views:
        if view.generation == request.current or context.steps.reads(key, view.generation):
            continue
        freed = draft.freed_by(key, Holder("view", view.generation)).freed
        emit(draft, e.BlocksRetired, request, generation=view.generation, cause=view.replaced_by, freed=freed)
        if view.replaced_by == "retain" and replaced is not None:
            _acknowledge_retain(draft, replaced.operation, replaced.generation)
        return True
    for fence in request.fences:
        if context.steps.fence_is_quiet(key, fence, draft.fences):
            emit(draft, e.FenceOpened, request, fence=fence, freed=draft.freed_by(key, Holder("fence", fence)).freed)
            return True
    return False


def _acknowledge_retain(draft: Draft, operation: Operation, generation: int) -> None:
    draft.effects.append(Acknowledge(operation=operation, generation=generation))


def _end(draft: Draft, context: Context, request: RequestState) -> bool:
    """A preempted request drops what is stored; a finishing one drops all and closes when nothing is held."""
    key, layout = request.key, draft.pool.layout
    phases = {"PREEMPTED": ("clean", "lost"), "FINISHING": ("open", "dirty", "clean", "lost")}.get(request.life)
    if phases is None:
        return False
    if request.life == "PREEMPTED" and request.store.phase == "IDLE":
        for block in request.tail:
            if block.phase == "dirty":
                emit(draft, e.BlockLost, request, logical=block.logical, reason="preempted and not stored")
                return True
    for group in range(layout.groups):
        logical = [b.logical for b in request.tail if b.phase in phases and b.physical[group] != HOLE]
        if logical:
            drop_tail(draft, request, group, logical)
            return True
    if request.life == "FINISHING" and not (
        request.open_operations()
        or request.settling
        or draft.holders(key)
        or context.steps.writes(key)  # a step that was handed nothing is open on the request all the same
    ):
        emit(draft, e.RequestClosed, request)
    return False


def abort(draft: Draft, request: RequestState, lane: LaneName, reason: str) -> None:
    """Turn a lane's open operation back: the old state stands, the operation settles, ranks are told to stop."""
    opened = request.lane(lane).open
    if opened is None:
        raise LookupError(f"{lane} has no open operation")
    emit(draft, _ABORTED[lane], request, operation=opened.operation, reason=reason)
    if any(left.operation == opened.operation for left in request.settling):
        draft.effects.append(Cancel(operation=opened.operation, ranks=opened.ranks))


_ABORTED: Final[dict[LaneName, type[e.Event]]] = {
    "upload": e.UploadAborted,
    "retain": e.RetainAborted,
    "store": e.StoreAborted,
}


def abort_what_can_turn_back(draft: Draft, request: RequestState, lanes: tuple[LaneName, ...], reason: str) -> None:
    for lane in lanes:
        if request.lane(lane).phase in ABORTABLE[lane]:
            abort(draft, request, lane, reason)


def release(draft: Draft) -> None:
    """What lost its last holder goes back to the allocation owners (B6)."""
    if not draft.freed_device and not draft.freed_cpu:
        return
    device: list[list[bytes]] = [[] for _ in range(draft.layout.groups)]
    for group, blocks in draft.freed_device:
        device[group].append(blocks)
    draft.effects.append(Release(device=tuple(map(_ascending, device)), cpu=_ascending(draft.freed_cpu)))


def _ascending(parts: list[bytes]) -> bytes:
    """'<i4' ids of all parts, which are apart and each ascending."""
    return parts[0] if len(parts) == 1 else np.sort(int32_view(b"".join(parts))).tobytes()
