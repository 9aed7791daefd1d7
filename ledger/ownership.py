"""Ownership: ONE relation (resource, holder) and one function that changes it.

Resources are areas (a layer's part of a physical block), CPU blocks and table rows. Quarantine, leases, fences
and tails are holders, not states. An area is vacant when no pair names it; a block is free exactly when none of its
areas is held. `own` gives no lifetime: it says who may place into vacant areas.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from kvsweep.ledger.holding import (
    Bools,
    Holders,
    distinct,
    missing_from,
    union,
    without,
)
from kvsweep.ledger.holding import Holder as Holder
from kvsweep.ledger.holding import HolderKind as HolderKind
from kvsweep.ledger.holding import Holding as Holding
from kvsweep.ledger.holding import blocks_by_group as blocks_by_group
from kvsweep.ledger.ids import POOL, Int32, Physical, RequestKey, Rows, int32_view
from kvsweep.ledger.layout import Layout
from kvsweep.ledger.taken import Taken

NO_HOLDERS: Final = Holders()


class Freed(Struct, frozen=True, kw_only=True, gc=False):
    """What a change left without any holder."""

    device: tuple[bytes, ...]  # '<i4' blocks a group, ascending
    sources: bytes  # '<i4', ascending


def _wire(blocks: npt.NDArray[np.int32]) -> bytes:
    return blocks.astype("<i4").tobytes()


class Ownership(Struct, frozen=True, dict=True):
    """held: request -> holder -> what it holds. own: request -> blocks it reserved, a '<i4' list a group, ascending.

    A block that was published as a prefix has no owner any more: it stands in `shared` until its last holder is gone,
    whoever that is, and nobody places into its vacant areas. `shared_sources` is the same for CPU blocks.
    """

    held: dict[RequestKey, Holders]
    own: dict[RequestKey, tuple[bytes, ...]]
    shared: tuple[bytes, ...] = ()  # a '<i4' list a group, ascending; () where nothing is shared
    shared_sources: bytes = b""

    def holders(self, request: RequestKey) -> Mapping[Holder, Holding]:
        return self.held.get(request, NO_HOLDERS)

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
        drop = tuple(drop)
        again: tuple[RequestKey, tuple[Holder, ...], Ownership] | None = self.__dict__.get("_dropped")
        if again is not None and not put and not reserve and again[0] == request and again[1] == drop:
            return again[2]  # asked once to say what is freed, and once more to free it
        holders = Holders(self.held.get(request, NO_HOLDERS))
        touched: list[Holding] = [holders[holder] for holder in put or () if holder in holders]
        holders.update(put or {})
        for holder in drop:
            touched.append(holders.pop(holder))
        before = self.own.get(request, (b"",) * layout.groups)
        own = before
        if any(reserve):
            own = tuple(
                _wire(distinct(np.concatenate((int32_view(old), int32_view(new))))) if new else old
                for old, new in zip(own, reserve, strict=True)
            )
        if touched:
            own = _without_free(own, touched, holders.values(), layout)
        held_all, own_all = dict(self.held), self.own
        if holders:
            held_all[request] = holders
        else:
            held_all.pop(request, None)
        if own is not before:
            own_all = dict(self.own)
            if any(own):
                own_all[request] = own
            else:
                own_all.pop(request, None)
        changed = Ownership(held_all, own_all, self.shared, self.shared_sources)
        if touched and (self.shared or self.shared_sources):
            changed = changed._unshare(touched, layout)
        known: tuple[Layout, Taken] | None = self.__dict__.get("_taken")
        if known is not None and known[0] is layout:
            taken = self._taken_after(known[1], changed, request, layout, put or {}, touched)
            changed.__dict__["_taken"] = layout, taken
        if not put and not reserve:
            self.__dict__["_dropped"] = request, drop, changed
        return changed

    def _taken_after(
        self,
        taken: Taken,
        changed: "Ownership",
        request: RequestKey,
        layout: Layout,
        put: Mapping[Holder, Holding],
        touched: list[Holding],
    ) -> Taken:
        """The index of `changed`, worked out from this one's and from what may differ."""
        new = [holding.ascending_sources for holding in put.values() if holding.sources]
        gone = [holding.ascending_sources for holding in touched if holding.sources]
        if gone:
            left = union(gone)
            for holding in changed.holders(request).values():
                if holding.sources:
                    left = missing_from(left, holding.ascending_sources)
            gone = [missing_from(left, int32_view(changed.shared_sources))]
            if changed.shared_sources != self.shared_sources:
                gone.append(missing_from(int32_view(self.shared_sources), int32_view(changed.shared_sources)))
        before, after = self.own.get(request, ()), changed.own.get(request, ())
        if before == after and changed.shared == self.shared:
            return taken.without((), gone).with_((), new)
        nothing = (b"",) * layout.groups
        was = [a + b for a, b in zip(before or nothing, self.shared or nothing, strict=True)]
        now = [int32_view(a + b) for a, b in zip(after or nothing, changed.shared or nothing, strict=True)]
        lost = [without(_ascending(blocks), (np.sort(left),)) for blocks, left in zip(was, now, strict=True)]
        return taken.without(lost, gone).with_(now, new)

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
            {**self.held, POOL: Holders({**self.held.get(POOL, {}), Holder("prefix", number): holding})},
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
        gone = np.intersect1d(sources, union(holding.ascending_sources for holding in touched))
        if gone.size:
            left = union(holding.ascending_sources for holding in remaining)
            sources = np.setdiff1d(sources, np.setdiff1d(gone, left))
        return Ownership(self.held, self.own, shared if any(shared) else (), _wire(sources))

    def owned(self, request: RequestKey, layout: Layout) -> tuple[Int32, ...]:
        """Blocks that the request reserved and somebody still holds, a list a group."""
        return tuple(int32_view(blocks) for blocks in self.own.get(request, (b"",) * layout.groups))

    def taken(self, layout: Layout) -> Taken:
        """Which blocks anybody holds, over all requests."""
        known: tuple[Layout, Taken] | None = self.__dict__.get("_taken")
        if known is None or known[0] is not layout:
            device = [
                [*(int32_view(own[group]) for own in self.own.values()), self.shared_blocks(layout)[group]]
                for group in range(layout.groups)
            ]
            known = layout, Taken.of(device, [self.sources(key) for key in self.held])
            self.__dict__["_taken"] = known
        return known[1]

    def sources(self, request: RequestKey) -> Int32:
        """Distinct CPU blocks held for the request by anybody, ascending."""
        return self.held.get(request, NO_HOLDERS).sources

    def holds_source(self, block: int) -> str:
        """Id of a request for which this CPU block is held."""
        return next(key.request_id for key in self.held if block in self.sources(key))

    def rows(self, request: RequestKey) -> frozenset[int]:
        """Table rows of the request that somebody holds."""
        return frozenset(row for holding in self.holders(request).values() for row in holding.rows)

    def freed_since(self, before: "Ownership", request: RequestKey, layout: Layout) -> Freed:
        """owned (or shared) before − held after (B6): what the allocation owners take back."""
        held_before = np.union1d(before.sources(request), int32_view(before.shared_sources))
        held_after = np.union1d(self.sources(request), int32_view(self.shared_sources))
        return Freed(
            device=self.freed_blocks(before, request, layout), sources=_wire(np.setdiff1d(held_before, held_after))
        )

    def freed_blocks(self, before: "Ownership", request: RequestKey, layout: Layout) -> tuple[bytes, ...]:
        """The device's part of `freed_since`: '<i4' blocks a group, ascending."""
        nothing = (b"",) * layout.groups
        own, own_after = before.own.get(request, nothing), self.own.get(request, nothing)
        if own == own_after and before.shared == self.shared:
            return nothing
        return tuple(
            _wire(without(_ascending(was + shared), (int32_view(now), int32_view(shared_after))))
            for was, shared, now, shared_after in zip(
                own, before.shared or nothing, own_after, self.shared or nothing, strict=True
            )
        )

    def occupancy(self, request: RequestKey, group: int, layout: Layout) -> tuple[Int32, Bools]:
        """(blocks int32[n] the request owns in the group, held bool[layers of the group, n]); both are read-only."""
        blocks = self.owned(request, layout)[group]
        return blocks, self.held.get(request, NO_HOLDERS).occupancy(group, layout, blocks)

    def canonical(self) -> object:
        return [
            [[request, sorted(holders.items())] for request, holders in sorted(self.held.items())],
            sorted(self.own.items()),
            self.shared,
            self.shared_sources,
        ]


def _ascending(blocks: bytes) -> Int32:
    """Own and shared blocks of one group, which are apart, in one ascending list."""
    return np.sort(int32_view(blocks))


def _without_free(
    own: tuple[bytes, ...], touched: list[Holding], remaining: Iterable[Holding], layout: Layout
) -> tuple[bytes, ...]:
    """Own blocks less those that a removed pair touched and no remaining pair names; the same tuple if that is all."""
    gone = [holding.blocks(layout) for holding in touched if holding.areas.size]
    if not gone:
        return own
    left = [holding.blocks(layout) for holding in remaining if holding.areas.size]
    kept, changed = [], False
    for group, blocks in enumerate(own):
        lost = without(union(part[group] for part in gone), (part[group] for part in left))
        rest = without(int32_view(blocks), (lost,)) if lost.size and blocks else None
        changed = changed or (rest is not None and rest.size * 4 != len(blocks))
        kept.append(blocks if rest is None else _wire(rest))
    return tuple(kept) if changed else own


NOTHING_OWNED = Ownership({}, {})
