"""What the kernels take on the device, beside what the same bytes take otherwise, in one run."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np

from kvsweep.kernels import BlockShape
from kvsweep.kernels.cuda.rows import (
    Pool,
    RowBatch,
    Staged,
    gather_rows,
    join,
    move_rows,
    scatter_rows,
    transfer_rows,
)
from kvsweep.scenarios.measure.gpu.bench import Bench, Int32

KIB, MIB = 1 << 10, 1 << 20
Rows = list[dict[str, Any]]
"""{"path", "size", "peer", "ours_us", "peer_us", "ratio"}: the peer's time over ours, so above 1 we are faster."""


def measure(bench: Bench) -> Rows:
    """Every row; each part frees its memory before the next one. A simulation's times are no measurement: left out."""
    rows: Rows = []
    for part in (_scatters, _launches, _moves, _unpack, _remap, _pulls):
        rows.extend(part(bench))
        bench.clear()
    if bench.simulated:
        for row in rows:
            row |= dict.fromkeys(("ours_us", "peer_us", "ratio"))
    return rows


def missing_peers() -> list[str]:
    """What the rows leave out here, and why."""
    return [] if importlib.util.find_spec("torch") else ["torch index_copy_ a layer: torch is not installed"]


def _row(path: str, size: str, ours_s: float, peer: str, peer_s: float) -> dict[str, Any]:
    ratio = round(peer_s / ours_s, 3) if ours_s > 0 else None
    return {
        "path": path,
        "size": size,
        "peer": peer,
        "ours_us": round(ours_s * 1e6, 2),
        "peer_us": round(peer_s * 1e6, 2),
        "ratio": ratio,
    }


def _pool(bench: Bench, layers: int, blocks: int, size: int, shape: BlockShape | None = None) -> Pool:
    return Pool(bench.buffer(np.zeros((layers, blocks, size), dtype=np.uint8)).address, layers, blocks, size, shape)


def _spread(bench: Bench, layers: int, blocks: int, count: int) -> tuple[Int32, Int32, Int32]:
    """(layers, row_ptr, ids): `count` blocks of every layer in random order."""
    ids = np.concatenate([bench.ids(blocks, count) for _ in range(layers)])
    return np.arange(layers, dtype=np.int32), np.arange(layers + 1, dtype=np.int32) * count, ids


def _queue(bench: Bench, held: ExitStack, batch: RowBatch, turn: str = "copy", *, link: bool = False) -> Any:
    """What queues one launch of the batch, as often as it is called."""
    placed = held.enter_context(bench.kernels.placed(batch))
    return partial(getattr(bench.kernels.launcher, turn), placed, bench.kernels.stream, over_link=link)


def _copy(bench: Bench, nbytes: int) -> Callable[[], None]:
    """One copy inside the device of as many bytes."""
    source, destination = (bench.buffer(np.zeros(nbytes, dtype=np.uint8)) for _ in range(2))
    return partial(bench.driver.copy, destination.address, source.address, nbytes, bench.kernels.stream)


def _scatters(bench: Bench) -> Iterator[dict[str, Any]]:
    for size in (8 * KIB, 16 * KIB, 32 * KIB, 64 * KIB):
        layers = 2 if bench.small else 16
        count = 4 if bench.small else 256 * MIB // size // layers
        at, row_ptr, ids = _spread(bench, layers, count + 1, count)
        pool, staged = _pool(bench, layers, count + 1, size), bench.noise(layers * count, size)
        name = f"{layers} x {count} blocks of {size // KIB} KiB"
        with ExitStack() as held:
            batch = scatter_rows(Staged(staged.address, layers * count, size), pool, at, row_ptr, ids)
            ours = bench.seconds(_queue(bench, held, batch))
            yield _row("scatter", name, ours, "device copy", bench.seconds(_copy(bench, batch.nbytes)))
            if not missing_peers():
                theirs = _index_copy(bench, pool, staged, row_ptr, ids)
                yield _row("scatter", name, ours, "torch index_copy_ a layer", theirs)
        bench.clear()


def _index_copy(bench: Bench, pool: Pool, staged: Any, row_ptr: Int32, ids: Int32) -> float:
    """torch's own scatter, one call a layer, on its current stream."""
    import torch
    from torch.utils.dlpack import from_dlpack

    shape = (pool.layers, pool.blocks, pool.block_bytes)
    target = from_dlpack(bench.buffer(np.zeros(shape, dtype=np.uint8)).array).view(torch.int64)
    source = from_dlpack(staged.array).view(torch.int64)
    parts = [
        (target[layer], torch.from_numpy(ids[begin:end].astype(np.int64)).to(target.device), source[begin:end])
        for layer, (begin, end) in enumerate(zip(row_ptr[:-1].tolist(), row_ptr[1:].tolist(), strict=True))
    ]
    return _torch_seconds(bench, lambda: [one.index_copy_(0, where, rows) for one, where, rows in parts], torch)


def _torch_seconds(bench: Bench, work: Callable[[], object], torch: Any) -> float:
    import time

    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    best = float("inf")
    for _ in range(1 if bench.simulated else 6):
        wait()
        started = time.perf_counter()
        work()
        wait()
        best = min(best, time.perf_counter() - started)
    return best


def _launches(bench: Bench) -> Iterator[dict[str, Any]]:
    """Rows of 64 blocks and fewer, of every layer: all in one launch, or a launch a layer."""
    layers, most, size = (3, 4, 4 * KIB) if bench.small else (30, 64, 24 * KIB)
    pool, staged = _pool(bench, layers, 2 * most, size), bench.noise(layers * most, size)
    batches = []
    for layer in range(layers):
        count = most - layer % 4
        given = Staged(staged.address + layer * most * size, count, size)
        row = np.array([layer], dtype=np.int32), np.array([0, count], dtype=np.int32), bench.ids(2 * most, count)
        batches.append(scatter_rows(given, pool, *row))
    with ExitStack() as held:
        together = _queue(bench, held, join(batches))
        apart = [_queue(bench, held, one) for one in batches]

        def one_by_one() -> None:
            for queue in apart:
                queue()

        # Launched by the host, as a serving loop does it: a graph would hide what launches cost.
        ours = bench.seconds(together, graph=False)
        name = f"{layers} layers of about {most} blocks of {size // KIB} KiB"
        yield _row("one launch", name, ours, "a launch a layer", bench.seconds(one_by_one, graph=False))


def _moves(bench: Bench) -> Iterator[dict[str, Any]]:
    layers, count, size = (2, 4, 16 * KIB) if bench.small else (16, 512, 16 * KIB)
    pool = _pool(bench, layers, 2 * count, size)
    orders = [bench.ids(2 * count, 2 * count) for _ in range(layers)]
    at, row_ptr = np.arange(layers, dtype=np.int32), np.arange(layers + 1, dtype=np.int32) * count
    source = np.concatenate([order[:count] for order in orders])
    destination = np.concatenate([order[count:] for order in orders])
    name = f"{layers} x {count} blocks of {size // KIB} KiB"
    between = bench.poisoned(layers * count, size)
    staged = Staged(between.address, layers * count, size)
    with ExitStack() as held:
        batch = move_rows(pool, at, row_ptr, source, destination)
        ours = bench.seconds(_queue(bench, held, batch))
        yield _row("move", name, ours, "device copy", bench.seconds(_copy(bench, batch.nbytes)))
        out = _queue(bench, held, gather_rows(pool, at, row_ptr, source, staged))
        back = _queue(bench, held, scatter_rows(staged, pool, at, row_ptr, destination))

        def through_a_temporary() -> None:
            out()
            back()

        yield _row("move", name, ours, "gather and scatter", bench.seconds(through_a_temporary))


def _unpack(bench: Bench) -> Iterator[dict[str, Any]]:
    shape = BlockShape(8, 32, 128, "bfloat16")
    layers, count, size = 4 if not bench.small else 1, 256 if not bench.small else 2, shape.block_bytes
    at, row_ptr, ids = _spread(bench, layers, count + 1, count)
    pool, staged = _pool(bench, layers, count + 1, size, shape), bench.noise(layers * count, size)
    batch = scatter_rows(Staged(staged.address, layers * count, size), pool, at, row_ptr, ids)
    with ExitStack() as held:
        ours = bench.seconds(_queue(bench, held, batch, "unpack"))
        plain = bench.seconds(_queue(bench, held, batch))
        yield _row(
            "unpack and scatter", f"{layers} x {count} blocks of {size // KIB} KiB", ours, "plain scatter", plain
        )


def _remap(bench: Bench) -> Iterator[dict[str, Any]]:
    layers, kept, slots = (3, 40, 80) if bench.small else (80, 2048, 4096)
    table = np.stack([bench.ids(1 << 20, slots) for _ in range(layers)])
    origin, target = bench.buffer(table), bench.buffer(np.full_like(table, -1))
    lengths, after = (
        bench.buffer(np.full(layers, slots, dtype=np.int32)),
        bench.buffer(np.zeros(layers, dtype=np.int32)),
    )
    generation = bench.buffer(np.zeros(1, dtype=np.int64))
    keep_ptr = bench.buffer(np.arange(layers + 1, dtype=np.int32) * kept)
    keep = bench.buffer(np.concatenate([np.sort(bench.ids(slots, kept)) for _ in range(layers)]))
    work = partial(
        bench.kernels.launcher.remap_tables,
        origin.address,
        target.address,
        origin_lengths=lengths.address,
        lengths=after.address,
        generation=generation.address,
        keep_ptr=keep_ptr.address,
        keep=keep.address,
        layers=layers,
        slots=slots,
        shown=1,
        stream=bench.kernels.stream,
    )
    name = f"{layers} x {kept} slots"
    yield _row(
        "remap", name, bench.seconds(work, repeats=100), "device copy", bench.seconds(_copy(bench, table.nbytes))
    )


def _pulls(bench: Bench) -> Iterator[dict[str, Any]]:
    """Blocks in random order out of pinned memory: by the kernel, by the copy engine in a batch, and as one piece."""
    total = 128 * KIB if bench.small else 160 * MIB
    pinned = bench.driver.pin(2 * total)
    pool = bench.buffer(np.zeros(2 * total, dtype=np.uint8))
    stream = bench.kernels.stream
    large = bench.seconds(partial(bench.driver.copy, pool.address, pinned.address, total, stream), repeats=4)
    for size in (8 * KIB, 16 * KIB, 64 * KIB):
        count = total // size
        pools = Pool(pinned.address, 1, 2 * count, size), Pool(pool.address, 1, 2 * count, size)
        # Every other block, so that no two pieces could be joined into one.
        order = bench.ids(count, count) * 2
        batch = transfer_rows(
            *pools, np.zeros(1, dtype=np.int32), np.array([0, count], dtype=np.int32), order, order[::-1].copy()
        )
        name = f"{count} blocks of {size // KIB} KiB"
        destination, source, nbytes = batch.addresses()
        with ExitStack() as held:
            ours = bench.seconds(_queue(bench, held, batch, link=True), repeats=4)
            engine = bench.seconds(
                partial(bench.driver.copy_batch, destination, source, nbytes, stream), repeats=1, graph=False
            )
            yield _row("pull", name, ours, "one large pinned copy", large)
            yield _row("pull", name, ours, "batched copy engine", engine)
            yield _row("batched copy engine", name, engine, "one large pinned copy", large)
