"""Reducers of the upload lane."""

import numpy as np
from msgspec.structs import replace

from kvsweep.ledger.draft import Draft
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
    UploadStaged,
)
from kvsweep.ledger.ids import HOLE, int32_view, no_rows
from kvsweep.ledger.ownership import Holder, Holding
from kvsweep.ledger.ragged import distinct, first_common, first_outside, first_repeated, first_unsorted, joined_rows
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
from kvsweep.ledger.sources import look_up
from kvsweep.ledger.state import KeepMap, OpenOperation, RequestState


def selected(draft: Draft, request: RequestState, event: BlocksSelected) -> None:
    if event.selection_revision <= request.selection_revision:
        known = request.selection_revision
        refuse(request, event, f"selection revision {event.selection_revision} is not above {known}")
    if not 0 <= event.effective_budget_blocks <= event.whole_blocks:
        whole = event.whole_blocks
        refuse(request, event, f"budget {event.effective_budget_blocks} is not within {whole} whole blocks")
    request.selection_revision = event.selection_revision
    request.selected = (event.idempotency_key, event.digest)
    request.whole_blocks = event.whole_blocks


def planned(draft: Draft, request: RequestState, event: UploadPlanned) -> None:
    expect_next(draft, request, event, event.operation)
    expect_active(draft, request, event, event.logical)
    for wrong in (first_unsorted(event.logical), first_outside(event.logical, request.whole_blocks)):
        if wrong is not None:
            refuse(request, event, f"layer {wrong}: expected ascending ids in [0, {request.whole_blocks})")
    view = request.view
    if view is not None and event.kind == "diff":
        again = first_common(view.logical, event.logical)
        if again is not None:
            refuse(request, event, f"layer {again}: a block that is already resident is uploaded again")
    if event.valid_tokens:
        _check_packed(draft, request, event)
    begin(draft, event.operation)
    request.upload.open = OpenOperation(
        operation=event.operation,
        lane="upload",
        kind=event.kind,
        logical=event.logical,
        replaced=request.current,
    )
    remember(request, *request.selected, event.operation)


def _check_packed(draft: Draft, request: RequestState, event: UploadPlanned) -> None:
    """Token method: a new set each time, copied, in as few blocks as hold it."""
    tokens, size = int32_view(event.valid_tokens), draft.layout.block_size
    if event.kind != "full" or event.source_kind != "copy":
        refuse(request, event, f"packed tokens are a full copied plan, got {event.kind} of {event.source_kind}")
    if tokens.size != len(event.logical) or bool(np.any(-(-tokens // size) != event.logical.counts)):
        refuse(request, event, f"{tokens.tolist()} tokens do not fill {event.logical.counts.tolist()} blocks of {size}")
    if any(ids.tolist() != list(range(ids.size)) for _, ids in event.logical.items()):
        refuse(request, event, "packed blocks are numbered from 0")


def staged(draft: Draft, request: RequestState, event: UploadStaged) -> None:
    opened = open_in(request, request.upload, event, event.operation)
    expect_generation(request, event, event.generation)
    expect_row(draft, request, event, event.row)
    request.next_generation += 1
    request.upload.open = replace(opened, generation=event.generation, row=event.row)


def leased(draft: Draft, request: RequestState, event: BlocksLeased) -> None:
    opened = open_in(request, request.upload, event, event.operation)
    shape = (opened.logical.layer_bytes, opened.logical.row_ptr_bytes)
    for name, rows in (("source", event.source), ("destination", event.destination)):
        if (rows.layer_bytes, rows.row_ptr_bytes) != shape:
            refuse(request, event, f"{name} rows do not match the planned rows")
    groups = placed(draft, request, event, event.destination, event.reserved)
    _check_sources(draft, request, event, opened)
    adopted = adopted_areas(request, event, event.adopted, draft.layout)
    base = request.view if opened.kind == "diff" else None
    old_logical, old_physical = (base.logical, base.physical) if base else (no_rows(), no_rows())
    logical = joined_rows(joined_rows(old_logical, event.adopted), opened.logical)
    physical = joined_rows(joined_rows(old_physical, adopted), event.destination)
    if event.adopted.id_bytes and (twice := first_repeated(logical)) is not None:  # the rest is apart already
        refuse(request, event, f"layer {twice}: a logical block would have two slots")
    number = event.operation.operation_id
    draft.change(
        request.key,
        put={
            Holder("dst", number): Holding(areas=event.destination, rows=(opened.row,)),
            # Adopted areas are held as well: their block may leave the tail before the commit.
            Holder("src", number): Holding(areas=adopted, sources=distinct(event.source.id_bytes + event.copies)),
        },
        reserve=event.reserved,
        placed=groups,
    )
    request.upload.open = replace(
        opened,
        destination=event.destination,
        adopted=event.adopted,
        table=physical,
        table_logical=logical,
    )


def _check_sources(draft: Draft, request: RequestState, event: BlocksLeased, opened: OpenOperation) -> None:
    """Source-only: the request's own valid CPU block of each logical block. Copy: only this plan's copies."""
    run = draft.pool.run
    copies = int32_view(event.copies)
    full, total = (run.cpu_full_blocks, run.cpu_total_blocks) if run else (0, 0)
    if copies.size:
        if int(copies.min()) < full or int(copies.max()) >= total or np.unique(copies).size != copies.size:
            refuse(request, event, f"copy destinations are not distinct ids in [{full}, {total})")
        held = draft.held_source(event.copies)
        if held != HOLE:  # an operation that settles may still be read from
            refuse(request, event, f"CPU block {held} is held for {draft.holds_source(held)}")
        if np.setdiff1d(event.source.ids, copies).size:
            refuse(request, event, "a copied plan reads a CPU block that is not one of its copies")
        return
    if look_up(request.source, opened.logical.id_bytes) != event.source.id_bytes:
        wanted, known = opened.logical.ids, len(request.source) // 4
        if wanted.size and int(wanted.max()) >= known:
            refuse(request, event, f"logical block {int(wanted.max())} has no CPU block")
        refuse(request, event, "a source is not the request's own valid CPU block of that logical block")


def started(draft: Draft, request: RequestState, event: TransferStarted) -> None:
    opened = open_in(request, request.upload, event, event.operation)
    expect_ranks(draft, request, event, event.ranks)
    request.upload.open = replace(opened, ranks=event.ranks)


def transferred(draft: Draft, request: RequestState, event: RankTransferred) -> None:
    report(request, request.upload, event, event.operation, event.rank, event.process_epoch)


def completed(draft: Draft, request: RequestState, event: TransferCompleted) -> None:
    expect_all(request, request.upload, event, event.operation)


def committed(draft: Draft, request: RequestState, event: ResidencyCommitted) -> None:
    commit_view(draft, request, request.upload, event, event.operation, event.generation)


def published(draft: Draft, request: RequestState, event: KeepMapPublished) -> None:
    """A zero-byte plan still updates selection and retention state (F1); it changes no table and no owner."""
    expect_next(draft, request, event, event.operation)
    if event.selection_revision != request.selection_revision:
        refuse(request, event, f"expected selection {request.selection_revision}, got {event.selection_revision}")
    check_slots(request, event, event.keep, request.view)
    begin(draft, event.operation)
    request.upload.open = OpenOperation(operation=event.operation, lane="upload", replaced=request.current)
    request.keep_map = KeepMap(
        selection_revision=event.selection_revision, map_revision=request.map_revision, keep=event.keep
    )
    remember(request, *request.selected, event.operation)


def acknowledged(draft: Draft, request: RequestState, event: UploadAcknowledged) -> None:
    opened = open_in(request, request.upload, event, event.operation)
    if event.process_epoch != draft.pool.producer_epoch:
        refuse(request, event, f"expected producer epoch {draft.pool.producer_epoch}, got {event.process_epoch}")
    close(draft, request.upload, opened)
