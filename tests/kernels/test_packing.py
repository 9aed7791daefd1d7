"""VNNI packing against the index formulas, one element at a time."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from kvsweep.kernels import BlockShape, KernelArgumentError, pack_vnni, unpack_vnni

UInt8 = npt.NDArray[np.uint8]
Pack = Callable[[UInt8, BlockShape, UInt8], None]


def packed_place(shape: BlockShape, which: int, head: int, t: int, d: int) -> int:
    """Where the glossary puts one element of K (which = 0) or V (1), counted in elements from the block's start."""
    size, dim = shape.block_size, shape.head_dim
    if which == 0:
        inside = (t // 16) * 16 * dim + (d // 2) * 32 + (t % 16) * 2 + d % 2
    else:
        inside = (d // 16) * 16 * size + (t // 2) * 32 + (d % 16) * 2 + t % 2
    return (2 * head + which) * size * dim + inside


def natural_place(shape: BlockShape, which: int, head: int, t: int, d: int) -> int:
    return ((which * shape.kv_heads + head) * shape.block_size + t) * shape.head_dim + d


@pytest.mark.parametrize(
    "shape",
    [
        BlockShape(1, 32, 32, "bfloat16"),
        BlockShape(2, 32, 64, "bfloat16"),
        BlockShape(1, 64, 32, "bfloat16"),
        BlockShape(3, 64, 96, "bfloat16"),
    ],
    ids=str,
)
def test_c2_pack_and_unpack_put_every_element_where_the_formula_says(shape: BlockShape) -> None:
    # One block whose elements are all different (at most 36,864 of them) shows the place of each.
    elements = shape.block_bytes // 2
    natural = np.random.default_rng(7).permutation(elements).astype(np.uint16)
    expected = np.zeros(elements, dtype=np.uint16)
    for which in range(2):
        for head in range(shape.kv_heads):
            for t in range(shape.block_size):
                for d in range(shape.head_dim):
                    expected[packed_place(shape, which, head, t, d)] = natural[natural_place(shape, which, head, t, d)]
    blocks = natural.view(np.uint8).reshape(1, -1)
    packed = np.zeros_like(blocks)
    pack_vnni(blocks, shape, packed)
    assert np.array_equal(packed.view(np.uint16)[0], expected)
    back = np.zeros_like(blocks)
    unpack_vnni(packed, shape, back)
    assert np.array_equal(back, blocks)


def test_c2_blocks_do_not_mix_and_every_bit_pattern_survives() -> None:
    """NaN payloads, infinities and negative zeros are words like any other."""
    rng = np.random.default_rng(11)
    shape = BlockShape(2, 32, 32, "bfloat16")
    blocks = rng.integers(0, 256, (5, shape.block_bytes), dtype=np.uint8)
    together = np.zeros_like(blocks)
    pack_vnni(blocks, shape, together)
    for index in range(5):
        alone = np.zeros((1, shape.block_bytes), dtype=np.uint8)
        pack_vnni(blocks[index : index + 1], shape, alone)
        assert np.array_equal(together[index], alone[0])
    back = np.zeros_like(blocks)
    unpack_vnni(together, shape, back)
    assert np.array_equal(back, blocks)


def test_no_blocks() -> None:
    shape = BlockShape(2, 32, 32, "bfloat16")
    none = np.zeros((0, shape.block_bytes), dtype=np.uint8)
    pack_vnni(none, shape, none.copy())
    unpack_vnni(none, shape, none.copy())


@pytest.mark.parametrize("pack", [pack_vnni, unpack_vnni])
def test_bad_argument_is_refused_with_its_name(pack: Pack) -> None:
    shape = BlockShape(1, 32, 32, "bfloat16")
    blocks = np.zeros((2, shape.block_bytes), dtype=np.uint8)
    read_only = blocks.copy()
    read_only.flags.writeable = False
    cases: list[tuple[UInt8, BlockShape, UInt8, str]] = [
        (
            blocks,
            BlockShape(1, 32, 32, "float32"),
            blocks.copy(),
            "dtype: expected \"bfloat16\" for VNNI packing, got 'float32'",
        ),
        (
            blocks,
            BlockShape(1, 64, 32, "bfloat16"),
            blocks.copy(),
            "blocks: expected shape (2, 8192), got shape (2, 4096)",
        ),
        (blocks, shape, blocks[:1].copy(), "out: expected shape (2, 4096), got shape (1, 4096)"),
        (blocks, shape, blocks, "out: expected memory apart from blocks, got memory that overlaps blocks"),
        (blocks, shape, read_only, "out: expected a writable array, got a read-only array"),
        (
            blocks[:, ::2],
            shape,
            blocks.copy(),
            "blocks: expected a C-contiguous uint8 array with 2 axes, got strides (4096, 2) for shape (2, 2048)",
        ),
    ]
    for source, of, out, message in cases:
        with pytest.raises(KernelArgumentError) as caught:
            pack(source, of, out)
        assert str(caught.value) == message
