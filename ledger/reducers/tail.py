"""Reducers of device-written tail blocks, their store to the CPU, and fences."""

import numpy as np
from msgspec.structs import replace

from kvsweep.ledger.events import (
    BlockLost,
    Event,
    FenceOpened,
    RankStored,
    SourcesRegistered,
    StoreCompleted,
    StoreStarted,
    TailDropped,
    TailOpened,
    TailSealed,
)
from kvsweep.ledger.ids import HOLE, Physical, Rows, int32_view
from kvsweep.ledger.layout import Layout
from kvsweep.ledger.ownership import Holder, Holding
from kvsweep.ledger.reducers.shared import (
    adopt,
    all_reported,
    begin,
    closed_record,
    expected_ranks,
    open_in,
    refuse,
    report,
    who_holds,
)
from kvsweep.ledger.sources import blocks_of, with_blocks, without
from kvsweep.ledger.state import Lane, OpenOperation, RequestState, State, TailBlock


def block_areas(layout: Layout, group: int, blocks: list[int]) -> Rows[Physical]:
    """Every area of whole blocks of one group."""
    return Rows.of(dict.fromkeys(layout.group_layers(group), blocks))


def opened(state: State, request: RequestState, event: TailOpened) -> State:
    layout, run = state.pool.layout, state.pool.run
    physical = int32_view(event.physical_by_group).tolist()
    if len(physical) != layout.groups:
        refuse(request, event, f"expected a block of each of {layout.groups} groups, got {len(physical)}")
    newest = max((block.logical for block in request.tail), default=-1)
    if event.logical <= newest or (
        event.logical < len(request.source) // 4 and request.source_of(event.logical) != HOLE
    ):
        refuse(
            request,
            event,
            f"logical block {event.logical} is not after the tail's newest {newest} or is stored already",
        )
    put, taken = {}, state.ownership.taken(layout)
    for group, block in enumerate(physical):
        if run is None or not 0 <= block < run.device_blocks[group]:
            refuse(request, event, f"block {block} is not in the pool of group {group}")
        if taken.device_blocks(group, np.asarray([block])).any():
            refuse(request, event, who_holds(state, group, block))
        put[Holder("tail", event.logical, group)] = Holding(areas=block_areas(layout, group, [block]))
    reserve = tuple(np.asarray([block], dtype="<i4").tobytes() for block in physical)
    ownership = state.ownership.change(request.key, layout, put=put, reserve=reserve)
    block = TailBlock(logical=event.logical, physical=tuple(physical))
    return adopt(state, replace(request, tail=(*request.tail, block)), ownership=ownership)


def _find(request: RequestState, event: Event, logical: int) -> TailBlock:
    found = [block for block in request.tail if block.logical == logical]
    if not found:
        refuse(
            request, event, f"logical block {logical} is not in the tail {[block.logical for block in request.tail]}"
        )
    return found[0]


def _with(request: RequestState, *changed: TailBlock) -> RequestState:
    """The tail with these entries replaced; an entry that every group has dropped leaves."""
    new = {block.logical: block for block in changed}
    tail = tuple(new.get(block.logical, block) for block in request.tail)
    return replace(request, tail=tuple(block for block in tail if any(area != HOLE for area in block.physical)))


def sealed(state: State, request: RequestState, event: TailSealed) -> State:
    block = _find(request, event, event.logical)
    if block.phase != "open":
        refuse(request, event, f"logical block {event.logical} is {block.phase}, expected open")
    return adopt(state, _with(request, replace(block, phase="dirty")))


def store_started(state: State, request: RequestState, event: StoreStarted) -> State:
    """Starts only on dirty blocks: every step that wrote them has ended."""
    pool = begin(state, request, event, event.operation)
    layout, run = state.pool.layout, state.pool.run
    expected_ranks(state, request, event, event.ranks)
    logical, source = int32_view(event.logical).tolist(), int32_view(event.source).tolist()
    full = run.cpu_full_blocks if run else 0
    if not logical or len({*logical}) != len(logical) or len(logical) != len(source) or len({*source}) != len(source):
        refuse(request, event, f"expected one distinct CPU block for each distinct block, got {source} for {logical}")
    taken = state.ownership.taken(layout)
    for block in source:
        if not 0 <= block < full or taken.cpu_blocks(np.asarray([block])).any():
            refuse(request, event, f"CPU block {block} is held or not in [0, {full})")
    blocks = [_find(request, event, item) for item in logical]
    for block in blocks:
        if block.phase != "dirty":
            refuse(request, event, f"logical block {block.logical} is {block.phase}, expected dirty")
    areas = {
        layer.layer: np.asarray([b.physical[layer.group] for b in blocks if b.physical[layer.group] != HOLE], np.int32)
        for layer in layout.layers
    }
    number = event.operation.operation_id
    ownership = state.ownership.change(
        request.key,
        layout,
        put={
            Holder("src", number): Holding(areas=Rows.of(areas)),
            Holder("dst", number): Holding(sources=event.source),
        },
    )
    opened = OpenOperation(
        operation=event.operation, lane="store", ranks=event.ranks, stored=event.logical, stored_to=event.source
    )
    return adopt(state, replace(request, store=replace(request.store, open=opened)), ownership=ownership, pool=pool)


def stored(state: State, request: RequestState, event: RankStored) -> State:
    opened = open_in(request, request.store, event, event.operation)
    opened = report(request, event, opened, event.rank, event.process_epoch)
    return adopt(state, replace(request, store=replace(request.store, open=opened)))


def store_completed(state: State, request: RequestState, event: StoreCompleted) -> State:
    """Valid on every rank: from here on the blocks are sources, and may be adopted or dropped."""
    opened = open_in(request, request.store, event, event.operation)
    all_reported(request, event, opened)
    logical, source = int32_view(opened.stored), int32_view(opened.stored_to)
    clean = tuple(replace(block, phase="clean") for block in request.tail if block.logical in logical)
    number = event.operation.operation_id
    known, stale = with_blocks(request.source, logical, source), without(request.stale, logical)
    ownership = state.ownership.change(
        request.key,
        state.pool.layout,
        put={Holder("owner"): Holding(sources=blocks_of(known, stale))},
        drop=(Holder("dst", number), Holder("src", number)),
    )
    lane = Lane(phase=request.store.phase, closed=closed_record(opened))
    request = _with(replace(request, source=known, stale=stale, store=lane), *clean)
    return adopt(state, request, ownership=ownership)


def registered(state: State, request: RequestState, event: SourcesRegistered) -> State:
    logical, source = int32_view(event.logical), int32_view(event.source)
    run = state.pool.run
    full = run.cpu_full_blocks if run else 0
    if logical.size != source.size or np.unique(source).size != source.size or np.unique(logical).size != logical.size:
        refuse(request, event, "expected one distinct CPU block for each distinct logical block")
    if logical.size and (int(logical.min()) < 0 or int(source.min()) < 0 or int(source.max()) >= full):
        refuse(request, event, f"expected logical blocks from 0 and CPU blocks in [0, {full})")
    again = int32_view(blocks_of(request.stale))
    held = source[state.ownership.taken(state.pool.layout).cpu_blocks(source)]
    clash = np.setdiff1d(held, again)
    if clash.size:
        block = int(clash[0])
        refuse(request, event, f"CPU block {block} is held for {state.ownership.holds_source(block)}")
    stale, was_stale = int32_view(request.stale), {*again.tolist()}
    for at, block in zip(logical.tolist(), source.tolist(), strict=True):
        if request.source_of(at) != HOLE:
            refuse(request, event, f"logical block {at} has a valid CPU block already")
        if block in was_stale and not (at < stale.size and stale[at] == block):
            refuse(request, event, f"CPU block {block} was not that of logical block {at}")
    known, left = with_blocks(request.source, logical, source), without(request.stale, logical)
    ownership = state.ownership.change(
        request.key, state.pool.layout, put={Holder("owner"): Holding(sources=blocks_of(known, left))}
    )
    return adopt(state, replace(request, source=known, stale=left), ownership=ownership)


def lost(state: State, request: RequestState, event: BlockLost) -> State:
    """Declared, never silent: from here on the block may be dropped without a store."""
    block = _find(request, event, event.logical)
    if block.phase not in ("open", "dirty"):
        refuse(request, event, f"logical block {event.logical} is {block.phase}, expected open or dirty")
    return adopt(state, _with(request, replace(block, phase="lost")))


def dropped(state: State, request: RequestState, event: TailDropped) -> State:
    layout = state.pool.layout
    if event.fence != request.next_fence:
        refuse(request, event, f"expected fence {request.next_fence}, got {event.fence}")
    if not 0 <= event.group < layout.groups:
        refuse(request, event, f"expected a group in [0, {layout.groups}), got {event.group}")
    leaving = int32_view(event.logical).tolist()
    if not leaving or len({*leaving}) != len(leaving):
        refuse(request, event, f"expected at least one logical block, each once, got {leaving}")
    changed, blocks, holders = [], [], []
    for logical in leaving:
        block = _find(request, event, logical)
        if block.phase not in ("clean", "lost") and request.life != "FINISHING":
            refuse(request, event, f"logical block {logical} is {block.phase}: store it or declare it lost first")
        if block.physical[event.group] == HOLE:
            refuse(request, event, f"group {event.group} has dropped logical block {logical} already")
        blocks.append(block.physical[event.group])
        holders.append(Holder("tail", logical, event.group))
        areas = tuple(HOLE if group == event.group else area for group, area in enumerate(block.physical))
        changed.append(replace(block, physical=areas))
    ownership = state.ownership.change(
        request.key,
        layout,
        put={Holder("fence", event.fence): Holding(areas=block_areas(layout, event.group, blocks))},
        drop=holders,
    )
    request = _with(request, *changed)
    request = replace(request, fences=(*request.fences, event.fence), next_fence=event.fence + 1)
    return adopt(state, request, ownership=ownership)


def fence_opened(state: State, request: RequestState, event: FenceOpened) -> State:
    if event.fence not in request.fences:
        refuse(request, event, f"expected one of the closed fences {request.fences}, got {event.fence}")
    layout = state.pool.layout
    ownership = state.ownership.change(request.key, layout, drop=(Holder("fence", event.fence),))
    if ownership.freed_blocks(state.ownership, request.key, layout) != event.freed:
        refuse(request, event, "the blocks said to be freed are not those that lost their last holder")
    fences = tuple(fence for fence in request.fences if fence != event.fence)
    return adopt(state, replace(request, fences=fences), ownership=ownership)
