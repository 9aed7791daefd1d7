"""Packing chosen tokens into whole blocks: what the token method copies instead of naming sources."""

import numpy as np
import numpy.typing as npt

from kvsweep.kernels.checks import (
    check_array,
    check_ids,
    check_layers,
    check_row_ptr,
    check_shape,
    check_unique,
    check_writable,
)
from kvsweep.kernels.csr import Int32
from kvsweep.kernels.errors import KernelArgumentError
from kvsweep.kernels.layout import BlockShape, Packing
from kvsweep.kernels.packing import pack_vnni, unpack_vnni

UInt8 = npt.NDArray[np.uint8]


def pack_tokens(
    pool: UInt8,
    layers: Int32,
    row_ptr: Int32,
    tokens: Int32,
    destination: Int32,
    shape: BlockShape,
    packing: Packing,
) -> None:
    """Copy each row's tokens, K and V of every head, one after another into its destination blocks of the same layer.

    pool         uint8[layers, blocks, block_bytes], C-contiguous and writable; blocks in `packing`
    layers       int32[rows], index into the pool's first axis, ascending
    row_ptr      int32[rows+1]; row r takes tokens[row_ptr[r]:row_ptr[r+1]]
    tokens       int32[n], block id * block_size + token in the block; each once in a row
    destination  int32[m], block ids in [0, blocks): ceil(tokens / block_size) of them for each row, row after row, each
                 once in a row and none that holds a token of that row
    shape        what a block holds; packing the order of its elements, kept
    Places behind a row's last token are zero. Raises KernelArgumentError before anything is written.
    """
    destination_ptr = _check(pool, layers, row_ptr, tokens, destination, shape, packing)
    axes, words = shape.natural_axes, np.dtype(f"u{shape.element_bytes}")
    for row, layer in enumerate(layers):
        chosen = tokens[row_ptr[row] : row_ptr[row + 1]]
        blocks, places = np.unique(chosen // shape.block_size, return_inverse=True)
        raw = np.ascontiguousarray(pool[layer, blocks])
        natural = raw
        if packing is Packing.VNNI:
            natural = np.empty_like(raw)
            unpack_vnni(raw, shape, natural)
        elements = natural.view(words).reshape(-1, *axes)
        to = destination[destination_ptr[row] : destination_ptr[row + 1]]
        filled = np.zeros((to.size, shape.block_bytes), dtype=np.uint8)
        at = np.arange(chosen.size)
        # Advanced indices on both ends put the token first: [n, 2, kv_heads, head_dim] on either side.
        filled.view(words).reshape(-1, *axes)[at // shape.block_size, :, :, at % shape.block_size] = elements[
            places, :, :, chosen % shape.block_size
        ]
        if packing is Packing.VNNI:
            packed = np.empty_like(filled)
            pack_vnni(filled, shape, packed)
            filled = packed
        pool[layer, to] = filled


def _check(
    pool: UInt8,
    layers: Int32,
    row_ptr: Int32,
    tokens: Int32,
    destination: Int32,
    shape: BlockShape,
    packing: Packing,
) -> npt.NDArray[np.int64]:
    """Row pointers of the destinations."""
    shape.check_packing(packing)
    check_array("pool", pool, np.uint8, 3)
    check_shape("pool", pool, (*pool.shape[:2], shape.block_bytes))
    check_writable("pool", pool)
    check_row_ptr("row_ptr", row_ptr, "tokens", tokens)
    check_layers(layers, row_ptr, pool.shape[0])
    check_ids("tokens", row_ptr, tokens, min(pool.shape[1] * shape.block_size, 2**31))
    check_unique("tokens", row_ptr, tokens)
    check_array("destination", destination, np.int32, 1)
    counts = -(-np.diff(row_ptr.astype(np.int64)) // shape.block_size)
    pointers: npt.NDArray[np.int64] = np.concatenate(([0], np.cumsum(counts)))
    check_shape("destination", destination, (int(pointers[-1]),))
    narrow = pointers.astype(np.int32)
    check_ids("destination", narrow, destination, pool.shape[1])
    check_unique("destination", narrow, destination)
    for row in range(counts.size):
        to = destination[pointers[row] : pointers[row + 1]]
        read = np.isin(to, tokens[row_ptr[row] : row_ptr[row + 1]] // shape.block_size)
        if read.any():
            raise KernelArgumentError("destination", "blocks that no token is read from", f"{to[read][0]} in row {row}")
    return pointers
