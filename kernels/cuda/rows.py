"""Ragged rows of block copies as one launch takes them: a base and a stride a row and side, two ids a block."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kvsweep.kernels.checks import (
    check_array,
    check_ids,
    check_layers,
    check_row_ptr,
    check_shape,
    check_unique,
    row_of_each,
)
from kvsweep.kernels.csr import Int32
from kvsweep.kernels.cuda.api import UInt8
from kvsweep.kernels.errors import KernelArgumentError
from kvsweep.kernels.layout import BlockShape

ROW = np.dtype(
    [
        ("source", "<u8"),
        ("destination", "<u8"),
        ("source_stride", "<i8"),
        ("destination_stride", "<i8"),
        ("bytes", "<i8"),
        ("heads", "<i4"),
        ("head_dim", "<i4"),
    ]
)
"""Twin of `struct Row` in common.cu."""

RowArray = npt.NDArray[np.void]
ALIGNMENT = 16
"""Bytes that a kernel reads and writes at a time, where both sides allow it."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Blocks that kernels reach, on either side of the link: [layers, blocks, block_bytes] bytes from an address on.

    shape  of one block; needed where blocks are packed or unpacked
    """

    address: int
    layers: int
    blocks: int
    block_bytes: int
    shape: BlockShape | None = None

    def layer(self, index: int) -> int:
        """Address of block 0 of a layer."""
        return self.address + index * self.blocks * self.block_bytes

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks."""
        return self.layers * self.blocks * self.block_bytes


@dataclass(frozen=True, slots=True)
class Staged:
    """Blocks one after the other, in the order of the rows that they belong to: [count, block_bytes] bytes."""

    address: int
    count: int
    block_bytes: int

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks."""
        return self.count * self.block_bytes


@dataclass(frozen=True, slots=True, eq=False)
class RowBatch:
    """What one launch does, over any layers and groups: row r copies its entries row_ptr[r]:row_ptr[r + 1].

    rows         ROW[rows]
    row_ptr      int32[rows + 1]
    source       int32[n] block ids, or None: the blocks of a row lie one after the other from its source address on
    destination  the same of the other side
    block_size   tokens of a block; 0 where nothing is packed
    """

    rows: RowArray
    row_ptr: Int32
    source: Int32 | None
    destination: Int32 | None
    block_size: int = 0

    @property
    def entries(self) -> int:
        """Blocks that are copied."""
        return int(self.row_ptr[-1])

    @property
    def nbytes(self) -> int:
        """Bytes that are copied."""
        return int((np.diff(self.row_ptr).astype(np.int64) * self.rows["bytes"]).sum())

    @property
    def largest_block(self) -> int:
        """Bytes of the largest block of any row, 0 without rows."""
        return int(self.rows["bytes"].max(initial=0))

    @property
    def most_heads(self) -> int:
        """KV heads of the widest row, 0 without rows."""
        return int(self.rows["heads"].max(initial=0))

    def addresses(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """(destination, source, bytes) of every block, entry after entry: what a copy engine takes."""
        which = row_of_each(self.row_ptr)
        ordinal = np.arange(self.entries, dtype=np.int64) - self.row_ptr[which]
        sides = []
        for name, ids in (("destination", self.destination), ("source", self.source)):
            blocks = ordinal if ids is None else ids.astype(np.int64)
            offset = (blocks * self.rows[f"{name}_stride"][which]).astype(np.uint64)
            sides.append(self.rows[name][which] + offset)
        return sides[0], sides[1], self.rows["bytes"][which].astype(np.uint64)


def join(batches: Sequence[RowBatch]) -> RowBatch:
    """One launch out of several of the same kind, at least one. Raises KernelArgumentError for kinds that differ."""
    kinds = {(one.source is None, one.destination is None, one.block_size) for one in batches}
    if len(kinds) != 1:
        raise KernelArgumentError("batches", "launches of one kind, at least one", f"{len(kinds)} kinds")
    counts = np.concatenate([np.diff(one.row_ptr) for one in batches])
    return RowBatch(
        rows=np.concatenate([one.rows for one in batches]),
        row_ptr=np.concatenate(([0], np.cumsum(counts))).astype(np.int32),
        source=_joined([one.source for one in batches]),
        destination=_joined([one.destination for one in batches]),
        block_size=batches[0].block_size,
    )


def gather_rows(pool: Pool, layers: Int32, row_ptr: Int32, source: Int32, out: Staged) -> RowBatch:
    """Each row's blocks out of its layer, in row order. Arguments and errors as kernels.gather_blocks."""
    _check_rows(pool, layers, row_ptr, "source", source)
    _check_staged("out", out, pool, source.size)
    rows = _rows(pool, layers, row_ptr)
    rows["source"], rows["source_stride"] = _places(pool, layers), pool.block_bytes
    rows["destination"], rows["destination_stride"] = _ordinal(out, row_ptr), pool.block_bytes
    return RowBatch(rows, row_ptr, source, None, _block_size(pool))


def scatter_rows(staged: Staged, pool: Pool, layers: Int32, row_ptr: Int32, destination: Int32) -> RowBatch:
    """Staged blocks into each row's layer, in row order. Arguments and errors as kernels.scatter_blocks."""
    _check_rows(pool, layers, row_ptr, "destination", destination)
    check_unique("destination", row_ptr, destination)
    _check_staged("staging", staged, pool, destination.size)
    rows = _rows(pool, layers, row_ptr)
    rows["source"], rows["source_stride"] = _ordinal(staged, row_ptr), pool.block_bytes
    rows["destination"], rows["destination_stride"] = _places(pool, layers), pool.block_bytes
    return RowBatch(rows, row_ptr, None, destination, _block_size(pool))


def transfer_rows(
    origin: Pool, pool: Pool, layers: Int32, row_ptr: Int32, source: Int32, destination: Int32
) -> RowBatch:
    """Blocks of one pool into another of the same layers, without a stop in between.

    origin, pool  apart from each other, of equal layers and block size in bytes
    Other arguments and errors as kernels.move_blocks; a source may stand under any destination.
    """
    _check_rows(origin, layers, row_ptr, "source", source)
    if (pool.layers, pool.block_bytes) != (origin.layers, origin.block_bytes):
        expected = f"{origin.layers} layers of blocks of {origin.block_bytes} bytes, as in the origin"
        raise KernelArgumentError("pool", expected, f"{pool.layers} layers of blocks of {pool.block_bytes} bytes")
    _check_apart("pool", pool.address, pool.nbytes, "origin", origin)
    _check_destination(pool, row_ptr, source, destination)
    return _between(origin, pool, layers, row_ptr, source, destination)


def move_rows(pool: Pool, layers: Int32, row_ptr: Int32, source: Int32, destination: Int32) -> RowBatch:
    """Blocks between areas of one pool, each row within its layer. Arguments and errors as kernels.move_blocks."""
    _check_rows(pool, layers, row_ptr, "source", source)
    _check_destination(pool, row_ptr, source, destination)
    areas = row_of_each(row_ptr) * pool.blocks
    in_place = np.flatnonzero(np.isin(areas + destination, areas + source))
    if in_place.size:
        at = int(in_place[0])
        got = f"{destination[at]} in row {row_of_each(row_ptr)[at]}"
        raise KernelArgumentError("destination", "no source of its row", got)
    return _between(pool, pool, layers, row_ptr, source, destination)


def poison_rows(pool: Pool, layers: Int32, row_ptr: Int32, ids: Int32) -> RowBatch:
    """Blocks of each row that are overwritten. Arguments and errors as kernels.poison_blocks."""
    _check_rows(pool, layers, row_ptr, "ids", ids)
    check_unique("ids", row_ptr, ids)
    rows = _rows(pool, layers, row_ptr)
    rows["destination"], rows["destination_stride"] = _places(pool, layers), pool.block_bytes
    return RowBatch(rows, row_ptr, None, ids)


# ---- inside


def _check_rows(pool: Pool, layers: Int32, row_ptr: Int32, argument: str, ids: Int32) -> None:
    check_row_ptr("row_ptr", row_ptr, argument, ids)
    check_layers(layers, row_ptr, pool.layers)
    check_ids(argument, row_ptr, ids, pool.blocks)


def _check_destination(pool: Pool, row_ptr: Int32, source: Int32, destination: Int32) -> None:
    check_array("destination", destination, np.int32, 1)
    check_shape("destination", destination, source.shape)
    check_ids("destination", row_ptr, destination, pool.blocks)
    check_unique("destination", row_ptr, destination)


def _check_staged(argument: str, staged: Staged, pool: Pool, count: int) -> None:
    expected, got = (count, pool.block_bytes), (staged.count, staged.block_bytes)
    if got != expected:
        raise KernelArgumentError(argument, f"shape {expected}", f"shape {got}")
    _check_apart(argument, staged.address, staged.nbytes, "pool", pool)


def _check_apart(argument: str, address: int, nbytes: int, other: str, pool: Pool) -> None:
    if nbytes and pool.nbytes and address < pool.address + pool.nbytes and pool.address < address + nbytes:
        raise KernelArgumentError(argument, f"memory apart from {other}", f"memory that overlaps {other}")


def _between(origin: Pool, pool: Pool, layers: Int32, row_ptr: Int32, source: Int32, destination: Int32) -> RowBatch:
    rows = _rows(pool, layers, row_ptr)
    rows["source"], rows["source_stride"] = _places(origin, layers), origin.block_bytes
    rows["destination"], rows["destination_stride"] = _places(pool, layers), pool.block_bytes
    return RowBatch(rows, row_ptr, source, destination, _block_size(pool))


def _rows(pool: Pool, layers: Int32, row_ptr: Int32) -> RowArray:
    rows: RowArray = np.zeros(row_ptr.size - 1, dtype=ROW)
    rows["bytes"] = pool.block_bytes
    if pool.shape is not None:
        rows["heads"], rows["head_dim"] = pool.shape.kv_heads, pool.shape.head_dim
    return rows


def _places(pool: Pool, layers: Int32) -> npt.NDArray[np.uint64]:
    return np.array([pool.layer(layer) for layer in layers.tolist()], dtype=np.uint64)


def _ordinal(staged: Staged, row_ptr: Int32) -> npt.NDArray[np.uint64]:
    """Address of each row's first staged block."""
    return (staged.address + row_ptr[:-1].astype(np.int64) * staged.block_bytes).astype(np.uint64)


def _block_size(pool: Pool) -> int:
    return 0 if pool.shape is None else pool.shape.block_size


def _joined(parts: Sequence[Int32 | None]) -> Int32 | None:
    arrays = [part for part in parts if part is not None]
    return np.concatenate(arrays) if arrays else None


# ---- as bytes


@dataclass(frozen=True, slots=True)
class Descriptor:
    """Where the parts of a batch lie in device memory, and what a launch has to know of it beside them."""

    rows: int  # addresses; 0 for a side without ids
    row_ptr: int
    source: int
    destination: int
    row_count: int
    entries: int
    largest_block: int
    most_heads: int
    block_size: int


def descriptor_bytes(rows: int, entries: int) -> int:
    """Bytes that a batch of that many rows and blocks takes at most."""
    return sum(_padded(nbytes) for nbytes in (rows * ROW.itemsize, (rows + 1) * 4, entries * 4, entries * 4))


def write_descriptor(batch: RowBatch, buffer: UInt8, address: int) -> tuple[Descriptor, int]:
    """Lay a batch out in host bytes that will be copied to `address`.

    Returns where its parts will be, and the bytes used. Raises KernelArgumentError where the buffer is too small.
    """
    needed = descriptor_bytes(batch.rows.size, batch.entries)
    if buffer.size < needed:
        raise KernelArgumentError("buffer", f"at least {needed} bytes", f"{buffer.size} bytes")
    at, places = 0, []
    parts: tuple[npt.NDArray[Any] | None, ...] = (batch.rows, batch.row_ptr, batch.source, batch.destination)
    for part in parts:
        if part is None:
            places.append(0)
            continue
        places.append(address + at)
        raw = np.ascontiguousarray(part).view(np.uint8).reshape(-1)
        buffer[at : at + raw.size] = raw
        at += _padded(raw.size)
    return (
        Descriptor(
            rows=places[0],
            row_ptr=places[1],
            source=places[2],
            destination=places[3],
            row_count=batch.rows.size,
            entries=batch.entries,
            largest_block=batch.largest_block,
            most_heads=batch.most_heads,
            block_size=batch.block_size,
        ),
        at,
    )


def _padded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
