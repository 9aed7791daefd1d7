"""A small world for tests of the fold: it numbers what it emits, as a coordinator would, and it decides nothing.

Two full layers 0 and 1 in group 0 (and, where a test asks, a sliding layer 2 in group 1), two ranks, six device blocks.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from kvsweep.ledger import events as e
from kvsweep.ledger import laws
from kvsweep.ledger.errors import KvsweepError, Refused
from kvsweep.ledger.fold import apply
from kvsweep.ledger.ids import POOL, Operation, RequestKey, Rows, int32_bytes, int32_view
from kvsweep.ledger.layout import LayerLayout, Layout
from kvsweep.ledger.state import EMPTY, RequestState, State

A, B = RequestKey("a", 1), RequestKey("b", 1)
RANKS = ((0, 10), (1, 11))
PRODUCER = 5
DEVICE_BLOCKS, K, N = 6, 12, 16


Ids = Mapping[int, Sequence[int]]
LAYER_0 = LayerLayout(layer=0, group=0, kind="full", kv_heads=1, head_dim=4)
LAYER_1 = msgspec.structs.replace(LAYER_0, layer=1)
SLIDING = LayerLayout(layer=2, group=1, kind="sliding", kv_heads=1, head_dim=4, window_tokens=8)


def layout_of(*layers: LayerLayout) -> Layout:
    return Layout.of(model_hash="toy", dtype="float32", block_size=4, layers=layers)


TWO_LAYERS = layout_of(LAYER_0, LAYER_1)
WITH_SLIDING = layout_of(LAYER_0, LAYER_1, SLIDING)


def frozen(state: State) -> bytes:
    """The whole state as bytes: equal bytes, equal state."""
    return msgspec.msgpack.encode(state.canonical(), order="deterministic")


def whole(state: State) -> bytes:
    """The same with the counts that follow from it."""
    relation = state.ownership
    counted = sorted(relation.areas.items()), relation.shared
    return frozen(state) + msgspec.msgpack.encode(counted, order="deterministic")


def rows(ids: Ids) -> Rows[Any]:
    return Rows.of({layer: list(row) for layer, row in ids.items()})


class World:
    """Every fact goes through the one door; `state` is what the fold gives."""

    def __init__(self, layout: Layout = TWO_LAYERS, *, opened: bool = True) -> None:
        self.layout, self.state = layout, EMPTY
        self.none: Ids = {layer: [] for layer in layout.active_layers}
        self.emit(
            e.RunConfigured, POOL, layout=layout, ranks=RANKS, producer_epoch=PRODUCER,
            device_blocks=(DEVICE_BLOCKS,) * layout.groups, cpu_full_blocks=K, cpu_total_blocks=N, evidence="{}",
        )  # fmt: skip
        if opened:
            self.open()

    # ---- the door

    def event(self, fact: type[e.Event], key: RequestKey, fields: Mapping[str, Any]) -> e.Event:
        known = self.state.request(key)
        seq = self.state.pool.seq if key == POOL else known.seq if known else 0
        return fact(**{"request": key, "seq": seq, **fields})

    def emit(self, fact: type[e.Event], key: RequestKey = A, /, **fields: Any) -> State:
        self.state = apply(self.state, self.event(fact, key, fields))
        return self.state

    def refuse(
        self, match: str, fact: type[e.Event], key: RequestKey = A, /,
        error: type[KvsweepError] = Refused, **fields: Any,
    ) -> None:  # fmt: skip
        """The event is refused with a sentence that matches, and the state is what it was."""
        before = frozen(self.state)
        with pytest.raises(error, match=match):
            apply(self.state, self.event(fact, key, fields))
        assert frozen(self.state) == before, "a refused event changed the state"

    # ---- what the state says

    def of(self, key: RequestKey = A) -> RequestState:
        found = self.state.request(key)
        assert found is not None
        return found

    def operation(self, key: RequestKey = A) -> Operation:
        """Identity of the next new operation."""
        pool = self.state.pool
        return Operation(
            request=key, operation_id=pool.next_operation_id, pool_generation=pool.pool_generation,
            map_revision=self.of(key).map_revision,
        )  # fmt: skip

    def opened(self, lane: Any, key: RequestKey = A) -> Operation:
        found = self.of(key).lane(lane).open
        assert found is not None
        return found.operation

    def owned(self, key: RequestKey = A, group: int = 0) -> list[int]:
        return self.state.ownership.owned(key, self.layout)[group].tolist()

    def vacant(self, layer: int, key: RequestKey = A) -> list[int]:
        """Owned blocks whose area of the layer nobody holds."""
        group = self.layout.layers[layer].group
        blocks, held = self.state.ownership.occupancy(key, group, self.layout)
        return blocks[~held[self.layout.group_layers(group).index(layer)]].tolist()

    def sources_held(self, key: RequestKey = A) -> list[int]:
        return self.state.ownership.sources(key).tolist()

    def table(self, key: RequestKey = A) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
        """(logical, physical) of the current view."""
        view = self.of(key).view
        assert view is not None
        return view.logical.as_lists(), view.physical.as_lists()

    def lawful(self) -> None:
        assert laws.check(self.state) == []

    def by_group(self, blocks: Sequence[int] = (), group: int = 0) -> tuple[bytes, ...]:
        return tuple(int32_bytes(list(blocks) if at == group else []) for at in range(self.layout.groups))

    # ---- steps that many tests take

    def open(self, key: RequestKey = A, *, row_count: int = 2, first_source: int = 0, blocks: int = 4) -> None:
        """A life with `blocks` whole blocks, CPU block = first_source + logical block."""
        self.emit(e.RequestOpened, key, pool_generation=self.state.pool.pool_generation, rows=row_count)
        if blocks:
            self.register(range(blocks), range(first_source, first_source + blocks), key)

    def register(self, logical: Sequence[int], source: Sequence[int], key: RequestKey = A) -> None:
        self.emit(e.SourcesRegistered, key, logical=int32_bytes(list(logical)), source=int32_bytes(list(source)))

    def select(self, key: RequestKey = A, **fields: Any) -> None:
        revision = self.of(key).selection_revision + 1
        self.emit(e.BlocksSelected, key, **{
            "selection_revision": revision, "digest": f"d{revision}", "whole_blocks": 8, "effective_budget_blocks": 4,
            **fields,
        })  # fmt: skip

    def plan(self, logical: Ids, key: RequestKey = A, **fields: Any) -> Operation:
        """Selected and planned; staging and the lease are the caller's."""
        self.select(key)
        operation = self.operation(key)
        self.emit(e.UploadPlanned, key, **{
            "operation": operation, "kind": "diff",
            "source_kind": "source_only", "logical": rows(logical), **fields,
        })  # fmt: skip
        return operation

    def stage(self, row: int = 0, key: RequestKey = A) -> None:
        found = self.of(key).upload.open
        assert found is not None
        self.emit(
            e.UploadStaged, key, operation=found.operation, generation=self.of(key).next_generation, row=row
        )  # fmt: skip

    def lease(
        self, to: Ids, reserved: Sequence[int] = (), row: int = 0, key: RequestKey = A, **fields: Any
    ) -> dict[str, Any]:
        """Fields of the lease of the planned upload: valid sources, destinations `to`. Staged where it is not."""
        if self.of(key).upload.phase == "PLANNED":
            self.stage(row, key)
        request = self.of(key)
        found = request.upload.open
        assert found is not None
        source = {layer: [request.source_of(b) for b in ids.tolist()] for layer, ids in found.logical.items()}
        return {
            "operation": found.operation, "source": rows(source), "destination": rows(to), "adopted": rows(self.none),
            "reserved": self.by_group(reserved), **fields,
        }  # fmt: skip

    def upload(
        self, logical: Ids, to: Ids, reserved: Sequence[int] = (), row: int = 0, key: RequestKey = A, *,
        kind: str = "diff", **lease: Any,
    ) -> Operation:  # fmt: skip
        """Up to MOVING."""
        operation = self.plan(logical, key, kind=kind)
        self.emit(e.BlocksLeased, key, **self.lease(to, reserved, row, key, **lease))
        self.emit(e.TransferStarted, key, operation=operation, ranks=self.state.pool.ranks)
        return operation

    def transferred(self, operation: Operation, rank: int) -> None:
        epoch = dict(self.state.pool.ranks)[rank]
        self.emit(
            e.RankTransferred, operation.request, operation=operation, rank=rank, process_epoch=epoch, h2d_bytes=1,
            unpack_bytes=0, table_updates=1,
        )  # fmt: skip

    def moved(self, operation: Operation) -> None:
        for rank, _ in self.state.pool.ranks:
            self.transferred(operation, rank)
        self.emit(e.TransferCompleted, operation.request, operation=operation)

    def commit(self, operation: Operation, *, acknowledged: bool = True) -> int:
        """From MOVING to IDLE; the new generation."""
        key = operation.request
        self.moved(operation)
        generation = self.of(key).next_generation - 1
        self.emit(e.ResidencyCommitted, key, operation=operation, generation=generation)
        if acknowledged:
            self.emit(e.UploadAcknowledged, key, operation=operation, process_epoch=self.state.pool.producer_epoch)
        return generation

    def resident(self, key: RequestKey = A, blocks: Sequence[int] = (0, 1), row: int = 0) -> int:
        """A first view: logical blocks 0, 1, … in both layers, in newly reserved `blocks`."""
        ids = {layer: list(range(len(blocks))) for layer in self.layout.active_layers}
        to = {layer: list(blocks) for layer in ids}
        return self.commit(self.upload(ids, to, blocks, row, key))

    def retain_fields(self, keep: Ids, row: int = 1, key: RequestKey = A, **fields: Any) -> dict[str, Any]:
        return {
            "operation": self.operation(key), "generation": self.of(key).next_generation, "mode": "layer",
            "attention": "same", "keep": rows(keep), "adopted": rows(self.none), "moved_from": rows(self.none),
            "moved_to": rows(self.none), "row": row, "reserved": self.by_group(), "selection_revision": 1, **fields,
        }  # fmt: skip

    def retain(self, keep: Ids, row: int = 1, key: RequestKey = A, **fields: Any) -> Operation:
        """Up to APPLYING."""
        planned = self.retain_fields(keep, row, key, **fields)
        operation: Operation = planned["operation"]
        self.emit(e.RetainPlanned, key, **planned)
        self.emit(e.ReadersDrained, key, operation=operation, row=row, ranks=self.state.pool.ranks)
        return operation

    def applied(self, operation: Operation, rank: int) -> None:
        epoch = dict(self.state.pool.ranks)[rank]
        self.emit(
            e.TablesApplied, operation.request, operation=operation, rank=rank, process_epoch=epoch,
            resident_moved_bytes=0, table_updates=1,
        )  # fmt: skip

    def switch(self, operation: Operation) -> int:
        """From APPLYING to COMMITTED; the new generation."""
        key = operation.request
        for rank, _ in self.state.pool.ranks:
            self.applied(operation, rank)
        self.emit(e.AllRanksApplied, key, operation=operation)
        generation = self.of(key).next_generation - 1
        self.emit(e.OwnersCommitted, key, operation=operation, generation=generation)
        return generation

    def retire(self, generation: int, cause: str, freed: Sequence[int] = (), key: RequestKey = A) -> None:
        self.emit(e.BlocksRetired, key, generation=generation, cause=cause, freed=self.by_group(freed))

    def retained(self, keep: Ids, freed: Sequence[int], row: int = 1, key: RequestKey = A, **fields: Any) -> int:
        """A whole retain; the new generation. `freed` are the blocks that retiring gives back."""
        old = self.of(key).current
        operation = self.retain(keep, row, key, **fields)
        generation = self.switch(operation)
        self.retire(old, "retain", freed, key)
        self.emit(e.RetainAcknowledged, key, operation=operation, process_epoch=self.state.pool.producer_epoch)
        return generation

    def settle(self, operation: Operation, rank: int, outcome: str = "cancelled", epoch: int | None = None) -> None:
        known = dict(self.state.pool.ranks)[rank] if epoch is None else epoch
        self.emit(
            e.TransferSettled, operation.request, operation=operation, rank=rank, process_epoch=known, outcome=outcome
        )

    def tail(self, logical: int, blocks: Sequence[int], key: RequestKey = A, *, sealed: bool = True) -> None:
        self.emit(e.TailOpened, key, logical=logical, physical_by_group=int32_bytes(list(blocks)))
        if sealed:
            self.emit(e.TailSealed, key, logical=logical)

    def store(self, logical: Sequence[int], source: Sequence[int], key: RequestKey = A) -> Operation:
        operation = self.operation(key)
        self.emit(
            e.StoreStarted, key, operation=operation, logical=int32_bytes(list(logical)),
            source=int32_bytes(list(source)), ranks=self.state.pool.ranks,
        )  # fmt: skip
        return operation

    def stored(self, operation: Operation, *ranks: int) -> None:
        for rank in ranks or (0, 1):
            epoch = dict(self.state.pool.ranks)[rank]
            self.emit(e.RankStored, operation.request, operation=operation, rank=rank, process_epoch=epoch, d2h_bytes=1)

    def clean_tail(self, logical: int, blocks: Sequence[int], source: int, key: RequestKey = A) -> None:
        """A written, sealed and stored block."""
        self.tail(logical, blocks, key)
        operation = self.store([logical], [source], key)
        self.stored(operation)
        self.emit(e.StoreCompleted, key, operation=operation)

    def publish(self, logical: int, name: str = "tokens", key: RequestKey = A) -> int:
        """Share a clean tail block; the prefix's number."""
        number = self.state.pool.next_prefix
        self.emit(e.PrefixPublished, key, logical=logical, number=number, key=name)
        return number

    def attach(self, number: int, key: RequestKey = B) -> None:
        (logical,) = [prefix.logical for prefix in self.state.pool.prefixes if prefix.number == number]
        self.emit(e.PrefixAttached, key, logical=logical, number=number)

    def evict(self, number: int, freed: Sequence[int] = ()) -> None:
        self.emit(e.PrefixEvicted, POOL, number=number, freed=self.by_group(freed))

    def shared(self, group: int = 0) -> list[int]:
        return self.state.ownership.shared_blocks(self.layout)[group].tolist()

    def drop(self, logical: Sequence[int], key: RequestKey = A, group: int = 0) -> int:
        """Out of the tail, into a fence; the fence's number."""
        fence = self.of(key).next_fence
        self.emit(e.TailDropped, key, group=group, logical=int32_bytes(list(logical)), fence=fence)
        return fence

    def open_fence(self, fence: int, freed: Sequence[int] = (), key: RequestKey = A, group: int = 0) -> None:
        self.emit(e.FenceOpened, key, fence=fence, freed=self.by_group(freed, group))


def ids_of(data: bytes) -> list[int]:
    return int32_view(data).tolist()
