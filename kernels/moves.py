"""Moving whole blocks: gather, scatter, move, remap, poison. Copies of bytes, no arithmetic, any packing."""

import numpy as np
import numpy.typing as npt

from kvsweep.kernels.checks import (
    check_apart,
    check_array,
    check_ids,
    check_integer,
    check_layers,
    check_row_ptr,
    check_shape,
    check_unique,
    check_writable,
    row_of_each,
)
from kvsweep.kernels.csr import Csr, Int32
from kvsweep.kernels.errors import KernelArgumentError

UInt8 = npt.NDArray[np.uint8]


def gather_blocks(pool: UInt8, layers: Int32, row_ptr: Int32, source: Int32, out: UInt8) -> None:
    """Copy each row's source blocks out of its layer, in row order.

    pool     uint8[layers, blocks, block_bytes], C-contiguous; read only
    layers   int32[rows], index into the pool's first axis, ascending
    row_ptr  int32[rows+1]; row r takes source[row_ptr[r]:row_ptr[r+1]]
    source   int32[n], block ids in [0, blocks); a block may be named twice
    out      uint8[n, block_bytes], C-contiguous and writable; must not overlap pool
    Raises KernelArgumentError before anything is written.
    """
    _check_pool_rows(pool, layers, row_ptr, "source", source)
    _check_blocks("out", out, pool, source.size)
    check_writable("out", out)
    for row, layer in enumerate(layers):
        begin, end = row_ptr[row], row_ptr[row + 1]
        # The ids are checked above: this mode writes straight into `out`, where "raise" would build a copy first.
        np.take(pool[layer], source[begin:end], axis=0, out=out[begin:end], mode="clip")


def scatter_blocks(staging: UInt8, pool: UInt8, layers: Int32, row_ptr: Int32, destination: Int32) -> None:
    """Copy staged blocks into each row's destination blocks of its layer, in row order.

    staging      uint8[n, block_bytes], C-contiguous; read only; must not overlap pool
    pool         uint8[layers, blocks, block_bytes], C-contiguous and writable
    layers       int32[rows], index into the pool's first axis, ascending
    row_ptr      int32[rows+1]; row r takes destination[row_ptr[r]:row_ptr[r+1]]
    destination  int32[n], block ids in [0, blocks), each once in a row
    Raises KernelArgumentError before anything is written.
    """
    _check_pool_rows(pool, layers, row_ptr, "destination", destination)
    check_writable("pool", pool)
    check_unique("destination", row_ptr, destination)
    _check_blocks("staging", staging, pool, destination.size)
    for row, layer in enumerate(layers):
        begin, end = row_ptr[row], row_ptr[row + 1]
        pool[layer, destination[begin:end]] = staging[begin:end]


def move_blocks(pool: UInt8, layers: Int32, row_ptr: Int32, source: Int32, destination: Int32) -> None:
    """Copy blocks between areas of one pool, each row within its layer, and never in place.

    A row whose destinations include one of its sources is refused: the old contents must survive, because the
    copy may be abandoned half way.

    pool         uint8[layers, blocks, block_bytes], C-contiguous and writable
    layers       int32[rows], index into the pool's first axis, ascending
    row_ptr      int32[rows+1], for source and destination alike
    source       int32[n], block ids in [0, blocks)
    destination  int32[n], block ids in [0, blocks), each once in a row and no source of that row
    Raises KernelArgumentError before anything is written.
    """
    _check_pool_rows(pool, layers, row_ptr, "source", source)
    check_writable("pool", pool)
    check_array("destination", destination, np.int32, 1)
    check_shape("destination", destination, source.shape)
    blocks = pool.shape[1]
    check_ids("destination", row_ptr, destination, blocks)
    check_unique("destination", row_ptr, destination)
    areas = row_of_each(row_ptr) * blocks
    in_place = np.flatnonzero(np.isin(areas + destination, areas + source))
    if in_place.size:
        at = int(in_place[0])
        raise KernelArgumentError(
            "destination", "no source of its row", f"{destination[at]} in row {row_of_each(row_ptr)[at]}"
        )
    for row, layer in enumerate(layers):
        begin, end = row_ptr[row], row_ptr[row + 1]
        pool[layer, destination[begin:end]] = pool[layer, source[begin:end]]


def remap_rows(physical: Csr, keep: Csr) -> Csr:
    """The physical blocks of the kept slots, row by row: a new table, no bytes moved.

    physical  ragged physical block ids by resident slot; a hole (−1) may stand in a slot that is not kept
    keep      ragged resident slots, ascending (resident order), each inside its row of `physical`
    Returns new arrays, as many ids a row as slots kept: what is kept decides, not how many.
    Raises KernelArgumentError for rows that differ in number, a slot outside its row or out of order, a kept hole.
    """
    check_row_ptr("physical.row_ptr", physical.row_ptr, "physical.ids", physical.ids)
    check_row_ptr("keep.row_ptr", keep.row_ptr, "keep.ids", keep.ids)
    if keep.rows != physical.rows:
        raise KernelArgumentError("keep", f"{physical.rows} rows, as many as physical", f"{keep.rows} rows")
    rows = row_of_each(keep.row_ptr)
    slots = physical.counts[rows]
    outside = np.flatnonzero((keep.ids < 0) | (keep.ids >= slots))
    if outside.size:
        at = int(outside[0])
        raise KernelArgumentError("keep.ids", f"slots in [0, {slots[at]})", f"{keep.ids[at]} in row {rows[at]}")
    falls = np.flatnonzero((keep.ids[1:] <= keep.ids[:-1]) & (rows[1:] == rows[:-1]))
    if falls.size:
        at = int(falls[0])
        raise KernelArgumentError(
            "keep.ids", "ascending slots, each once", f"{keep.ids[at + 1]} after {keep.ids[at]} in row {rows[at]}"
        )
    ids = physical.ids[physical.row_ptr[rows] + keep.ids]
    holes = np.flatnonzero(ids < 0)
    if holes.size:
        at = int(holes[0])
        raise KernelArgumentError("keep.ids", "slots that hold a block", f"empty slot {keep.ids[at]} in row {rows[at]}")
    return Csr(keep.row_ptr.copy(), ids)


def poison_blocks(pool: UInt8, layers: Int32, row_ptr: Int32, ids: Int32, pattern: int) -> None:
    """Fill each row's blocks of its layer with one byte, so that a read after free is seen.

    pool     uint8[layers, blocks, block_bytes], C-contiguous and writable
    layers   int32[rows], index into the pool's first axis, ascending
    row_ptr  int32[rows+1]; row r takes ids[row_ptr[r]:row_ptr[r+1]]
    ids      int32[n], block ids in [0, blocks), each once in a row
    pattern  byte in [0, 255]; 255 reads as NaN in float32 and bfloat16
    Raises KernelArgumentError before anything is written.
    """
    _check_pool_rows(pool, layers, row_ptr, "ids", ids)
    check_writable("pool", pool)
    check_unique("ids", row_ptr, ids)
    byte = check_integer("pattern", pattern, least=0, most=255)
    for row, layer in enumerate(layers):
        pool[layer, ids[row_ptr[row] : row_ptr[row + 1]]] = byte


def _check_pool_rows(pool: UInt8, layers: Int32, row_ptr: Int32, argument: str, ids: Int32) -> None:
    check_array("pool", pool, np.uint8, 3)
    check_row_ptr("row_ptr", row_ptr, argument, ids)
    check_layers(layers, row_ptr, pool.shape[0])
    check_ids(argument, row_ptr, ids, pool.shape[1])


def _check_blocks(argument: str, blocks: UInt8, pool: UInt8, count: int) -> None:
    check_array(argument, blocks, np.uint8, 2)
    check_shape(argument, blocks, (count, pool.shape[2]))
    check_apart(argument, blocks, "pool", pool)
