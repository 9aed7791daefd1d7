"""Retain: build the new view from kept slots and adopted tail blocks by remap, move or pack; start it in one batch."""

from typing import NoReturn

import msgspec
import numpy as np
from xxhash import xxh3_128_hexdigest

from kvsweep.ledger import events as e
from kvsweep.ledger.draft import Draft
from kvsweep.ledger.errors import PoolExhausted, Refused
from kvsweep.ledger.fold import emit
from kvsweep.ledger.ids import HOLE, Int32, Logical, Operation, Physical, Rows, Slot, int32_view
from kvsweep.ledger.layout import Layout
from kvsweep.ledger.messages import MoveBlocks, Reserve, Retain
from kvsweep.ledger.ragged import empty_like, first_beyond, first_unsorted, joined_rows
from kvsweep.ledger.state import RequestState
from kvsweep.runtime.core.expect import (
    Asking,
    CannotPlan,
    Context,
    expect_lanes,
    expect_ranks,
    floor,
    free_row,
    ids_bytes,
)
from kvsweep.runtime.core.retain_plan import RetainPlan, plan_pack, plan_retain, union_keep


def retain_digest(command: Retain) -> str:
    """XXH3 (128 bits, hex) of what is asked: slots, adopted blocks, revision, pack."""
    return xxh3_128_hexdigest(msgspec.msgpack.encode(command, order="deterministic"))


def retain(draft: Draft, context: Context, command: Retain) -> Asking:
    request, layout, settings = draft.mine(command.request), draft.layout, context.settings.retain
    expect_lanes(request, "Retain")
    if command.map_revision != request.map_revision:
        _refuse(request, f"map_revision: expected {request.map_revision}, the current one, got {command.map_revision}")
    if context.settings.selection.method == "token" and not command.pack:
        _refuse(request, "keep: expected pack, as the token method keeps no slots: each upload replaces the whole set")
    expect_ranks(draft, "retain")
    keep, union = command.keep, False
    _check_keep(request, keep, layout)
    if settings.union and not command.pack and _one_table(request, command):
        keep = union_keep(keep, dict(zip(keep.layers.tolist(), _slot_counts(request, keep).tolist(), strict=True)))
        union = keep != command.keep  # where all layers keep alike nothing is added, and nothing to label
    _check_adopt(request, command.adopt, layout.active_layers)
    table = _table(draft, request, keep, command.adopt)
    row = free_row(draft, request, "retain")
    plan = _plan(draft, context, request, command, keep, table)
    new: tuple[bytes, ...] = (b"",) * layout.groups
    if any(plan.new_blocks):
        got = yield Reserve(cause=command, device=plan.new_blocks, cpu_full=0, cpu_copy=0)
        if got.device is None:
            raise CannotPlan("retain", "no_space", sum(plan.new_blocks), 0, got.free)
        new = got.device
    moved_to = plan.targets(tuple(int32_view(blocks) for blocks in new), layout)
    operation = draft.next_operation(request)
    emit(
        draft,
        e.RetainPlanned,
        request,
        operation=operation,
        generation=request.next_generation,
        mode=plan.mode,
        attention="union" if union else "same",
        keep=plan.keep,
        adopted=command.adopt,
        moved_from=plan.moved_from,
        moved_to=moved_to,
        row=row,
        reserved=new,
        selection_revision=command.selection_revision,
        idempotency_key=command.idempotency_key,
        digest=retain_digest(command),
    )
    _send(draft, request, operation, plan)
    return operation


def _plan(
    draft: Draft, context: Context, request: RequestState, command: Retain, keep: Rows[Slot], table: Rows[Physical]
) -> RetainPlan:
    own, layout = draft.groups(request.key), draft.layout
    if not command.pack:
        layer_tables = context.settings.retain.layer_tables
        return plan_retain(table, keep, own, layout, layer_tables=layer_tables)
    _check_pack(request, command)
    try:
        return plan_pack(table, own, layout)
    except PoolExhausted as error:
        raise CannotPlan("retain", "no_space", error.wanted, error.free, 0) from error


def _send(draft: Draft, request: RequestState, operation: Operation, plan: RetainPlan) -> None:
    ranks, opened = draft.pool.ranks, request.retain.open
    if opened is None:
        raise LookupError(f"{operation} is not open")
    size = ids_bytes(plan.moved_from, opened.destination, opened.table) * len(ranks)
    # The row was free, so nobody reads it: no wait lies between the plan and its sending.
    emit(
        draft,
        e.ReadersDrained,
        request,
        operation=operation,
        row=opened.row,
        ranks=ranks,
        metadata_bytes=size,
    )
    draft.effects.append(
        MoveBlocks(
            operation=operation,
            ranks=ranks,
            generation=opened.generation,
            row=opened.row,
            mode=plan.mode,
            source=plan.moved_from,
            destination=opened.destination,
            table=opened.table,
            floor=floor(draft, operation),
        )
    )


def _check_keep(request: RequestState, keep: Rows[Slot], layout: Layout) -> None:
    layers = layout.active_layers
    if keep.layer_bytes != layout.active_layer_bytes:
        _refuse(request, f"keep: expected a row for each active layer {list(layers)}, got {keep.layers.tolist()}")
    view = request.view
    have: Rows[Logical] = view.logical if view is not None else empty_like(keep.layer_bytes)
    for wrong in (first_unsorted(keep), first_beyond(keep, have)):
        if wrong is not None:
            limit, got = have.row(wrong).size, keep.row(wrong).tolist()
            _refuse(request, f"keep[{wrong}]: expected ascending slots in [0, {limit}), got {got}")


def _check_adopt(request: RequestState, adopt: Rows[Logical], layers: tuple[int, ...]) -> None:
    strange = [layer for layer in adopt.layers.tolist() if layer not in layers]
    if strange:
        _refuse(request, f"adopt: expected rows of active layers {list(layers)}, got layers {strange}")


def _check_pack(request: RequestState, command: Retain) -> None:
    """Pack keeps what the view holds; it is no selection."""
    if command.adopt.size or bool(np.any(command.keep.counts != _slot_counts(request, command.keep))):
        _refuse(request, "pack: expected every slot of the current view and nothing adopted")


def _refuse(request: RequestState, reason: str) -> NoReturn:
    raise Refused(request.key, "Retain", request.describe(), (), reason)


def _slot_counts(request: RequestState, keep: Rows[Slot]) -> Int32:
    """int32[rows]: slots of the current view in each layer that `keep` names."""
    view = request.view
    if view is None:
        return np.zeros(len(keep), dtype=np.int32)
    if view.logical.layer_bytes == keep.layer_bytes:
        return view.logical.counts
    return np.asarray([view.logical.row(layer).size for layer in keep.layers.tolist()], dtype=np.int32)


def _one_table(request: RequestState, command: Retain) -> bool:
    """Whether all layers read the same physical row now and adopt alike: what a union needs."""
    view = request.view
    rows = [ids.tobytes() for _, ids in view.physical.items()] if view else []
    adopts = [ids.tobytes() for _, ids in command.adopt.items()]
    return len(set(rows)) <= 1 and len(set(adopts)) <= 1


def _table(draft: Draft, request: RequestState, keep: Rows[Slot], adopt: Rows[Logical]) -> Rows[Physical]:
    """Physical ids of kept slots, then of adopted tail blocks, row for row."""
    view = request.view
    kept: Rows[Physical] = empty_like(keep.layer_bytes)
    if view is not None and keep.id_bytes:
        kept = draft.kept(view.physical, keep)
    if not adopt.id_bytes:
        return kept
    groups = draft.layout.group_of_layer
    areas: dict[int, Int32] = {}
    for layer, ids in adopt.items():
        group = int(groups[layer])
        clean = {b.logical: b.physical[group] for b in request.tail if b.phase == "clean" and b.physical[group] != HOLE}
        missing = sorted(set(ids.tolist()) - set(clean))
        if missing:
            _refuse(request, f"adopt[{layer}]: expected clean tail blocks {sorted(clean)}, got {missing}")
        areas[layer] = np.asarray([clean[logical] for logical in ids.tolist()], dtype=np.int32)
    return joined_rows(kept, Rows.of(areas))
