"""Ownership: ONE relation (resource, holder). A draft changes it; here are its values, and questions to them.

Resources are areas (a layer's part of a physical block), CPU blocks and table rows. Quarantine, leases, fences and
tails are holders, not states. An area is vacant when no pair names it; a block is free when none of its areas is held.
"""

from collections.abc import Mapping
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from kvsweep.ledger import areas as a
from kvsweep.ledger.areas import Areas, Shared
from kvsweep.ledger.ids import Int32, Physical, RequestKey, Rows, int32_view, no_rows
from kvsweep.ledger.layout import Layout

HolderKind = Literal["view", "tail", "dst", "src", "fence", "owner", "prefix"]
Bools = npt.NDArray[np.bool_]


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


Holders = dict[Holder, Holding]
"""Every holder of one request and what it holds."""

NO_HOLDERS: Final[Holders] = {}


class Ownership(Struct, frozen=True, kw_only=True):
    """The relation, and what counts its areas: block by block, so that a plan need not look at every pair.

    held    request -> holder -> what it holds
    areas   request -> for each group, the blocks that it reserved and somebody still holds. They give no lifetime: they
            say who may place into vacant areas
    shared  for each group, blocks that were published as a prefix: they have no owner any more and stand here until
            their last holder is gone, whoever that is; nobody places into their vacant areas. () where none is
    shared_sources  the same for CPU blocks, '<i4' ascending
    """

    held: dict[RequestKey, Holders] = {}
    areas: dict[RequestKey, tuple[Areas, ...]] = {}
    shared: tuple[Shared, ...] = ()
    shared_sources: bytes = b""

    def holders(self, request: RequestKey) -> Mapping[Holder, Holding]:
        return self.held.get(request, NO_HOLDERS)

    @property
    def own(self) -> dict[RequestKey, tuple[bytes, ...]]:
        """Request -> blocks that it owns, a '<i4' list a group, ascending."""
        return {key: tuple(group.blocks for group in groups) for key, groups in self.areas.items()}

    def owned(self, request: RequestKey, layout: Layout) -> tuple[Int32, ...]:
        """Blocks that the request reserved and somebody still holds, a list a group."""
        groups = self.areas.get(request, ())
        return tuple(int32_view(groups[group].blocks if groups else b"") for group in range(layout.groups))

    def shared_blocks(self, layout: Layout) -> tuple[Int32, ...]:
        """Shared device blocks, a list a group."""
        return tuple(int32_view(self.shared[group].blocks if self.shared else b"") for group in range(layout.groups))

    def sources(self, request: RequestKey) -> Int32:
        """Distinct CPU blocks held for the request by anybody, ascending."""
        parts = [int32_view(holding.sources) for holding in self.holders(request).values() if holding.sources]
        return np.unique(np.concatenate(parts)) if parts else np.empty(0, dtype=np.int32)

    def holds_source(self, block: int) -> str:
        """Id of a request for which this CPU block is held."""
        return next(key.request_id for key in self.held if block in self.sources(key))

    def rows(self, request: RequestKey) -> frozenset[int]:
        """Table rows of the request that somebody holds."""
        return frozenset(row for holding in self.holders(request).values() for row in holding.rows)

    def occupancy(self, request: RequestKey, group: int, layout: Layout) -> tuple[Int32, Bools]:
        """(blocks int32[n] the request owns in the group, held bool[layers of the group, n])."""
        groups = self.areas.get(request, ())
        one = groups[group] if groups else Areas()
        return int32_view(one.blocks), ~a.vacant(one, len(layout.group_layers(group)))

    def who_holds(self, group: int, block: int) -> str:
        """Who has a device block that is not free, in words."""
        for key, groups in self.areas.items():
            if block in int32_view(groups[group].blocks):
                return f"block {block} of group {group} is owned by {key.request_id}"
        return f"block {block} of group {group} is shared"

    def canonical(self) -> object:
        shared = tuple(group.blocks for group in self.shared)
        return [
            [[request, sorted(holders.items())] for request, holders in sorted(self.held.items())],
            sorted(self.own.items()),
            shared if any(shared) else (),
            self.shared_sources,
        ]


def blocks_by_group(areas: Rows[Physical], layout: Layout) -> tuple[Int32, ...]:
    """Distinct physical blocks of each group that the areas touch, ascending."""
    group_of_id = np.repeat(layout.group_of_layer[areas.layers], areas.counts)
    return tuple(np.unique(areas.ids[group_of_id == group]) for group in range(layout.groups))


NOTHING_OWNED: Final = Ownership()
