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
        self._vacant: npt.NDArray[np.bool_] = ~held
        fullness = held.sum(axis=0)
        self._order = np.lexsort((self.blocks, -fullness))  # fullest first, lowest id among equals

    def fullest(self, layers: tuple[int, ...], wanted: Int32) -> tuple[list[Int32], int]:
        """For each layer its first `wanted` vacant blocks, fullest block first; and how many are vacant in all."""
        vacant = self._vacant[[self._at[layer] for layer in layers]][:, self._order]
        nth = np.cumsum(vacant, axis=1, dtype=np.int32)
        there = int(nth[:, -1].sum()) if nth.size else 0
        row, column = np.nonzero(vacant & (nth <= wanted[:, None]))
        blocks = self.blocks[self._order[column]]
        return np.split(blocks, np.searchsorted(row, np.arange(1, len(layers)))), there

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
    missing: dict[int, int]
    new_blocks: tuple[int, ...]  # to reserve, a count a group
    vacant: int  # vacant areas that could be used

    def areas(self, reserved: tuple[Int32, ...], layout: Layout) -> Rows[Physical]:
        """Destination areas once the new blocks are known: each layer takes its own area of them, in order."""
        if not any(self.missing.values()):
            return self.chosen
        rows = {
            layer: np.concatenate((ids, reserved[layout.layers[layer].group][: self.missing[layer]]))
            for layer, ids in self.chosen.items()
        }
        return Rows.of(rows)


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
        wanted = np.asarray([counts[layer] for layer in layers])
        if shared_table:
            free = areas.of_all(layers)
            vacant += int(free.size) * len(layers)
            chosen.update({layer: free[: counts[layer]] for layer in layers})
        else:
            rows, there = areas.fullest(layers, wanted)
            vacant += there
            chosen.update(zip(layers, rows, strict=True))
        missing.update({layer: counts[layer] - chosen[layer].size for layer in layers})
        new_blocks.append(max(missing[layer] for layer in layers))
    return Placement(chosen=Rows.of(chosen), missing=missing, new_blocks=tuple(new_blocks), vacant=vacant)
