"""Small steps that all reducers share: refusing, identity checks, writing a request back, building a view."""

from typing import NoReturn

import numpy as np
from msgspec.structs import replace

from kvsweep.ledger.errors import Refused
from kvsweep.ledger.event_base import Event, RetireCause
from kvsweep.ledger.ids import HOLE, Int32, Logical, Operation, Physical, Rows
from kvsweep.ledger.layout import Layout
from kvsweep.ledger.ownership import Holder, Holding, Ownership
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
    shared = state.ownership.shared_blocks(layout)
    for group in range(layout.groups):
        new = np.frombuffer(reserved[group], dtype="<i4")
        size = state.pool.run.device_blocks[group] if state.pool.run else 0
        if new.size and (int(new.min()) < 0 or int(new.max()) >= size or np.unique(new).size != new.size):
            refuse(request, event, f"reserved blocks of group {group} are not distinct ids in [0, {size})")
        for other, blocks in state.ownership.own.items():
            clash = np.intersect1d(np.frombuffer(blocks[group], dtype="<i4"), new)
            if clash.size:
                refuse(request, event, f"block {int(clash[0])} of group {group} is owned by {other.request_id}")
        clash = np.intersect1d(shared[group], new)
        if clash.size:
            refuse(request, event, f"block {int(clash[0])} of group {group} is shared")
        unused = np.setdiff1d(new, [block for layer in layout.group_layers(group) for block in _row(areas, layer)])
        if unused.size:
            refuse(request, event, f"reserved block {int(unused[0])} of group {group} has no destination area")
        own, held = state.ownership.occupancy(request.key, group, layout)
        for at, layer in enumerate(layout.group_layers(group)):
            if layer not in areas.layers:
                continue
            ids = areas.row(layer)
            if np.unique(ids).size != ids.size:
                refuse(request, event, f"layer {layer}: an area is handed out twice")
            allowed = np.concatenate((own[~held[at]], new))
            outside = np.setdiff1d(ids, allowed)
            if outside.size:
                refuse(request, event, f"layer {layer}: area of block {int(outside[0])} is not vacant or not owned")


def _row(areas: Rows[Physical], layer: int) -> list[int]:
    return areas.row(layer).tolist() if layer in areas.layers else []


def check_slots(request: RequestState, event: Event, layer: int, slots: Int32, count: int) -> None:
    """Keep slots are in resident order and name slots that exist."""
    if slots.size and (int(slots[0]) < 0 or int(slots[-1]) >= count or bool(np.any(slots[1:] <= slots[:-1]))):
        refuse(request, event, f"layer {layer}: expected ascending slots in [0, {count}), got {slots.tolist()}")


def joined(first: Rows[Logical] | Rows[Physical], second: Rows[Logical] | Rows[Physical]) -> dict[int, Int32]:
    """Row-wise concatenation, layers of either."""
    rows: dict[int, Int32] = {}
    for part in (first, second):
        for layer, ids in part.items():
            rows[layer] = np.concatenate((rows[layer], ids)) if layer in rows else ids
    return rows


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
    ownership = state.ownership.change(
        request.key,
        state.pool.layout,
        put={Holder("view", view.generation): Holding(areas=view.physical, rows=(view.row,))},
        drop=drop,
    )
    committed = replace(
        request,
        views=(*replaced_views(request, "upload" if open_operation.lane == "upload" else "retain"), view),
        current=view.generation,
        map_revision=request.map_revision + 1,
        keep_map=None,
    )
    return committed, ownership
