"""Messages of a world: what the serving loop would send in this state, and what no rank can have sent."""

from collections.abc import Iterator

import numpy as np
from msgspec.structs import replace

from kvsweep.ledger.ids import HOLE, Logical, Operation, RequestKey, Rows, int32_bytes, int32_view, no_rows
from kvsweep.ledger.messages import (
    Acknowledged,
    AttachPrefix,
    BlockSelection,
    Command,
    Done,
    EvictPrefix,
    OpenTail,
    PublishPrefix,
    RegisterSources,
    Retain,
    SealTail,
    Select,
)
from kvsweep.ledger.state import RequestState
from kvsweep.runtime.core.upload_plan import clean_tail, keep_slots
from kvsweep.scenarios.verify.explore.coordinator_state import CoordinatorState
from kvsweep.scenarios.verify.explore.world import BLOCK_TOKENS, LOGICAL_BLOCKS, Ask, Want


def message_of(coordinator: CoordinatorState, name: str, ask: Ask, position: int = 0) -> Command | None:
    """None where the loop itself would not ask now: a block is sealed only when the steps that write it have ended."""
    request = coordinator.request(name)
    key, layout = request.key, coordinator.world.layout
    match ask.do:
        case "select":
            selection = _selection(coordinator, request, ask.want)
            if not coordinator.world.keyed:
                return Select(selection=selection, idempotency_key="")
            # The same call has the same revision, whenever it is made.
            return Select(
                selection=replace(selection, selection_revision=position + 1), idempotency_key=f"call {position}"
            )
        case "retain" | "pack":
            rows = _rows(ask.want)
            if ask.do == "pack":
                rows = request.view.logical if request.view else no_rows(layout.active_layers)
            keep = keep_slots(request, rows)
            resident = request.view.logical.as_lists() if request.view else {}
            adopt: Rows[Logical] = Rows.of(
                {
                    layer: np.setdiff1d(
                        np.intersect1d(clean_tail(request, layout, layer), ids), resident.get(layer, [])
                    ).astype(np.int32)
                    if ask.do == "retain"
                    else []
                    for layer, ids in rows.items()
                }
            )
            return Retain(
                request=key,
                keep=keep,
                adopt=adopt,
                map_revision=request.map_revision,
                selection_revision=request.selection_revision,
                idempotency_key="",
                pack=ask.do == "pack",
            )
        case "tail":
            return OpenTail(request=key, until=ask.until)
        case "seal":
            written = {block.logical for block in request.tail if block.phase == "open" and block.logical < ask.until}
            if written & _being_written(coordinator, key):
                return None
            return SealTail(request=key, confirmed_tokens=ask.until * BLOCK_TOKENS)
        case "publish":
            return PublishPrefix(request=key, keys=tuple((at, f"p{at}") for at in range(ask.until)))
        case "attach":
            return AttachPrefix(request=key, keys=tuple(f"p{at}" for at in range(ask.until)))
        case "evict":
            return EvictPrefix(blocks=ask.until)


def _being_written(coordinator: CoordinatorState, key: RequestKey) -> set[int]:
    """Logical blocks of the tails that open steps were handed."""
    return {
        logical
        for handed, _ in coordinator.core.steps.described().values()
        for other, one in handed
        if other == key
        for logical in one.tail
    }


def _rows(want: Want) -> Rows[Logical]:
    return Rows.of({layer: sorted(ids) for layer, ids in enumerate(want)})


def _selection(coordinator: CoordinatorState, request: RequestState, want: Want) -> BlockSelection:
    """Exactly these blocks; under one table a group, every other block is there to fill up with."""
    layout = coordinator.world.layout
    rows = _rows(want)
    others = [
        [] if coordinator.world.layer_tables else [block for block in range(LOGICAL_BLOCKS) if block not in ids]
        for ids in want
    ]
    return BlockSelection(
        request=request.key,
        selection_revision=request.selection_revision + 1,
        block_size=layout.block_size,
        logical_blocks_by_layer=rows,
        ranked_tail_by_layer=_rows(tuple(tuple(row) for row in others)),
        group_by_layer=int32_bytes([layout.layers[layer].group for layer in layout.active_layers]),
        whole_blocks=LOGICAL_BLOCKS,
        effective_budget_blocks=max(len(row) for row in want),
    )


def first_registration(coordinator: CoordinatorState, name: str, blocks: int) -> RegisterSources:
    """The producer's blocks of a new life: free CPU blocks, highest first, so that none has its own number."""
    free = coordinator.pools.cpu.full
    taken = {
        int(block)
        for holders in coordinator.state.ownership.held
        for block in coordinator.state.ownership.sources(holders)
    }
    ids = [block for block in range(free.blocks) if block not in taken][:blocks]
    return RegisterSources(
        request=coordinator.request(name).key,
        logical=int32_bytes(list(range(blocks))),
        source=int32_bytes(list(reversed(ids))),
    )


def registration_again(request: RequestState) -> RegisterSources | None:
    """After a restart of the producer: the stale blocks, under their old ids."""
    stale = int32_view(request.stale)
    logical = np.flatnonzero(stale != HOLE)
    if not logical.size:
        return None
    return RegisterSources(
        request=request.key, logical=int32_bytes(logical.tolist()), source=int32_bytes(stale[logical].tolist())
    )


def forged_reports(coordinator: CoordinatorState) -> Iterator[Done | Acknowledged]:
    """Of every open or settling operation, and of one that was never begun."""
    pool = coordinator.state.pool
    for request in coordinator.state.requests.values():
        for opened in (*request.open_operations(), *request.settling):
            for rank, epoch in opened.ranks:
                honest = Done(operation=opened.operation, rank=rank, process_epoch=epoch, outcome="completed")
                operation = opened.operation
                yield replace(honest, operation=replace(operation, pool_generation=operation.pool_generation + 1))
                yield replace(honest, operation=replace(operation, map_revision=operation.map_revision + 1))
                yield replace(honest, operation=replace(operation, operation_id=pool.next_operation_id))
                yield replace(honest, operation=replace(operation, request=_later(operation.request)))
                yield replace(honest, process_epoch=epoch + 1000)
                yield replace(honest, process_epoch=epoch - 1)
                yield replace(honest, outcome="epoch_ended")
                yield replace(honest, rank=rank + len(opened.ranks))
            yield Acknowledged(operation=opened.operation, process_epoch=pool.producer_epoch + 1)
            yield Acknowledged(operation=opened.operation, process_epoch=pool.producer_epoch - 1)
        never = Operation(
            request=request.key,
            operation_id=pool.next_operation_id,
            pool_generation=pool.pool_generation,
            map_revision=request.map_revision,
        )
        rank, epoch = pool.ranks[0]
        yield Done(operation=never, rank=rank, process_epoch=epoch, outcome="completed")


def _later(request: RequestKey) -> RequestKey:
    return RequestKey(request.request_id, request.request_epoch + 1)
