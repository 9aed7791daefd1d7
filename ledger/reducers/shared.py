"""Small steps that all reducers share: refusing, identity checks, what an operation takes, building a view."""

from typing import NoReturn

import numpy as np
from msgspec.structs import replace

from kvsweep.ledger import areas as a
from kvsweep.ledger.draft import Draft, Groups
from kvsweep.ledger.errors import Refused
from kvsweep.ledger.events import Event, RankEpochs, RetireCause
from kvsweep.ledger.ids import HOLE, Int32, Logical, Operation, Physical, Rows, Slot, int32_view, no_rows
from kvsweep.ledger.layout import Layout
from kvsweep.ledger.ownership import Holder, Holding
from kvsweep.ledger.ragged import empty_like, first_beyond, first_unsorted
from kvsweep.ledger.state import (
    COMMANDS_KEPT,
    ClosedOperation,
    Lane,
    OpenOperation,
    Remembered,
    RequestState,
    View,
)


def refuse(request: RequestState, event: Event, reason: str) -> NoReturn:
    """The event contradicts what the fold already knows."""
    where = request.key.request_id, request.key.request_epoch, event.seq
    raise Refused(where, type(event).__name__, request.describe(), (), reason)


def open_in(request: RequestState, lane: Lane, event: Event, operation: Operation) -> OpenOperation:
    """The lane's open operation, which the event must name exactly."""
    if lane.open is None or lane.open.operation != operation:
        refuse(request, event, f"the open operation is {lane.open.operation if lane.open else None}, got {operation}")
    return lane.open


def expect_next(draft: Draft, request: RequestState, event: Event, operation: Operation) -> None:
    """A new operation has the next number, and stands on what is."""
    expected = draft.next_operation(request)
    if operation != expected:
        refuse(request, event, f"expected a new operation {expected}, got {operation}")


def begin(draft: Draft, operation: Operation) -> None:
    """The operation takes its number."""
    draft.own_pool().next_operation_id = operation.operation_id + 1
    draft.began.append(operation.operation_id)


def expect_generation(request: RequestState, event: Event, generation: int) -> None:
    """Generations are never reused, not even after an abort."""
    if generation != request.next_generation:
        refuse(request, event, f"expected generation {request.next_generation}, got {generation}")


def expect_active(draft: Draft, request: RequestState, event: Event, rows: Rows[Logical] | Rows[Slot]) -> None:
    """A row for each layer that is selected, and no other."""
    if rows.layer_bytes != draft.layout.active_layer_bytes:
        active = list(draft.layout.active_layers)
        refuse(request, event, f"expected a row for each active layer {active}, got {rows.layers.tolist()}")


def expect_ranks(draft: Draft, request: RequestState, event: Event, ranks: RankEpochs) -> None:
    if not ranks or ranks != draft.pool.ranks:
        refuse(request, event, f"expected every rank with its process epoch {draft.pool.ranks}, got {ranks}")


def report(request: RequestState, lane: Lane, event: Event, operation: Operation, rank: int, epoch: int) -> None:
    """Record a rank's completion: ranks are collected as a set, never counted."""
    opened = open_in(request, lane, event, operation)
    if (rank, epoch) not in opened.ranks:
        refuse(request, event, f"expected one of (rank, process epoch) {opened.ranks}, got {(rank, epoch)}")
    if any(known == rank for known, _ in opened.outcomes):
        refuse(request, event, f"rank {rank} has already reported")
    lane.open = replace(opened, outcomes=tuple(sorted((*opened.outcomes, (rank, "completed")))))


def expect_all(request: RequestState, lane: Lane, event: Event, operation: Operation) -> OpenOperation:
    """Every distinct rank of the set has completed."""
    opened = open_in(request, lane, event, operation)
    done = {rank for rank, outcome in opened.outcomes if outcome == "completed"}
    missing = sorted({rank for rank, _ in opened.ranks} - done)
    if missing:
        refuse(request, event, f"ranks {missing} have not completed")
    return opened


def close(draft: Draft, lane: Lane, opened: OpenOperation) -> None:
    """The operation is over; the lane remembers it as its last one."""
    lane.open, lane.closed = None, ClosedOperation(operation=opened.operation, outcomes=opened.outcomes)
    draft.ended.append(opened.operation.operation_id)


def remember(request: RequestState, key: str, what: str, operation: Operation) -> None:
    """Idempotency keys, newest last, bounded."""
    if key:
        commands = dict(request.commands)
        commands.pop(key, None)  # said again, it is the newest
        commands[key] = Remembered(what=what, operation=operation)
        if len(commands) > COMMANDS_KEPT:
            del commands[next(iter(commands))]
        request.commands = commands


def expect_row(draft: Draft, request: RequestState, event: Event, row: int) -> None:
    """A table row is a resource like a block: whoever writes it must be its only holder."""
    taken = draft.rows(request.key)
    if not 0 <= row < request.rows or row in taken:
        refuse(request, event, f"expected a free row below {request.rows} (held: {sorted(taken)}), got {row}")


def adopted_areas(request: RequestState, event: Event, adopted: Rows[Logical], layout: Layout) -> Rows[Physical]:
    """Areas of clean tail blocks, row for row. Only a clean block may be adopted, and only by an active layer."""
    active = layout.active_layers
    if not adopted.id_bytes and adopted.layer_bytes == layout.active_layer_bytes:
        return empty_like(adopted.layer_bytes)
    clean = {block.logical: block.physical for block in request.tail if block.phase == "clean"}
    rows: dict[int, list[int]] = {}
    for layer, ids in adopted.items():
        if layer not in active:
            refuse(request, event, f"adopted: expected active layers {list(active)}, got layer {layer}")
        group, areas = layout.layers[layer].group, []
        for logical in ids.tolist():
            physical = clean.get(logical, ())
            if not physical or physical[group] == HOLE:
                refuse(request, event, f"layer {layer}: logical block {logical} is not a clean tail block")
            areas.append(physical[group])
        rows[layer] = areas
    return Rows.of(rows)


def expect_free(draft: Draft, request: RequestState, event: Event, group: int, blocks: bytes) -> None:
    """Newly reserved blocks are ids of the pool that nobody holds, each once."""
    size = draft.pool.run.device_blocks[group] if draft.pool.run else 0
    new, marks = int32_view(blocks).tolist(), draft.index().device[group]
    if min(new) < 0 or max(new) >= size or len({*new}) != len(new):
        refuse(request, event, f"reserved blocks of group {group} are not distinct ids in [0, {size})")
    for block in new:
        if marks[block]:
            refuse(request, event, draft.who_holds(group, block))


def placed(
    draft: Draft, request: RequestState, event: Event, areas: Rows[Physical], reserved: tuple[bytes, ...]
) -> Groups:
    """The request's own blocks once `reserved` are among them and each of `areas` has a holder more.

    Every one of them is vacant before, in a block of the request's own or newly reserved, and handed out once. A
    reserved block without a destination would be free the moment it is reserved, so it is refused.
    """
    layout = draft.layout
    if len(reserved) != layout.groups:
        refuse(request, event, f"expected reserved blocks of {layout.groups} groups, got {len(reserved)}")
    if areas.layer_bytes and int(areas.layers[-1]) >= len(layout.layers):
        refuse(request, event, f"expected areas of layers below {len(layout.layers)}, got layer {areas.layers[-1]}")
    found = []
    for group, own in enumerate(draft.groups(request.key)):
        if reserved[group]:
            expect_free(draft, request, event, group, reserved[group])
        filled = a.fill(own, layout.rows_of_group(group), reserved[group], areas)
        if filled is None:
            _refuse_placement(draft, request, event, areas, group, int32_view(reserved[group]))
        found.append(filled)
    return tuple(found)


def _refuse_placement(
    draft: Draft, request: RequestState, event: Event, areas: Rows[Physical], group: int, new: Int32
) -> NoReturn:
    """The same layer by layer, to name the first fault."""
    layers = draft.layout.group_layers(group)
    rows = [areas.row(layer) for layer in layers if layer in areas.layers]
    unused = np.setdiff1d(new, np.concatenate(rows) if rows else [])
    if unused.size:
        refuse(request, event, f"reserved block {int(unused[0])} of group {group} has no destination area")
    own = draft.groups(request.key)[group]
    blocks, vacant = int32_view(own.blocks), a.vacant(own, len(layers))
    for at, layer in enumerate(layers):
        if layer not in areas.layers:
            continue
        ids = areas.row(layer)
        if np.unique(ids).size != ids.size:
            refuse(request, event, f"layer {layer}: an area is handed out twice")
        outside = np.setdiff1d(ids, np.concatenate((blocks[vacant[at]], new)))
        if outside.size:
            refuse(request, event, f"layer {layer}: area of block {int(outside[0])} is not vacant or not owned")
    refuse(request, event, f"areas of group {group} cannot be placed")


def check_slots(request: RequestState, event: Event, keep: Rows[Slot], view: View | None) -> None:
    """Keep slots are in resident order and name slots that exist."""
    have: Rows[Logical] = view.logical if view is not None else no_rows()
    same = have.layer_bytes == keep.layer_bytes
    if same and first_unsorted(keep) is None and first_beyond(keep, have) is None:
        return
    counts = dict(zip(have.layers.tolist(), have.counts.tolist(), strict=True))
    for layer, slots in keep.items():
        count = counts.get(layer, 0)
        if slots.size and (int(slots[0]) < 0 or int(slots[-1]) >= count or bool(np.any(slots[1:] <= slots[:-1]))):
            refuse(request, event, f"layer {layer}: expected ascending slots in [0, {count}), got {slots.tolist()}")


def replaced_views(request: RequestState, cause: RetireCause) -> tuple[View, ...]:
    """The request's views, the current one marked with what takes its place."""
    return tuple(
        replace(view, replaced_by=cause) if view.generation == request.current else view for view in request.views
    )


def commit_view(
    draft: Draft, request: RequestState, lane: Lane, event: Event, operation: Operation, generation: int
) -> None:
    """Add the new view's pairs, drop the operation's, switch. The replaced view stays until it is retired."""
    opened = open_in(request, lane, event, operation)
    if generation != opened.generation:
        refuse(request, event, f"expected generation {opened.generation}, got {generation}")
    view = View(generation=generation, logical=opened.table_logical, physical=opened.table, row=opened.row)
    number = operation.operation_id
    draft.change(
        request.key,
        put={Holder("view", generation): Holding(areas=view.physical, rows=(view.row,))},
        drop=(Holder("dst", number), Holder("src", number)),
    )
    request.views = (*replaced_views(request, "upload" if opened.lane == "upload" else "retain"), view)
    request.current = generation
    request.map_revision += 1
    request.keep_map = None
