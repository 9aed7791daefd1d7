"""Reducers of the retain lane: remap, move and pack differ only in how the new table is built."""

import numpy as np
from msgspec.structs import replace

from kvsweep.ledger.events import (
    AllRanksApplied,
    OwnersCommitted,
    ReadersDrained,
    RetainAcknowledged,
    RetainPlanned,
    TablesApplied,
)
from kvsweep.ledger.ids import Logical, Physical, Rows
from kvsweep.ledger.layout import Layout
from kvsweep.ledger.ownership import Holder, Holding
from kvsweep.ledger.ragged import empty_like, first_repeated, ids_at, joined_rows, same_rows
from kvsweep.ledger.reducers.shared import (
    adopt,
    adopted_areas,
    all_reported,
    begin,
    check_destinations,
    check_slots,
    closed_record,
    commit_view,
    expected_ranks,
    free_row,
    next_generation,
    open_in,
    refuse,
    remember,
    report,
)
from kvsweep.ledger.state import Lane, OpenOperation, RequestState, State


def planned(state: State, request: RequestState, event: RetainPlanned) -> State:
    """Epoch, pool generation, map revision and slot bounds of every row are checked here (G1)."""
    pool = begin(state, request, event, event.operation)
    generation = next_generation(request, event, event.generation)
    layout = state.pool.layout
    if event.keep.layer_bytes != layout.active_layer_bytes:
        active = list(layout.active_layers)
        refuse(request, event, f"expected a row for each active layer {active}, got {event.keep.layers.tolist()}")
    free_row(state, request, event, event.row)
    check_destinations(state, request, event, event.moved_to, event.reserved)
    logical, physical = _kept(request, event)
    adopted = adopted_areas(request, event, event.adopted, layout)
    table_logical = joined_rows(logical, event.adopted)
    table = _moved(request, event, joined_rows(physical, adopted))
    if event.adopted.id_bytes and (twice := first_repeated(table_logical)) is not None:  # slots of a view are apart
        refuse(request, event, f"layer {twice}: a logical block would have two slots")
    if event.mode == "shared" and not _one_row_a_group(state.pool.layout, table):
        refuse(request, event, "a shared remap needs the same ordered physical row in every layer of a group")
    if event.mode in ("shared", "layer") and event.moved_to.size:
        refuse(request, event, "a remap moves no bytes")
    opened = OpenOperation(
        operation=event.operation,
        lane="retain",
        generation=event.generation,
        mode=event.mode,
        attention=event.attention,
        destination=event.moved_to,
        adopted=event.adopted,
        table=table,
        table_logical=table_logical,
        row=event.row,
        replaced=request.current,
    )
    what = event.digest or f"retain-{event.selection_revision}"  # a log without digests names the revision
    ownership = state.ownership.change(
        request.key,
        layout,
        put={
            Holder("dst", event.operation.operation_id): Holding(areas=event.moved_to, rows=(event.row,)),
            # Adopted areas are held as well: their block may leave the tail before the commit.
            Holder("src", event.operation.operation_id): Holding(areas=adopted),
        },
        reserve=event.reserved,
    )
    return adopt(
        state,
        replace(
            request,
            retain=replace(request.retain, open=opened),
            next_generation=generation,
            commands=remember(request, event.idempotency_key, what, event.operation),
        ),
        ownership=ownership,
        pool=pool,
    )


def _kept(request: RequestState, event: RetainPlanned) -> tuple[Rows[Logical], Rows[Physical]]:
    view = request.view
    check_slots(request, event, event.keep, view)
    if view is None:
        return empty_like(event.keep.layer_bytes), empty_like(event.keep.layer_bytes)
    return ids_at(view.logical, event.keep), ids_at(view.physical, event.keep)


def _moved(request: RequestState, event: RetainPlanned, table: Rows[Physical]) -> Rows[Physical]:
    """Substitute moved areas. A move is out of place: its source is a slot of the new table, its target is not."""
    if (event.moved_from.layer_bytes, event.moved_from.row_ptr_bytes) != (
        event.moved_to.layer_bytes,
        event.moved_to.row_ptr_bytes,
    ):
        refuse(request, event, "moved_from and moved_to rows differ")
    if not event.moved_from.id_bytes and event.moved_from.layer_bytes == table.layer_bytes:
        return table
    rows = dict(table.items())
    for layer, sources in event.moved_from.items():
        if layer not in rows:
            refuse(request, event, f"moved_from: expected active layers {sorted(rows)}, got layer {layer}")
        swap = dict(zip(sources.tolist(), event.moved_to.row(layer).tolist(), strict=True))
        old = rows[layer].tolist()
        if len(swap) != sources.size or not set(swap) <= set(old):
            refuse(request, event, f"layer {layer}: a moved area is not a slot of the new table, or is moved twice")
        rows[layer] = np.asarray([swap.get(area, area) for area in old], dtype=np.int32)
    return Rows.of(rows)


def _one_row_a_group(layout: Layout, table: Rows[Physical]) -> bool:
    return all(same_rows(table, layout.group_layers(group)) for group in range(layout.groups))


def drained(state: State, request: RequestState, event: ReadersDrained) -> State:
    opened = open_in(request, request.retain, event, event.operation)
    expected_ranks(state, request, event, event.ranks)
    if event.row != opened.row:
        refuse(request, event, f"expected row {opened.row}, got {event.row}")
    return adopt(state, replace(request, retain=replace(request.retain, open=replace(opened, ranks=event.ranks))))


def applied(state: State, request: RequestState, event: TablesApplied) -> State:
    opened = open_in(request, request.retain, event, event.operation)
    opened = report(request, event, opened, event.rank, event.process_epoch)
    return adopt(state, replace(request, retain=replace(request.retain, open=opened)))


def all_applied(state: State, request: RequestState, event: AllRanksApplied) -> State:
    all_reported(request, event, open_in(request, request.retain, event, event.operation))
    return adopt(state, request)


def committed(state: State, request: RequestState, event: OwnersCommitted) -> State:
    opened = open_in(request, request.retain, event, event.operation)
    if event.generation != opened.generation:
        refuse(request, event, f"expected generation {opened.generation}, got {event.generation}")
    number = event.operation.operation_id
    request, ownership = commit_view(state, request, opened, (Holder("dst", number), Holder("src", number)))
    return adopt(state, request, ownership=ownership)


def acknowledged(state: State, request: RequestState, event: RetainAcknowledged) -> State:
    opened = open_in(request, request.retain, event, event.operation)
    if event.process_epoch != state.pool.producer_epoch:
        refuse(request, event, f"expected producer epoch {state.pool.producer_epoch}, got {event.process_epoch}")
    return adopt(state, replace(request, retain=Lane(phase=request.retain.phase, closed=closed_record(opened))))
