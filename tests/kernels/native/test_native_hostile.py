"""Hostile sizes and ids straight at the native entry points: each call is refused or returns, and nothing else happens.

The sanitizers' build of the same tests is what gives this its teeth.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvsweep.kernels import _native

ENDS = np.array([-(2**31), -2, -1, 0, 1, 63, 64, 65, 2**30, 2**31 - 1], dtype=np.int64)


class Draw:
    """Arrays that are right, nearly right, or wrong in one of the ways that an array can be."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng([20260916, seed])

    def size(self, most: int = 40) -> int:
        return int(self.rng.integers(0, most))

    def ids(self, size: int, limit: int) -> Any:
        ids = self.rng.integers(0, max(limit, 1), size)
        if self.rng.random() < 0.5:
            ids = self.rng.permutation(max(limit, size))[:size]
        if size and self.rng.random() < 0.3:
            ids[self.rng.integers(0, size)] = self.rng.choice(ENDS)
        return self.spoilt(ids.astype(np.int32))

    def row_ptr(self, rows: int, count: int) -> Any:
        inner = np.sort(self.rng.integers(0, count + 1, max(rows - 1, 0)))
        pointers = np.concatenate(([0], inner, [count]))[: rows + 1]
        if rows and self.rng.random() < 0.2:
            pointers[self.rng.integers(0, rows + 1)] = self.rng.choice(ENDS)
        return self.spoilt(pointers.astype(np.int32))

    def bytes(self, *shape: int) -> Any:
        return self.spoilt(np.zeros(shape, dtype=np.uint8))

    def spoilt(self, array: np.ndarray) -> Any:
        if self.rng.random() < 0.94:
            return array
        wrong: list[Callable[[], Any]] = [
            lambda: array.astype(np.bool_),
            lambda: array.astype(array.dtype.newbyteorder(">")),
            lambda: np.repeat(array, 2, axis=-1)[..., ::2],
            lambda: array[..., None],
            lambda: array[:-1],
            lambda: array[:0],
            lambda: array.tolist(),
            lambda: None,
        ]
        return wrong[int(self.rng.integers(0, len(wrong)))]()

    def small(self) -> int:
        return int(self.rng.choice([0, 1, 1, 1, 2, 2, -1, 3, 1025])) if self.rng.random() < 0.1 else 1

    def isa(self) -> int:
        return int(self.rng.integers(0, _native.best_isa() + 1)) if self.rng.random() < 0.97 else 7


def gather(draw: Draw) -> None:
    layers, blocks, size, rows, count = draw.size(4), draw.size(), draw.size(200), draw.size(4), draw.size()
    pool, chosen = draw.bytes(layers, blocks, size), draw.spoilt(np.arange(rows, dtype=np.int32))
    pointers, ids, staged = draw.row_ptr(rows, count), draw.ids(count, blocks), draw.bytes(count, size)
    kind = draw.rng.integers(0, 3)
    if kind == 0:
        _native.gather_blocks(pool, chosen, pointers, ids, staged, draw.isa(), draw.small())
    elif kind == 1:
        _native.scatter_blocks(staged, pool, chosen, pointers, ids, draw.isa(), draw.small())
    else:
        _native.move_blocks(pool, chosen, pointers, ids, draw.ids(count, blocks), draw.isa(), draw.small())


def unpack(draw: Draw) -> None:
    sizes = [
        int(draw.rng.choice([32, 32, 64, 0, -32, 33, 2**20, 2**40])) if draw.rng.random() < 0.2 else 32 for _ in "bd"
    ]
    heads = draw.small() if draw.rng.random() < 0.2 else 1
    count, size = draw.size(5), int(draw.rng.choice([2, 4])) * heads * sizes[0] * sizes[1]
    width = size if 0 <= size < 1 << 20 else 4096
    kernel = _native.unpack_vnni if draw.rng.random() < 0.5 else _native.pack_vnni
    order, parts = int(draw.rng.integers(-1, 3)), int(draw.rng.integers(0, 5))
    tokens, dims = sizes
    blocks, out = draw.bytes(count, width), draw.bytes(count, width)
    kernel(blocks, out, heads, tokens, dims, order, parts, draw.isa(), draw.small())


def tokens(draw: Draw) -> None:
    rows, count, blocks, size = draw.size(3), draw.size(12), draw.size(30), int(draw.rng.choice([1, 4, 32]))
    dims, packed = int(draw.rng.choice([1, 32, 33, 0])), bool(draw.rng.integers(0, 2))
    pool = draw.spoilt(np.zeros((3, max(blocks, 0), 4 * size * max(dims, 0)), dtype=np.uint8))
    chosen = np.sort(draw.rng.permutation(4)[: max(rows, 0)]).astype(np.int32)
    pointers = draw.row_ptr(rows, count)
    wanted = draw.size()
    if isinstance(pointers, np.ndarray) and draw.rng.random() < 0.8:
        wanted = int((-(-np.diff(pointers.reshape(-1).astype(np.int64)) // size)).clip(0, 64).sum())
    to = draw.ids(wanted, blocks)
    _native.pack_tokens(
        pool, chosen, pointers, draw.ids(count, blocks * size), to, 1, size, dims, 2, packed, draw.isa()
    )


def plan(draw: Draw) -> None:
    rows, limit, shared = draw.size(4), draw.size(200), bool(draw.rng.integers(0, 2))
    lists: list[Any] = []
    counts = []
    for _ in range(3):
        count = draw.size()
        counts.append(count)
        lists += [draw.row_ptr(rows, count), draw.ids(count, limit)]
    room = 5 * rows + 2 + counts[0]
    if shared:
        room = 5 * rows + 2 + 2 * _native.diff_capacity(lists[0], lists[1])
    out = draw.spoilt(np.zeros(max(room, 0), dtype=np.int32))
    want, wanted, tail, others, held, resident = lists
    _native.plan_diff(want, wanted, tail, others, held, resident, limit, shared, out, draw.isa())


def select(draw: Draw) -> None:
    rows, n = draw.size(4), int(draw.rng.choice([0, 1, 16, 65, 300, 5000]))
    scores = draw.rng.standard_normal((rows, n)).astype(np.float32)
    if scores.size and draw.rng.random() < 0.2:
        scores.flat[draw.rng.integers(0, scores.size)] = draw.rng.choice([np.nan, np.inf, -np.inf])
    out = np.zeros((rows, draw.size(n + 2)), dtype=np.int32)
    _native.select_top(draw.spoilt(scores), draw.spoilt(out), int(draw.rng.integers(-1, 3)), draw.isa(), draw.small())


def retain(draw: Draw) -> None:
    rows, count, kept, limit = draw.size(4), draw.size(), draw.size(), draw.size(200)
    pointers, ids, isa = draw.row_ptr(rows, count), draw.ids(count, limit), draw.isa()
    kind = draw.rng.integers(0, 3)
    if kind == 0:
        out = draw.spoilt(np.zeros(kept, dtype=np.int32))
        _native.remap_rows(pointers, ids, draw.row_ptr(rows, kept), draw.ids(kept, count), out, isa)
    elif kind == 1:
        _native.row_classes(pointers, ids, draw.spoilt(np.zeros(rows, dtype=np.int32)), isa)
    else:
        out = draw.spoilt(np.zeros(count, dtype=np.int32))
        _native.retired_blocks(ids, draw.ids(kept, limit), limit, out, isa)


@pytest.mark.parametrize("call", [gather, unpack, tokens, plan, select, retain])
@pytest.mark.parametrize("rounds", [500, pytest.param(20_000, marks=pytest.mark.full)])
def test_hostile_calls_are_refused_or_return(call: Callable[[Draw], None], rounds: int) -> None:
    """Both outcomes occur: a run in which nothing was accepted, or nothing refused, would show nothing."""
    refused = 0
    for seed in range(rounds):
        try:
            call(Draw(seed))
        except (ValueError, TypeError):
            refused += 1
    assert rounds // 50 < refused < rounds - rounds // 50, f"{refused} of {rounds} refused"
