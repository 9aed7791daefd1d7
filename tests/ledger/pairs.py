"""The ownership relation once more, by brute force: a set of (resource, holder) pairs and a dict of who reserved what.

It shares nothing with the fold but the facts: no arrays, no rows, no reducers. It believes each fact it is told.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from kvsweep.ledger import events as e
from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import POOL, RequestKey, int32_view
from kvsweep.ledger.layout import Layout
from kvsweep.ledger.state import State

Resource = tuple[Any, ...]
"""("area", layer, block) · ("cpu", block) · ("row", request, row)"""
Owner = tuple[str, RequestKey, int, int]
"""(kind, request, number, group)"""
Table = dict[int, list[tuple[int, int]]]
"""layer -> (logical block, physical block) of each slot"""


class Plan:
    def __init__(self, key: RequestKey) -> None:
        self.key, self.generation, self.full, self.row = key, 0, False, -1
        self.logical: dict[int, list[int]] = {}
        self.table: Table = {}
        self.stored: list[tuple[int, int]] = []
        self.awaited: set[int] = set()
        self.settling = False


class Pairs:
    def __init__(self, layout: Layout) -> None:
        self.group = {layer.layer: layer.group for layer in layout.layers}
        self.active, self.groups = layout.active_layers, layout.groups
        self.hold: set[tuple[Resource, Owner]] = set()
        self.own: dict[tuple[int, int], RequestKey] = {}
        self.views: dict[RequestKey, Table] = {}  # current ones
        self.plans: dict[int, Plan] = {}
        self.tail: dict[tuple[RequestKey, int], dict[int, int]] = {}  # logical block -> group -> block
        self.source: dict[RequestKey, dict[int, int]] = {}
        self.stale: dict[RequestKey, dict[int, int]] = {}
        self.prefixes: dict[int, tuple[int, dict[int, int], int]] = {}  # number -> logical, group -> block, CPU block
        self.shared: set[tuple[int, int]] = set()
        self.shared_cpu: set[int] = set()

    # ---- asking

    def layers(self, group: int) -> list[int]:
        return [layer for layer, of in self.group.items() if of == group]

    def alone(self, owner: Owner) -> list[list[int]]:
        """Per group: the blocks that only this holder holds, so that they are free when it goes."""
        found = []
        for group in range(self.groups):
            mine, others = set(), set()
            for resource, holder in self.hold:
                if resource[0] == "area" and self.group[resource[1]] == group:
                    (mine if holder == owner else others).add(resource[2])
            found.append(sorted(mine - others))
        return found

    def counts(self) -> dict[tuple[RequestKey, int, int], int]:
        """How many hold each area (layer, block) of a request's own blocks."""
        held = Counter(resource for resource, _ in self.hold)
        return {
            (key, layer, block): held["area", layer, block]
            for (group, block), key in self.own.items()
            for layer in self.layers(group)
        }

    def totals(self) -> dict[tuple[int, int], int]:
        """How many pairs each shared block has."""
        held = Counter((self.group[r[1]], r[2]) for r, _ in self.hold if r[0] == "area")
        return {block: held[block] for block in self.shared}

    # ---- hearing a fact

    def hear(self, event: Event) -> None:
        handler: Callable[[Any], None] | None = getattr(self, f"on_{type(event).__name__}", None)
        if handler is not None:
            handler(event)
        held = {(self.group[r[1]], r[2]) for r, _ in self.hold if r[0] == "area"}
        self.own = {block: key for block, key in self.own.items() if block in held}
        self.shared &= held
        self.shared_cpu &= {resource[1] for resource, _ in self.hold if resource[0] == "cpu"}

    def put(self, owner: Owner, resources: Iterable[Resource]) -> None:
        self.hold |= {(resource, owner) for resource in resources}

    def release(self, kind: str, key: RequestKey, number: int = 0, group: int = 0) -> None:
        self.hold = {pair for pair in self.hold if pair[1] != (kind, key, number, group)}

    def block(self, group: int, block: int) -> list[Resource]:
        return [("area", layer, block) for layer in self.layers(group)]

    def reserve(self, key: RequestKey, reserved: tuple[bytes, ...]) -> None:
        for group, blocks in enumerate(reserved):
            self.own |= {(group, block): key for block in int32_view(blocks).tolist()}

    def on_SourcesRegistered(self, event: e.SourcesRegistered) -> None:
        pairs = zip(int32_view(event.logical).tolist(), int32_view(event.source).tolist(), strict=True)
        self.valid(event.request, pairs)

    def valid(self, key: RequestKey, pairs: Iterable[tuple[int, int]]) -> None:
        for logical, block in pairs:
            self.source.setdefault(key, {})[logical] = block
            self.stale.get(key, {}).pop(logical, None)
        self.sources_of(key)

    def sources_of(self, key: RequestKey) -> None:
        self.release("owner", key)
        for known in (self.source, self.stale):
            self.put(("owner", key, 0, 0), [("cpu", block) for block in known.get(key, {}).values()])

    def on_RequestPreempted(self, event: Event) -> None:
        self.views.pop(event.request, None)

    def on_RequestFinished(self, event: Event) -> None:
        self.views.pop(event.request, None)
        self.source.pop(event.request, None)
        self.stale.pop(event.request, None)
        self.sources_of(event.request)

    def on_ProducerRestarted(self, event: Event) -> None:
        for key, known in self.source.items():
            self.stale.setdefault(key, {}).update(known)
        self.source.clear()

    # ---- shared blocks

    def on_PrefixPublished(self, event: e.PrefixPublished) -> None:
        blocks = self.tail[event.request, event.logical]
        source = self.source[event.request][event.logical]
        self.prefixes[event.number] = event.logical, dict(blocks), source
        for group, block in blocks.items():
            del self.own[group, block]
            self.shared.add((group, block))
            self.put(("prefix", POOL, event.number, 0), self.block(group, block))
        self.shared_cpu.add(source)
        self.put(("prefix", POOL, event.number, 0), [("cpu", source)])

    def on_PrefixAttached(self, event: e.PrefixAttached) -> None:
        logical, blocks, source = self.prefixes[event.number]
        self.tail[event.request, logical] = dict(blocks)
        for group, block in blocks.items():
            self.put(("tail", event.request, logical, group), self.block(group, block))
        self.valid(event.request, [(logical, source)])

    def on_PrefixEvicted(self, event: e.PrefixEvicted) -> None:
        del self.prefixes[event.number]
        self.release("prefix", POOL, event.number)

    # ---- plans

    def on_UploadPlanned(self, event: e.UploadPlanned) -> None:
        plan = self.plans[event.operation.operation_id] = Plan(event.request)
        plan.logical, plan.full = event.logical.as_lists(), event.kind == "full"

    def on_UploadStaged(self, event: e.UploadStaged) -> None:
        plan = self.plans[event.operation.operation_id]
        plan.generation, plan.row = event.generation, event.row

    def on_BlocksLeased(self, event: e.BlocksLeased) -> None:
        key, number = event.request, event.operation.operation_id
        plan, destination = self.plans[number], event.destination.as_lists()
        base = {} if plan.full else self.views.get(key, {})
        plan.table = {
            layer: [
                *base.get(layer, []), *self.adopt(key, number, layer, event.adopted.as_lists().get(layer, [])),
                *zip(plan.logical[layer], destination[layer], strict=True),
            ]
            for layer in self.active
        }  # fmt: skip
        self.reserve(key, event.reserved)
        self.put(("dst", key, number, 0), [("row", key, plan.row)])
        for layer, blocks in destination.items():
            self.put(("dst", key, number, 0), [("area", layer, block) for block in blocks])
        sources = [*event.source.ids.tolist(), *int32_view(event.copies).tolist()]
        self.put(("src", key, number, 0), [("cpu", block) for block in sources])

    def adopt(self, key: RequestKey, number: int, layer: int, logical: list[int]) -> list[tuple[int, int]]:
        slots = [(block, self.tail[key, block][self.group[layer]]) for block in logical]
        self.put(("src", key, number, 0), [("area", layer, physical) for _, physical in slots])
        return slots

    def on_RetainPlanned(self, event: e.RetainPlanned) -> None:
        key, number = event.request, event.operation.operation_id
        plan = self.plans[number] = Plan(key)
        plan.generation, plan.row = event.generation, event.row
        view, adopted = self.views.get(key, {}), event.adopted.as_lists()
        targets = event.moved_to.as_lists()
        moves = {
            layer: dict(zip(blocks, targets[layer], strict=True))
            for layer, blocks in event.moved_from.as_lists().items()
        }
        for layer in self.active:
            kept = [view[layer][slot] for slot in event.keep.row(layer).tolist()]
            kept += self.adopt(key, number, layer, adopted.get(layer, []))
            plan.table[layer] = [(logical, moves.get(layer, {}).get(block, block)) for logical, block in kept]
        self.reserve(key, event.reserved)
        self.put(("dst", key, number, 0), [("row", key, event.row)])
        for layer, blocks in targets.items():
            self.put(("dst", key, number, 0), [("area", layer, block) for block in blocks])

    def on_StoreStarted(self, event: e.StoreStarted) -> None:
        key, number = event.request, event.operation.operation_id
        plan = self.plans[number] = Plan(key)
        plan.stored = list(zip(int32_view(event.logical).tolist(), int32_view(event.source).tolist(), strict=True))
        for logical, source in plan.stored:
            for group, block in self.tail[key, logical].items():
                self.put(("src", key, number, 0), self.block(group, block))
            self.put(("dst", key, number, 0), [("cpu", source)])
        plan.awaited = {rank for rank, _ in event.ranks}

    def on_TransferStarted(self, event: e.TransferStarted) -> None:
        self.plans[event.operation.operation_id].awaited = {rank for rank, _ in event.ranks}

    on_ReadersDrained = on_TransferStarted

    # ---- ends

    def on_RankTransferred(self, event: Any) -> None:
        plan = self.plans[event.operation.operation_id]
        plan.awaited.discard(event.rank)
        self.quiet(event.operation.operation_id)

    on_TablesApplied = on_RankStored = on_TransferSettled = on_RankTransferred

    def on_UploadAborted(self, event: Any) -> None:
        self.plans[event.operation.operation_id].settling = True
        self.quiet(event.operation.operation_id)

    on_RetainAborted = on_StoreAborted = on_UploadAborted

    def quiet(self, number: int) -> None:
        plan = self.plans[number]
        if plan.settling and not plan.awaited:
            self.done(number)

    def done(self, number: int) -> Plan:
        plan = self.plans.pop(number)
        self.release("dst", plan.key, number)
        self.release("src", plan.key, number)
        return plan

    def on_ResidencyCommitted(self, event: Any) -> None:
        plan = self.done(event.operation.operation_id)
        self.views[event.request] = plan.table
        owner = ("view", event.request, plan.generation, 0)
        self.put(owner, [("row", event.request, plan.row)])
        for layer, slots in plan.table.items():
            self.put(owner, [("area", layer, block) for _, block in slots])

    on_OwnersCommitted = on_ResidencyCommitted

    def on_StoreCompleted(self, event: Any) -> None:
        plan = self.done(event.operation.operation_id)
        self.valid(event.request, plan.stored)

    def on_BlocksRetired(self, event: e.BlocksRetired) -> None:
        self.release("view", event.request, event.generation)

    # ---- tail

    def on_TailOpened(self, event: e.TailOpened) -> None:
        blocks = dict(enumerate(int32_view(event.physical_by_group).tolist()))
        self.tail[event.request, event.logical] = blocks
        for group, block in blocks.items():
            self.own[group, block] = event.request
            self.put(("tail", event.request, event.logical, group), self.block(group, block))

    def on_TailDropped(self, event: e.TailDropped) -> None:
        for logical in int32_view(event.logical).tolist():
            block = self.tail[event.request, logical].pop(event.group)
            self.put(("fence", event.request, event.fence, 0), self.block(event.group, block))
            self.release("tail", event.request, logical, event.group)

    def on_FenceOpened(self, event: e.FenceOpened) -> None:
        self.release("fence", event.request, event.fence)


def pairs_of(state: State) -> set[tuple[Resource, Owner]]:
    """The fold's relation, flattened."""
    found: set[tuple[Resource, Owner]] = set()
    for key, holders in state.ownership.held.items():
        for holder, holding in holders.items():
            owner = (holder.kind, key, holder.number, holder.group)
            for layer, blocks in holding.areas.as_lists().items():
                found |= {(("area", layer, block), owner) for block in blocks}
            found |= {(("cpu", block), owner) for block in int32_view(holding.sources).tolist()}
            found |= {(("row", key, row), owner) for row in holding.rows}
    return found


def own_of(state: State) -> dict[tuple[int, int], RequestKey]:
    return {
        (group, block): key
        for key, own in state.ownership.own.items()
        for group, blocks in enumerate(own)
        for block in int32_view(blocks).tolist()
    }


def counts_of(state: State) -> dict[tuple[RequestKey, int, int], int]:
    """(request, layer, block) -> holders, as the fold has counted them."""
    found: dict[tuple[RequestKey, int, int], int] = {}
    for key, groups in state.ownership.areas.items():
        for group, own in enumerate(groups):
            areas = [(layer, block) for layer in state.pool.layout.group_layers(group) for block in ids(own.blocks)]
            found |= {(key, *area): count for area, count in zip(areas, own.held, strict=True)}
    return found


def totals_of(state: State) -> dict[tuple[int, int], int]:
    """(group, block) of shared blocks -> pairs, as the fold has counted them."""
    return {
        (group, block): total
        for group, shared in enumerate(state.ownership.shared)
        for block, total in zip(ids(shared.blocks), ids(shared.total), strict=True)
    }


def ids(data: bytes) -> list[int]:
    return int32_view(data).tolist()


def shared_of(state: State) -> tuple[set[tuple[int, int]], set[int]]:
    """(group, block) of shared device blocks, and shared CPU blocks."""
    shared = enumerate(state.ownership.shared)
    blocks = {(group, block) for group, part in shared for block in int32_view(part.blocks).tolist()}
    return blocks, set(int32_view(state.ownership.shared_sources).tolist())


def stale_of(state: State) -> dict[RequestKey, dict[int, int]]:
    found = {r.key: dict(enumerate(int32_view(r.stale).tolist())) for r in state.requests.values()}
    return {key: {at: block for at, block in table.items() if block >= 0} for key, table in found.items()}
