"""How blocks cross the link: by the copy engine in one batch, or by a kernel that reads pinned memory.

Small pieces cost the copy engine a fixed time each; a kernel reads many at once and takes a few multiprocessors. Which
is faster depends on the machine, so both are measured at start.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from kvsweep.kernels.cuda.api import CudaDriver
from kvsweep.kernels.cuda.launch import Launcher
from kvsweep.kernels.cuda.rows import Pool, RowBatch, descriptor_bytes, transfer_rows, write_descriptor
from kvsweep.ledger.errors import LayoutError

UInt64 = npt.NDArray[np.uint64]
Path = Literal["pull", "batch"]
PathWish = Literal["auto", "pull", "batch", "staged"]
PATH_WISHES: tuple[PathWish, ...] = ("auto", "pull", "batch", "staged")

PIECE_BYTES = (4 << 10, 16 << 10, 64 << 10, 256 << 10)
PIECE_COUNTS = (16, 256, 4096)
MOST_BYTES = 64 << 20
"""Of one measurement: larger products of size and count are left out."""
ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds that each path took for `count` separate pieces of `piece_bytes`; the least of a few rounds."""

    piece_bytes: int
    count: int
    pull_s: float
    batch_s: float


@dataclass(frozen=True, slots=True)
class Runs:
    """Copies after neighbours were joined: addresses and bytes, uint64[n] each."""

    destination: UInt64
    source: UInt64
    nbytes: UInt64


class PathChoice:
    """Which path a batch takes.

    wish      "auto" goes by what was measured; "pull" and "batch" are taken as they are
    measured  of this machine; at least one row for "auto"
    """

    def __init__(self, wish: Literal["auto", "pull", "batch"], measured: Sequence[Measured] = ()) -> None:
        """Raises LayoutError for "auto" without a measurement."""
        if wish == "auto" and not measured:
            raise LayoutError("measured", 'at least one measurement for "auto"', "none")
        self.wish = wish
        self.measured = tuple(measured)

    def choose(self, block_bytes: int, blocks: int, runs: int) -> Path:
        """For that many blocks of that size, which lie in that many runs: the kernel copies blocks, the engine runs."""
        if self.wish != "auto":
            return self.wish
        pull = self._rate("pull_s", block_bytes, blocks)
        batch = self._rate("batch_s", block_bytes * blocks // max(runs, 1), runs)
        return "pull" if pull > batch else "batch"

    def _rate(self, path: Literal["pull_s", "batch_s"], piece_bytes: int, count: int) -> float:
        """Bytes a second at the measured point that is nearest in size and count."""

        def distance(one: Measured) -> float:
            size = math.log2(max(piece_bytes, 1) / one.piece_bytes)
            return abs(size) + abs(math.log2(max(count, 1) / one.count)) / 2

        near = min(self.measured, key=distance)
        seconds: float = getattr(near, path)
        return near.piece_bytes * near.count / max(seconds, 1e-12)


def merge_runs(batch: RowBatch) -> Runs:
    """One copy for every run of blocks that are neighbours on both sides."""
    destination, source, nbytes = batch.addresses()
    if not nbytes.size:
        return Runs(destination, source, nbytes)
    follows = (destination[:-1] + nbytes[:-1] == destination[1:]) & (source[:-1] + nbytes[:-1] == source[1:])
    first = np.flatnonzero(np.concatenate(([True], ~follows)))
    return Runs(destination[first], source[first], np.add.reduceat(nbytes, first))


def calibrate(
    driver: CudaDriver,
    launcher: Launcher,
    clock: Callable[[], float],
    *,
    sizes: Sequence[int] = PIECE_BYTES,
    counts: Sequence[int] = PIECE_COUNTS,
    most_bytes: int = MOST_BYTES,
) -> tuple[Measured, ...]:
    """Time both paths at each size and count; waits, and gives back all memory that it took."""
    points = [(size, count) for size in sizes for count in counts if 2 * size * count <= most_bytes]
    if not points:
        raise LayoutError("most_bytes", f"at least {2 * min(sizes) * min(counts)}", str(most_bytes))
    most = max(2 * size * count for size, count in points)
    pinned, memory = driver.pin(most), driver.allocate(most)
    described = driver.allocate(descriptor_bytes(1, max(count for _, count in points)))
    stream = driver.stream()
    try:
        measured = []
        for size, count in points:
            # Every other block, so that no two are neighbours.
            ids = np.arange(count, dtype=np.int32) * 2
            pools = Pool(pinned.address, 1, 2 * count, size), Pool(memory.address, 1, 2 * count, size)
            ends = np.array([0, count], dtype=np.int32)
            batch = transfer_rows(*pools, np.zeros(1, dtype=np.int32), ends, ids, ids)
            buffer = np.zeros(descriptor_bytes(1, count), dtype=np.uint8)
            placed, _ = write_descriptor(batch, buffer, described.address)
            driver.write(described.address, buffer, stream)
            runs = merge_runs(batch)
            times: dict[Path, float] = {"pull": math.inf, "batch": math.inf}
            for _ in range(ROUNDS):
                for path in times:
                    started = clock()
                    if path == "pull":
                        launcher.copy(placed, stream, over_link=True)
                    else:
                        driver.copy_batch(runs.destination, runs.source, runs.nbytes, stream)
                    driver.synchronize(stream)
                    times[path] = min(times[path], clock() - started)
            measured.append(Measured(size, count, times["pull"], times["batch"]))
        return tuple(measured)
    finally:
        driver.free(memory)
        driver.free(described)
