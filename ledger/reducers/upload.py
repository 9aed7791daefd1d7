"""Reducers of the upload lane."""

import numpy as np
from msgspec.structs import replace

from kvsweep.ledger.events import (
    BlocksLeased,
    BlocksSelected,
    KeepMapPublished,
    RankTransferred,
    ResidencyCommitted,
    TransferCompleted,
    TransferStarted,
    UploadAcknowledged,
    UploadPlanned,
)
from kvsweep.ledger.holding import distinct
from kvsweep.ledger.ids import HOLE, int32_view, no_rows
from kvsweep.ledger.ownership import Holder, Holding
from kvsweep.ledger.ragged import first_common, first_outside, first_repeated, first_unsorted, joined_rows
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
from kvsweep.ledger.state import KeepMap, Lane, OpenOperation, RequestState, State


def selected(state: State, request: RequestState, event: BlocksSelected) -> State:
    if event.selection_revision <= request.selection_revision:
        refuse(
            request, event, f"selection revision {event.selection_revision} is not above {request.selection_revision}"
        )
    if not 0 <= event.effective_budget_blocks <= event.whole_blocks:
        refuse(
            request, event, f"budget {event.effective_budget_blocks} is not within {event.whole_blocks} whole blocks"
        )
    return adopt(
        state,
        replace(
            request,
            selection_revision=event.selection_revision,
            selected=(event.idempotency_key, event.digest),
            whole_blocks=event.whole_blocks,
        ),
    )


def planned(state: State, request: RequestState, event: UploadPlanned) -> State:
    pool = begin(state, request, event, event.operation)
    generation = next_generation(request, event, event.generation)
    if event.logical.layer_bytes != state.pool.layout.active_layer_bytes:
        active = list(state.pool.layout.active_layers)
        refuse(request, event, f"expected a row for each active layer {active}, got {event.logical.layers.tolist()}")
    view = request.view
    for wrong in (first_unsorted(event.logical), first_outside(event.logical, request.whole_blocks)):
        if wrong is not None:
            refuse(request, event, f"layer {wrong}: expected ascending ids in [0, {request.whole_blocks})")
    if view is not None and event.kind == "diff":
        again = first_common(view.logical, event.logical)
        if again is not None:
            refuse(request, event, f"layer {again}: a block that is already resident is uploaded again")
    if event.valid_tokens:
        _check_packed(state, request, event)
    opened = OpenOperation(
        operation=event.operation,
        lane="upload",
        generation=event.generation,
        kind=event.kind,
        logical=event.logical,
        replaced=request.current,
    )
    key, digest = request.selected
    return adopt(
        state,
        replace(
            request,
            upload=replace(request.upload, open=opened),
            next_generation=generation,
            commands=remember(request, key, digest, event.operation),
        ),
        pool=pool,
    )


def _check_packed(state: State, request: RequestState, event: UploadPlanned) -> None:
    """Token method: a new set each time, copied, in as few blocks as hold it."""
    tokens, size = int32_view(event.valid_tokens), state.pool.layout.block_size
    if event.kind != "full" or event.source_kind != "copy":
        refuse(request, event, f"packed tokens are a full copied plan, got {event.kind} of {event.source_kind}")
    if tokens.size != len(event.logical) or bool(np.any(-(-tokens // size) != event.logical.counts)):
        refuse(request, event, f"{tokens.tolist()} tokens do not fill {event.logical.counts.tolist()} blocks of {size}")
    if any(ids.tolist() != list(range(ids.size)) for _, ids in event.logical.items()):
        refuse(request, event, "packed blocks are numbered from 0")


def leased(state: State, request: RequestState, event: BlocksLeased) -> State:
    opened = open_in(request, request.upload, event, event.operation)
    layout = state.pool.layout
    shape = (opened.logical.layer_bytes, opened.logical.row_ptr_bytes)
    for name, rows in (("source", event.source), ("destination", event.destination)):
        if (rows.layer_bytes, rows.row_ptr_bytes) != shape:
            refuse(request, event, f"{name} rows do not match the planned rows")
    free_row(state, request, event, event.row)
    check_destinations(state, request, event, event.destination, event.reserved)
    _check_sources(state, request, event, opened)
    adopted = adopted_areas(request, event, event.adopted, layout)
    base = request.view if opened.kind == "diff" else None
    old_logical, old_physical = (base.logical, base.physical) if base else (no_rows(), no_rows())
    logical = joined_rows(joined_rows(old_logical, event.adopted), opened.logical)
    physical = joined_rows(joined_rows(old_physical, adopted), event.destination)
    if event.adopted.id_bytes and (twice := first_repeated(logical)) is not None:  # the rest is apart already
        refuse(request, event, f"layer {twice}: a logical block would have two slots")
    opened = replace(
        opened,
        destination=event.destination,
        adopted=event.adopted,
        table=physical,
        table_logical=logical,
        row=event.row,
    )
    number = event.operation.operation_id
    sources = distinct(np.concatenate((event.source.ids, int32_view(event.copies)))).astype("<i4").tobytes()
    ownership = state.ownership.change(
        request.key,
        layout,
        put={
            Holder("dst", number): Holding(areas=event.destination, rows=(event.row,)),
            # Adopted areas are held as well: their block may leave the tail before the commit.
            Holder("src", number): Holding(areas=adopted, sources=sources),
        },
        reserve=event.reserved,
    )
    return adopt(state, replace(request, upload=replace(request.upload, open=opened)), ownership=ownership)


def _check_sources(state: State, request: RequestState, event: BlocksLeased, opened: OpenOperation) -> None:
    """Source-only: the request's own valid CPU block of each logical block. Copy: only this plan's copies."""
    run = state.pool.run
    copies = int32_view(event.copies)
    full, total = (run.cpu_full_blocks, run.cpu_total_blocks) if run else (0, 0)
    if copies.size:
        if int(copies.min()) < full or int(copies.max()) >= total or np.unique(copies).size != copies.size:
            refuse(request, event, f"copy destinations are not distinct ids in [{full}, {total})")
        taken = copies[state.ownership.taken(state.pool.layout).cpu_blocks(copies)]
        if taken.size:  # an operation that settles may still be read from
            refuse(request, event, f"CPU block {int(taken[0])} is held for {state.ownership.holds_source(taken[0])}")
        if np.setdiff1d(event.source.ids, copies).size:
            refuse(request, event, "a copied plan reads a CPU block that is not one of its copies")
        return
    sources = int32_view(request.source)
    wanted = opened.logical.ids
    if wanted.size and int(wanted.max()) >= sources.size:
        refuse(request, event, f"logical block {int(wanted.max())} has no CPU block")
    if bool(np.any(sources[wanted] != event.source.ids)) or bool(np.any(event.source.ids == HOLE)):
        refuse(request, event, "a source is not the request's own valid CPU block of that logical block")


def started(state: State, request: RequestState, event: TransferStarted) -> State:
    opened = open_in(request, request.upload, event, event.operation)
    expected_ranks(state, request, event, event.ranks)
    return adopt(state, replace(request, upload=replace(request.upload, open=replace(opened, ranks=event.ranks))))


def transferred(state: State, request: RequestState, event: RankTransferred) -> State:
    opened = open_in(request, request.upload, event, event.operation)
    opened = report(request, event, opened, event.rank, event.process_epoch)
    return adopt(state, replace(request, upload=replace(request.upload, open=opened)))


def completed(state: State, request: RequestState, event: TransferCompleted) -> State:
    all_reported(request, event, open_in(request, request.upload, event, event.operation))
    return adopt(state, request)


def committed(state: State, request: RequestState, event: ResidencyCommitted) -> State:
    opened = open_in(request, request.upload, event, event.operation)
    if event.generation != opened.generation:
        refuse(request, event, f"expected generation {opened.generation}, got {event.generation}")
    number = event.operation.operation_id
    request, ownership = commit_view(state, request, opened, (Holder("dst", number), Holder("src", number)))
    return adopt(state, request, ownership=ownership)


def published(state: State, request: RequestState, event: KeepMapPublished) -> State:
    """A zero-byte plan still updates selection and retention state (F1); it changes no table and no owner."""
    pool = begin(state, request, event, event.operation)
    if event.selection_revision != request.selection_revision:
        refuse(request, event, f"expected selection {request.selection_revision}, got {event.selection_revision}")
    check_slots(request, event, event.keep, request.view)
    opened = OpenOperation(operation=event.operation, lane="upload", replaced=request.current)
    keep = KeepMap(selection_revision=event.selection_revision, map_revision=request.map_revision, keep=event.keep)
    key, digest = request.selected
    return adopt(
        state,
        replace(
            request,
            upload=replace(request.upload, open=opened),
            keep_map=keep,
            commands=remember(request, key, digest, event.operation),
        ),
        pool=pool,
    )


def acknowledged(state: State, request: RequestState, event: UploadAcknowledged) -> State:
    opened = open_in(request, request.upload, event, event.operation)
    if event.process_epoch != state.pool.producer_epoch:
        refuse(request, event, f"expected producer epoch {state.pool.producer_epoch}, got {event.process_epoch}")
    return adopt(state, replace(request, upload=Lane(phase=request.upload.phase, closed=closed_record(opened))))
