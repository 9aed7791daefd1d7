"""Where bytes go: vacant areas of the request's own blocks first, fullest block first, then newly reserved blocks.

An area is vacant when no holder at all names it, so nothing that is read, draining, fenced or quarantined is written.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from kvsweep.ledger.ids import Int32, Physical, RequestKey, Rows
from kvsweep.ledger.layout import Layout
from kvsweep.ledger.ownership import Ownership


class VacantAreas:
    """Vacant areas of one request in one group; areas are taken once each."""

    def __init__(self, ownership: Ownership, request: RequestKey, group: int, layout: Layout) -> None:
        self.layers = layout.group_layers(group)
        self.blocks, held = ownership.occupancy(request, group, layout)
        self._at = {layer: row for row, layer in enumerate(self.layers)}
        self._index = {int(block): at for at, block in enumerate(self.blocks)}
        self._vacant: npt.NDArray[np.bool_] = ~held
        fullness = held.sum(axis=0)
        self._order = np.lexsort((self.blocks, -fullness))  # fullest first, lowest id among equals

    def of_layer(self, layer: int) -> Int32:
        """Blocks whose area of this layer is vacant, fullest block first."""
        order = self._order[self._vacant[self._at[layer], self._order]]
        blocks: Int32 = self.blocks[order]
        return blocks

    def of_all(self, layers: tuple[int, ...]) -> Int32:
        """Blocks that are vacant in each of these layers, fullest block first."""
        rows = [self._at[layer] for layer in layers]
        order = self._order[self._vacant[rows][:, self._order].all(axis=0)]
        blocks: Int32 = self.blocks[order]
        return blocks

    def is_vacant(self, layer: int, block: int) -> bool:
        at = self._index.get(block)
        return at is not None and bool(self._vacant[self._at[layer], at])

    def take(self, layer: int, block: int) -> None:
        self._vacant[self._at[layer], self._index[block]] = False


class Placement(Struct, frozen=True, kw_only=True):
    """Vacant areas chosen per layer, and how many more areas each layer takes from newly reserved blocks."""

    chosen: dict[int, Int32]
    missing: dict[int, int]
    new_blocks: tuple[int, ...]  # to reserve, a count a group
    vacant: int  # vacant areas that could be used

    def areas(self, reserved: tuple[Int32, ...], layout: Layout) -> Rows[Physical]:
        """Destination areas once the new blocks are known: each layer takes its own area of them, in order."""
        return Rows.of(
            {
                layer: np.concatenate((ids, reserved[layout.layers[layer].group][: self.missing[layer]]))
                for layer, ids in self.chosen.items()
            }
        )


def place(
    ownership: Ownership, request: RequestKey, counts: Mapping[int, int], layout: Layout, *, shared_table: bool
) -> Placement:
    """Destinations for `counts[layer]` blocks in each layer. New blocks = the largest shortfall of any layer.

    With a shared table, slot i has the same physical block in every layer, so only blocks vacant in all of them serve.
    """
    chosen: dict[int, Int32] = {}
    missing: dict[int, int] = {}
    new_blocks, vacant = [], 0
    for group in range(layout.groups):
        layers = tuple(layer for layer in layout.group_layers(group) if layer in counts)
        if not layers:
            new_blocks.append(0)
            continue
        areas = VacantAreas(ownership, request, group, layout)
        for layer in layers:
            free = areas.of_all(layers) if shared_table else areas.of_layer(layer)
            vacant += int(free.size)
            chosen[layer] = free[: counts[layer]]
            missing[layer] = counts[layer] - int(chosen[layer].size)
        new_blocks.append(max(missing[layer] for layer in layers))
    return Placement(chosen=chosen, missing=missing, new_blocks=tuple(new_blocks), vacant=vacant)
