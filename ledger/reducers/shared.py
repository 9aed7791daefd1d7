"""Small steps that all reducers share: refusing, identity checks, writing a request back, building a view."""

from typing import NoReturn

import numpy as np
from msgspec.structs import replace

from kvsweep.ledger import compiled
from kvsweep.ledger.errors import Refused
from kvsweep.ledger.events import Event, RetireCause
from kvsweep.ledger.holding import distinct
from kvsweep.ledger.ids import HOLE, Int32, Logical, Operation, Physical, Rows, Slot, int32_view, no_rows
from kvsweep.ledger.layout import Layout
from kvsweep.ledger.ownership import Holder, Holding, Ownership
from kvsweep.ledger.ragged import empty_like, first_beyond, first_unsorted
from kvsweep.ledger.state import (
    COMMANDS_KEPT,
    ClosedOperation,
    Lane,
    OpenOperation,
    PoolState,
    Remembered,
    RequestState,
    State,
    View,
)


def refuse(request: RequestState, event: Event, reason: str) -> NoReturn:
    """The event contradicts what the fold already knows."""
    raise Refused((*_identity(request), event.seq), type(event).__name__, request.describe(), (), reason)


def _identity(request: RequestState) -> tuple[str, int]:
    return request.key.request_id, request.key.request_epoch


def adopt(
    state: State, request: RequestState, *, ownership: Ownership | None = None, pool: PoolState | None = None
) -> State:
    """State with this request (and relation, and pool facts) written back."""
    requests = dict(state.requests)
    requests[request.key.request_id] = request
    return State(pool=pool or state.pool, requests=requests, ownership=ownership or state.ownership)


def open_in(request: RequestState, lane: Lane, event: Event, operation: Operation) -> OpenOperation:
    """The lane's open operation, which the event must name exactly."""
    if lane.open is None or lane.open.operation != operation:
        refuse(request, event, f"the open operation is {lane.open.operation if lane.open else None}, got {operation}")
    return lane.open


def begin(state: State, request: RequestState, event: Event, operation: Operation) -> PoolState:
    """Check a new operation's identity and take its number."""
    expected = Operation(
        request=request.key,
        operation_id=state.pool.next_operation_id,
        pool_generation=state.pool.pool_generation,
        map_revision=request.map_revision,
    )
    if operation != expected:
        refuse(request, event, f"expected a new operation {expected}, got {operation}")
    return replace(state.pool, next_operation_id=operation.operation_id + 1)


def next_generation(request: RequestState, event: Event, generation: int) -> int:
    """Generations are never reused, not even after an abort."""
    if generation != request.next_generation:
        refuse(request, event, f"expected generation {request.next_generation}, got {generation}")
    return generation + 1


def expected_ranks(state: State, request: RequestState, event: Event, ranks: tuple[tuple[int, int], ...]) -> None:
    if not ranks or ranks != state.pool.ranks:
        refuse(request, event, f"expected every rank with its process epoch {state.pool.ranks}, got {ranks}")


def report(request: RequestState, event: Event, open_operation: OpenOperation, rank: int, epoch: int) -> OpenOperation:
    """Record a rank's completion: ranks are collected as a set, never counted."""
    if (rank, epoch) not in open_operation.ranks:
        refuse(request, event, f"expected one of (rank, process epoch) {open_operation.ranks}, got {(rank, epoch)}")
    if rank in dict(open_operation.outcomes):
        refuse(request, event, f"rank {rank} has already reported")
    outcomes = tuple(sorted((*open_operation.outcomes, (rank, "completed"))))
    return replace(open_operation, outcomes=outcomes)


def all_reported(request: RequestState, event: Event, open_operation: OpenOperation) -> None:
    """Every distinct rank of the set has completed."""
    done = {rank for rank, outcome in open_operation.outcomes if outcome == "completed"}
    missing = sorted({rank for rank, _ in open_operation.ranks} - done)
    if missing:
        refuse(request, event, f"ranks {missing} have not completed")


def closed_record(open_operation: OpenOperation) -> ClosedOperation:
    return ClosedOperation(operation=open_operation.operation, outcomes=open_operation.outcomes)


def remember(request: RequestState, key: str, what: str, operation: Operation) -> tuple[Remembered, ...]:
    """Idempotency keys, newest last, bounded."""
    if not key:
        return request.commands
    return (*request.commands, Remembered(key=key, what=what, operation=operation))[-COMMANDS_KEPT:]


def free_row(state: State, request: RequestState, event: Event, row: int) -> None:
    """A table row is a resource like a block: whoever writes it must be its only holder."""
    taken = state.ownership.rows(request.key)
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


def check_destinations(
    state: State, request: RequestState, event: Event, areas: Rows[Physical], reserved: tuple[bytes, ...]
) -> None:
    """Every destination area is vacant, in a block of the request's own or newly reserved, and handed out once.

    A reserved block without a destination would be free the moment it is reserved, so it is refused.
    """
    layout = state.pool.layout
    if len(reserved) != layout.groups:
        refuse(request, event, f"expected reserved blocks of {layout.groups} groups, got {len(reserved)}")
    taken = state.ownership.taken(layout)
    for group in range(layout.groups):
        new = int32_view(reserved[group])
        size = state.pool.run.device_blocks[group] if state.pool.run else 0
        if new.size:
            if int(new.min()) < 0 or int(new.max()) >= size or distinct(new).size != new.size:
                refuse(request, event, f"reserved blocks of group {group} are not distinct ids in [0, {size})")
            clash = new[taken.device_blocks(group, new)]
            if clash.size:
                refuse(request, event, who_holds(state, group, int(clash[0])))
        if not _placed_well(state, request, areas, group, new):
            _check_placement(state, request, event, areas, group, new)


def who_holds(state: State, group: int, block: int) -> str:
    for other, blocks in state.ownership.own.items():
        if block in int32_view(blocks[group]):
            return f"block {block} of group {group} is owned by {other.request_id}"
    return f"block {block} of group {group} is shared"


def _placed_well(state: State, request: RequestState, areas: Rows[Physical], group: int, new: Int32) -> bool:
    """One pass over the areas of a group: each vacant, each named once, every new block used."""
    layout = state.pool.layout
    ids, layers = areas.ids, areas.layers
    if layout.groups > 1 and ids.size and int(layers[-1]) < len(layout.layers):
        inside = np.repeat(layout.group_of_layer[layers] == group, areas.counts)
        ids = ids[inside]
    if not ids.size:
        return not new.size
    if int(layers[-1]) >= len(layout.layers):
        return False
    own, held = state.ownership.occupancy(request.key, group, layout)
    if compiled.sets is not None:
        row_of_layer, where = layout.rows_of_group(group), (areas.layer_bytes, areas.row_ptr_bytes, areas.id_bytes)
        return bool(compiled.sets.placed_well(held, own, new, row_of_layer, *where))
    blocks = np.concatenate((own, new)) if new.size else own
    if not blocks.size or int(ids.min()) < 0 or int(ids.max()) > int(blocks.max()):
        return False
    at_block = np.full(int(blocks.max()) + 1, -1, dtype=np.int32)
    at_block[blocks] = np.arange(blocks.size, dtype=np.int32)
    at = at_block[ids]
    if int(at.min()) < 0:
        return False
    at_layer = np.zeros(len(layout.layers), dtype=np.int32)
    at_layer[list(layout.group_layers(group))] = np.arange(len(held), dtype=np.int32) * np.int32(blocks.size)
    rows = np.repeat(at_layer[layers], areas.counts)
    named = np.zeros((len(held), blocks.size), dtype=np.bool_)
    named.reshape(-1)[(rows if ids.size == rows.size else rows[inside]) + at] = True
    if int(np.count_nonzero(named)) != ids.size or bool((named[:, : own.size] & held).any()):
        return False
    return not new.size or bool(named[:, own.size :].any(axis=0).all())


def _check_placement(
    state: State, request: RequestState, event: Event, areas: Rows[Physical], group: int, new: Int32
) -> None:
    """The same layer by layer, to name the first fault."""
    layout = state.pool.layout
    rows = [areas.row(layer) for layer in layout.group_layers(group) if layer in areas.layers]
    unused = np.setdiff1d(new, np.concatenate(rows) if rows else [])
    if unused.size:
        refuse(request, event, f"reserved block {int(unused[0])} of group {group} has no destination area")
    own, held = state.ownership.occupancy(request.key, group, layout)
    for at, layer in enumerate(layout.group_layers(group)):
        if layer not in areas.layers:
            continue
        ids = areas.row(layer)
        if np.unique(ids).size != ids.size:
            refuse(request, event, f"layer {layer}: an area is handed out twice")
        outside = np.setdiff1d(ids, np.concatenate((own[~held[at]], new)))
        if outside.size:
            refuse(request, event, f"layer {layer}: area of block {int(outside[0])} is not vacant or not owned")


def check_slots(request: RequestState, event: Event, keep: Rows[Slot], view: View | None) -> None:
    """Keep slots are in resident order and name slots that exist."""
    have: Rows[Logical] = view.logical if view is not None else no_rows()
    same = have.layer_bytes == keep.layer_bytes
    if same and first_unsorted(keep) is None and first_beyond(keep, have.counts) is None:
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
    state: State, request: RequestState, open_operation: OpenOperation, drop: tuple[Holder, ...]
) -> tuple[RequestState, Ownership]:
    """Add the new view's pairs, drop the operation's, switch. The replaced view stays until it is retired."""
    view = View(
        generation=open_operation.generation,
        logical=open_operation.table_logical,
        physical=open_operation.table,
        row=open_operation.row,
    )
    holding = Holding(areas=view.physical, rows=(view.row,))
    if open_operation.lane == "upload":  # a retain leaves out what it does not keep
        holders, base = state.ownership.holders(request.key), Holder("view", request.current)
        made_of = [holders[holder] for holder in drop]
        if open_operation.kind == "diff" and base in holders:
            made_of.append(holders[base])
        holding = holding.made_of(made_of, state.pool.layout)
    put = {Holder("view", view.generation): holding}
    ownership = state.ownership.change(request.key, state.pool.layout, put=put, drop=drop)
    committed = replace(
        request,
        views=(*replaced_views(request, "upload" if open_operation.lane == "upload" else "retain"), view),
        current=view.generation,
        map_revision=request.map_revision + 1,
        keep_map=None,
    )
    return committed, ownership
