"""A graph that reads blocks through a table, captured once and replayed while the table is rewritten in place."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvsweep.kernels import Csr
from kvsweep.kernels.cuda.rows import Descriptor, Pool, Staged, gather_rows
from kvsweep.scenarios.measure.gpu.bench import Bench

GENERATIONS = 4


def check_graph(bench: Bench) -> list[dict[str, Any]]:
    """One record a generation: {"generation", "equal"}: the replay read exactly what the table shows by now.

    A reading step reads every slot, with block 0 for an empty one, as attention kernels do with a padded table.
    """
    layers, blocks, slots, size = (2, 12, 8, 4096) if bench.small else (30, 512, 256, 24576)
    pool, out = bench.noise(layers, blocks, size), bench.poisoned(layers * slots, size)
    content = pool.host()
    table = np.stack([bench.ids(blocks, slots) for _ in range(layers)])
    device, lengths = bench.buffer(table), bench.buffer(np.full(layers, slots, dtype=np.int32))
    generation = bench.buffer(np.zeros(1, dtype=np.int64))
    every, row_ptr = np.arange(layers, dtype=np.int32), np.arange(layers + 1, dtype=np.int32) * slots
    batch = gather_rows(
        Pool(pool.address, layers, blocks, size),
        every,
        row_ptr,
        np.zeros(layers * slots, dtype=np.int32),
        Staged(out.address, layers * slots, size),
    )
    records = []
    with bench.kernels.placed(batch) as placed:
        # The launch takes its ids from the table itself: what attention does with it.
        through = Descriptor(**{**_fields(placed), "source": device.address})
        stream = bench.kernels.stream
        graph = bench.driver.capture(stream, lambda: bench.kernels.launcher.copy(through, stream))
        for number in range(1, GENERATIONS + 1):
            bench.driver.replay(graph, stream)
            found = out.host().reshape(layers, slots, size)
            shown = device.host()
            wanted = np.stack([content[layer, shown[layer]] for layer in range(layers)])
            records.append({"generation": int(generation.host()[0]), "equal": found.tobytes() == wanted.tobytes()})
            if number < GENERATIONS:
                _rewrite(bench, device, lengths, generation, slots, blocks, number)
    bench.clear()
    return records


def _rewrite(bench: Bench, device: Any, lengths: Any, generation: Any, slots: int, blocks: int, number: int) -> None:
    """Drop some slots by a remap, then refill the row, as a retain and the next upload do; always in place."""
    layers = device.shape[0]
    keep = Csr.of([np.sort(bench.ids(slots, slots // 2)) for _ in range(layers)])
    bench.kernels.remap_tables(device.array, lengths.array, keep, generation=generation.array, shown=number)
    table = device.host()
    for row in table:
        row[row < 0] = bench.ids(blocks, int((row < 0).sum()))
    device.write(table)
    lengths.write(np.full(layers, slots, dtype=np.int32))


def _fields(placed: Descriptor) -> dict[str, int]:
    return {name: getattr(placed, name) for name in Descriptor.__dataclass_fields__}
