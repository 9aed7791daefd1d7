"""Reducers of device-written tail blocks, their store to the CPU, and fences."""

import numpy as np
from msgspec.structs import replace

from kvsweep.ledger.draft import Draft
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
    begin,
    close,
    expect_all,
    expect_next,
    expect_ranks,
    refuse,
    report,
)
from kvsweep.ledger.sources import blocks_of, with_blocks, without
from kvsweep.ledger.state import OpenOperation, RequestState, TailBlock


def block_areas(layout: Layout, group: int, blocks: list[int]) -> Rows[Physical]:
    """Every area of whole blocks of one group."""
    return Rows.of(dict.fromkeys(layout.group_layers(group), blocks))


def opened(draft: Draft, request: RequestState, event: TailOpened) -> None:
    layout, run = draft.layout, draft.pool.run
    physical = int32_view(event.physical_by_group).tolist()
    if len(physical) != layout.groups:
        refuse(request, event, f"expected a block of each of {layout.groups} groups, got {len(physical)}")
    newest = max((block.logical for block in request.tail), default=-1)
    if event.logical <= newest or request.source_of(event.logical) != HOLE:
        after = f"logical block {event.logical} is not after the tail's newest {newest} or is stored already"
        refuse(request, event, after)
    put = {}
    for group, block in enumerate(physical):
        if run is None or not 0 <= block < run.device_blocks[group]:
            refuse(request, event, f"block {block} is not in the pool of group {group}")
        if draft.index().device[group][block]:
            refuse(request, event, draft.who_holds(group, block))
        put[Holder("tail", event.logical, group)] = Holding(areas=block_areas(layout, group, [block]))
    reserve = tuple(block.to_bytes(4, "little") for block in physical)
    draft.change(request.key, put=put, reserve=reserve)
    request.tail = (*request.tail, TailBlock(logical=event.logical, physical=tuple(physical)))


def _find(request: RequestState, event: Event, logical: int) -> TailBlock:
    found = next((block for block in request.tail if block.logical == logical), None)
    if found is None:
        refuse(
            request, event, f"logical block {logical} is not in the tail {[block.logical for block in request.tail]}"
        )
    return found


def _replace(request: RequestState, *changed: TailBlock) -> None:
    """The tail with these entries replaced; an entry that every group has dropped leaves."""
    new = {block.logical: block for block in changed}
    tail = [new.get(block.logical, block) for block in request.tail]
    request.tail = tuple(block for block in tail if any(area != HOLE for area in block.physical))


def sealed(draft: Draft, request: RequestState, event: TailSealed) -> None:
    block = _find(request, event, event.logical)
    if block.phase != "open":
        refuse(request, event, f"logical block {event.logical} is {block.phase}, expected open")
    _replace(request, replace(block, phase="dirty"))


def store_started(draft: Draft, request: RequestState, event: StoreStarted) -> None:
    """Starts only on dirty blocks: every step that wrote them has ended."""
    expect_next(draft, request, event, event.operation)
    layout, run = draft.layout, draft.pool.run
    expect_ranks(draft, request, event, event.ranks)
    logical, source = int32_view(event.logical).tolist(), int32_view(event.source).tolist()
    full = run.cpu_full_blocks if run else 0
    if not logical or len({*logical}) != len(logical) or len(logical) != len(source) or len({*source}) != len(source):
        refuse(request, event, f"expected one distinct CPU block for each distinct block, got {source} for {logical}")
    for block in source:
        if not 0 <= block < full or draft.held_source(block.to_bytes(4, "little")) != HOLE:
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
    draft.change(
        request.key,
        put={
            Holder("src", number): Holding(areas=Rows.of(areas)),
            Holder("dst", number): Holding(sources=event.source),
        },
    )
    begin(draft, event.operation)
    request.store.open = OpenOperation(
        operation=event.operation, lane="store", ranks=event.ranks, stored=event.logical, stored_to=event.source
    )


def stored(draft: Draft, request: RequestState, event: RankStored) -> None:
    report(request, request.store, event, event.operation, event.rank, event.process_epoch)


def store_completed(draft: Draft, request: RequestState, event: StoreCompleted) -> None:
    """Valid on every rank: from here on the blocks are sources, and may be adopted or dropped."""
    opened = expect_all(request, request.store, event, event.operation)
    logical, source = int32_view(opened.stored), int32_view(opened.stored_to)
    clean = [replace(block, phase="clean") for block in request.tail if block.logical in logical]
    number = event.operation.operation_id
    known, stale = with_blocks(request.source, logical, source), without(request.stale, logical)
    draft.change(
        request.key,
        put={Holder("owner"): Holding(sources=blocks_of(known, stale))},
        drop=(Holder("dst", number), Holder("src", number)),
    )
    close(draft, request.store, opened)
    request.source, request.stale = known, stale
    _replace(request, *clean)


def registered(draft: Draft, request: RequestState, event: SourcesRegistered) -> None:
    logical, source = int32_view(event.logical), int32_view(event.source)
    full = draft.pool.run.cpu_full_blocks if draft.pool.run else 0
    if logical.size != source.size or np.unique(source).size != source.size or np.unique(logical).size != logical.size:
        refuse(request, event, "expected one distinct CPU block for each distinct logical block")
    if logical.size and (int(logical.min()) < 0 or int(source.min()) < 0 or int(source.max()) >= full):
        refuse(request, event, f"expected logical blocks from 0 and CPU blocks in [0, {full})")
    again = int32_view(blocks_of(request.stale))
    held = draft.held_source(np.setdiff1d(source, again).astype("<i4").tobytes())
    if held != HOLE:
        refuse(request, event, f"CPU block {held} is held for {draft.holds_source(held)}")
    stale, was_stale = int32_view(request.stale), {*again.tolist()}
    for at, block in zip(logical.tolist(), source.tolist(), strict=True):
        if request.source_of(at) != HOLE:
            refuse(request, event, f"logical block {at} has a valid CPU block already")
        if block in was_stale and not (at < stale.size and stale[at] == block):
            refuse(request, event, f"CPU block {block} was not that of logical block {at}")
    known, left = with_blocks(request.source, logical, source), without(request.stale, logical)
    draft.change(request.key, put={Holder("owner"): Holding(sources=blocks_of(known, left))})
    request.source, request.stale = known, left


def lost(draft: Draft, request: RequestState, event: BlockLost) -> None:
    """Declared, never silent: from here on the block may be dropped without a store."""
    block = _find(request, event, event.logical)
    if block.phase not in ("open", "dirty"):
        refuse(request, event, f"logical block {event.logical} is {block.phase}, expected open or dirty")
    _replace(request, replace(block, phase="lost"))


def dropped(draft: Draft, request: RequestState, event: TailDropped) -> None:
    layout = draft.layout
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
    draft.change(
        request.key,
        put={Holder("fence", event.fence): Holding(areas=block_areas(layout, event.group, blocks))},
        drop=tuple(holders),
    )
    draft.fences.append((request.key, event.fence))
    _replace(request, *changed)
    request.fences = (*request.fences, event.fence)
    request.next_fence += 1


def fence_opened(draft: Draft, request: RequestState, event: FenceOpened) -> None:
    if event.fence not in request.fences:
        refuse(request, event, f"expected one of the closed fences {request.fences}, got {event.fence}")
    holder = Holder("fence", event.fence)
    if draft.freed_by(request.key, holder).freed != event.freed:
        refuse(request, event, "the blocks said to be freed are not those that lost their last holder")
    draft.change(request.key, drop=(holder,))
    draft.opened.append((request.key, event.fence))
    request.fences = tuple(fence for fence in request.fences if fence != event.fence)
