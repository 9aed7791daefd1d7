"""What follows from the state by itself: completions, commits, retirements, closing. Each step is one more event."""

from msgspec import Struct

from kvsweep.kernels.table import Kernels
from kvsweep.ledger import events as e
from kvsweep.ledger.ids import HOLE, Operation, RequestKey, int32_bytes
from kvsweep.ledger.messages import Acknowledge, Cancel, Release
from kvsweep.ledger.ownership import Holder
from kvsweep.ledger.phases import ABORTABLE
from kvsweep.ledger.state import OpenOperation, RequestState
from kvsweep.ledger.taken import freed
from kvsweep.runtime.core.batch import Batch
from kvsweep.runtime.core.floor import Floor
from kvsweep.runtime.core.steps import OpenSteps
from kvsweep.runtime.settings import Settings


class Context(Struct, frozen=True):
    """What decisions may look at beside the state."""

    settings: Settings
    steps: OpenSteps
    kernels: Kernels
    spoken: Floor


def settle(batch: Batch, context: Context, key: RequestKey) -> None:
    """Take every step that nothing waits for, until none is left."""
    while _step(batch, context, batch.request(key)):
        pass


def _step(batch: Batch, context: Context, request: RequestState) -> bool:
    return (
        _complete(batch, request)
        or _commit(batch, request)
        or _retire(batch, context, request)
        or _end(batch, context, request)
    )


def _all_done(opened: OpenOperation) -> bool:
    return len(opened.outcomes) >= len(opened.ranks) and dict(opened.ranks).keys() == dict(opened.outcomes).keys()


def _complete(batch: Batch, request: RequestState) -> bool:
    """All distinct ranks have completed."""
    for lane, phase, kind in (
        (request.upload, "MOVING", e.TransferCompleted),
        (request.retain, "APPLYING", e.AllRanksApplied),
        (request.store, "MOVING", e.StoreCompleted),
    ):
        if lane.phase == phase and lane.open is not None and _all_done(lane.open):
            batch.emit(kind, request.key, operation=lane.open.operation)
            return True
    return False


def _commit(batch: Batch, request: RequestState) -> bool:
    """Switch to the new view where it still builds on the current one."""
    key = request.key
    for lane, phase, kind in (
        (request.upload, "MOVED", e.ResidencyCommitted),
        (request.retain, "APPLIED", e.OwnersCommitted),
    ):
        if lane.phase != phase or lane.open is None:
            continue
        operation, generation = lane.open.operation, lane.open.generation
        batch.emit(kind, key, operation=operation, generation=generation)
        if kind is e.ResidencyCommitted:
            batch.effect(Acknowledge(operation=operation, generation=generation))
        drop_considered_tail(batch, key)
        return True
    return False


def drop_considered_tail(batch: Batch, key: RequestKey) -> None:
    """Clean tail blocks that the last selection has seen leave the active groups: adopted, or kept by the CPU alone."""
    request, layout = batch.request(key), batch.state.pool.layout
    if not request.tail:
        return
    for group in range(layout.groups):
        if layout.group_kind(group) == "full":
            seen = [
                block.logical
                for block in request.tail
                if block.phase == "clean" and block.logical < request.whole_blocks and block.physical[group] != HOLE
            ]
            drop_tail(batch, key, group, seen)


def drop_tail(batch: Batch, key: RequestKey, group: int, logical: list[int]) -> None:
    """These blocks leave the group's tail into a fence, which opens when the steps that were handed them have ended."""
    if logical:
        fence = batch.request(key).next_fence
        batch.emit(e.TailDropped, key, group=group, logical=int32_bytes(logical), fence=fence)


def _retire(batch: Batch, context: Context, request: RequestState) -> bool:
    """Release what no open step was handed: replaced generations, and fences of tail blocks."""
    key, replaced = request.key, request.retain.open
    if request.retain.phase == "COMMITTED" and replaced is not None and replaced.replaced == 0:
        nothing = (b"",) * batch.state.pool.layout.groups
        batch.emit(e.BlocksRetired, key, generation=0, cause="retain", freed=nothing)
        _acknowledge_retain(batch, replaced.operation, replaced.generation)
        return True
    for view in request.views:
        if view.generation == request.current or context.steps.reads(key, view.generation):
            continue
        freed = _freed(batch, key, Holder("view", view.generation))
        batch.emit(e.BlocksRetired, key, generation=view.generation, cause=view.replaced_by, freed=freed)
        if view.replaced_by == "retain" and replaced is not None:
            _acknowledge_retain(batch, replaced.operation, replaced.generation)
        return True
    for fence in request.fences:
        if context.steps.fence_is_quiet(key, fence) and not _is_new_fence(batch, key, fence, context):
            batch.emit(e.FenceOpened, key, fence=fence, freed=_freed(batch, key, Holder("fence", fence)))
            return True
    return False


def _is_new_fence(batch: Batch, key: RequestKey, fence: int, context: Context) -> bool:
    """A fence of this very batch is bound to the open steps only when the batch is adopted."""
    known = batch.before.request(key)
    return (known is None or fence not in known.fences) and context.steps.writes(key)


def _acknowledge_retain(batch: Batch, operation: Operation, generation: int) -> None:
    batch.effect(Acknowledge(operation=operation, generation=generation))


def _freed(batch: Batch, key: RequestKey, holder: Holder) -> tuple[bytes, ...]:
    before, layout = batch.state.ownership, batch.state.pool.layout
    return before.change(key, layout, drop=(holder,)).freed_blocks(before, key, layout)


def _end(batch: Batch, context: Context, request: RequestState) -> bool:
    """A preempted request drops what is stored; a finishing one drops all and closes when nothing is held."""
    if request.life == "RUNNING":
        return False
    key, layout = request.key, batch.state.pool.layout
    phases = {"PREEMPTED": ("clean", "lost"), "FINISHING": ("open", "dirty", "clean", "lost")}.get(request.life)
    if phases is None:
        return False
    if request.life == "PREEMPTED" and request.store.phase == "IDLE":
        for block in request.tail:
            if block.phase == "dirty":
                batch.emit(e.BlockLost, key, logical=block.logical, reason="preempted and not stored")
                return True
    for group in range(layout.groups):
        logical = [b.logical for b in request.tail if b.phase in phases and b.physical[group] != HOLE]
        if logical:
            drop_tail(batch, key, group, logical)
            return True
    if request.life == "FINISHING" and not (
        request.open_operations()
        or request.settling
        or batch.state.ownership.holders(key)
        or context.steps.writes(key)  # a step that was handed nothing is open on the request all the same
    ):
        batch.emit(e.RequestClosed, key)
    return False


def abort(batch: Batch, key: RequestKey, lane: str, reason: str) -> None:
    """Turn a lane's open operation back: the old state stands, the operation settles, ranks are told to stop."""
    request = batch.request(key)
    kind = {"upload": e.UploadAborted, "retain": e.RetainAborted, "store": e.StoreAborted}[lane]
    opened = {"upload": request.upload, "retain": request.retain, "store": request.store}[lane].open
    if opened is None:
        raise LookupError(f"{lane} has no open operation")
    batch.emit(kind, key, operation=opened.operation, reason=reason)
    if any(left.operation == opened.operation for left in batch.request(key).settling):
        batch.effect(Cancel(operation=opened.operation, ranks=opened.ranks))


def abort_what_can_turn_back(batch: Batch, key: RequestKey, lanes: tuple[str, ...], reason: str) -> None:
    for lane in lanes:
        request = batch.request(key)
        phase = {"upload": request.upload, "retain": request.retain, "store": request.store}[lane].phase
        if phase in ABORTABLE[lane]:
            abort(batch, key, lane, reason)


def release(batch: Batch) -> None:
    """Held before − held after, over everything: what the owners take back (B6)."""
    if batch.before.ownership is batch.state.ownership:
        return
    layout = batch.state.pool.layout
    before, after = batch.before.ownership.taken(layout), batch.state.ownership.taken(layout)
    if before is after:
        return
    device = tuple(int32_bytes(freed(was, now)) for was, now in zip(before.device, after.device, strict=True))
    cpu = int32_bytes(freed(before.cpu, after.cpu))
    if any(device) or cpu:
        batch.effect(Release(device=device, cpu=cpu))
