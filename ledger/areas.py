"""Counting who holds what: the areas of a request's own blocks, shared blocks, and the whole pool. No rule stands here.

An area is a layer's part of a physical block. Each function has a compiled form, where it was built, and one in NumPy;
both give the same answers.
"""

from collections.abc import Sequence
from typing import Any, Final, NoReturn

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from kvsweep.ledger import compiled
from kvsweep.ledger.ids import Int32, Physical, Rows, int32_view

MOST_HOLDERS: Final = 255
"""Of one area: its count is one byte."""

MOST_SOURCES: Final = 65535
"""Holders of one CPU block."""

Counts = npt.NDArray[np.int64]


class Areas(Struct, frozen=True, array_like=True, gc=False):
    """Blocks that one request owns in one group, and how many hold each of their areas."""

    blocks: bytes = b""  # '<i4' [n], ascending
    held: bytes = b""  # uint8 [layers of the group, n]


class Shared(Struct, frozen=True, array_like=True, gc=False):
    """Shared blocks of one group, and how many pairs each has over all layers."""

    blocks: bytes = b""  # '<i4' [n], ascending
    total: bytes = b""  # '<u4' [n]


def change(
    own: Areas,
    row_of_layer: bytes,
    *,
    reserve: bytes = b"",
    add: Sequence[Rows[Physical]] = (),
    drop: Sequence[Rows[Physical]] = (),
) -> tuple[Areas, bytes]:
    """One holder more for each area of `add`, then one less for each of `drop`: what is left, and what is free then.

    row_of_layer  '<i4' a decoder layer: its row in the group, or -1. Layers of another group are passed over
    reserve       '<i4' blocks that are the request's own from here on; in any order
    Areas of blocks that are not the request's own are passed over: those of shared blocks are counted elsewhere.

    Returns the areas and the '<i4' blocks, ascending, of which no area has a holder any more; they have left. Raises
    ValueError where an area would have more than 255 holders or less than none, and for a reserved block that is there.
    """
    if compiled.sets is not None:
        found = compiled.sets.change(own.blocks, own.held, row_of_layer, reserve, add, drop)
        if len(found) == 2:
            _refuse(*found)
        return Areas(found[0], found[1]), found[2]
    blocks, held, twice = _opened(own, row_of_layer, reserve)
    if twice is not None:
        _refuse(-1, twice)
    for parts, by in ((add, 1), (drop, -1)):
        for rows in parts:
            row, at = _places(blocks, row_of_layer, rows)
            np.add.at(held, (row[at >= 0], at[at >= 0]), by)
            if held.size and not 0 <= held.min() <= held.max() <= MOST_HOLDERS:
                _refuse(*_first_wrong(held, blocks, row_of_layer))
    free = ~held.any(axis=0)
    return _areas(blocks[~free], held[:, ~free]), _wire(blocks[free])


def fill(own: Areas, row_of_layer: bytes, reserve: bytes, rows: Rows[Physical]) -> Areas | None:
    """`reserve` among the own blocks, and a holder for each of these areas.

    None unless each is vacant before, named once, and of an own block, and each reserved block has a holder then.
    """
    if compiled.sets is not None:
        found = compiled.sets.fill(own.blocks, own.held, row_of_layer, reserve, rows)
        return None if found is None else Areas(*found)
    blocks, held, twice = _opened(own, row_of_layer, reserve)
    row, at = _places(blocks, row_of_layer, rows)
    if twice is not None or bool((at < 0).any()) or bool(held[row, at].any()):
        return None
    np.add.at(held, (row, at), 1)
    fresh = np.isin(blocks, int32_view(reserve))
    if bool((held[row, at] > 1).any()) or not bool(held[:, fresh].any(axis=0).all()):
        return None
    return _areas(blocks, held)


def fullest(own: Areas, row_of_layer: bytes, wanted: Rows[Any]) -> tuple[Rows[Physical], bytes, int, int]:
    """For each layer as many vacant blocks as its row of `wanted` has ids: fullest block first, lowest id among equals.

    Returns the blocks, how many are missing of each row ('<i4'), the most of these, and how many blocks were vacant in
    all layers of the group. A layer of another group gets none, and misses none.
    """
    if compiled.sets is not None:
        ptr, ids, short, most, there = compiled.sets.fullest(own.blocks, own.held, row_of_layer, wanted)
        return Rows(layer_bytes=wanted.layer_bytes, row_ptr_bytes=ptr, id_bytes=ids), short, most, there
    blocks, rows = int32_view(own.blocks), int32_view(row_of_layer)
    free = vacant(own, int(rows.max(initial=-1)) + 1)
    order = np.argsort(free.sum(axis=0), kind="stable")
    found: dict[int, Int32] = {}
    short, there = np.zeros(len(wanted), dtype="<i4"), 0
    for at, (layer, ids) in enumerate(wanted.items()):
        inside = int(rows[layer]) >= 0
        places = order[free[rows[layer]][order]] if inside else order[:0]
        found[layer] = blocks[places[: ids.size]]
        short[at] = ids.size - found[layer].size if inside else 0
        there += places.size
    return Rows.of(found), short.tobytes(), int(short.max(initial=0)), there


def vacant(own: Areas, rows: int) -> npt.NDArray[np.bool_]:
    """bool[rows, n]: which areas of the own blocks nobody holds; the caller's to change."""
    found: npt.NDArray[np.bool_] = np.frombuffer(own.held, dtype=np.uint8).reshape(rows, len(own.blocks) // 4) == 0
    return found


def without(own: Areas, block: int, rows: int) -> tuple[Areas, int]:
    """The own blocks less one of them, and how many pairs that one has. Raises KeyError where it is not there."""
    blocks = int32_view(own.blocks)
    at = int(np.searchsorted(blocks, block))
    if at == blocks.size or int(blocks[at]) != block:
        raise KeyError(block)
    held = np.frombuffer(own.held, dtype=np.uint8).reshape(rows, blocks.size)
    return _areas(np.delete(blocks, at), np.delete(held, at, axis=1)), int(held[:, at].sum())


def change_shared(
    shared: Shared, row_of_layer: bytes, *, add: Sequence[Rows[Physical]] = (), drop: Sequence[Rows[Physical]] = ()
) -> tuple[Shared, bytes]:
    """As `change`, for shared blocks. Raises ValueError where more is dropped than there is."""
    if compiled.sets is not None:
        found = compiled.sets.change_shared(shared.blocks, shared.total, row_of_layer, add, drop)
        if found is None:
            raise ValueError("a shared block has fewer holders than are to go")
        return Shared(found[0], found[1]), found[2]
    blocks, total = int32_view(shared.blocks), np.frombuffer(shared.total, dtype="<u4").astype(np.int64)
    for parts, by in ((add, 1), (drop, -1)):
        for rows in parts:
            _, at = _places(blocks, row_of_layer, rows)
            np.add.at(total, at[at >= 0], by)
            if total.size and int(total.min()) < 0:
                raise ValueError("a shared block has fewer holders than are to go")
    left = total > 0
    return Shared(_wire(blocks[left]), total[left].astype("<u4").tobytes()), _wire(blocks[~left])


def mark(marks: bytearray, blocks: bytes, value: bool) -> int:
    """Set the byte of each of these '<i4' blocks. -1; or, and nothing is changed, the index of the first one that is
    outside or has the value already, as one that is named twice has."""
    if compiled.sets is not None:
        wrong: int = compiled.sets.mark(marks, blocks, value)
        return wrong
    for at, block in enumerate(ids := int32_view(blocks).tolist()):
        if not 0 <= block < len(marks) or bool(marks[block]) == value:
            for back in ids[:at]:
                marks[back] = not value
            return at
        marks[block] = value
    return -1


def count(counts: bytearray, add: bytes, drop: bytes) -> bytes:
    """One more for each of the '<i4' blocks of `add`, then one less for each of `drop`; counts are '<u2'.

    Returns those that have none then, ascending. Raises ValueError, and changes nothing, for a block outside and where
    a count would leave 0 to 65535.
    """
    if compiled.sets is not None:
        gone: bytes = compiled.sets.count(counts, add, drop)
        return gone
    table = np.frombuffer(memoryview(counts), dtype="<u2")
    after = table.astype(np.int64)
    for ids, by in ((int32_view(add), 1), (int32_view(drop), -1)):
        if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < table.size:
            raise ValueError("counts: expected ids of the pool")
        np.add.at(after, ids, by)
        if after.size and not 0 <= int(after.min()) <= int(after.max()) <= MOST_SOURCES:
            raise ValueError(f"counts: expected 0 to {MOST_SOURCES} holders of a block")
    table[:] = after
    dropped = np.unique(int32_view(drop))
    return _wire(dropped[after[dropped] == 0])


def first_counted(counts: bytearray, blocks: bytes) -> int:
    """Index of the first of these '<i4' blocks that is outside or has a count above 0, or -1."""
    if compiled.sets is not None:
        found: int = compiled.sets.first_counted(counts, blocks)
        return found
    table = np.frombuffer(counts, dtype="<u2")
    for at, block in enumerate(int32_view(blocks).tolist()):
        if not 0 <= block < table.size or table[block]:
            return at
    return -1


def _refuse(layer: int, block: int) -> NoReturn:
    if layer < 0:
        raise ValueError(f"reserve: block {block} is there already, or named twice")
    raise ValueError(f"layer {layer}: expected 0 to {MOST_HOLDERS} holders of the area of block {block}")


def _first_wrong(held: Counts, blocks: Int32, row_of_layer: bytes) -> tuple[int, int]:
    row, at = np.argwhere((held < 0) | (held > MOST_HOLDERS))[0]
    return int(np.flatnonzero(int32_view(row_of_layer) == row)[0]), int(blocks[at])


def _opened(own: Areas, row_of_layer: bytes, reserve: bytes) -> tuple[Int32, Counts, int | None]:
    """Blocks and counts with the reserved ones among them; and one of these that is there already, or twice."""
    blocks, rows = int32_view(own.blocks), int32_view(row_of_layer)
    held = np.frombuffer(own.held, dtype=np.uint8).reshape(int(rows.max(initial=-1)) + 1, blocks.size).astype(np.int64)
    if not reserve:
        return blocks, held, None
    new = np.concatenate((blocks, int32_view(reserve)))
    order = np.argsort(new, kind="stable")
    wide = np.concatenate((held, np.zeros((len(held), new.size - blocks.size), dtype=np.int64)), axis=1)
    twice = np.flatnonzero(np.diff(new[order]) == 0)
    return new[order], wide[:, order], int(new[order][twice[0]]) if twice.size else None


def _places(blocks: Int32, row_of_layer: bytes, rows: Rows[Any]) -> tuple[Int32, Int32]:
    """(row, place) of each area of the group's layers; place -1 for a block that is not there."""
    row = np.repeat(int32_view(row_of_layer)[rows.layers], rows.counts)
    ids, row = rows.ids[row >= 0], row[row >= 0]
    at = np.searchsorted(blocks, ids).astype(np.int32)
    at[at == blocks.size] = -1
    if blocks.size:
        at[blocks[at] != ids] = -1
    return row, at


def _areas(blocks: Int32, held: npt.NDArray[Any]) -> Areas:
    return Areas(_wire(blocks), held.astype(np.uint8).tobytes())


def _wire(ids: Int32) -> bytes:
    return ids.astype("<i4", copy=False).tobytes()
