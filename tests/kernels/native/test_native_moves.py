"""Native gather, scatter and move equal the reference byte for byte, refusals included."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvsweep.kernels import Csr

Same = Callable[..., Any]
# Bytes of a block: below, at and around vectors and the step of interleaving; 2048 × 2100 passes the size from which
# the caches are bypassed.
SIZES = [0, 1, 3, 63, 64, 65, 127, 500, 512, 576, 1000, 2048, 4096 + 24]


def pool_of(rng: np.random.Generator, layers: int, blocks: int, block_bytes: int) -> np.ndarray:
    return rng.integers(0, 256, (layers, blocks, block_bytes), dtype=np.uint8)


def ids_of(*rows: list[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    csr = Csr.of(rows)
    return csr.row_ptr, csr.ids


LAYERS = np.array([0, 2, 3], dtype=np.int32)


@pytest.mark.parametrize("block_bytes", SIZES)
@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 300])
def test_a4_gather_and_scatter_equal_the_reference(
    same: Same, rng: np.random.Generator, block_bytes: int, count: int
) -> None:
    """Rows of different lengths, one of them empty, ids at both ends of the pool."""
    pool = pool_of(rng, 4, 401, block_bytes)
    named = rng.integers(0, 401, count)
    pointers, source = ids_of([0, 400, *named], [], [400, 0, *named[: count // 2]])
    out = np.zeros((source.size, block_bytes), dtype=np.uint8)
    assert same("gather_blocks", pool, LAYERS, pointers, source, out) is None
    pointers, target = ids_of([400, 0], rng.permutation(401)[:count], rng.permutation(401)[: count // 2])
    staged = rng.integers(0, 256, (target.size, block_bytes), dtype=np.uint8)
    assert same("scatter_blocks", staged, pool, LAYERS, pointers, target) is None


@pytest.mark.parametrize("block_bytes", SIZES)
def test_move_equals_the_reference(same: Same, rng: np.random.Generator, block_bytes: int) -> None:
    pool = pool_of(rng, 4, 1000, block_bytes)
    orders = [rng.permutation(1000) for _ in range(3)]
    pointers, source = ids_of(orders[0][:450], [], orders[2][:21])
    _, target = ids_of(orders[0][500:950], [], orders[2][100:121])
    assert same("move_blocks", pool, LAYERS, pointers, source, target) is None


@pytest.mark.parametrize("offset", [0, 1, 16, 63])
def test_any_address_is_written_to_whole(same: Same, rng: np.random.Generator, offset: int) -> None:
    """Lines past the caches start at a multiple of 64; what comes before and after is written too, and no more."""
    pool = pool_of(rng, 1, 2300, 2048)
    pointers, source = ids_of(rng.integers(0, 2300, 2100))
    layers = np.zeros(1, dtype=np.int32)
    room = np.full(2100 * 2048 + 64, 7, dtype=np.uint8)
    out = room[offset : offset + 2100 * 2048].reshape(2100, 2048)
    assert same("gather_blocks", pool, layers, pointers, source, out) is None


def test_nothing_around_the_result_is_written(native: Any, rng: np.random.Generator) -> None:
    pool = pool_of(rng, 1, 2300, 2000)
    pointers, source = ids_of(rng.integers(0, 2300, 2100))
    room = np.full(2100 * 2000 + 128, 7, dtype=np.uint8)
    out = room[61 : 61 + 2100 * 2000].reshape(2100, 2000)
    native.gather_blocks(pool, np.zeros(1, dtype=np.int32), pointers, source, out)
    assert (out == pool[0, source]).all()
    assert (room[:61] == 7).all()
    assert (room[61 + out.size :] == 7).all()


def test_two_threads_give_what_one_gives(rng: np.random.Generator) -> None:
    from kvsweep.kernels.compiled import NativeKernels

    pool = pool_of(rng, 4, 600, 8192)
    pointers, source = ids_of(rng.integers(0, 600, 400), rng.integers(0, 600, 3), rng.integers(0, 600, 200))
    out = np.zeros((source.size, 8192), dtype=np.uint8)
    NativeKernels(threads=3).gather_blocks(pool, LAYERS, pointers, source, out)
    layer = np.repeat(LAYERS, np.diff(pointers))
    assert (out == pool[layer, source]).all()


GATHER: dict[str, Any] = {
    "pool": np.zeros((4, 5, 16), dtype=np.uint8),
    "layers": LAYERS,
    "row_ptr": np.array([0, 1, 1, 3], dtype=np.int32),
    "source": np.array([4, 0, 4], dtype=np.int32),
    "out": np.zeros((3, 16), dtype=np.uint8),
}
WRONG = [
    ("pool", np.zeros((4, 5, 32), dtype=np.uint8)[:, :, ::2]),
    ("pool", np.zeros((4, 5, 16), dtype=np.int8)),
    ("pool", np.zeros((5, 16), dtype=np.uint8)),
    ("pool", [[[0]]]),
    ("layers", np.array([0, 3, 2], dtype=np.int32)),
    ("layers", np.array([0, 2, 4], dtype=np.int32)),
    ("layers", np.array([-1, 2, 3], dtype=np.int32)),
    ("layers", np.array([0, 2], dtype=np.int32)),
    ("layers", np.array([0, 2, 3], dtype=np.int64)),
    ("row_ptr", np.array([0, 2, 1, 3], dtype=np.int32)),
    ("row_ptr", np.array([1, 1, 1, 3], dtype=np.int32)),
    ("row_ptr", np.array([0, 1, 1, 2], dtype=np.int32)),
    ("row_ptr", np.array([0, 1, 1, 2**31 - 1], dtype=np.int32)),
    ("row_ptr", np.array([], dtype=np.int32)),
    ("source", np.array([4, 0, 5], dtype=np.int32)),
    ("source", np.array([4, 0, -1], dtype=np.int32)),
    ("source", np.array([4, 0, -(2**31)], dtype=np.int32)),
    ("source", np.array([4, 0, 4], dtype=">i4")),
    ("out", np.zeros((2, 16), dtype=np.uint8)),
    ("out", np.zeros((3, 8), dtype=np.uint8)),
]


@pytest.mark.parametrize(("argument", "value"), WRONG)
def test_what_the_reference_refuses_is_refused_in_the_same_words(same: Same, argument: str, value: Any) -> None:
    kind, message = same("gather_blocks", **{**GATHER, argument: value})
    assert kind == "KernelArgumentError"
    assert message.startswith(argument) or argument == "row_ptr"


def test_read_only_results_are_refused(native: Any) -> None:
    out = np.zeros((3, 16), dtype=np.uint8)
    out.flags.writeable = False
    with pytest.raises(ValueError, match=r"^out: expected a writable array, got a read-only array$"):
        native.gather_blocks(**{**GATHER, "out": out})


def test_overlap_is_refused(native: Any) -> None:
    pool = np.zeros((1, 8, 16), dtype=np.uint8)
    pointers, ids = ids_of([0, 1])
    layers = np.zeros(1, dtype=np.int32)
    with pytest.raises(ValueError, match=r"^out: expected memory apart from pool"):
        native.gather_blocks(pool, layers, pointers, ids, pool[0, 3:5])
    with pytest.raises(ValueError, match=r"^staging: expected memory apart from pool"):
        native.scatter_blocks(pool[0, 3:5], pool, layers, pointers, ids)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ([0, 1, 2], [3, 4, 3]),
        ([0, 1, 2], [3, 4, 2]),
        ([0, 1, 2], [3, 4, 9]),
        ([0, 1, 2], [3, 4]),
        ([0, 1, 9], [3, 4, 5]),
    ],
)
def test_moves_in_place_or_twice_to_one_area_are_refused(same: Same, source: list[int], target: list[int]) -> None:
    pool = np.zeros((1, 9, 16), dtype=np.uint8)
    pointers, ids = ids_of(source)
    kind, _ = same("move_blocks", pool, np.zeros(1, dtype=np.int32), pointers, ids, np.array(target, dtype=np.int32))
    assert kind == "KernelArgumentError"


def test_a_refused_call_leaves_no_marks_behind(same: Same) -> None:
    """The scratch that finds ids named twice is kept between calls: a refusal must leave it clean."""
    pool = np.arange(9 * 16, dtype=np.uint8).reshape(1, 9, 16)
    layers = np.zeros(1, dtype=np.int32)
    pointers, _ = ids_of([0, 0])
    staged = np.zeros((2, 16), dtype=np.uint8)
    for ids in ([5, 5], [6, 5], [5, 5], [5, 3]):
        same("scatter_blocks", staged, pool, layers, pointers, np.array(ids, dtype=np.int32))
