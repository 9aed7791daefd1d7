"""Select: plan the difference, then either publish a keep map (zero bytes) or start one transfer, in one batch."""

import msgspec
import numpy as np
from msgspec import Struct

from kvsweep.ledger import events as e
from kvsweep.ledger.errors import Refused
from kvsweep.ledger.events import LaneName, SourceKind
from kvsweep.ledger.fold import legal_now
from kvsweep.ledger.ids import Operation, Physical, RequestKey, Rows, Slot, Source, Token, int32_view, no_rows
from kvsweep.ledger.messages import (
    BlockSelection,
    Gather,
    PackTokens,
    PublishKeepMap,
    Reserve,
    Reserved,
    Select,
    Transfer,
)
from kvsweep.ledger.state import RequestState, State
from kvsweep.ledger.store.hashing import sha256
from kvsweep.runtime.core.batch import Batch
from kvsweep.runtime.core.follow import Context
from kvsweep.runtime.core.placement import Placement, place
from kvsweep.runtime.core.token_plan import check_method, check_tokens, packed_into, places_of, valid_tokens
from kvsweep.runtime.core.upload_plan import (
    BlockDiffPlan,
    check_selection,
    keep_slots,
    plan_tokens,
    plan_upload,
    sources_of,
)


class CannotPlan(Exception):
    """A plan lacks something that may come back later: recorded as PlanRefused, the old residency is kept."""

    def __init__(
        self, lane: LaneName, reason: str, needed: int, vacant: int, free: int, *, selection_revision: int = 0
    ) -> None:
        self.lane, self.reason, self.needed, self.vacant, self.free = lane, reason, needed, vacant, free
        self.selection_revision = selection_revision
        super().__init__(f"{lane}: {reason} (needed {needed}, vacant {vacant}, free {free})")


def selection_digest(selection: BlockSelection) -> str:
    """SHA-256 of the whole selection: what the log names instead of scores and tails."""
    return sha256(msgspec.msgpack.encode(selection, order="deterministic")).hex()


def next_operation(state: State, request: RequestState) -> Operation:
    return Operation(
        request=request.key,
        operation_id=state.pool.next_operation_id,
        pool_generation=state.pool.pool_generation,
        map_revision=request.map_revision,
    )


def free_row(state: State, request: RequestState, lane: LaneName) -> int:
    """A table row that nobody holds; never picked by parity."""
    taken = state.ownership.rows(request.key)
    free = [row for row in range(request.rows) if row not in taken]
    if not free:
        raise CannotPlan(lane, "no_row", 1, 0, 0, selection_revision=request.selection_revision)
    return free[0]


def expect_lanes(request: RequestState, what: str) -> None:
    """Raise Refused where a lane that changes the view is busy, before anything is planned or reserved."""
    for name, lane in (("upload", request.upload), ("retain", request.retain)):
        if lane.phase != "IDLE":
            reason = f"the {name} lane is busy ({lane.phase}): one view-changing operation at a time"
            raise Refused(request.key, what, request.describe(), legal_now(request), reason)


def expect_count(key: RequestKey, what: str, state: str, field: str, got: int) -> None:
    """Raise Refused for a count below 0: counting back is never meant."""
    if got < 0:
        raise Refused(key, what, state, (), f"{field}: expected 0 or more, got {got}")


def expect_ranks(state: State, lane: LaneName, selection_revision: int = 0) -> None:
    """Raise CannotPlan while a rank is lost: nobody would answer for it."""
    if state.pool.lost:
        raise CannotPlan(lane, "rank_lost", 0, 0, 0, selection_revision=selection_revision)


def ids_bytes(*rows: Rows[Source] | Rows[Physical] | Rows[Slot]) -> int:
    """Bytes of ids in a message."""
    return sum(len(row.layer_bytes) + len(row.row_ptr_bytes) + len(row.id_bytes) for row in rows)


class Draft(Struct, frozen=True, kw_only=True):
    """What one selection comes to on one state."""

    plan: BlockDiffPlan
    sources: Rows[Source]  # token method: none
    places: Rows[Token] | None  # token method: where each token stands in the CPU pool
    row: int
    placement: Placement
    copies: int  # destinations in [K, N)


class Drafts:
    """The last draft: between asking for room and getting it nothing changes, so it is not made twice."""

    def __init__(self) -> None:
        self._last: tuple[State, Select, Draft] | None = None

    def of(self, batch: Batch, context: Context, command: Select) -> Draft | Operation:
        """What the command comes to; the operation itself where nothing has to move."""
        if self._last is not None and self._last[0] is batch.before and self._last[1] is command:
            return self._last[2]
        draft = _draft(batch, context, command)
        self._last = (batch.before, command, draft) if isinstance(draft, Draft) else None
        return draft


def _draft(batch: Batch, context: Context, command: Select) -> Draft | Operation:
    selection, settings = command.selection, context.settings
    request, layout = batch.request(selection.request), batch.state.pool.layout
    expect_lanes(request, "Select")
    tokens = selection.tokens_by_layer
    check_method(request, selection, settings.selection.method)
    check_selection(request, selection, layout)
    if tokens is not None:
        check_tokens(request, selection, tokens, layout)
    expect_ranks(batch.state, "upload", selection.selection_revision)
    shared_table, revision = not settings.retain.layer_tables, selection.selection_revision
    if tokens is None:
        plan = plan_upload(
            request, selection, layout, shared_table=shared_table, adopt=command.adopt, kernels=context.kernels
        )
    else:
        plan = plan_tokens(selection.logical_blocks_by_layer, shared_table=shared_table)
    if plan.upload.size == 0:
        return _publish(batch, command)
    if plan.unfilled:
        raise CannotPlan("upload", "unequal_layers", plan.unfilled, 0, 0, selection_revision=revision)
    sources: Rows[Source] | None = None if tokens is not None else sources_of(request, plan.upload)
    places = None if tokens is None else places_of(request, tokens, layout.block_size)
    if sources is None and places is None:
        raise CannotPlan("upload", "invalid_source", plan.upload.size, 0, 0, selection_revision=revision)
    row = free_row(batch.state, request, "upload")
    placement = place(batch.state.ownership, request.key, plan.upload, layout, shared_table=shared_table)
    copies = int(plan.upload.counts.max()) if settings.source.kind == "copy" else 0
    named: Rows[Source] = sources if sources is not None else no_rows()
    return Draft(plan=plan, sources=named, places=places, row=row, placement=placement, copies=copies)


def select(
    batch: Batch, context: Context, drafts: Drafts, command: Select, reserved: Reserved | None
) -> Operation | Reserve:
    selection, settings = command.selection, context.settings
    draft = drafts.of(batch, context, command)
    if not isinstance(draft, Draft):
        return draft
    request, layout = batch.request(selection.request), batch.state.pool.layout
    plan, placement, copies, tokens = draft.plan, draft.placement, draft.copies, selection.tokens_by_layer
    if reserved is None and (any(placement.new_blocks) or copies):
        return Reserve(cause=command, device=placement.new_blocks, cpu_full=0, cpu_copy=copies)
    if reserved is not None and reserved.device is None:
        raise CannotPlan(
            "upload",
            "no_space",
            sum(placement.new_blocks) + copies,
            placement.vacant,
            reserved.free,
            selection_revision=selection.selection_revision,
        )
    new = reserved.device if reserved is not None and reserved.device is not None else (b"",) * layout.groups
    copied = reserved.cpu_copy if reserved is not None else b""
    destination = placement.areas(
        tuple(int32_view(blocks) for blocks in new), layout, scatter=settings.transfer.scatter
    )
    _begin(batch, command)
    operation = next_operation(batch.state, request)
    batch.emit(
        e.UploadPlanned,
        request.key,
        operation=operation,
        generation=request.next_generation,
        kind=plan.kind,
        source_kind=settings.source.kind,
        logical=plan.upload,
        common_new_slots=plan.common_new_slots,
        pad=plan.pad if plan.pad.size else None,
        valid_tokens=b"" if tokens is None else valid_tokens(tokens),
    )
    if tokens is not None and draft.places is not None:
        read = packed_into(tokens, copied, layout.block_size)
        batch.effect(PackTokens(operation=operation, tokens=draft.places, destination=read))
    elif copies:
        read = _copies(draft.sources, copied)
        batch.effect(Gather(operation=operation, source=draft.sources, destination=read))
    else:
        read = draft.sources
    batch.emit(
        e.BlocksLeased,
        request.key,
        operation=operation,
        source=read,
        destination=destination,
        adopted=plan.adopted,
        row=draft.row,
        reserved=new,
        copies=copied,
    )
    _send(batch, context, request.key, operation, read, settings.source.kind)
    return operation


def _begin(batch: Batch, command: Select) -> None:
    selection = command.selection
    batch.emit(
        e.BlocksSelected,
        selection.request,
        selection_revision=selection.selection_revision,
        digest=selection_digest(selection),
        whole_blocks=selection.whole_blocks,
        effective_budget_blocks=selection.effective_budget_blocks,
        idempotency_key=command.idempotency_key,
    )


def _publish(batch: Batch, command: Select) -> Operation:
    """Zero bytes: residency stays, the keep map of this revision is published (F1)."""
    key = command.selection.request
    _begin(batch, command)
    request = batch.request(key)
    operation = next_operation(batch.state, request)
    keep = keep_slots(request, command.selection.logical_blocks_by_layer)
    batch.emit(
        e.KeepMapPublished,
        key,
        operation=operation,
        selection_revision=request.selection_revision,
        keep=keep,
        metadata_bytes=ids_bytes(keep),
    )
    batch.effect(PublishKeepMap(operation=operation, selection_revision=request.selection_revision, keep=keep))
    return operation


def _copies(sources: Rows[Source], copied: bytes) -> Rows[Source]:
    """The j-th block of every layer goes to the j-th copy destination, each layer into its own area of it."""
    blocks = int32_view(copied)
    ids = [blocks[:count] for count in sources.counts.tolist()]
    return Rows.from_csr(layers=sources.layers, row_ptr=sources.row_ptr, ids=np.concatenate(ids))


def _send(
    batch: Batch, context: Context, key: RequestKey, operation: Operation, source: Rows[Source], kind: SourceKind
) -> None:
    ranks = batch.state.pool.ranks
    opened = batch.request(key).upload.open
    if opened is None:
        raise LookupError(f"{operation} is not open")
    size = ids_bytes(source, opened.destination, opened.table) * len(ranks)
    batch.emit(e.TransferStarted, key, operation=operation, ranks=ranks, metadata_bytes=size)
    batch.effect(
        Transfer(
            operation=operation,
            ranks=ranks,
            generation=opened.generation,
            row=opened.row,
            source_kind=kind,
            source=source,
            destination=opened.destination,
            table=opened.table,
            floor=context.spoken.floor(operation.operation_id),
        )
    )
