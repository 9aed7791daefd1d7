"""The kernels by the functions of kvsweep.kernels.reference, on memory that the device reaches: checked, and awaited.

Pools, staged blocks and outputs are arrays of the driver's side (CuPy, torch on CUDA, anything with DLPack); ids, row
pointers and layers are NumPy arrays of the host, since who plans has them there. The CUDA device launches the same
kernels without waiting.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from kvsweep.kernels.checks import check_ids, check_integer, check_row_ptr, check_unique
from kvsweep.kernels.csr import Csr, Int32
from kvsweep.kernels.cuda.api import CudaDriver, DeviceArray
from kvsweep.kernels.cuda.launch import THREADS, Launcher, check_packing
from kvsweep.kernels.cuda.rows import (
    Descriptor,
    Pool,
    RowBatch,
    Staged,
    descriptor_bytes,
    gather_rows,
    move_rows,
    poison_rows,
    scatter_rows,
    transfer_rows,
    write_descriptor,
)
from kvsweep.kernels.cuda.source import arguments_of
from kvsweep.kernels.diff import DiffPlan
from kvsweep.kernels.errors import KernelArgumentError
from kvsweep.kernels.layout import BlockShape, Packing
from kvsweep.kernels.moves import remap_rows


class CudaKernels:
    """Every CUDA kernel as a function that has done its work when it returns. Functions and errors of the reference.

    driver    the device
    launcher  what queues its kernels, on `stream`
    """

    name = "cuda"

    def __init__(self, driver: CudaDriver, *, blocks_per_multiprocessor: int = 2) -> None:
        self.driver = driver
        self.launcher = Launcher(driver, blocks_per_multiprocessor=blocks_per_multiprocessor)
        self.stream = driver.stream()

    def gather_blocks(self, pool: object, layers: Int32, row_ptr: Int32, source: Int32, out: object) -> None:
        """See kvsweep.kernels.moves.gather_blocks."""
        where, target = self._pool("pool", pool), self._array("out", out, 2)
        batch = gather_rows(where, layers, row_ptr, source, _staged(target))
        _check_writable("out", target)
        self.run(batch)

    def scatter_blocks(self, staging: object, pool: object, layers: Int32, row_ptr: Int32, destination: Int32) -> None:
        """See kvsweep.kernels.moves.scatter_blocks."""
        where, staged = self._writable_pool(pool), self._array("staging", staging, 2)
        self.run(scatter_rows(_staged(staged), where, layers, row_ptr, destination))

    def unpack_scatter(
        self,
        staging: object,
        shape: BlockShape,
        pool: object,
        layers: Int32,
        row_ptr: Int32,
        destination: Int32,
    ) -> None:
        """Staged VNNI blocks into each row's layer, in natural order: unpack_vnni and scatter_blocks in one pass."""
        shape.check_packing(Packing.VNNI)
        where, staged = self._writable_pool(pool, shape), self._array("staging", staging, 2)
        self.run(scatter_rows(_staged(staged), where, layers, row_ptr, destination), turn="unpack")

    def gather_pack(
        self, pool: object, shape: BlockShape, layers: Int32, row_ptr: Int32, source: Int32, out: object
    ) -> None:
        """Each row's natural blocks out of its layer, in VNNI order: gather_blocks and pack_vnni in one pass."""
        shape.check_packing(Packing.VNNI)
        where, target = self._pool("pool", pool, shape), self._array("out", out, 2)
        batch = gather_rows(where, layers, row_ptr, source, _staged(target))
        _check_writable("out", target)
        self.run(batch, turn="pack")

    def transfer_blocks(
        self, origin: object, pool: object, layers: Int32, row_ptr: Int32, source: Int32, destination: Int32
    ) -> None:
        """Blocks of a pool in pinned memory (or any other) straight into another of the same layers."""
        start, where = self._pool("origin", origin), self._writable_pool(pool)
        self.run(transfer_rows(start, where, layers, row_ptr, source, destination))

    def move_blocks(self, pool: object, layers: Int32, row_ptr: Int32, source: Int32, destination: Int32) -> None:
        """See kvsweep.kernels.moves.move_blocks."""
        self.run(move_rows(self._writable_pool(pool), layers, row_ptr, source, destination))

    def poison_blocks(self, pool: object, layers: Int32, row_ptr: Int32, ids: Int32, pattern: int) -> None:
        """See kvsweep.kernels.moves.poison_blocks."""
        batch = poison_rows(self._writable_pool(pool), layers, row_ptr, ids)
        byte = check_integer("pattern", pattern, least=0, most=255)
        with self.placed(batch) as placed:
            self.launcher.poison(placed, byte, self.stream)

    def unpack_vnni(self, blocks: object, shape: BlockShape, out: object) -> None:
        """See kvsweep.kernels.packing.unpack_vnni."""
        self._repack(blocks, shape, out, "unpack")

    def pack_vnni(self, blocks: object, shape: BlockShape, out: object) -> None:
        """See kvsweep.kernels.packing.pack_vnni."""
        self._repack(blocks, shape, out, "pack")

    def remap_tables(self, table: object, lengths: object, keep: Csr, *, generation: object, shown: int) -> None:
        """Close up the kept slots of every layer's table, in place: the addresses stay, so a captured graph does too.

        table       int32[layers, slots]; a slot behind the used ones is a hole
        lengths     int32[layers], slots in use; written
        keep        ragged slots, ascending, each inside the used ones: one row a layer
        generation  int64[1]; written last with `shown`
        Raises KernelArgumentError before anything is written.
        """
        where, used = self._array("table", table, 2, "int32"), self._array("lengths", lengths, 1, "int32")
        number = self._array("generation", generation, 1, "int64")
        check_row_ptr("keep.row_ptr", keep.row_ptr, "keep.ids", keep.ids)
        if keep.rows != where.shape[0]:
            raise KernelArgumentError("keep", f"{where.shape[0]} rows, as many as layers", f"{keep.rows} rows")
        for argument, array, shape in (("lengths", used, (keep.rows,)), ("generation", number, (1,))):
            if array.shape != shape:
                raise KernelArgumentError(argument, f"shape {shape}", f"shape {array.shape}")
        counts = self.driver.read(used.address, used.nbytes, self.stream).view(np.int32)
        shown_now = self.driver.read(where.address, where.nbytes, self.stream).view(np.int32).reshape(where.shape)
        remap_rows(_ragged(shown_now, counts), keep)  # for its checks: slots, their order, and that none is empty
        with self._uploaded(keep.row_ptr, keep.ids) as (keep_ptr, ids):
            self.launcher.remap_tables(
                where.address,
                where.address,
                origin_lengths=used.address,
                lengths=used.address,
                generation=number.address,
                keep_ptr=keep_ptr,
                keep=ids,
                layers=where.shape[0],
                slots=where.shape[1],
                shown=shown,
                stream=self.stream,
            )

    def plan_diff(self, want: Csr, tail: Csr, held: Csr, *, sequence_blocks: int, shared_table: bool) -> DiffPlan:
        """See kvsweep.kernels.diff.plan_diff."""
        limit = check_integer("sequence_blocks", sequence_blocks, least=0)
        lists = (("want", want), ("tail", tail), ("held", held))
        for argument, rows in lists:
            check_row_ptr(f"{argument}.row_ptr", rows.row_ptr, f"{argument}.ids", rows.ids)
            if rows.rows != want.rows:
                raise KernelArgumentError(argument, f"{want.rows} rows, as many as want", f"{rows.rows} rows")
        for argument, rows in lists:
            given = rows if argument != "held" else _without_holes(rows)
            check_ids(f"{argument}.ids", given.row_ptr, given.ids, limit)
            check_unique(f"{argument}.ids", given.row_ptr, given.ids)
        return self._plan(want, tail, held, shared_table)

    def run(self, batch: RowBatch, turn: Literal["pack", "unpack"] | None = None) -> None:
        """Do one checked batch and wait for it: plain copies, packed to natural order ("unpack"), or back ("pack")."""
        if turn is not None:
            check_packing(batch)
        with self.placed(batch) as placed:
            if turn is None:
                self.launcher.copy(placed, self.stream)
            elif turn == "pack":
                self.launcher.pack(placed, self.stream)
            else:
                self.launcher.unpack(placed, self.stream)

    @contextmanager
    def placed(self, batch: RowBatch) -> Iterator[Descriptor]:
        """The batch in device memory until what was launched with it has ended."""
        buffer = np.zeros(descriptor_bytes(batch.rows.size, batch.entries), dtype=np.uint8)
        memory = self.driver.allocate(max(buffer.size, 1))
        try:
            placed, _ = write_descriptor(batch, buffer, memory.address)
            self.driver.write(memory.address, buffer, self.stream)
            yield placed
            self.driver.synchronize(self.stream)
        finally:
            self.driver.free(memory)

    # ---- inside

    def _plan(self, want: Csr, tail: Csr, held: Csr, shared_table: bool) -> DiffPlan:
        rows, capacity = want.rows, max(int(want.counts.max(initial=0)), 1)
        # Sized by the largest id of all three lists, never by the last one of a list that is in another order.
        words = max(int(each.ids.max(initial=-1)) for each in (want, tail, held)) // 32 + 1
        outputs = {
            "counts": 3 * rows,
            "largest": 1,
            "upload": rows * capacity,
            "pad": rows * capacity,
            "sizes": 2 * rows,
            "plan": 2,
        }
        start = np.zeros(sum(outputs.values()), dtype=np.int32)
        offset = dict(zip(outputs, np.cumsum([0, *outputs.values()])[:-1].tolist(), strict=True))
        start[offset["largest"]] = -1
        inputs = (want.row_ptr, want.ids, tail.row_ptr, tail.ids, held.row_ptr, held.ids)
        scratch = self.driver.allocate(max(rows * 3 * words * 4, 4))
        try:
            with self._uploaded(*inputs, start) as (want_ptr, want_ids, tail_ptr, tail_ids, held_ptr, held_ids, out):
                at = {name: out + 4 * first for name, first in offset.items()}
                if rows:
                    self._launch(
                        "diff_count",
                        rows,
                        *(want_ptr, want_ids, tail_ptr, tail_ids, held_ptr, held_ids, rows, words, scratch.address),
                        *(at["counts"], at["largest"]),
                    )
                    self._launch(
                        "diff_emit",
                        rows,
                        *(want_ptr, tail_ptr, tail_ids, rows, words, scratch.address, at["counts"]),
                        *(int(shared_table), capacity, at["upload"], at["pad"], at["sizes"], at["plan"]),
                    )
                found = self.driver.read(out, start.nbytes, self.stream).view(np.int32)
        finally:
            self.driver.free(scratch)
        part = {name: found[first : first + outputs[name]] for name, first in offset.items()}
        sizes, counts = part["sizes"].reshape(rows, 2), part["counts"].reshape(rows, 3)
        full, common = part["plan"].tolist()
        return DiffPlan(
            kind="full" if full else "diff",
            upload=_ragged(part["upload"].reshape(rows, capacity), sizes[:, 0]),
            pad=_ragged(part["pad"].reshape(rows, capacity), sizes[:, 1]),
            new_per_row=want.counts.astype(np.int32) if full else counts[:, 0].copy(),
            truncated_per_row=np.zeros(rows, dtype=np.int32),
            unfilled_per_row=np.maximum(common - sizes[:, 0], 0).astype(np.int32),
            common_new_slots=common,
            largest_id=int(part["largest"][0]),
        )

    def _launch(self, kernel: str, rows: int, *values: int) -> None:
        grid = min(rows, 8 * self.driver.multiprocessors)
        arguments = arguments_of(kernel, *values)
        self.driver.launch(kernel, grid=grid, threads=THREADS, arguments=arguments, stream=self.stream)

    def _repack(self, blocks: object, shape: BlockShape, out: object, turn: Literal["pack", "unpack"]) -> None:
        shape.check_packing(Packing.VNNI)
        given, target = self._array("blocks", blocks, 2), self._array("out", out, 2)
        count = given.shape[0]
        expected = (count, shape.block_bytes)
        for argument, array in (("blocks", given), ("out", target)):
            if array.shape != expected:
                raise KernelArgumentError(argument, f"shape {expected}", f"shape {array.shape}")
        _check_writable("out", target)
        pool = Pool(given.address, 1, count, shape.block_bytes, shape)
        one, all_of_them = np.zeros(1, dtype=np.int32), np.array([0, count], dtype=np.int32)
        try:
            batch = gather_rows(pool, one, all_of_them, np.arange(count, dtype=np.int32), _staged(target))
        except KernelArgumentError as error:  # the pool of that call is our blocks
            raise KernelArgumentError(
                error.argument, error.expected.replace("pool", "blocks"), error.got.replace("pool", "blocks")
            ) from error
        self.run(batch, turn=turn)

    @contextmanager
    def _uploaded(self, *arrays: npt.NDArray[Any]) -> Iterator[tuple[int, ...]]:
        """Addresses of copies of host arrays, until what was launched with them has ended."""
        sizes = [max(-(-array.nbytes // 16) * 16, 16) for array in arrays]
        memory = self.driver.allocate(sum(sizes))
        addresses = tuple(memory.address + at for at in np.cumsum([0, *sizes])[:-1].tolist())
        try:
            for address, array in zip(addresses, arrays, strict=True):
                if array.size:
                    self.driver.write(address, array, self.stream)
            yield addresses
            self.driver.synchronize(self.stream)
        finally:
            self.driver.free(memory)

    def _pool(self, argument: str, array: object, shape: BlockShape | None = None) -> Pool:
        found = self._array(argument, array, 3)
        if shape is not None and found.shape[2] != shape.block_bytes:
            raise KernelArgumentError(argument, f"blocks of {shape.block_bytes} bytes", f"{found.shape[2]} bytes")
        layers, blocks, block_bytes = found.shape
        return Pool(found.address, layers, blocks, block_bytes, shape)

    def _writable_pool(self, array: object, shape: BlockShape | None = None) -> Pool:
        found = self._array("pool", array, 3)
        _check_writable("pool", found)
        return self._pool("pool", array, shape)

    def _array(self, argument: str, value: object, axes: int, dtype: str = "uint8") -> DeviceArray:
        found = self.driver.borrow(value)
        if found is None:
            got = type(value).__name__
        elif found.dtype != dtype:
            got = f"dtype {found.dtype}"
        elif len(found.shape) != axes:
            got = f"shape {found.shape}"
        elif not found.contiguous:
            got = f"strides {found.strides} for shape {found.shape}"
        else:
            return found
        raise KernelArgumentError(argument, f"a C-contiguous {dtype} array with {axes} axes", got)


def _staged(array: DeviceArray) -> Staged:
    count, block_bytes = array.shape
    return Staged(array.address, count, block_bytes)


def _check_writable(argument: str, array: DeviceArray) -> None:
    if not array.writable:
        raise KernelArgumentError(argument, "a writable array", "a read-only array")


def _without_holes(held: Csr) -> Csr:
    return Csr.of(row[row != -1] for row in (held.row(index) for index in range(held.rows)))


def _ragged(table: Int32, counts: Int32) -> Csr:
    """The first counts[r] ids of each row."""
    return Csr.of(row[:count] for row, count in zip(table, counts.tolist(), strict=True))
