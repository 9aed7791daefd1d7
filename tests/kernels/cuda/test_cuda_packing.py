"""Unpacking and packing on the way, element by element, and whole blocks against the reference."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.kernels.test_moves import random_pool, random_rows

from kvsweep.kernels import BlockShape, KernelArgumentError, scatter_blocks, unpack_vnni
from kvsweep.kernels.cuda.kernels import CudaKernels
from kvsweep.kernels.cuda.simulated import SimulatedDriver

SHAPES = [(1, 32, 32), (3, 32, 64), (2, 64, 128), (5, 96, 32)]
"""(kv heads, block size, head dim)."""


def i32(*values: int) -> npt.NDArray[np.int32]:
    return np.array(values, dtype=np.int32)


@pytest.mark.parametrize(("heads", "block_size", "head_dim"), SHAPES)
def test_c2_unpack_and_pack_equal_the_reference(
    same: Callable[..., Any], rng: np.random.Generator, heads: int, block_size: int, head_dim: int
) -> None:
    shape = BlockShape(heads, block_size, head_dim, "bfloat16")
    for count in (0, 1, 3):
        blocks = rng.integers(0, 256, (count, shape.block_bytes), dtype=np.uint8)
        same("unpack_vnni", blocks, shape, np.zeros_like(blocks))
        same("pack_vnni", blocks, shape, np.zeros_like(blocks))


def test_c2_every_element_of_a_packed_block_goes_where_the_formula_says(cuda: CudaKernels) -> None:
    heads, size, dim = 2, 32, 64
    shape = BlockShape(heads, size, dim, "bfloat16")
    packed = np.arange(heads * 2 * size * dim, dtype=np.uint16)  # 8,192 elements, all different
    natural = np.zeros((2, heads, size, dim), dtype=np.uint16)
    cuda.unpack_vnni(packed.view(np.uint8).reshape(1, -1), shape, natural.view(np.uint8).reshape(1, -1))
    for h in range(heads):
        k_at, v_at = h * 2 * size * dim, (h * 2 + 1) * size * dim
        for t in range(size):
            for d in range(dim):
                assert natural[0, h, t, d] == k_at + (t // 16) * 16 * dim + (d // 2) * 32 + (t % 16) * 2 + d % 2
                assert natural[1, h, t, d] == v_at + (d // 16) * 16 * size + (t // 2) * 32 + (d % 16) * 2 + t % 2


@pytest.mark.parametrize(("heads", "block_size", "head_dim"), SHAPES[:3])
def test_c2_a4_unpack_and_scatter_in_one_pass_equals_both_of_the_reference(
    cuda: CudaKernels, rng: np.random.Generator, heads: int, block_size: int, head_dim: int
) -> None:
    shape = BlockShape(heads, block_size, head_dim, "bfloat16")
    pool = random_pool(rng, 3, 4, shape.block_bytes)
    rows = random_rows(rng, 3, 4)
    staged = rng.integers(0, 256, (rows.ids.size, shape.block_bytes), dtype=np.uint8)
    expected, natural = pool.copy(), np.empty_like(staged)
    unpack_vnni(staged, shape, natural)
    scatter_blocks(natural, expected, i32(0, 1, 2), rows.row_ptr, rows.ids)
    cuda.unpack_scatter(staged, shape, pool, i32(0, 1, 2), rows.row_ptr, rows.ids)
    assert pool.tobytes() == expected.tobytes()
    again = np.zeros_like(staged)
    cuda.gather_pack(pool, shape, i32(0, 1, 2), rows.row_ptr, rows.ids, again)
    assert again.tobytes() == staged.tobytes()


SHAPE = BlockShape(1, 32, 32, "bfloat16")


@pytest.mark.parametrize(
    ("blocks", "out", "message"),
    [
        ((1, 4095), (1, 4096), "blocks: expected shape (1, 4096), got shape (1, 4095)"),
        ((2, 4096), (1, 4096), "out: expected shape (2, 4096), got shape (1, 4096)"),
        ((1, 1, 4096), (1, 4096), "blocks: expected a C-contiguous uint8 array with 2 axes, got shape (1, 1, 4096)"),
    ],
)
def test_blocks_of_another_shape_are_refused(blocks: tuple[int, ...], out: tuple[int, ...], message: str) -> None:
    cuda = CudaKernels(SimulatedDriver(seed=1))
    with pytest.raises(KernelArgumentError) as caught:
        cuda.unpack_vnni(np.zeros(blocks, dtype=np.uint8), SHAPE, np.zeros(out, dtype=np.uint8))
    assert str(caught.value) == message


def test_what_cannot_be_packed_or_lies_across_is_refused() -> None:
    cuda = CudaKernels(SimulatedDriver(seed=1))
    whole = np.zeros(2 * 4096 + 64, dtype=np.uint8)
    start = -whole.ctypes.data % 16
    blocks, same_place = whole[start : start + 4096].reshape(1, 4096), whole[start + 16 : start + 4112].reshape(1, 4096)
    rough = whole[start + 8 : start + 8 + 4096].reshape(1, 4096)
    with pytest.raises(KernelArgumentError, match="dtype"):
        cuda.unpack_vnni(blocks, BlockShape(1, 32, 32, "float32"), blocks)
    with pytest.raises(KernelArgumentError, match="out: expected memory apart from blocks"):
        cuda.unpack_vnni(blocks, SHAPE, same_place)
    with pytest.raises(KernelArgumentError, match="source: expected blocks at multiples of 16 bytes"):
        cuda.pack_vnni(rough, SHAPE, np.zeros((1, 4096), dtype=np.uint8))
    with pytest.raises(KernelArgumentError, match="pool: expected blocks of 4096 bytes, got 64 bytes"):
        cuda.unpack_scatter(blocks, SHAPE, np.zeros((1, 1, 64), dtype=np.uint8), i32(0), i32(0, 1), i32(0))
