"""What one holder holds, what one request holds, and what follows from it: worked out when first asked, then kept.

Nothing here is ever changed once it is made, so what was worked out stays true. No digest and no comparison sees it.
"""

from collections.abc import Callable, Iterable
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from kvsweep.ledger import compiled
from kvsweep.ledger.ids import Int32, Physical, Rows, int32_view, no_rows
from kvsweep.ledger.layout import Layout

HolderKind = Literal["view", "tail", "dst", "src", "fence", "owner", "prefix"]
Bools = npt.NDArray[np.bool_]

EMPTY: Final[Int32] = np.empty(0, dtype=np.int32)


class Holder(Struct, frozen=True, array_like=True, gc=False, order=True):
    """view(request, generation) · tail(request, logical, group) · dst / src(operation id) · fence(request, number) ·
    owner(request): its CPU blocks · prefix(number), which the pool itself holds."""

    kind: HolderKind
    number: int = 0
    group: int = 0


class Holding(Struct, frozen=True, kw_only=True, array_like=True, dict=True):
    """What one holder holds."""

    areas: Rows[Physical] = no_rows()
    sources: bytes = b""  # '<i4' CPU blocks
    rows: tuple[int, ...] = ()

    def blocks(self, layout: Layout) -> tuple[Int32, ...]:
        """Distinct physical blocks of each group that the areas touch, ascending."""
        known: tuple[Layout, tuple[Int32, ...]] | None = self.__dict__.get("_blocks")
        if known is None or known[0] is not layout:
            known = layout, blocks_by_group(self.areas, layout)
            self.__dict__["_blocks"] = known
        return known[1]

    def made_of(self, parts: Iterable["Holding"], layout: Layout) -> "Holding":
        """This holding, whose areas are just those of the parts: their blocks need not be looked for again."""
        blocks = [part.blocks(layout) for part in parts]
        self.__dict__["_blocks"] = layout, tuple(union(one[group] for one in blocks) for group in range(layout.groups))
        return self

    @property
    def ascending_sources(self) -> Int32:
        """The CPU blocks, each once, ascending."""
        known: Int32 | None = self.__dict__.get("_sources")
        if known is None:
            known = distinct(int32_view(self.sources))
            self.__dict__["_sources"] = known
        return known


class Holders(dict[Holder, Holding]):
    """Every holder of one request and what it holds."""

    __slots__ = ("_digest", "_occupancy", "_sources")

    def occupancy(self, group: int, layout: Layout, blocks: Int32) -> Bools:
        """held bool[layers of the group, n]: which areas of these blocks (ascending) somebody holds; read-only."""
        known: dict[int, tuple[Layout, Int32, Bools]] = getattr(self, "_occupancy", {})
        found = known.get(group)
        if found is None or found[0] is not layout or not np.array_equal(found[1], blocks):
            held = _held_areas((holding.areas for holding in self.values()), group, layout, blocks)
            found = layout, blocks, held
            self._occupancy = {**known, group: found}
        return found[2]

    def digest(self, of: Callable[[], bytes], own: tuple[bytes, ...]) -> bytes:
        """What `of` gives for these holders beside the request's own blocks; asked once."""
        known: tuple[tuple[bytes, ...], bytes] | None = getattr(self, "_digest", None)
        if known is None or known[0] is not own:
            known = self._digest = own, of()
        return known[1]

    @property
    def sources(self) -> Int32:
        """Distinct CPU blocks that anybody holds, ascending."""
        known: Int32 | None = getattr(self, "_sources", None)
        if known is None:
            parts = [holding.ascending_sources for holding in self.values() if holding.sources]
            known = self._sources = union(parts)
        return known


def _held_areas(parts: Iterable[Rows[Physical]], group: int, layout: Layout, blocks: Int32) -> Bools:
    layers = layout.group_layers(group)
    held = np.zeros((len(layers), blocks.size), dtype=np.bool_)
    if not blocks.size:
        return held
    if compiled.sets is not None:
        row_of_layer = layout.rows_of_group(group)
        for areas in parts:
            compiled.sets.mark_areas(held, blocks, row_of_layer, areas.layer_bytes, areas.row_ptr_bytes, areas.id_bytes)
        return held
    at_layer = np.full(len(layout.layers), -1, dtype=np.intp)
    at_layer[list(layers)] = np.arange(len(layers)) * blocks.size
    last = int(blocks[-1])
    at_block = np.full(last + 1, -1, dtype=np.intp)
    at_block[blocks] = np.arange(blocks.size)
    flat = held.reshape(-1)
    for areas in parts:
        ids = areas.ids
        if not ids.size:
            continue
        rows = np.repeat(at_layer[areas.layers], areas.counts)
        at = at_block[np.minimum(ids, last)]
        if layout.groups == 1 and int(ids.max()) <= last and bool((at >= 0).all()):
            flat[rows + at] = True
            continue
        known = (rows >= 0) & (ids <= last) & (at >= 0)
        flat[(rows + at)[known]] = True
    return held


def blocks_by_group(areas: Rows[Physical], layout: Layout) -> tuple[Int32, ...]:
    """Distinct physical blocks of each group that the areas touch, ascending."""
    ids = areas.ids
    if layout.groups == 1:
        return (distinct(ids),)
    group_of_id = np.repeat(layout.group_of_layer[areas.layers], areas.counts)
    return tuple(distinct(ids[group_of_id == group]) for group in range(layout.groups))


def distinct(ids: Int32) -> Int32:
    """int32[n] ids from 0 on, each once, ascending."""
    if ids.size < 2:
        return ids
    if compiled.sets is not None:
        return int32_view(compiled.sets.distinct((ids,)))
    low, high = int(ids.min()), int(ids.max())
    if high - low > 64 * ids.size:  # marks would be mostly empty
        found: Int32 = np.unique(ids)
        return found
    marks = np.zeros(high - low + 1, dtype=np.bool_)
    marks[ids - low] = True
    marked: Int32 = np.flatnonzero(marks).astype(np.int32)
    marked += np.int32(low)
    return marked


def union(parts: Iterable[Int32]) -> Int32:
    """int32[n]: the ids of all parts, each once, ascending. A part that is alone has to be so already."""
    arrays = [part for part in parts if part.size]
    if len(arrays) == 1:
        return arrays[0]
    if compiled.sets is not None:
        return int32_view(compiled.sets.distinct(arrays))
    return distinct(np.concatenate(arrays)) if arrays else EMPTY


def without(ids: Int32, others: Iterable[Int32]) -> Int32:
    """int32[n]: those of `ids` that stand in none of the others. All are ascending and 0 or more."""
    if not ids.size:
        return ids
    parts = [other for other in others if other.size]
    if compiled.sets is not None:
        return int32_view(compiled.sets.without(ids, parts))
    named = np.zeros(max(int(part[-1]) for part in (ids, *parts)) + 1, dtype=np.bool_)
    for part in parts:
        named[part] = True
    left: Int32 = ids[~named[ids]]
    return left


def missing_from(ids: Int32, ascending: Int32) -> Int32:
    """int32[n]: those of `ids` that do not stand in the ascending ones."""
    if not ascending.size or not ids.size:
        return ids
    if compiled.sets is not None:
        return int32_view(compiled.sets.without(ids, (ascending,)))
    at = np.searchsorted(ascending, ids)
    at[at == ascending.size] = 0
    missing: Int32 = ids[ascending[at] != ids]
    return missing
