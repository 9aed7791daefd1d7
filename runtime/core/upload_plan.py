"""What a selection has to upload over what is held, and from which CPU blocks."""

import numpy as np
from msgspec import Struct

from kvsweep.kernels.csr import Csr
from kvsweep.kernels.table import Kernels, choose_kernels
from kvsweep.ledger.errors import Refused
from kvsweep.ledger.events import PlanKind
from kvsweep.ledger.ids import HOLE, Int32, Logical, Rows, Slot, Source, int32_view
from kvsweep.ledger.layout import Layout
from kvsweep.ledger.messages import BlockSelection
from kvsweep.ledger.ragged import (
    empty_like,
    first_common,
    first_outside,
    first_repeated,
    first_unsorted,
    joined_rows,
    slots_of,
)
from kvsweep.ledger.sources import look_up
from kvsweep.ledger.state import RequestState


class BlockDiffPlan(Struct, frozen=True, kw_only=True):
    """Contract D1's diff plan. `upload` and `pad` are ascending; nothing wanted is ever truncated."""

    kind: PlanKind
    upload: Rows[Logical]
    new_blocks_per_layer: Int32
    common_new_slots: int
    unfilled: int  # slots that layers stay below common_new_slots: one table cannot serve such a plan
    pad: Rows[Logical]
    adopted: Rows[Logical]  # clean tail blocks that are wanted: no copy


def clean_tail(request: RequestState, layout: Layout, layer: int) -> Int32:
    """Logical blocks whose clean tail block still stands in the layer's group, ascending."""
    group = layout.layers[layer].group
    clean = [block.logical for block in request.tail if block.phase == "clean" and block.physical[group] != HOLE]
    return np.asarray(sorted(clean), dtype=np.int32)


def adoptable(request: RequestState, wanted: Rows[Logical], layout: Layout, *, shared_table: bool) -> Rows[Logical]:
    """Wanted blocks that stand clean in the tail. A shared table can adopt only what every layer of the group wants."""
    if not any(block.phase == "clean" for block in request.tail):
        return empty_like(wanted.layer_bytes)
    rows = {}
    for layer, ids in wanted.items():
        found = np.intersect1d(clean_tail(request, layout, layer), ids)
        if shared_table:
            for other in layout.group_layers(layout.layers[layer].group):
                found = np.intersect1d(found, wanted.row(other))
        rows[layer] = found.astype(np.int32)
    return Rows.of(rows)


def plan_upload(
    request: RequestState,
    selection: BlockSelection,
    layout: Layout,
    *,
    shared_table: bool,
    adopt: bool = True,
    kernels: Kernels | None = None,
) -> BlockDiffPlan:
    """Diff of the selection against the view and the adoptable tail (E3 – E6), padded where one table serves all.

    adopt  False: nothing of the tail is adopted; what is wanted of it is uploaded like the rest
    """
    want, view = selection.logical_blocks_by_layer, request.view
    adopted: Rows[Logical] = empty_like(want.layer_bytes)
    if adopt:
        adopted = _not_resident(request, adoptable(request, want, layout, shared_table=shared_table))
    resident: Rows[Logical] = view.logical if view is not None else empty_like(want.layer_bytes)
    held = joined_rows(resident, adopted)
    tail = _with_source(request, selection.ranked_tail_by_layer)
    plan = (kernels or choose_kernels()).plan_diff(
        Csr(want.row_ptr, want.ids),
        Csr(tail.row_ptr, tail.ids),
        Csr(held.row_ptr, held.ids),
        sequence_blocks=selection.whole_blocks,
        shared_table=shared_table,
    )
    if plan.kind == "full":
        adopted = empty_like(want.layer_bytes)
    return BlockDiffPlan(
        kind=plan.kind,
        upload=_rows(want, plan.upload),
        new_blocks_per_layer=plan.new_per_row,
        common_new_slots=plan.common_new_slots,
        unfilled=int(plan.unfilled_per_row.sum()) if shared_table else 0,
        pad=_rows(want, plan.pad),
        adopted=adopted,
    )


def plan_tokens(packed: Rows[Logical], *, shared_table: bool) -> BlockDiffPlan:
    """All packed blocks go to new destinations; one table serves only layers with equal numbers of them."""
    counts = packed.counts
    most = int(counts.max()) if shared_table and counts.size else 0
    return BlockDiffPlan(
        kind="full",
        upload=packed,
        new_blocks_per_layer=counts,
        common_new_slots=most,
        unfilled=int((most - counts).sum()) if shared_table else 0,
        pad=empty_like(packed.layer_bytes),
        adopted=empty_like(packed.layer_bytes),
    )


def _rows(want: Rows[Logical], plan: Csr) -> Rows[Logical]:
    return Rows(
        layer_bytes=want.layer_bytes,
        row_ptr_bytes=plan.row_ptr.astype("<i4", copy=False).tobytes(),
        id_bytes=plan.ids.astype("<i4", copy=False).tobytes(),
    )


def _with_source(request: RequestState, tail: Rows[Logical]) -> Rows[Logical]:
    """Padding uses existing valid KV only (E5): candidates without a valid CPU block are no candidates."""
    ids, sources = tail.ids, int32_view(request.source)
    if not ids.size:
        return tail
    known = ids < sources.size
    known[known] = sources[ids[known]] != HOLE
    if known.all():
        return tail
    kept = np.concatenate(([0], np.cumsum(known)))[tail.row_ptr]
    return Rows(layer_bytes=tail.layer_bytes, row_ptr_bytes=kept.astype("<i4").tobytes(), id_bytes=ids[known].tobytes())


def _not_resident(request: RequestState, adopted: Rows[Logical]) -> Rows[Logical]:
    view = request.view
    if view is None or not adopted.id_bytes:
        return adopted
    return Rows.of(
        {layer: np.setdiff1d(ids, view.logical.row(layer)).astype(np.int32) for layer, ids in adopted.items()}
    )


def sources_of(request: RequestState, upload: Rows[Logical]) -> Rows[Source] | None:
    """The request's own valid CPU block of each uploaded block, row for row; None where one has none."""
    found = look_up(request.source, upload.id_bytes)
    if found is None:
        return None
    return Rows(layer_bytes=upload.layer_bytes, row_ptr_bytes=upload.row_ptr_bytes, id_bytes=found)


def keep_slots(request: RequestState, wanted: Rows[Logical]) -> Rows[Slot]:
    """Slots of the current view that hold wanted blocks, in resident order."""
    view = request.view
    if view is None:
        return empty_like(wanted.layer_bytes)
    return slots_of(view.logical, wanted)


def check_selection(request: RequestState, selection: BlockSelection, layout: Layout) -> None:
    """Whole-block alignment at block level (A1, E8): what passes can be named by source id instead of gathered."""

    def refuse(reason: str) -> None:
        raise Refused(request.key, "Select", request.describe(), (), reason)

    if selection.block_size != layout.block_size:
        refuse(f"block_size: expected {layout.block_size} tokens, got {selection.block_size}")
    if selection.selection_revision <= request.selection_revision:
        refuse(f"selection_revision: expected above {request.selection_revision}, got {selection.selection_revision}")
    resident = request.view.logical.ids if request.view else np.empty(0, dtype=np.int32)
    if resident.size and int(resident.max()) >= selection.whole_blocks:
        refuse(
            f"whole_blocks: expected above {int(resident.max())}, the largest resident block, "
            f"got {selection.whole_blocks}"
        )
    active = list(layout.active_layers)
    if selection.group_by_layer != layout.active_group_bytes:
        groups = int32_view(layout.active_group_bytes).tolist()
        refuse(f"group_by_layer: expected {groups}, got {int32_view(selection.group_by_layer).tolist()}")
    for name, rows in (
        ("logical_blocks_by_layer", selection.logical_blocks_by_layer),
        ("ranked_tail_by_layer", selection.ranked_tail_by_layer),
    ):
        if rows.layer_bytes != layout.active_layer_bytes:
            refuse(f"{name}: expected a row for each active layer {active}, got {rows.layers.tolist()}")
        wrong = first_outside(rows, selection.whole_blocks)
        if wrong is not None:
            got = rows.row(wrong).tolist()
            refuse(f"{name}[{wrong}]: expected blocks in [0, {selection.whole_blocks}), got {got}")
        if rows is not selection.logical_blocks_by_layer or first_unsorted(rows) is not None:
            twice = first_repeated(rows)
            if twice is not None:
                refuse(f"{name}[{twice}]: a block is named twice in {rows.row(twice).tolist()}")
    want, tail = selection.logical_blocks_by_layer, selection.ranked_tail_by_layer
    unsorted = first_unsorted(want)
    if unsorted is not None:
        got = want.row(unsorted).tolist()
        refuse(f"logical_blocks_by_layer[{unsorted}]: expected ascending blocks, got {got}")
    both = first_common(want, tail)
    if both is not None:
        refuse(f"ranked_tail_by_layer[{both}]: a selected block stands in the tail too")
