"""Ownership: ONE relation (resource, holder) and one function that changes it.

Resources are areas (a layer's part of a physical block), CPU blocks and table rows. Quarantine, leases, fences
and tails are holders, not states. An area is vacant when no pair names it; a block is free exactly when none of its
areas is held. `own` gives no lifetime: it says who may place into vacant areas.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from kvsweep.ledger.ids import POOL, Int32, Physical, RequestKey, Rows, int32_view, no_rows
from kvsweep.ledger.layout import Layout

HolderKind = Literal["view", "tail", "dst", "src", "fence", "owner", "prefix"]


class Holder(Struct, frozen=True, array_like=True, gc=False, order=True):
    """view(request, generation) · tail(request, logical, group) · dst / src(operation id) · fence(request, number) ·
    owner(request): its CPU blocks · prefix(number), which the pool itself holds."""

    kind: HolderKind
    number: int = 0
    group: int = 0


class Holding(Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """What one holder holds."""

    areas: Rows[Physical] = no_rows()
    sources: bytes = b""  # '<i4' CPU blocks
    rows: tuple[int, ...] = ()


class Freed(Struct, frozen=True, kw_only=True, gc=False):
    """What a change left without any holder."""

    device: tuple[bytes, ...]  # '<i4' blocks a group, ascending
    sources: bytes  # '<i4', ascending


def blocks_by_group(areas: Rows[Physical], layout: Layout) -> tuple[Int32, ...]:
    """Distinct physical blocks of each group that the areas touch, ascending."""
    group_of_layer = np.fromiter((layer.group for layer in layout.layers), dtype=np.int32, count=len(layout.layers))
    group_of_id = np.repeat(group_of_layer[areas.layers], areas.counts)
    return tuple(np.unique(areas.ids[group_of_id == group]) for group in range(layout.groups))


def _wire(blocks: npt.NDArray[np.int32]) -> bytes:
    return blocks.astype("<i4").tobytes()


class Ownership(Struct, frozen=True, gc=False):
    """held: request -> holder -> what it holds. own: request -> blocks it reserved, a '<i4' list a group, ascending.

    A block that was published as a prefix has no owner any more: it stands in `shared` until its last holder is gone,
    whoever that is, and nobody places into its vacant areas. `shared_sources` is the same for CPU blocks.
    """

    held: dict[RequestKey, dict[Holder, Holding]]
    own: dict[RequestKey, tuple[bytes, ...]]
    shared: tuple[bytes, ...] = ()  # a '<i4' list a group, ascending; () where nothing is shared
    shared_sources: bytes = b""

    def holders(self, request: RequestKey) -> Mapping[Holder, Holding]:
        return self.held.get(request, {})

    def change(
        self,
        request: RequestKey,
        layout: Layout,
        *,
        put: Mapping[Holder, Holding] | None = None,
        drop: Iterable[Holder] = (),
        reserve: tuple[bytes, ...] = (),
    ) -> "Ownership":
        """The only way to change the relation: pairs are added first, then removed, so nothing is free in between.

        `put` adds a holder or replaces what it holds; `reserve` adds newly reserved blocks to the request's own.
        A block whose last area lost its holder leaves `own`. Raises KeyError for a holder that is not there.
        """
        holders = dict(self.held.get(request, {}))
        touched: list[Holding] = [holders[holder] for holder in put or () if holder in holders]
        holders.update(put or {})
        for holder in drop:
            touched.append(holders.pop(holder))
        own = self.own.get(request, (b"",) * layout.groups)
        if reserve:
            own = tuple(
                _wire(np.union1d(int32_view(old), int32_view(new))) for old, new in zip(own, reserve, strict=True)
            )
        if touched:
            own = _without_free(own, touched, holders.values(), layout)
        held_all, own_all = dict(self.held), dict(self.own)
        if holders:
            held_all[request] = holders
        else:
            held_all.pop(request, None)
        if any(own):
            own_all[request] = own
        else:
            own_all.pop(request, None)
        changed = Ownership(held_all, own_all, self.shared, self.shared_sources)
        return changed._unshare(touched, layout) if touched and (self.shared or self.shared_sources) else changed

    def publish(
        self, request: RequestKey, layout: Layout, number: int, blocks: tuple[int, ...], source: int
    ) -> "Ownership":
        """Share one block of each group and one CPU block: the pool's prefix(number) holds every area of them."""
        new = tuple(np.asarray([block], dtype="<i4") for block in blocks)
        areas: Rows[Physical] = Rows.of({layer.layer: [blocks[layer.group]] for layer in layout.layers})
        wire = np.asarray([source], dtype="<i4")
        holding = Holding(areas=areas, sources=wire.tobytes())
        own = tuple(_wire(np.setdiff1d(old, ids)) for old, ids in zip(self.owned(request, layout), new, strict=True))
        shared = tuple(_wire(np.union1d(old, ids)) for old, ids in zip(self.shared_blocks(layout), new, strict=True))
        own_all = {**self.own, request: own}
        if not any(own):
            del own_all[request]
        return Ownership(
            {**self.held, POOL: {**self.held.get(POOL, {}), Holder("prefix", number): holding}},
            own_all,
            shared,
            _wire(np.union1d(int32_view(self.shared_sources), wire)),
        )

    def shared_blocks(self, layout: Layout) -> tuple[Int32, ...]:
        """Shared device blocks, a list a group."""
        return tuple(int32_view(blocks) for blocks in self.shared or (b"",) * layout.groups)

    def _unshare(self, touched: list[Holding], layout: Layout) -> "Ownership":
        """Shared blocks that a removed pair touched and that nobody at all holds any more are free."""
        remaining = [holding for holders in self.held.values() for holding in holders.values()]
        shared = _without_free(self.shared or (b"",) * layout.groups, touched, remaining, layout)
        sources = int32_view(self.shared_sources)
        gone = np.intersect1d(sources, _union(int32_view(holding.sources) for holding in touched))
        if gone.size:
            left = _union(int32_view(holding.sources) for holding in remaining)
            sources = np.setdiff1d(sources, np.setdiff1d(gone, left))
        return Ownership(self.held, self.own, shared if any(shared) else (), _wire(sources))

    def owned(self, request: RequestKey, layout: Layout) -> tuple[Int32, ...]:
        """Blocks that the request reserved and somebody still holds, a list a group."""
        return tuple(int32_view(blocks) for blocks in self.own.get(request, (b"",) * layout.groups))

    def sources(self, request: RequestKey) -> Int32:
        """Distinct CPU blocks held for the request by anybody, ascending."""
        parts = [int32_view(holding.sources) for holding in self.holders(request).values() if holding.sources]
        return np.unique(np.concatenate(parts)) if parts else np.empty(0, dtype=np.int32)

    def rows(self, request: RequestKey) -> frozenset[int]:
        """Table rows of the request that somebody holds."""
        return frozenset(row for holding in self.holders(request).values() for row in holding.rows)

    def freed_since(self, before: "Ownership", request: RequestKey, layout: Layout) -> Freed:
        """owned (or shared) before − held after (B6): what the allocation owners take back."""
        device = tuple(
            _wire(np.setdiff1d(np.union1d(own, shared), np.union1d(own_after, shared_after)))
            for own, shared, own_after, shared_after in zip(
                before.owned(request, layout),
                before.shared_blocks(layout),
                self.owned(request, layout),
                self.shared_blocks(layout),
                strict=True,
            )
        )
        held_before = np.union1d(before.sources(request), int32_view(before.shared_sources))
        held_after = np.union1d(self.sources(request), int32_view(self.shared_sources))
        return Freed(device=device, sources=_wire(np.setdiff1d(held_before, held_after)))

    def occupancy(self, request: RequestKey, group: int, layout: Layout) -> tuple[Int32, npt.NDArray[np.bool_]]:
        """(blocks int32[n] the request owns in the group, held bool[layers of the group, n])."""
        layers = layout.group_layers(group)
        blocks = self.owned(request, layout)[group]
        held = np.zeros((len(layers), blocks.size), dtype=bool)
        index = {layer: at for at, layer in enumerate(layers)}
        for holding in self.holders(request).values():
            for layer, ids in holding.areas.items():
                if layer in index and ids.size:
                    at = np.searchsorted(blocks, ids)
                    known = at < blocks.size
                    known[known] = blocks[at[known]] == ids[known]
                    held[index[layer], at[known]] = True
        return blocks, held

    def canonical(self) -> object:
        return [
            [[request, sorted(holders.items())] for request, holders in sorted(self.held.items())],
            sorted(self.own.items()),
            self.shared,
            self.shared_sources,
        ]


def _without_free(
    own: tuple[bytes, ...], touched: list[Holding], remaining: Iterable[Holding], layout: Layout
) -> tuple[bytes, ...]:
    """Own blocks less those that a removed pair touched and no remaining pair names."""
    left = [blocks_by_group(holding.areas, layout) for holding in remaining if holding.areas.size]
    gone = [blocks_by_group(holding.areas, layout) for holding in touched if holding.areas.size]
    kept = []
    for group, blocks in enumerate(own):
        lost = _union(part[group] for part in gone)
        if lost.size:
            lost = np.setdiff1d(lost, _union(part[group] for part in left))
        kept.append(_wire(np.setdiff1d(int32_view(blocks), lost)) if lost.size else blocks)
    return tuple(kept)


def _union(parts: Iterable[Int32]) -> Int32:
    arrays = [part for part in parts if part.size]
    return np.unique(np.concatenate(arrays)) if arrays else np.empty(0, dtype=np.int32)


NOTHING_OWNED = Ownership({}, {})
