"""Packing blocks for the matrix units of a CPU and back, bit for bit."""

import numpy as np
import numpy.typing as npt

from kvsweep.kernels.checks import check_apart, check_array, check_shape, check_writable
from kvsweep.kernels.layout import BlockShape, Packing

UInt8 = npt.NDArray[np.uint8]
UInt16 = npt.NDArray[np.uint16]


def pack_vnni(blocks: UInt8, shape: BlockShape, out: UInt8) -> None:
    """Rewrite NATURAL blocks in VNNI order (see Packing).

    blocks  uint8[n, block_bytes], C-contiguous; read only
    shape   bfloat16, block size and head dimension multiples of 32
    out     uint8[n, block_bytes], C-contiguous and writable; must not overlap blocks
    Raises KernelArgumentError before anything is written.
    """
    _check(blocks, shape, out)
    natural, packed = _natural(blocks, shape), _packed(out, shape)
    _k_pairs(packed, shape)[...] = natural[:, 0].reshape(_k_rows(shape)).transpose(0, 1, 2, 4, 3, 5)
    _v_pairs(packed, shape)[...] = natural[:, 1].reshape(_v_rows(shape)).transpose(0, 1, 4, 2, 5, 3)


def unpack_vnni(blocks: UInt8, shape: BlockShape, out: UInt8) -> None:
    """Rewrite VNNI blocks in NATURAL order (see Packing): the inverse of pack_vnni.

    blocks  uint8[n, block_bytes], C-contiguous; read only
    shape   bfloat16, block size and head dimension multiples of 32
    out     uint8[n, block_bytes], C-contiguous and writable; must not overlap blocks
    Raises KernelArgumentError before anything is written.
    """
    _check(blocks, shape, out)
    packed, natural = _packed(blocks, shape), _natural(out, shape)
    natural[:, 0].reshape(_k_rows(shape))[...] = _k_pairs(packed, shape).transpose(0, 1, 2, 4, 3, 5)
    natural[:, 1].reshape(_v_rows(shape))[...] = _v_pairs(packed, shape).transpose(0, 1, 3, 5, 2, 4)


def _check(blocks: UInt8, shape: BlockShape, out: UInt8) -> None:
    shape.check_packing(Packing.VNNI)
    check_array("blocks", blocks, np.uint8, 2)
    check_shape("blocks", blocks, (blocks.shape[0], shape.block_bytes))
    check_array("out", out, np.uint8, 2)
    check_shape("out", out, blocks.shape)
    check_writable("out", out)
    check_apart("out", out, "blocks", blocks)


# bfloat16 is moved as 16-bit words: the order of the two bytes of a word never changes.
def _natural(blocks: UInt8, shape: BlockShape) -> UInt16:
    return blocks.view(np.uint16).reshape(-1, *shape.natural_axes)


def _packed(blocks: UInt8, shape: BlockShape) -> UInt16:
    return blocks.view(np.uint16).reshape(-1, shape.kv_heads, 2, shape.tile_elements)


def _k_rows(shape: BlockShape) -> tuple[int, ...]:
    """Axes (n, h, t/16, t%16, d/2, d%2) of the natural K."""
    return (-1, shape.kv_heads, shape.block_size // 16, 16, shape.head_dim // 2, 2)


def _v_rows(shape: BlockShape) -> tuple[int, ...]:
    """Axes (n, h, t/2, t%2, d/16, d%16) of the natural V."""
    return (-1, shape.kv_heads, shape.block_size // 2, 2, shape.head_dim // 16, 16)


def _k_pairs(packed: UInt16, shape: BlockShape) -> UInt16:
    """A view of the K tiles with axes (n, h, t/16, d/2, t%16, d%2)."""
    tiles = packed.reshape(-1, shape.kv_heads, 2, shape.block_size // 16, shape.head_dim // 2, 16, 2)
    return tiles[:, :, 0]


def _v_pairs(packed: UInt16, shape: BlockShape) -> UInt16:
    """A view of the V tiles with axes (n, h, d/16, t/2, d%16, t%2)."""
    tiles = packed.reshape(-1, shape.kv_heads, 2, shape.head_dim // 16, shape.block_size // 2, 16, 2)
    return tiles[:, :, 1]
