"""Where bytes go: vacant areas of the request's own blocks first, fullest block first, then newly reserved blocks.

An area is vacant when no holder at all names it, so nothing that is read, draining, fenced or quarantined is written.
"""

from functools import cached_property

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from kvsweep.ledger import areas as a
from kvsweep.ledger.areas import Areas
from kvsweep.ledger.draft import Groups
from kvsweep.ledger.ids import Int32, Logical, Physical, Rows, int32_view
from kvsweep.ledger.layout import Layout
from kvsweep.ledger.ragged import ends_of, joined_rows

EMPTY: Int32 = np.empty(0, dtype=np.int32)


class VacantAreas:
    """Vacant areas of one request in one group; areas are taken once each."""

    def __init__(self, own: Areas, group: int, layout: Layout) -> None:
        self.layers = layout.group_layers(group)
        self.blocks = int32_view(own.blocks)
        self._own = own
        self._at = {layer: row for row, layer in enumerate(self.layers)}
        self._row_of_layer = int32_view(layout.rows_of_group(group))

    @cached_property
    def _vacant(self) -> npt.NDArray[np.bool_]:
        return a.vacant(self._own, len(self.layers))

    @cached_property
    def _order(self) -> npt.NDArray[np.intp]:
        """Fullest first, lowest id among equals."""
        vacant = np.add.reduce(a.vacant(self._own, len(self.layers)), axis=0, dtype=np.int32)
        return np.argsort(vacant, kind="stable")

    def fullest(self, layers: Int32, wanted: Int32) -> tuple[Int32, Int32, int]:
        """For each layer its first `wanted` vacant blocks, fullest block first.

        layers, wanted  int32[rows]
        Returns the blocks, row after row, how many of each row, and how many were vacant in all.
        """
        return a.fullest(self._own, self._row_of_layer[layers], wanted)

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
    missing: Int32  # a count a row of `chosen`
    new_blocks: tuple[int, ...]  # to reserve, a count a group
    vacant: int  # vacant areas that could be used

    def areas(self, reserved: tuple[Int32, ...], layout: Layout, *, scatter: bool = False) -> Rows[Physical]:
        """Destination areas once the new blocks are known: each layer takes its own area of them, in order.

        scatter  each layer begins at another one of them, so that layers read different blocks for one logical block
        """
        if not self.missing.any():
            return self.chosen
        groups = layout.group_of_layer[self.chosen.layers]
        parts = [reserved[group][:count] for group, count in zip(groups.tolist(), self.missing.tolist(), strict=True)]
        if scatter:
            parts = [np.roll(part, row) for row, part in enumerate(parts)]
        new: Rows[Physical] = Rows(
            layer_bytes=self.chosen.layer_bytes,
            row_ptr_bytes=ends_of(self.missing).tobytes(),
            id_bytes=np.concatenate(parts).astype("<i4").tobytes(),
        )
        return joined_rows(self.chosen, new)


def place(own: Groups, blocks: Rows[Logical], layout: Layout, *, shared_table: bool) -> Placement:
    """Destinations in the request's own blocks for as many blocks in each layer as its row has. New blocks = the largest shortfall of any layer.

    With a shared table, slot i has the same physical block in every layer, so only blocks vacant in all of them serve.
    """
    layers, wanted = blocks.layers, blocks.counts
    groups = layout.group_of_layer[layers]
    found: list[Int32] = [EMPTY] * layers.size
    counts = np.zeros(layers.size, dtype=np.int32)
    new_blocks, vacant = [], 0
    for group in range(layout.groups):
        at = np.flatnonzero(groups == group)
        if not at.size:
            new_blocks.append(0)
            continue
        areas = VacantAreas(own[group], group, layout)
        if shared_table:
            free = areas.of_all(tuple(layers[at].tolist()))
            counts[at] = np.minimum(free.size, wanted[at])
            rows = [free[:count] for count in counts[at].tolist()]
            vacant += int(free.size) * at.size
        else:
            ids, counts[at], there = areas.fullest(layers[at], wanted[at])
            rows = [ids] if at.size == layers.size else np.split(ids, np.cumsum(counts[at])[:-1])
            vacant += there
        for row, ids in zip(at.tolist(), rows, strict=False):
            found[row] = ids
        new_blocks.append(int((wanted - counts)[at].max()))
    chosen: Rows[Physical] = Rows(
        layer_bytes=blocks.layer_bytes,
        row_ptr_bytes=ends_of(counts).tobytes(),
        id_bytes=np.concatenate(found).astype("<i4").tobytes() if found else b"",
    )
    return Placement(chosen=chosen, missing=wanted - counts, new_blocks=tuple(new_blocks), vacant=vacant)
