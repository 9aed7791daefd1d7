"""Select: plan the difference, then either publish a keep map (zero bytes) or start one transfer, in one batch."""

import msgspec
import numpy as np
from xxhash import xxh3_128_hexdigest

from kvsweep.ledger import events as e
from kvsweep.ledger.draft import Draft
from kvsweep.ledger.fold import emit
from kvsweep.ledger.ids import Operation, Rows, Source, Token, int32_view
from kvsweep.ledger.messages import (
    BlockSelection,
    Gather,
    PackTokens,
    PublishKeepMap,
    Reserve,
    Select,
    Transfer,
)
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
from kvsweep.runtime.core.placement import place
from kvsweep.runtime.core.token_plan import check_method, check_tokens, packed_into, places_of, valid_tokens
from kvsweep.runtime.core.upload_plan import (
    BlockDiffPlan,
    check_selection,
    keep_slots,
    plan_tokens,
    plan_upload,
    sources_of,
)


def selection_digest(selection: BlockSelection) -> str:
    """XXH3 (128 bits, hex) of the whole selection: what the log names instead of scores and tails."""
    return xxh3_128_hexdigest(msgspec.msgpack.encode(selection, order="deterministic"))


def select(draft: Draft, context: Context, command: Select) -> Asking:
    selection, settings = command.selection, context.settings
    request, layout, revision = draft.mine(selection.request), draft.layout, selection.selection_revision
    expect_lanes(request, "Select")
    plan = _plan(draft, context, request, command)
    if not plan.upload.id_bytes:
        return _publish(draft, request, command)
    if plan.unfilled:
        raise CannotPlan("upload", "unequal_layers", plan.unfilled, 0, 0, selection_revision=revision)
    tokens = selection.tokens_by_layer
    read: Rows[Source] | Rows[Token] | None
    read = sources_of(request, plan.upload) if tokens is None else places_of(request, tokens, layout.block_size)
    if read is None:
        raise CannotPlan("upload", "invalid_source", plan.upload.size, 0, 0, selection_revision=revision)
    row = free_row(draft, request, "upload")
    shared_table = not settings.retain.layer_tables
    placement = place(draft.groups(request.key), plan.upload, layout, shared_table=shared_table)
    copies = int(plan.upload.counts.max()) if settings.source.kind == "copy" else 0
    new, copied = (b"",) * layout.groups, b""
    if any(placement.new_blocks) or copies:
        got = yield Reserve(cause=command, device=placement.new_blocks, cpu_full=0, cpu_copy=copies)
        if got.device is None:
            needed = sum(placement.new_blocks) + copies
            raise CannotPlan("upload", "no_space", needed, placement.vacant, got.free, selection_revision=revision)
        new, copied = got.device, got.cpu_copy
    destination = placement.areas(new, layout, scatter=settings.transfer.scatter)
    _begin(draft, request, command)
    operation = draft.next_operation(request)
    emit(
        draft,
        e.UploadPlanned,
        request,
        operation=operation,
        kind=plan.kind,
        source_kind=settings.source.kind,
        logical=plan.upload,
        common_new_slots=plan.common_new_slots,
        pad=plan.pad if plan.pad.id_bytes else None,
        valid_tokens=b"" if tokens is None else valid_tokens(tokens),
    )
    emit(draft, e.UploadStaged, request, operation=operation, generation=request.next_generation, row=row)
    source = _copied(draft, operation, read, tokens, copied) if copies or tokens is not None else read
    emit(
        draft,
        e.BlocksLeased,
        request,
        operation=operation,
        source=source,
        destination=destination,
        adopted=plan.adopted,
        reserved=new,
        copies=copied,
    )
    _send(draft, context, request, operation, source)  # type: ignore[arg-type]  # tokens are packed by now
    return operation


def _plan(draft: Draft, context: Context, request: RequestState, command: Select) -> BlockDiffPlan:
    """What the selection comes to over what is held. Raises Refused and CannotPlan."""
    selection, settings, layout = command.selection, context.settings, draft.layout
    shared_table, tokens = not settings.retain.layer_tables, selection.tokens_by_layer
    check_method(request, selection, settings.selection.method)
    check_selection(request, selection, layout)
    if tokens is not None:
        check_tokens(request, selection, tokens, layout)
    expect_ranks(draft, "upload", selection.selection_revision)
    if tokens is not None:
        return plan_tokens(selection.logical_blocks_by_layer, shared_table=shared_table)
    return plan_upload(
        request, selection, layout, shared_table=shared_table, adopt=command.adopt, kernels=context.kernels
    )


def _begin(draft: Draft, request: RequestState, command: Select) -> None:
    selection = command.selection
    emit(
        draft,
        e.BlocksSelected,
        request,
        selection_revision=selection.selection_revision,
        digest=selection_digest(selection),
        whole_blocks=selection.whole_blocks,
        effective_budget_blocks=selection.effective_budget_blocks,
        idempotency_key=command.idempotency_key,
    )


def _publish(draft: Draft, request: RequestState, command: Select) -> Operation:
    """Zero bytes: residency stays, the keep map of this revision is published (F1)."""
    _begin(draft, request, command)
    operation = draft.next_operation(request)
    keep = keep_slots(request, command.selection.logical_blocks_by_layer)
    emit(
        draft,
        e.KeepMapPublished,
        request,
        operation=operation,
        selection_revision=request.selection_revision,
        keep=keep,
        metadata_bytes=ids_bytes(keep),
    )
    draft.effects.append(PublishKeepMap(operation=operation, selection_revision=request.selection_revision, keep=keep))
    return operation


def _copied(
    draft: Draft, operation: Operation, read: Rows[Source] | Rows[Token], tokens: Rows[Token] | None, copied: bytes
) -> Rows[Source]:
    """The producer is told to make copies first: of whole blocks, or of tokens packed into whole blocks.

    The j-th block of every layer goes to the j-th copy destination, each layer into its own area of it.
    """
    if tokens is not None:
        packed = packed_into(tokens, copied, draft.layout.block_size)
        draft.effects.append(PackTokens(operation=operation, tokens=read, destination=packed))  # type: ignore[arg-type]
        return packed
    blocks = int32_view(copied)
    ids = [blocks[:count] for count in read.counts.tolist()]
    target: Rows[Source] = Rows.from_csr(layers=read.layers, row_ptr=read.row_ptr, ids=np.concatenate(ids))
    draft.effects.append(Gather(operation=operation, source=read, destination=target))  # type: ignore[arg-type]
    return target


def _send(draft: Draft, context: Context, request: RequestState, operation: Operation, source: Rows[Source]) -> None:
    ranks, opened = draft.pool.ranks, request.upload.open
    if opened is None:
        raise LookupError(f"{operation} is not open")
    size = ids_bytes(source, opened.destination, opened.table) * len(ranks)
    emit(draft, e.TransferStarted, request, operation=operation, ranks=ranks, metadata_bytes=size)
    draft.effects.append(
        Transfer(
            operation=operation,
            ranks=ranks,
            generation=opened.generation,
            row=opened.row,
            source_kind=context.settings.source.kind,
            source=source,
            destination=opened.destination,
            table=opened.table,
            floor=floor(draft, operation),
        )
    )
