"""Reducers of the retain lane: remap, move and pack differ only in how the new table is built."""

import numpy as np
from msgspec.structs import replace

from kvsweep.ledger.draft import Draft
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
    adopted_areas,
    begin,
    check_slots,
    close,
    commit_view,
    expect_active,
    expect_all,
    expect_generation,
    expect_next,
    expect_ranks,
    expect_row,
    open_in,
    placed,
    refuse,
    remember,
    report,
)
from kvsweep.ledger.state import OpenOperation, RequestState


def planned(draft: Draft, request: RequestState, event: RetainPlanned) -> None:
    """Epoch, pool generation, map revision and slot bounds of every row are checked here (G1)."""
    expect_next(draft, request, event, event.operation)
    expect_generation(request, event, event.generation)
    expect_active(draft, request, event, event.keep)
    expect_row(draft, request, event, event.row)
    groups = placed(draft, request, event, event.moved_to, event.reserved)
    logical, physical = _kept(draft, request, event)
    adopted = adopted_areas(request, event, event.adopted, draft.layout)
    table_logical = joined_rows(logical, event.adopted)
    table = _moved(request, event, joined_rows(physical, adopted))
    if event.adopted.id_bytes and (twice := first_repeated(table_logical)) is not None:  # slots of a view are apart
        refuse(request, event, f"layer {twice}: a logical block would have two slots")
    if event.mode == "shared" and not _one_row_a_group(draft.layout, table):
        refuse(request, event, "a shared remap needs the same ordered physical row in every layer of a group")
    if event.mode in ("shared", "layer") and event.moved_to.size:
        refuse(request, event, "a remap moves no bytes")
    number = event.operation.operation_id
    draft.change(
        request.key,
        put={
            Holder("dst", number): Holding(areas=event.moved_to, rows=(event.row,)),
            # Adopted areas are held as well: their block may leave the tail before the commit.
            Holder("src", number): Holding(areas=adopted),
        },
        reserve=event.reserved,
        placed=groups,
    )
    begin(draft, event.operation)
    request.retain.open = OpenOperation(
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
    request.next_generation += 1
    remember(request, event.idempotency_key, event.digest, event.operation)


def _kept(draft: Draft, request: RequestState, event: RetainPlanned) -> tuple[Rows[Logical], Rows[Physical]]:
    view = request.view
    check_slots(request, event, event.keep, view)
    if view is None:
        return empty_like(event.keep.layer_bytes), empty_like(event.keep.layer_bytes)
    return ids_at(view.logical, event.keep), draft.kept(view.physical, event.keep)


def _moved(request: RequestState, event: RetainPlanned, table: Rows[Physical]) -> Rows[Physical]:
    """Substitute moved areas. A move is out of place: its source is a slot of the new table, its target is not."""
    old, new = event.moved_from, event.moved_to
    if (old.layer_bytes, old.row_ptr_bytes) != (new.layer_bytes, new.row_ptr_bytes):
        refuse(request, event, "moved_from and moved_to rows differ")
    if not old.id_bytes and old.layer_bytes == table.layer_bytes:
        return table
    rows = dict(table.items())
    for layer, sources in old.items():
        if layer not in rows:
            refuse(request, event, f"moved_from: expected active layers {sorted(rows)}, got layer {layer}")
        swap = dict(zip(sources.tolist(), new.row(layer).tolist(), strict=True))
        areas = rows[layer].tolist()
        if len(swap) != sources.size or not set(swap) <= set(areas):
            refuse(request, event, f"layer {layer}: a moved area is not a slot of the new table, or is moved twice")
        rows[layer] = np.asarray([swap.get(area, area) for area in areas], dtype=np.int32)
    return Rows.of(rows)


def _one_row_a_group(layout: Layout, table: Rows[Physical]) -> bool:
    return all(same_rows(table, layout.group_layers(group)) for group in range(layout.groups))


def drained(draft: Draft, request: RequestState, event: ReadersDrained) -> None:
    opened = open_in(request, request.retain, event, event.operation)
    expect_ranks(draft, request, event, event.ranks)
    if event.row != opened.row:
        refuse(request, event, f"expected row {opened.row}, got {event.row}")
    request.retain.open = replace(opened, ranks=event.ranks)


def applied(draft: Draft, request: RequestState, event: TablesApplied) -> None:
    report(request, request.retain, event, event.operation, event.rank, event.process_epoch)


def all_applied(draft: Draft, request: RequestState, event: AllRanksApplied) -> None:
    expect_all(request, request.retain, event, event.operation)


def committed(draft: Draft, request: RequestState, event: OwnersCommitted) -> None:
    commit_view(draft, request, request.retain, event, event.operation, event.generation)


def acknowledged(draft: Draft, request: RequestState, event: RetainAcknowledged) -> None:
    opened = open_in(request, request.retain, event, event.operation)
    if event.process_epoch != draft.pool.producer_epoch:
        refuse(request, event, f"expected producer epoch {draft.pool.producer_epoch}, got {event.process_epoch}")
    close(draft, request.retain, opened)
