"""Cutting per-layer rows into pieces that fit a staging slot, and the checks of rows at the device's door."""

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
from msgspec import Struct

from kvsweep.ledger.errors import LayoutError
from kvsweep.ledger.ids import HOLE, Int32, Physical, Rows, Source, Token
from kvsweep.ledger.layout import Layout
from kvsweep.ledger.messages import MoveBlocks, StoreBlocks, Transfer
from kvsweep.transports.space import BlockSpace

AnyRows: TypeAlias = Rows[Physical] | Rows[Source] | Rows[Token]


class Chunk(Struct, frozen=True, kw_only=True):
    """Copies of one group: a part of an operation's rows. No layer's ids are ever under another layer's row (A4)."""

    group: int
    layers: Int32  # int32[rows], index in the group's array, ascending
    row_ptr: Int32  # int32[rows + 1]
    source: Int32  # int32[n]
    destination: Int32  # int32[n], entry for entry

    @property
    def blocks(self) -> int:
        return self.source.size


def split(
    memory: BlockSpace, source: AnyRows, destination: AnyRows, slot_bytes: int, *, most_blocks: int | None = None
) -> Iterator[Chunk]:
    """Chunks of at most `slot_bytes` (and `most_blocks`), group after group, rows in layer order.

    Rows must have passed `check_pair`.
    """
    sources, destinations = dict(source.items()), dict(destination.items())
    for group in range(memory.layout.groups):
        places = [(memory.place(layer)[1], layer) for layer in sources if memory.place(layer)[0] == group]
        if not places:
            continue
        counts = [sources[layer].size for _, layer in places]
        row_ptr = np.concatenate(([0], np.cumsum(counts)))
        at = np.asarray([index for index, _ in places], dtype=np.int32)
        from_ids = np.concatenate([sources[layer] for _, layer in places])
        to_ids = np.concatenate([destinations[layer] for _, layer in places])
        most = slot_bytes // memory.shapes[group].block_bytes
        most = most if most_blocks is None else min(most, most_blocks)
        for begin in range(0, from_ids.size, most):
            end = min(begin + most, from_ids.size)
            inside = np.diff(np.clip(row_ptr, begin, end))
            filled = inside > 0
            yield Chunk(
                group=group,
                layers=at[filled],
                row_ptr=np.concatenate(([0], np.cumsum(inside[filled]))).astype(np.int32),
                source=from_ids[begin:end],
                destination=to_ids[begin:end],
            )


def check_layers(argument: str, rows: AnyRows, layers: tuple[int, ...], *, all_of_them: bool = False) -> None:
    """Refuse rows of layers outside `layers` (D7), or, with all_of_them, rows that leave one out."""
    found = rows.layers.tolist()
    strange = [layer for layer in found if layer not in layers]
    if strange or (all_of_them and len(found) != len(layers)):
        which = "rows of exactly the layers" if all_of_them else "rows of layers among"
        raise LayoutError(argument, f"{which} {list(layers)}", f"layers {found}")


def check_pair(source: AnyRows, destination: AnyRows) -> None:
    """Refuse source and destination rows that do not stand row for row, entry for entry."""
    if source.layer_bytes != destination.layer_bytes or source.row_ptr_bytes != destination.row_ptr_bytes:
        expected = dict(zip(source.layers.tolist(), source.counts.tolist(), strict=True))
        got = dict(zip(destination.layers.tolist(), destination.counts.tolist(), strict=True))
        raise LayoutError("destination", f"ids per layer as in source {expected}", str(got))


def check_ids(argument: str, rows: AnyRows, memory: BlockSpace, *, unique: bool = False, holes: bool = False) -> None:
    """Refuse ids outside each layer's pool; with unique, an id that stands twice in a row; holes admits HOLE."""
    for layer, ids in rows.items():
        blocks = memory.blocks(memory.place(layer)[0])
        outside = (ids >= blocks) | (ids < (HOLE if holes else 0))
        if outside.any():
            raise LayoutError(f"{argument}[{layer}]", f"ids in [0, {blocks})", str(int(ids[outside][0])))
        if unique:
            values, counts = np.unique(ids, return_counts=True)
            if counts.size and int(counts.max()) > 1:
                raise LayoutError(f"{argument}[{layer}]", "each id once", f"{int(values[counts > 1][0])} again")


def check_apart(source: Rows[Physical], destination: Rows[Physical]) -> None:
    """Refuse a layer whose destinations include one of its sources: the old bytes must survive an abort."""
    for layer, ids in destination.items():
        both = np.intersect1d(ids, source.row(layer))
        if both.size:
            raise LayoutError(f"destination[{layer}]", "no source of its layer", str(int(both[0])))


def check_work(
    work: Transfer | MoveBlocks | StoreBlocks, layout: Layout, *, device: BlockSpace, cpu: BlockSpace
) -> None:
    """Refuse an operation whose rows do not fit the layout or the pools. Raises LayoutError naming the rows."""
    check_pair(work.source, work.destination)
    if isinstance(work, StoreBlocks):
        every = tuple(range(len(layout.layers)))
        check_layers("source", work.source, every, all_of_them=True)
        check_ids("source", work.source, device)
        check_ids("destination", work.destination, cpu, unique=True)
        return
    check_layers("source", work.source, layout.active_layers)
    check_layers("table", work.table, layout.active_layers)
    check_ids("source", work.source, cpu if isinstance(work, Transfer) else device)
    check_ids("destination", work.destination, device, unique=True)
    check_ids("table", work.table, device, holes=True)
    if isinstance(work, MoveBlocks):
        check_apart(work.source, work.destination)
