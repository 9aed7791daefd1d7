"""Laws of the whole state, as named data. They run in tests, simulator, explorer and `verify`, not on the hot path.

Each recounts from the relation and the views; none trusts a figure that a reducer kept.
"""

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
from msgspec import Struct

from kvsweep.ledger.ids import HOLE, POOL, int32_view
from kvsweep.ledger.ownership import Holder
from kvsweep.ledger.state import CLOSED_KEPT, COMMANDS_KEPT, PREFIXES_KEPT, State

Pairs = dict[tuple[int, int], list[tuple[str, Holder]]]
"""(layer, physical block) -> every (request id, holder) that holds the area."""


class Law(Struct, frozen=True):
    name: str
    clause: str
    broken: Callable[[State], Iterator[str]]


def area_pairs(state: State) -> Pairs:
    """The relation, area by area."""
    pairs: Pairs = {}
    for key, holders in state.ownership.held.items():
        for holder, holding in holders.items():
            for layer, blocks in holding.areas.items():
                for block in blocks.tolist():
                    pairs.setdefault((layer, block), []).append((key.request_id, holder))
    return pairs


def _conservation(state: State) -> Iterator[str]:
    """Owned blocks are exactly those with a held area, and fit the pool."""
    if state.pool.run is None:
        return
    layout = state.pool.layout
    held: dict[int, set[int]] = {group: set() for group in range(layout.groups)}
    for layer, block in area_pairs(state):
        held[layout.layers[layer].group].add(block)
    for group in range(layout.groups):
        owned = [int(b) for blocks in state.ownership.own.values() for b in int32_view(blocks[group])]
        owned += state.ownership.shared_blocks(layout)[group].tolist()
        if len(owned) != len(set(owned)):
            yield f"group {group}: a block is owned twice"
        if set(owned) != held[group]:
            yield f"group {group}: owned {sorted(set(owned) ^ held[group])} differ from the held blocks"
        if owned and not (min(owned) >= 0 and max(owned) < state.pool.run.device_blocks[group]):
            yield f"group {group}: an owned block is outside the pool"


def _one_owner(state: State) -> Iterator[str]:
    if state.pool.run is None:
        return
    layout = state.pool.layout
    shared = [set(blocks.tolist()) for blocks in state.ownership.shared_blocks(layout)]
    for area, holders in area_pairs(state).items():
        if len({name for name, _ in holders}) > 1 and area[1] not in shared[layout.layers[area[0]].group]:
            yield f"area {area} is held for {sorted({name for name, _ in holders})}"


def _destination_alone(state: State) -> Iterator[str]:
    """Nobody else holds a destination, and none is in a shared block: that would be written under its readers."""
    shared = [set(int32_view(group.blocks).tolist()) for group in state.ownership.shared]
    for (layer, block), holders in area_pairs(state).items():
        writers = [name for name, holder in holders if holder.kind == "dst"]
        if writers and shared and block in shared[state.pool.layout.layers[layer].group]:
            yield f"destination area {layer, block} of {writers} is in a shared block"
    for area, holders in area_pairs(state).items():
        if len(holders) > 1 and any(holder.kind == "dst" for _, holder in holders):
            yield f"destination area {area} is held by {[holder for _, holder in holders]}"


def _row_alone(state: State) -> Iterator[str]:
    for key, holders in state.ownership.held.items():
        rows = [row for holding in holders.values() for row in holding.rows]
        if len(rows) != len(set(rows)):
            yield f"{key.request_id}: a table row has two holders ({sorted(rows)})"


def _views_held(state: State) -> Iterator[str]:
    """Every view's areas are held by that view, exactly, and no logical block has two slots."""
    for name, request in state.requests.items():
        holders = state.ownership.holders(request.key)
        for view in request.views:
            holding = holders.get(Holder("view", view.generation))
            if holding is None or holding.areas != view.physical or holding.rows != (view.row,):
                yield f"{name}: view {view.generation} does not hold what its table names"
            for layer, blocks in view.logical.items():
                if np.unique(blocks).size != blocks.size or view.physical.row(layer).size != blocks.size:
                    yield f"{name}: view {view.generation}, layer {layer}: slots are not one to one"
        if request.current and request.view is None:
            yield f"{name}: current generation {request.current} is gone"


def _holders_known(state: State) -> Iterator[str]:
    """Every holder stands for something that exists: leases, fences and quarantine cannot leak."""
    for key, holders in state.ownership.held.items():
        if key == POOL:
            if {holder.number for holder in holders} != {prefix.number for prefix in state.pool.prefixes}:
                yield "the pool's holders are not its prefixes"
            continue
        request = state.request(key)
        if request is None:
            yield f"{key}: holds resources but is unknown"
            continue
        operations = {o.operation.operation_id for o in (*request.open_operations(), *request.settling)}
        known = {
            "view": {view.generation for view in request.views},
            "tail": {block.logical for block in request.tail},
            "dst": operations,
            "src": operations,
            "fence": set(request.fences),
            "owner": {0},
        }
        for holder in holders:
            if holder.number not in known.get(holder.kind, set()):
                yield f"{key.request_id}: {holder} stands for nothing"


def _sources_valid(state: State) -> Iterator[str]:
    """A request's owner holds its valid and stale CPU blocks; an unshared block is held for one request only."""
    seen: dict[int, str] = {}
    shared = set(int32_view(state.ownership.shared_sources).tolist())
    for name, request in state.requests.items():
        tables = [*int32_view(request.source).tolist(), *int32_view(request.stale).tolist()]
        owner = state.ownership.holders(request.key).get(Holder("owner"))
        if {block for block in tables if block != HOLE} != (
            set(int32_view(owner.sources).tolist()) if owner else set()
        ):
            yield f"{name}: its owner does not hold exactly its CPU blocks"
        for block in state.ownership.sources(request.key).tolist():
            if block not in shared and seen.setdefault(block, name) != name:
                yield f"CPU block {block} is held for {seen[block]} and {name}"


def _shared_whole(state: State) -> Iterator[str]:
    """A prefix holds every area of its blocks and their CPU block, and only shared ones."""
    if state.pool.run is None:
        return
    layout = state.pool.layout
    sources = int32_view(state.ownership.shared_sources)
    shared = [set(blocks.tolist()) for blocks in state.ownership.shared_blocks(layout)]
    for prefix in state.pool.prefixes:
        holding = state.ownership.holders(POOL).get(Holder("prefix", prefix.number))
        for layer in layout.layers:
            block = prefix.physical[layer.group]
            if holding is None or block not in holding.areas.row(layer.layer) or block not in shared[layer.group]:
                yield f"prefix {prefix.number}: layer {layer.layer} of block {block} is not held by the cache"
        if holding is None or prefix.source not in int32_view(holding.sources) or prefix.source not in sources:
            yield f"prefix {prefix.number}: CPU block {prefix.source} is not held by the cache"


def _bounded(state: State) -> Iterator[str]:
    """Histories have bounds."""
    for name, request in state.requests.items():
        if len(request.views) > request.rows or len(request.commands) > COMMANDS_KEPT:
            yield f"{name}: {len(request.views)} views on {request.rows} rows, {len(request.commands)} commands"
    if len(state.pool.prefixes) > PREFIXES_KEPT or len(state.pool.closed) > CLOSED_KEPT:
        yield f"{len(state.pool.prefixes)} prefixes and {len(state.pool.closed)} closed requests are kept"


def _closed_holds_nothing(state: State) -> Iterator[str]:
    for name, request in state.requests.items():
        if request.life == "CLOSED" and state.ownership.holders(request.key):
            yield f"{name} is closed and holds resources"


LAWS: Final = (
    Law("owned blocks are the held blocks", "B6", _conservation),
    Law("an area has one owner", "B6", _one_owner),
    Law("a destination has exactly one holder", "F1", _destination_alone),
    Law("a table row has exactly one holder", "G1", _row_alone),
    Law("a view holds what its table names", "B4", _views_held),
    Law("every holder stands for something", "B6", _holders_known),
    Law("a valid CPU block has one owner", "D1", _sources_valid),
    Law("a prefix block is whole and shared", "B6", _shared_whole),
    Law("every history is bounded", "F2", _bounded),
    Law("a closed request holds nothing", "B6", _closed_holds_nothing),
)


def check(state: State) -> list[str]:
    """Every broken law as 'name: what is wrong'; empty when all hold."""
    return [f"{law.name}: {detail}" for law in LAWS for detail in law.broken(state)]
