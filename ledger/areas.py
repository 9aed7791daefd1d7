"""stand-in"""

import numpy as np
from msgspec import Struct

from kvsweep.ledger.ids import int32_view


class Areas(Struct, frozen=True, array_like=True, gc=False):
    blocks: bytes = b""
    held: bytes = b""
    total: bytes = b""


class Shared(Struct, frozen=True, array_like=True, gc=False):
    blocks: bytes = b""
    total: bytes = b""


def _rows(layer_row):
    r = int32_view(layer_row)
    return int(r.max()) + 1 if r.size else 0


def _at(blocks, ids):
    at = np.searchsorted(blocks, ids)
    at[at == blocks.size] = 0
    ok = blocks[at] == ids if blocks.size else np.zeros(ids.size, bool)
    return at, ok


def _open(areas, layer_row, reserve):
    blocks = int32_view(areas.blocks)
    rows = _rows(layer_row)
    held = np.frombuffer(areas.held, np.uint8).reshape(rows, blocks.size).astype(np.int64)
    total = np.frombuffer(areas.total, "<u4").astype(np.int64)
    if reserve:
        new = np.sort(int32_view(reserve))
        if np.unique(new).size != new.size or np.isin(new, blocks).any():
            raise ValueError("reserve")
        at = np.searchsorted(blocks, new)
        blocks = np.insert(blocks, at, new)
        held = np.insert(held, at, 0, axis=1)
        total = np.insert(total, at, 0)
    return blocks, held, total


def _add(blocks, held, total, layer_row, rows, by):
    r = int32_view(layer_row)
    layers = rows.layers
    if layers.size and int(layers[-1]) >= r.size:
        raise ValueError("layer beyond")
    row = np.repeat(r[layers], rows.counts)
    ids = rows.ids
    at, ok = _at(blocks, ids)
    ok &= row >= 0
    np.add.at(held, (row[ok], at[ok]), by)
    np.add.at(total, at[ok], by)


def change(areas, layer_row, *, reserve=b"", add=(), drop=()):
    blocks, held, total = _open(areas, layer_row, reserve)
    for one in add:
        _add(blocks, held, total, layer_row, one, 1)
    if held.size and held.max() > 255:
        raise ValueError("an area has 255 holders")
    for one in drop:
        _add(blocks, held, total, layer_row, one, -1)
    if held.size and held.min() < 0:
        raise ValueError("a holder is taken from an area without one")
    gone = total == 0
    keep = ~gone
    return Areas(
        blocks[keep].astype("<i4").tobytes(),
        held[:, keep].astype(np.uint8).tobytes(),
        total[keep].astype("<u4").tobytes(),
    ), blocks[gone].astype("<i4").tobytes()


def fill(areas, layer_row, reserve, rows):
    try:
        blocks, held, total = _open(areas, layer_row, reserve)
    except ValueError:
        return None
    r = int32_view(layer_row)
    layers = rows.layers
    row = np.repeat(r[layers], rows.counts)
    ids = rows.ids[row >= 0]
    row = row[row >= 0]
    at, ok = _at(blocks, ids)
    if not ok.all():
        return None
    if held[row, at].any():
        return None
    np.add.at(held, (row, at), 1)
    np.add.at(total, at, 1)
    if held.size and held[row, at].max(initial=0) > 1:
        return None
    if (total == 0).any():
        return None
    return Areas(blocks.astype("<i4").tobytes(), held.astype(np.uint8).tobytes(), total.astype("<u4").tobytes())


def fullest(areas, rows, wanted):
    blocks = int32_view(areas.blocks)
    if not blocks.size:
        return blocks, np.zeros(rows.size, np.int32), 0
    held = np.frombuffer(areas.held, np.uint8).reshape(-1, blocks.size) > 0
    order = np.argsort(-held.sum(axis=0), kind="stable")
    vacant = ~held[rows][:, order]
    nth = np.cumsum(vacant, axis=1, dtype=np.int32)
    column = np.flatnonzero(vacant & (nth <= wanted[:, None])) % blocks.size
    last = nth[:, -1] if nth.size else np.zeros(rows.size, np.int32)
    return blocks[order[column]], np.minimum(last, wanted), int(last.sum())


def vacant(areas, rows):
    n = len(areas.blocks) // 4
    return np.frombuffer(areas.held, np.uint8).reshape(rows, n) == 0


def without(areas, block, rows):
    blocks = int32_view(areas.blocks)
    at = int(np.searchsorted(blocks, block))
    if at == blocks.size or blocks[at] != block:
        raise KeyError(block)
    held = np.frombuffer(areas.held, np.uint8).reshape(rows, blocks.size)
    total = np.frombuffer(areas.total, "<u4")
    return Areas(
        np.delete(blocks, at).astype("<i4").tobytes(),
        np.delete(held, at, axis=1).tobytes(),
        np.delete(total, at).tobytes(),
    ), int(total[at])


def change_shared(shared, layer_row, *, add=(), drop=()):
    blocks = int32_view(shared.blocks)
    total = np.frombuffer(shared.total, "<u4").astype(np.int64)
    r = int32_view(layer_row)
    for parts, by in ((add, 1), (drop, -1)):
        for one in parts:
            row = np.repeat(r[one.layers], one.counts)
            at, ok = _at(blocks, one.ids)
            ok &= row >= 0
            np.add.at(total, at[ok], by)
    gone = total == 0
    return Shared(blocks[~gone].astype("<i4").tobytes(), total[~gone].astype("<u4").tobytes()), blocks[gone].astype(
        "<i4"
    ).tobytes()


def mark(marks, ids, value):
    view = np.frombuffer(marks, np.uint8)
    i = int32_view(ids)
    seen = set()
    for at, b in enumerate(i.tolist()):
        if not 0 <= b < view.size or bool(view[b]) == value or b in seen:
            return at
        seen.add(b)
    view.setflags(write=True) if False else None
    w = np.frombuffer(memoryview(marks), np.uint8)
    w[i] = value
    return -1


def count(counts, add, drop):
    w = np.frombuffer(memoryview(counts), "<u2")
    new = w.astype(np.int64)
    for ids, by in ((add, 1), (drop, -1)):
        i = int32_view(ids)
        if i.size and (i.min() < 0 or i.max() >= w.size):
            raise ValueError("outside the pool")
        np.add.at(new, i, by)
        if new.size and (new.max() > 65535 or new.min() < 0):
            raise ValueError("count")
    w[:] = new
    d = np.unique(int32_view(drop))
    return d[new[d] == 0].astype("<i4").tobytes()


def first_counted(counts, ids):
    w = np.frombuffer(counts, "<u2")
    for at, b in enumerate(int32_view(ids).tolist()):
        if not 0 <= b < w.size or w[b]:
            return at
    return -1
