"""A request's life and its tail: open, register, room for new blocks, sealing and storing, preempt, resume, finish."""

import numpy as np

from kvsweep.ledger import events as e
from kvsweep.ledger.errors import Busy, Refused
from kvsweep.ledger.ids import HOLE, Operation, RequestKey, Rows, int32_bytes, int32_view
from kvsweep.ledger.messages import (
    Abort,
    Finish,
    OpenRequest,
    OpenTail,
    Preempt,
    RegisterSources,
    Reserve,
    Reserved,
    Resume,
    SealTail,
    StoreBlocks,
)
from kvsweep.ledger.phases import ABORTABLE
from kvsweep.ledger.sources import blocks_of, leading
from kvsweep.ledger.state import RequestState, State
from kvsweep.runtime.core.batch import Batch
from kvsweep.runtime.core.follow import Context, abort, abort_what_can_turn_back, drop_tail
from kvsweep.runtime.core.upload import CannotPlan, expect_count, expect_ranks, next_operation


def key_of_new(state: State, request_id: str) -> RequestKey:
    """The next life of this id. The epoch is the coordinator's to give."""
    known = state.requests.get(request_id)
    return RequestKey(request_id, 1 + (known.key.request_epoch if known else state.pool.epoch_floor))


def open_request(batch: Batch, context: Context, command: OpenRequest) -> None:
    limit = context.settings.limits.open_requests
    living = len(batch.state.requests) - len(batch.state.pool.closed)
    if living >= limit:
        raise Busy("open requests", limit)
    known = batch.state.requests.get(command.request_id)
    if known is not None and known.life != "CLOSED":
        raise Refused(known.key, "OpenRequest", known.describe(), (), "the earlier life is not closed")
    batch.emit(
        e.RequestOpened,
        key_of_new(batch.state, command.request_id),
        pool_generation=batch.state.pool.pool_generation,
        rows=context.settings.retain.table_rows,
    )


def register(batch: Batch, command: RegisterSources, reserved: Reserved | None) -> Reserve | None:
    """CPU blocks that the producer has filled are valid sources; those not held for it yet are claimed first.

    What is wrong with the ids is refused by name; `no_space` is left for blocks that nobody holds and that are on their
    way back to the pool.
    """
    layout, request = batch.state.pool.layout, batch.request(command.request)
    _check_named(batch.state, request, command)
    held = int32_view(blocks_of(request.stale))
    new = np.setdiff1d(int32_view(command.source), held)
    if new.size and reserved is None:
        nothing = (0,) * layout.groups
        return Reserve(cause=command, device=nothing, cpu_full=0, cpu_copy=0, claim=int32_bytes(new))
    if reserved is not None and reserved.device is None:
        raise CannotPlan("store", "no_space", int(new.size), 0, reserved.free)
    batch.emit(e.SourcesRegistered, command.request, logical=command.logical, source=command.source)
    return None


def _check_named(state: State, request: RequestState, command: RegisterSources) -> None:
    """One CPU block of [0, K), held by nobody else, for each logical block."""
    logical, source = int32_view(command.logical), int32_view(command.source)
    full = state.pool.run.cpu_full_blocks if state.pool.run else 0

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
    stale = int32_view(blocks_of(request.stale))
    for key in state.ownership.held:
        taken = np.setdiff1d(np.intersect1d(source, state.ownership.sources(key)), stale)  # a shared one may be both
        if taken.size:
            refuse(f"source: CPU block {int(taken[0])} is held for {key.request_id}")


def open_tail(batch: Batch, command: OpenTail, reserved: Reserved | None) -> Reserve | None:
    """One new block a group for every logical block that has none yet, up to and without `until`."""
    request, layout = batch.request(command.request), batch.state.pool.layout
    expect_count(request.key, "OpenTail", request.describe(), "until", command.until)
    start = max([leading(request.source), *(block.logical + 1 for block in request.tail)])
    missing = range(start, command.until)
    if not missing:
        return None
    if reserved is None:
        return Reserve(cause=command, device=(len(missing),) * layout.groups, cpu_full=0, cpu_copy=0)
    if reserved.device is None:
        raise CannotPlan("store", "no_space", len(missing), 0, reserved.free)
    blocks = np.stack([int32_view(group) for group in reserved.device])
    for at, logical in enumerate(missing):
        batch.emit(e.TailOpened, request.key, logical=logical, physical_by_group=int32_bytes(blocks[:, at]))
    return None


def seal_tail(
    batch: Batch, context: Context, command: SealTail, reserved: Reserved | None
) -> Operation | Reserve | None:
    """Seal what is confirmed, store what is sealed, and let windows slide."""
    key, layout = command.request, batch.state.pool.layout
    request = batch.request(key)
    expect_count(key, "SealTail", request.describe(), "confirmed_tokens", command.confirmed_tokens)
    whole = command.confirmed_tokens // layout.block_size
    sealable = [block.logical for block in request.tail if block.phase == "open" and block.logical < whole]
    dirty = [block.logical for block in request.tail if block.phase == "dirty"] + sealable
    store = bool(dirty) and request.store.phase == "IDLE"
    if dirty:
        expect_ranks(batch.state, "store")  # nor is a block sealed that a lost rank cannot have written
    if store and reserved is None:
        return Reserve(cause=command, device=(0,) * layout.groups, cpu_full=len(dirty), cpu_copy=0)
    for logical in sealable:
        batch.emit(e.TailSealed, key, logical=logical)
    _slide_windows(batch, key, command.confirmed_tokens)
    if not store or reserved is None:
        return None
    if reserved.device is None:
        batch.emit(e.PlanRefused, key, lane="store", reason="no_space", needed=len(dirty), vacant=0, free=reserved.free)
        return None
    return _store(batch, context, batch.request(key), sorted(dirty), reserved.cpu_full)


def _store(batch: Batch, context: Context, request: RequestState, logical: list[int], sources: bytes) -> Operation:
    layout, ranks = batch.state.pool.layout, batch.state.pool.ranks
    operation = next_operation(batch.state, request)
    cpu = dict(zip(logical, int32_view(sources).tolist(), strict=True))
    blocks = [block for block in request.tail if block.logical in cpu]
    areas, targets = {}, {}
    for layer in layout.layers:
        present = [block for block in blocks if block.physical[layer.group] != HOLE]
        areas[layer.layer] = np.asarray([block.physical[layer.group] for block in present], dtype=np.int32)
        targets[layer.layer] = np.asarray([cpu[block.logical] for block in present], dtype=np.int32)
    batch.emit(
        e.StoreStarted, request.key, operation=operation, logical=int32_bytes(logical), source=sources, ranks=ranks
    )
    batch.effect(
        StoreBlocks(
            operation=operation,
            ranks=ranks,
            source=Rows.of(areas),
            destination=Rows.of(targets),
            floor=context.spoken.floor(operation.operation_id),
        )
    )
    return operation


def _slide_windows(batch: Batch, key: RequestKey, confirmed_tokens: int) -> None:
    """Stored blocks that no later query can see leave a sliding-window group's tail: a retirement like any other."""
    request, layout = batch.request(key), batch.state.pool.layout
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
        drop_tail(batch, key, group, out)


def preempt(batch: Batch, context: Context, command: Preempt, reserved: Reserved | None) -> Reserve | None:
    """The view goes, the CPU keeps what was stored; what was written and not yet sealed is declared lost.

    Sealed blocks that no store carries yet are stored now. What cannot be stored is declared lost as well, when the
    store lane is idle (`advance`): nothing else would ever let go of it.
    """
    key, layout = command.request, batch.state.pool.layout
    request = batch.request(key)
    dirty = [block.logical for block in request.tail if block.phase == "dirty"]
    store = request.life == "RUNNING" and bool(dirty) and request.store.phase == "IDLE"
    store = store and not batch.state.pool.lost
    if store and reserved is None:
        return Reserve(cause=command, device=(0,) * layout.groups, cpu_full=len(dirty), cpu_copy=0)
    abort_what_can_turn_back(batch, key, ("upload", "retain"), "preempted")
    batch.emit(e.RequestPreempted, key)
    for block in batch.request(key).tail:
        if block.phase == "open":
            batch.emit(e.BlockLost, key, logical=block.logical, reason="preempted before it was sealed")
    if store and reserved is not None and reserved.device is not None:
        _store(batch, context, batch.request(key), dirty, reserved.cpu_full)
    return None


def resume(batch: Batch, command: Resume) -> None:
    batch.emit(e.RequestResumed, command.request)


def finish(batch: Batch, command: Finish) -> None:
    abort_what_can_turn_back(batch, command.request, ("upload", "retain", "store"), "finished")
    batch.emit(e.RequestFinished, command.request)


def abort_operation(batch: Batch, command: Abort) -> Operation:
    """Legal until the commit; a commit already recorded stands."""
    request = batch.request(command.operation.request)
    for name in ("upload", "retain", "store"):
        lane = {"upload": request.upload, "retain": request.retain, "store": request.store}[name]
        if lane.open is not None and lane.open.operation == command.operation:
            if lane.phase not in ABORTABLE[name]:
                raise Refused(request.key, "Abort", request.describe(), (), f"{name} has committed")
            abort(batch, request.key, name, command.reason)
            return command.operation
    raise Refused(request.key, "Abort", request.describe(), (), f"{command.operation} is not open")
