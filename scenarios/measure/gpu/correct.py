"""Every kernel against the reference: fresh random inputs, outputs that held poison."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from kvsweep.kernels import BlockShape, Csr, reference
from kvsweep.kernels.cuda.rows import Pool, transfer_rows
from kvsweep.scenarios.measure.gpu.bench import Bench, Int32

Shape = tuple[int, int, int]
"""(layers, blocks, bytes of a block)."""
SMOLLM2 = BlockShape(3, 32, 64, "bfloat16")
SHAPES: tuple[Shape, ...] = ((12, 256, SMOLLM2.block_bytes), (8, 512, 16384), (4, 300, 4096 * 3 + 7), (2, 64, 96))
SMALL: tuple[Shape, ...] = ((3, 12, 4096 + 48), (2, 9, 7))


def check_kernels(bench: Bench) -> list[dict[str, Any]]:
    """One record a kernel and size: {"kernel", "size", "equal"}."""
    records = []
    for name, size, run in _cases(bench):
        records.append({"kernel": name, "size": size, "equal": bool(run())})
        bench.clear()
    return records


def _cases(bench: Bench) -> Iterator[tuple[str, str, Callable[[], bool]]]:
    for shape in SMALL if bench.small else SHAPES:
        size = f"{shape[0]} layers x {shape[1]} blocks of {shape[2]} bytes"
        yield "scatter_blocks", size, partial(_scatter, bench, shape)
        yield "gather_blocks", size, partial(_gather, bench, shape)
        yield "move_blocks", size, partial(_move, bench, shape)
        yield "poison_blocks", size, partial(_poison, bench, shape)
        yield "pull from pinned memory", size, partial(_pull, bench, shape)
    for block in (SMOLLM2,) if bench.small else (SMOLLM2, BlockShape(8, 64, 128, "bfloat16")):
        size = f"{block.kv_heads} heads, block {block.block_size}, head dim {block.head_dim}"
        yield "unpack_scatter", size, partial(_unpack, bench, block)
        yield "gather_pack", size, partial(_pack, bench, block)
    layers, slots = (3, 300) if bench.small else (80, 4096)
    yield "remap_tables", f"{layers} x {slots}", partial(_remap, bench, layers, slots)
    rows, blocks = (5, 600) if bench.small else (80, 32768)
    for shared in (False, True):
        name = f"plan_diff, {'shared table' if shared else 'ragged'}"
        yield name, f"{rows} rows of {blocks} blocks", partial(_plan, bench, rows, blocks, shared)


def ragged(bench: Bench, layers: int, blocks: int) -> Csr:
    """Rows of other lengths, one of them empty where there are several; the last block of the pool among them."""
    rows = [bench.ids(blocks, int(bench.random.integers(0, blocks + 1))) for _ in range(layers)]
    if layers > 1:
        rows[0] = rows[0][:0]
    rows[-1] = np.array([blocks - 1, 0], dtype=np.int32)
    return Csr.of(rows)


def _every(layers: int) -> Int32:
    return np.arange(layers, dtype=np.int32)


def _equal(found: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> bool:
    return found.tobytes() == wanted.tobytes()


def _scatter(bench: Bench, shape: Shape) -> bool:
    layers, blocks, block_bytes = shape
    rows = ragged(bench, layers, blocks)
    pool, staged = bench.poisoned(*shape), bench.noise(rows.ids.size, block_bytes)
    wanted = pool.host()
    reference.scatter_blocks(staged.host(), wanted, _every(layers), rows.row_ptr, rows.ids)
    bench.kernels.scatter_blocks(staged.array, pool.array, _every(layers), rows.row_ptr, rows.ids)
    return _equal(pool.host(), wanted)


def _gather(bench: Bench, shape: Shape) -> bool:
    layers, blocks, block_bytes = shape
    rows = ragged(bench, layers, blocks)
    pool, out = bench.noise(*shape), bench.poisoned(rows.ids.size, block_bytes)
    wanted = out.host()
    reference.gather_blocks(pool.host(), _every(layers), rows.row_ptr, rows.ids, wanted)
    bench.kernels.gather_blocks(pool.array, _every(layers), rows.row_ptr, rows.ids, out.array)
    return _equal(out.host(), wanted)


def _apart(bench: Bench, layers: int, blocks: int) -> tuple[Csr, Int32]:
    """Sources, and destinations that are no source of their row."""
    sources, destinations = [], []
    for _ in range(layers):
        order = bench.ids(blocks, blocks)
        count = int(bench.random.integers(0, blocks // 2 + 1))
        sources.append(order[:count])
        destinations.append(order[count : 2 * count])
    return Csr.of(sources), Csr.of(destinations).ids


def _move(bench: Bench, shape: Shape) -> bool:
    layers, blocks, _ = shape
    source, destination = _apart(bench, layers, blocks)
    pool = bench.noise(*shape)
    wanted = pool.host()
    reference.move_blocks(wanted, _every(layers), source.row_ptr, source.ids, destination)
    bench.kernels.move_blocks(pool.array, _every(layers), source.row_ptr, source.ids, destination)
    return _equal(pool.host(), wanted)


def _poison(bench: Bench, shape: Shape) -> bool:
    layers, blocks, _ = shape
    rows = ragged(bench, layers, blocks)
    pool = bench.noise(*shape)
    wanted = pool.host()
    reference.poison_blocks(wanted, _every(layers), rows.row_ptr, rows.ids, 255)
    bench.kernels.poison_blocks(pool.array, _every(layers), rows.row_ptr, rows.ids, 255)
    return _equal(pool.host(), wanted)


def _pull(bench: Bench, shape: Shape) -> bool:
    layers, blocks, block_bytes = shape
    rows = ragged(bench, layers, blocks)
    source = bench.random.integers(0, blocks, rows.ids.size).astype(np.int32)
    pinned = bench.driver.pin(layers * blocks * block_bytes)
    pinned.array[:] = bench.random.integers(0, 256, pinned.array.size, dtype=np.uint8)
    pool = bench.poisoned(*shape)
    wanted, staged = pool.host(), np.empty((rows.ids.size, block_bytes), dtype=np.uint8)
    reference.gather_blocks(pinned.array.reshape(shape), _every(layers), rows.row_ptr, source, staged)
    reference.scatter_blocks(staged, wanted, _every(layers), rows.row_ptr, rows.ids)
    pools = Pool(pinned.address, *shape), Pool(pool.address, *shape)
    bench.kernels.run(transfer_rows(*pools, _every(layers), rows.row_ptr, source, rows.ids))
    return _equal(pool.host(), wanted)


def _unpack(bench: Bench, shape: BlockShape) -> bool:
    layers, blocks = (2, 4) if bench.small else (8, 64)
    rows = ragged(bench, layers, blocks)
    staged = bench.noise(rows.ids.size, shape.block_bytes)
    pool = bench.poisoned(layers, blocks, shape.block_bytes)
    wanted, natural = pool.host(), np.empty(staged.shape, dtype=np.uint8)
    reference.unpack_vnni(staged.host(), shape, natural)
    reference.scatter_blocks(natural, wanted, _every(layers), rows.row_ptr, rows.ids)
    bench.kernels.unpack_scatter(staged.array, shape, pool.array, _every(layers), rows.row_ptr, rows.ids)
    return _equal(pool.host(), wanted)


def _pack(bench: Bench, shape: BlockShape) -> bool:
    layers, blocks = (2, 4) if bench.small else (8, 64)
    rows = ragged(bench, layers, blocks)
    pool, out = bench.noise(layers, blocks, shape.block_bytes), bench.poisoned(rows.ids.size, shape.block_bytes)
    natural, wanted = np.empty(out.shape, dtype=np.uint8), np.empty(out.shape, dtype=np.uint8)
    reference.gather_blocks(pool.host(), _every(layers), rows.row_ptr, rows.ids, natural)
    reference.pack_vnni(natural, shape, wanted)
    bench.kernels.gather_pack(pool.array, shape, _every(layers), rows.row_ptr, rows.ids, out.array)
    return _equal(out.host(), wanted)


def _remap(bench: Bench, layers: int, slots: int) -> bool:
    tables = [bench.ids(1 << 20, int(bench.random.integers(1, slots + 1))) for _ in range(layers)]
    keep = Csr.of([np.sort(bench.ids(one.size, int(bench.random.integers(0, one.size + 1)))) for one in tables])
    table = np.full((layers, slots), -1, dtype=np.int32)
    for row, one in zip(table, tables, strict=True):
        row[: one.size] = one
    lengths = bench.buffer(np.array([one.size for one in tables], dtype=np.int32))
    device, generation = bench.buffer(table), bench.buffer(np.zeros(1, dtype=np.int64))
    wanted = np.full_like(table, -1)
    for row, kept in zip(wanted, reference.remap_rows(Csr.of(tables), keep).lists(), strict=True):
        row[: len(kept)] = kept
    bench.kernels.remap_tables(device.array, lengths.array, keep, generation=generation.array, shown=9)
    return _equal(device.host(), wanted) and _equal(lengths.host(), keep.counts) and generation.host().tolist() == [9]


def _plan(bench: Bench, rows: int, blocks: int, shared: bool) -> bool:
    sizes = bench.random.integers(0, blocks // 8, (3, rows)).tolist()
    lists = [Csr.of([bench.ids(blocks, size) for size in each]) for each in sizes]
    found = bench.kernels.plan_diff(*lists, sequence_blocks=blocks, shared_table=shared)
    wanted = reference.plan_diff(*lists, sequence_blocks=blocks, shared_table=shared)
    return (found.kind, found.upload.lists(), found.pad.lists(), found.largest_id, found.common_new_slots) == (
        wanted.kind,
        wanted.upload.lists(),
        wanted.pad.lists(),
        wanted.largest_id,
        wanted.common_new_slots,
    )
