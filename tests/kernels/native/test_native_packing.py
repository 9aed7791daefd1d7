"""Native VNNI packing equals the reference word for word."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvsweep.kernels import BlockShape

Same = Callable[..., Any]
SHAPES = [(1, 32, 32), (2, 32, 64), (3, 64, 128), (1, 96, 32), (2, 32, 96), (8, 32, 128)]


@pytest.mark.parametrize("count", [0, 1, 3, 40])
@pytest.mark.parametrize("sizes", SHAPES)
def test_pack_and_unpack_equal_the_reference(
    same: Same, rng: np.random.Generator, sizes: tuple[int, int, int], count: int
) -> None:
    shape = BlockShape(*sizes, "bfloat16")
    blocks = rng.integers(0, 256, (count, shape.block_bytes), dtype=np.uint8)
    out = np.zeros_like(blocks)
    assert same("pack_vnni", blocks, shape, out) is None
    assert same("unpack_vnni", blocks, shape, out) is None


@pytest.mark.parametrize("offset", [0, 2, 32, 64])
@pytest.mark.parametrize("kernel", ["pack_vnni", "unpack_vnni"])
def test_any_even_address_is_written_to(same: Same, rng: np.random.Generator, kernel: str, offset: int) -> None:
    """136 blocks of 32 KiB pass the size from which the caches are bypassed, if the address allows it."""
    shape = BlockShape(2, 32, 128, "bfloat16")
    blocks = rng.integers(0, 256, (136, shape.block_bytes), dtype=np.uint8)
    room = np.zeros(blocks.size + 128, dtype=np.uint8)
    start = -room.ctypes.data % 64 + offset
    out = room[start : start + blocks.size].reshape(blocks.shape)
    assert same(kernel, blocks, shape, out) is None


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("parts", [1, 2])
def test_parts_and_tokens_first(native: Any, rng: np.random.Generator, order: int, parts: int) -> None:
    """K or V alone leaves the other as it is; tokens first is the same rows, axes token and head exchanged."""
    from kvsweep.kernels import _native, reference

    shape = BlockShape(3, 32, 64, "bfloat16")
    blocks = rng.integers(0, 256, (5, shape.block_bytes), dtype=np.uint8)
    natural = np.zeros_like(blocks)
    reference.unpack_vnni(blocks, shape, natural)
    expected = natural.view(np.uint16).reshape(5, 2, 3, 32, 64)
    if order == 1:
        expected = expected.swapaxes(2, 3)
    out = np.full_like(blocks, 9)
    isa = ("scalar", "avx2", "avx512").index(native.isa)
    _native.unpack_vnni(blocks, out, 3, 32, 64, order, parts, isa, 1)
    got = out.view(np.uint16).reshape(expected.shape)
    part = parts - 1
    assert (got[:, part] == expected[:, part]).all()
    assert (got[:, 1 - part] == 0x0909).all()
    back = np.full_like(blocks, 9)
    _native.pack_vnni(out, back, 3, 32, 64, order, parts, isa, 1)
    tiles, want = back.reshape(5, 3, 2, -1), blocks.reshape(5, 3, 2, -1)
    assert (tiles[:, :, part] == want[:, :, part]).all()
    assert (tiles[:, :, 1 - part] == 9).all()


@pytest.mark.parametrize("dims", [32, 64, 96, 128, 160])
@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("parts", [1, 2])
def test_arrays_of_one_part_hold_its_tiles_one_after_another(
    native: Any, rng: np.random.Generator, parts: int, order: int, dims: int
) -> None:
    """Engines with K and V in arrays of their own: the same elements as that half of a block of both."""
    from kvsweep.kernels import _native

    heads, tokens, count = 2, 32, 5
    both = rng.integers(0, 256, (count, 4 * heads * tokens * dims), dtype=np.uint8)
    isa = ("scalar", "avx2", "avx512").index(native.isa)
    whole = np.zeros_like(both)
    _native.unpack_vnni(both, whole, heads, tokens, dims, order, 3, isa, 1)
    alone = np.ascontiguousarray(both.reshape(count, heads, 2, -1)[:, :, parts - 1]).reshape(count, -1)
    out = np.full_like(alone, 9)
    _native.unpack_vnni(alone, out, heads, tokens, dims, order, parts, isa, 1)
    assert (out == whole.reshape(count, 2, -1)[:, parts - 1]).all()
    back = np.full_like(alone, 9)
    _native.pack_vnni(out, back, heads, tokens, dims, order, parts, isa, 1)
    assert (back == alone).all()


SHAPE = BlockShape(1, 32, 32, "bfloat16")


@pytest.mark.parametrize("kernel", ["pack_vnni", "unpack_vnni"])
@pytest.mark.parametrize(
    ("blocks", "shape", "out"),
    [
        (np.zeros((2, 4096), dtype=np.uint8), BlockShape(1, 32, 32, "float32"), np.zeros((2, 8192), dtype=np.uint8)),
        (np.zeros((2, 4096), dtype=np.uint8), BlockShape(1, 16, 32, "bfloat16"), np.zeros((2, 4096), dtype=np.uint8)),
        (np.zeros((2, 2048), dtype=np.uint8), SHAPE, np.zeros((2, 2048), dtype=np.uint8)),
        (np.zeros((2, 4096), dtype=np.uint8), SHAPE, np.zeros((3, 4096), dtype=np.uint8)),
        (np.zeros((2, 4096), dtype=np.uint8), SHAPE, np.zeros((2, 4096), dtype=np.uint16)),
    ],
)
def test_what_the_reference_refuses_is_refused_in_the_same_words(
    same: Same, kernel: str, blocks: np.ndarray, shape: BlockShape, out: np.ndarray
) -> None:
    kind, _ = same(kernel, blocks, shape, out)
    assert kind == "KernelArgumentError"


def test_overlap_is_refused(native: Any) -> None:
    room = np.zeros((4, 4096), dtype=np.uint8)
    with pytest.raises(ValueError, match=r"^out: expected memory apart from blocks"):
        native.unpack_vnni(room[:2], SHAPE, room[1:3])
