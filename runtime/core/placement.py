"""Where bytes go: vacant areas of the request's own blocks first, fullest block first, then newly reserved blocks.

An area is vacant when no holder at all names it, so nothing that is read, draining, fenced or quarantined is written.
"""

from functools import cached_property

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from kvsweep.ledger import areas as a
from kvsweep.ledger.areas import Areas, fullest
from kvsweep.ledger.draft import Groups
from kvsweep.ledger.ids import Int32, Logical, Physical, Rows, int32_view
from kvsweep.ledger.layout import Layout
from kvsweep.ledger.ragged import joined_rows

EMPTY: Int32 = np.empty(0, dtype=np.int32)


class VacantAreas:
    """Vacant areas of one request in one group; areas are taken once each."""

    def __init__(self, own: Areas, group: int, layout: Layout) -> None:
        self.layers = layout.group_layers(group)
        self.blocks = int32_view(own.blocks)
        self._own = own
        self._at = {layer: row for row, layer in enumerate(self.layers)}

    @cached_property
    def _vacant(self) -> npt.NDArray[np.bool_]:
        return a.vacant(self._own, len(self.layers))

    @cached_property
    def _order(self) -> npt.NDArray[np.intp]:
        """Fullest first, lowest id among equals."""
        vacant = np.add.reduce(a.vacant(self._own, len(self.layers)), axis=0, dtype=np.int32)
        return np.argsort(vacant, kind="stable")

    def of_all(self, layers: tuple[int, ...]) -> Int32:
        """Blocks that are vacant in each of these layers, fullest block first."""
        rows = [self._at[layer] for layer in layers]
        order = self._order[self._vacant[rows][:, self._order].all(axis=0)]
        blocks: Int32 = self.blocks[order]
        return blocks

    def is_vacant(self, layer: int, block: int) -> bool:
        at = self._index(block)
        return at is not None and bool(self._vacant[self._at[layer], at])

    def take(self, layer: int, block: int) -> None:
        self._vacant[self._at[layer], self._index(block)] = False

    def _index(self, block: int) -> int | None:
        at = int(np.searchsorted(self.blocks, block))
        return at if at < self.blocks.size and int(self.blocks[at]) == block else None


class Placement(Struct, frozen=True, kw_only=True):
    """Vacant areas chosen per layer, and how many more areas each layer takes from newly reserved blocks."""

    chosen: Rows[Physical]
    missing: bytes  # '<i4', a count a row of `chosen`
    new_blocks: tuple[int, ...]  # to reserve, a count a group
    vacant: int  # vacant areas that could be used

    def areas(self, reserved: tuple[bytes, ...], layout: Layout, *, scatter: bool = False) -> Rows[Physical]:
        """Destination areas once the new blocks are known: each layer takes its own area of them, in order.

        reserved  '<i4' blocks of each group
        scatter   each layer begins at another one of them, so that layers read different blocks for one logical block
        """
        if not any(self.new_blocks):
            return self.chosen
        blocks = [int32_view(group) for group in reserved]
        new = {}
        for at, (layer, count) in enumerate(zip(self.chosen.layers.tolist(), int32_view(self.missing), strict=True)):
            part = blocks[layout.layers[layer].group][:count]
            new[layer] = np.roll(part, at) if scatter else part
        return joined_rows(self.chosen, Rows.of(new))


def place(own: Groups, blocks: Rows[Logical], layout: Layout, *, shared_table: bool) -> Placement:
    """Destinations in the request's own blocks for as many blocks in each layer as its row has.

    New blocks = the largest shortfall of any layer. With a shared table, slot i has the same physical block in every
    layer, so only blocks that are vacant in all of them serve.
    """
    if shared_table:
        return _place_alike(own, blocks, layout)
    chosen, missing, most, vacant = fullest(own[0], layout.rows_of_group(0), blocks)
    new_blocks = [most]
    for group in range(1, layout.groups):
        more, short, most, there = fullest(own[group], layout.rows_of_group(group), blocks)
        chosen, vacant = joined_rows(chosen, more), vacant + there
        missing = (int32_view(missing) + int32_view(short)).astype("<i4").tobytes()  # a layer is in one group
        new_blocks.append(most)
    return Placement(chosen=chosen, missing=missing, new_blocks=tuple(new_blocks), vacant=vacant)


def _place_alike(own: Groups, blocks: Rows[Logical], layout: Layout) -> Placement:
    """One table a group."""
    found: dict[int, Int32] = {}
    missing, new_blocks, vacant = np.zeros(len(blocks), dtype="<i4"), [], 0
    for group in range(layout.groups):
        at = np.flatnonzero(layout.group_of_layer[blocks.layers] == group)
        layers, wanted = blocks.layers[at].tolist(), blocks.counts[at]
        free = VacantAreas(own[group], group, layout).of_all(tuple(layers)) if layers else EMPTY
        found |= {layer: free[:count] for layer, count in zip(layers, wanted.tolist(), strict=True)}
        missing[at] = np.maximum(wanted - free.size, 0)
        new_blocks.append(int(missing[at].max(initial=0)))
        vacant += int(free.size) * len(layers)
    return Placement(chosen=Rows.of(found), missing=missing.tobytes(), new_blocks=tuple(new_blocks), vacant=vacant)
