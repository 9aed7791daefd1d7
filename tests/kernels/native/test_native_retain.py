"""B1, B2 and B6 in native code: equal rows, rewritten tables, blocks that nobody reads."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvsweep.kernels import Csr

Same = Callable[..., Any]


@pytest.mark.parametrize("size", [0, 1, 31, 32, 33, 500])
def test_b1_classes_of_rows_equal_the_reference(same: Same, rng: np.random.Generator, size: int) -> None:
    """Equal rows, rows that differ in one place only, in length only, in order only."""
    base = rng.integers(-3, 1000, size).astype(np.int32)
    rows = [base, base.copy()]
    for at in range(0, size, 7):
        other = base.copy()
        other[at] ^= 1
        rows += [other, base, other]
    rows += [base[:-1], base[::-1], np.empty(0, dtype=np.int32), np.append(base, np.int32(0))]
    same("row_classes", Csr.of([rows[at] for at in rng.permutation(len(rows))]))
    same("row_classes", Csr.of([base] * 9))
    same("row_classes", Csr.of([]))


def test_b1_rows_that_share_a_digest_are_compared(same: Same) -> None:
    """Two rows of two ids whose digests are equal, found by search: equal classes would be the digest's mistake."""
    multiplier, size = np.uint64(0x9E3779B97F4A7C15), np.uint64(2)
    first = np.unique(np.random.default_rng(20260916).integers(0, 2**32, 2**18, dtype=np.uint64))
    mixed = (size ^ first) * multiplier
    order = np.argsort(mixed)
    near = order[np.flatnonzero(np.diff(mixed[order] >> np.uint64(32)) == 0)[:1]]
    assert near.size == 1
    one = int(near[0])
    other = int(order[np.flatnonzero(order == one)[0] + 1])
    second = int(mixed[one] ^ mixed[other])
    assert second < 2**32, "only the low half differs, and the second id makes up for it"
    rows = np.array([[first[one], 0], [first[other], second]], dtype=np.uint32).view(np.int32)
    same("row_classes", Csr.of(list(rows)))


def test_b1_the_counter_example(native: Any) -> None:
    """Layer 0 keeps slots [0, 2], layer 1 keeps [1, 2]: no table serves both."""
    assert native.row_classes(Csr.of([[0, 2], [1, 2], [0, 2]])).tolist() == [0, 1, 0]


@pytest.mark.parametrize("slots", [1, 16, 64, 1000])
def test_b2_tables_of_kept_slots_equal_the_reference(same: Same, rng: np.random.Generator, slots: int) -> None:
    physical: list[Any] = []
    keep: list[Any] = []
    for _ in range(5):
        row = rng.integers(0, 10_000, int(rng.integers(0, slots + 1)))
        kept = np.flatnonzero(rng.random(row.size) < 0.6)
        holes = np.setdiff1d(np.arange(row.size), kept)[:3]
        row[holes] = -1
        physical.append(row)
        keep.append(kept)
    same("remap_rows", Csr.of(physical), Csr.of(keep))


@pytest.mark.parametrize(
    ("physical", "keep"),
    [
        ([[5, 6, 7]], [[0, 3]]),
        ([[5, 6, 7]], [[-1, 2]]),
        ([[5, 6, 7]], [[1, 1]]),
        ([[5, 6, 7]], [[2, 1]]),
        ([[5, -1, 7]], [[0, 1]]),
        ([[5], [6]], [[0]]),
        ([[], [6]], [[0], [0]]),
    ],
)
def test_b2_what_the_reference_refuses_is_refused_in_the_same_words(
    same: Same, physical: list[list[int]], keep: list[list[int]]
) -> None:
    kind, _ = same("remap_rows", Csr.of(physical), Csr.of(keep))
    assert kind == "KernelArgumentError"


@pytest.mark.parametrize("blocks", [1, 63, 64, 65, 10_000])
def test_b6_retired_blocks_equal_the_reference(same: Same, rng: np.random.Generator, blocks: int) -> None:
    for owned, referenced in ((0, 0), (3, 0), (0, 3), (blocks, blocks // 2), (2 * blocks, blocks)):
        mine = rng.integers(0, blocks, owned).astype(np.int32)
        theirs = rng.integers(0, blocks, referenced).astype(np.int32)
        same("retired_blocks", mine, theirs, blocks=blocks)
        same("retired_blocks", np.sort(mine), np.sort(theirs), blocks=blocks)


@pytest.mark.parametrize(
    ("owned", "referenced", "blocks"),
    [([0, 9], [1], 9), ([0], [9], 9), ([-1], [0], 9), ([0], [-1], 9), ([0], [0], -1), ([0], [0], True), ([0], [], 0)],
)
def test_b6_blocks_outside_the_pool_are_refused_in_the_same_words(
    same: Same, owned: list[int], referenced: list[int], blocks: Any
) -> None:
    arrays = np.array(owned, dtype=np.int32), np.array(referenced, dtype=np.int32)
    kind, _ = same("retired_blocks", *arrays, blocks=blocks)
    assert kind == "KernelArgumentError"
    kind, _ = same("retired_blocks", arrays[0].astype(np.int64), arrays[1], blocks=blocks)
    assert kind == "KernelArgumentError"
