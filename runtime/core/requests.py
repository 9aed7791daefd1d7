"""A request's life and its tail: open, register, room for new blocks, sealing and storing, preempt, resume, finish."""

import numpy as np

from kvsweep.ledger import events as e
from kvsweep.ledger.draft import Draft
from kvsweep.ledger.errors import Busy, Refused
from kvsweep.ledger.events import LaneName
from kvsweep.ledger.fold import emit, emit_in
from kvsweep.ledger.ids import HOLE, Operation, RequestKey, Rows, int32_bytes, int32_view
from kvsweep.ledger.messages import (
    Abort,
    Finish,
    OpenRequest,
    OpenTail,
    Preempt,
    RegisterSources,
    Reserve,
    Resume,
    SealTail,
    StoreBlocks,
)
from kvsweep.ledger.phases import ABORTABLE
from kvsweep.ledger.sources import blocks_of, leading
from kvsweep.ledger.state import RequestState
from kvsweep.runtime.core.expect import Asking, CannotPlan, Context, expect_count, expect_ranks, floor
from kvsweep.runtime.core.follow import abort, abort_what_can_turn_back, drop_tail


def open_request(draft: Draft, context: Context, command: OpenRequest) -> None:
    limit = context.settings.limits.open_requests
    if draft.living >= limit:
        raise Busy("open requests", limit)
    known = draft.latest(command.request_id)
    if known is not None and known.life != "CLOSED":
        raise Refused(known.key, "OpenRequest", known.describe(), (), "the earlier life is not closed")
    emit_in(
        draft,
        e.RequestOpened,
        # The epoch is the coordinator's to give.
        RequestKey(command.request_id, 1 + (known.key.request_epoch if known else draft.pool.epoch_floor)),
        pool_generation=draft.pool.pool_generation,
        rows=context.settings.retain.table_rows,
    )


def register(draft: Draft, context: Context, command: RegisterSources) -> Asking:
    """CPU blocks that the producer has filled are valid sources; those not held for it yet are claimed first.

    What is wrong with the ids is refused by name; `no_space` is left for blocks that nobody holds and that are on their
    way back to the pool.
    """
    request = draft.mine(command.request)
    _check_named(draft, request, command)
    new = np.setdiff1d(int32_view(command.source), int32_view(blocks_of(request.stale)))
    if new.size:
        nothing = (0,) * draft.layout.groups
        got = yield Reserve(cause=command, device=nothing, cpu_full=0, cpu_copy=0, claim=int32_bytes(new))
        if got.device is None:
            raise CannotPlan("store", "no_space", int(new.size), 0, got.free)
    emit(draft, e.SourcesRegistered, request, logical=command.logical, source=command.source)
    return None


def _check_named(draft: Draft, request: RequestState, command: RegisterSources) -> None:
    """One CPU block of [0, K), held by nobody else, for each logical block."""
    logical, source = int32_view(command.logical), int32_view(command.source)
    full = draft.pool.run.cpu_full_blocks if draft.pool.run else 0

    def refuse(reason: str) -> None:
        raise Refused(request.key, "RegisterSources", request.describe(), (), reason)

    for name, ids in (("logical", logical), ("source", source)):
        outside = ids[(ids < 0) | (ids >= full)]
        if outside.size:
            refuse(f"{name}: expected block ids in [0, {full}), the CPU pool's size, got {int(outside[0])}")
        if np.unique(ids).size != ids.size:
            refuse(f"{name}: expected each block once, got {ids.tolist()}")
    if logical.size != source.size:
        refuse(f"source: expected {logical.size} blocks, one for each logical block, got {source.size}")
    others = np.setdiff1d(source, int32_view(blocks_of(request.stale)))  # a shared one may be both
    held = draft.held_source(others.astype("<i4").tobytes())
    if held != HOLE:
        refuse(f"source: CPU block {held} is held for {draft.holds_source(held)}")


def open_tail(draft: Draft, context: Context, command: OpenTail) -> Asking:
    """One new block a group for every logical block that has none yet, up to and without `until`."""
    request, layout = draft.mine(command.request), draft.layout
    expect_count(request.key, "OpenTail", request.describe(), "until", command.until)
    start = max([leading(request.source), *(block.logical + 1 for block in request.tail)])
    missing = range(start, command.until)
    if not missing:
        return None
    got = yield Reserve(cause=command, device=(len(missing),) * layout.groups, cpu_full=0, cpu_copy=0)
    if got.device is None:
        raise CannotPlan("store", "no_space", len(missing), 0, got.free)
    blocks = np.stack([int32_view(group) for group in got.device])
    for at, logical in enumerate(missing):
        emit(draft, e.TailOpened, request, logical=logical, physical_by_group=int32_bytes(blocks[:, at]))
    return None


def seal_tail(draft: Draft, context: Context, command: SealTail) -> Asking:
    """Seal what is confirmed, store what is sealed, and let windows slide."""
    request, layout = draft.mine(command.request), draft.layout
    expect_count(request.key, "SealTail", request.describe(), "confirmed_tokens", command.confirmed_tokens)
    whole = command.confirmed_tokens // layout.block_size
    sealable = [block.logical for block in request.tail if block.phase == "open" and block.logical < whole]
    dirty = [block.logical for block in request.tail if block.phase == "dirty"] + sealable
    store, got = bool(dirty) and request.store.phase == "IDLE", None
    if dirty:
        expect_ranks(draft, "store")  # nor is a block sealed that a lost rank cannot have written
    if store:
        got = yield Reserve(cause=command, device=(0,) * layout.groups, cpu_full=len(dirty), cpu_copy=0)
    for logical in sealable:
        emit(draft, e.TailSealed, request, logical=logical)
    _slide_windows(draft, request, command.confirmed_tokens)
    if got is None:
        return None
    if got.device is None:
        needed, free = len(dirty), got.free
        emit(draft, e.PlanRefused, request, lane="store", reason="no_space", needed=needed, vacant=0, free=free)
        return None
    return _store(draft, request, sorted(dirty), got.cpu_full)


def _store(draft: Draft, request: RequestState, logical: list[int], sources: bytes) -> Operation:
    layout, ranks = draft.layout, draft.pool.ranks
    operation = draft.next_operation(request)
    cpu = dict(zip(logical, int32_view(sources).tolist(), strict=True))
    blocks = [block for block in request.tail if block.logical in cpu]
    areas, targets = {}, {}
    for layer in layout.layers:
        present = [block for block in blocks if block.physical[layer.group] != HOLE]
        areas[layer.layer] = np.asarray([block.physical[layer.group] for block in present], dtype=np.int32)
        targets[layer.layer] = np.asarray([cpu[block.logical] for block in present], dtype=np.int32)
    wire = int32_bytes(logical)
    emit(draft, e.StoreStarted, request, operation=operation, logical=wire, source=sources, ranks=ranks)
    draft.effects.append(
        StoreBlocks(
            operation=operation,
            ranks=ranks,
            source=Rows.of(areas),
            destination=Rows.of(targets),
            floor=floor(draft, operation),
        )
    )
    return operation


def _slide_windows(draft: Draft, request: RequestState, confirmed_tokens: int) -> None:
    """Stored blocks that no later query can see leave a sliding-window group's tail: a retirement like any other."""
    layout = draft.layout
    for group in range(layout.groups):
        if layout.group_kind(group) != "sliding":
            continue
        oldest_seen = confirmed_tokens - layout.window_tokens(group) + 1
        out = [
            block.logical
            for block in request.tail
            if block.phase == "clean"
            and block.physical[group] != HOLE
            and (block.logical + 1) * layout.block_size <= oldest_seen
        ]
        drop_tail(draft, request, group, out)


def preempt(draft: Draft, context: Context, command: Preempt) -> Asking:
    """The view goes, the CPU keeps what was stored; what was written and not yet sealed is declared lost.

    Sealed blocks that no store carries yet are stored now. What cannot be stored is declared lost as well, when the
    store lane is idle (`follow`): nothing else would ever let go of it.
    """
    request, got = draft.mine(command.request), None
    dirty = [block.logical for block in request.tail if block.phase == "dirty"]
    if request.life == "RUNNING" and dirty and request.store.phase == "IDLE" and not draft.pool.lost:
        got = yield Reserve(cause=command, device=(0,) * draft.layout.groups, cpu_full=len(dirty), cpu_copy=0)
    abort_what_can_turn_back(draft, request, ("upload", "retain"), "preempted")
    emit(draft, e.RequestPreempted, request)
    for block in request.tail:
        if block.phase == "open":
            emit(draft, e.BlockLost, request, logical=block.logical, reason="preempted before it was sealed")
    if got is not None and got.device is not None:
        _store(draft, request, dirty, got.cpu_full)
    return None


def resume(draft: Draft, context: Context, command: Resume) -> None:
    emit(draft, e.RequestResumed, draft.mine(command.request))


def finish(draft: Draft, context: Context, command: Finish) -> None:
    request = draft.mine(command.request)
    abort_what_can_turn_back(draft, request, ("upload", "retain", "store"), "finished")
    emit(draft, e.RequestFinished, request)


def abort_operation(draft: Draft, context: Context, command: Abort) -> Operation:
    """Legal until the commit; a commit already recorded stands."""
    request = draft.mine(command.operation.request)
    names: tuple[LaneName, ...] = ("upload", "retain", "store")
    for name in names:
        lane = request.lane(name)
        if lane.open is not None and lane.open.operation == command.operation:
            if lane.phase not in ABORTABLE[name]:
                raise Refused(request.key, "Abort", request.describe(), (), f"{name} has committed")
            abort(draft, request, name, command.reason)
            return command.operation
    raise Refused(request.key, "Abort", request.describe(), (), f"{command.operation} is not open")
