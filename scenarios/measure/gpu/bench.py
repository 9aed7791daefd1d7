"""Device memory with known contents, and the time that work on a stream takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kvsweep.kernels.cuda.api import CudaDriver, DeviceMemory
from kvsweep.kernels.cuda.kernels import CudaKernels
from kvsweep.kernels.cuda.simulated import SimulatedDriver

Int32 = npt.NDArray[np.int32]
SEED = 20260916
OUTPUT_POISON = 0xA5
"""Byte of outputs before a kernel writes them."""


class Buffer:
    """An array in device memory.

    array  of the driver's library: what kernels and other libraries take
    """

    def __init__(self, bench: Bench, content: npt.NDArray[Any]) -> None:
        self._bench = bench
        self.shape, self.dtype = content.shape, content.dtype
        self.memory: DeviceMemory = bench.driver.allocate(max(content.nbytes, 1))
        self.array = bench.driver.view(self.memory, content.dtype.name, content.shape)
        self.write(content)

    @property
    def address(self) -> int:
        return self.memory.address

    def write(self, content: npt.NDArray[Any]) -> None:
        if content.size:
            self._bench.driver.write(self.memory.address, content, self._bench.kernels.stream)

    def host(self) -> npt.NDArray[Any]:
        """A copy of what is there now."""
        nbytes = int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize
        raw = self._bench.driver.read(self.memory.address, nbytes, self._bench.kernels.stream)
        return raw.view(self.dtype).reshape(self.shape)


@dataclass
class Bench:
    """A driver with its kernels, and all memory that was asked for, which `clear` gives back.

    small  sizes that a simulation gets through in seconds
    """

    driver: CudaDriver
    small: bool

    def __post_init__(self) -> None:
        self.kernels = CudaKernels(self.driver, blocks_per_multiprocessor=8)  # nothing else runs beside it
        self.random = np.random.default_rng(SEED)
        self._buffers: list[Buffer] = []

    @property
    def simulated(self) -> bool:
        """Whether times mean nothing."""
        return isinstance(self.driver, SimulatedDriver)

    def buffer(self, content: npt.NDArray[Any]) -> Buffer:
        self._buffers.append(Buffer(self, content))
        return self._buffers[-1]

    def noise(self, *shape: int) -> Buffer:
        """Fresh random bytes."""
        return self.buffer(self.random.integers(0, 256, shape, dtype=np.uint8))

    def poisoned(self, *shape: int) -> Buffer:
        """An output that holds nothing."""
        return self.buffer(np.full(shape, OUTPUT_POISON, dtype=np.uint8))

    def ids(self, limit: int, count: int) -> Int32:
        """`count` different ids below `limit`, in random order."""
        return self.random.permutation(limit)[:count].astype(np.int32)

    def clear(self) -> None:
        while self._buffers:
            self.driver.free(self._buffers.pop().memory)

    def seconds(self, work: Callable[[], None], *, repeats: int = 20, rounds: int = 5, graph: bool = True) -> float:
        """Seconds that one `work`, queued on the kernels' stream, takes on the device: the least of a few rounds.

        repeats  of the work in one graph, so that neither Python nor a launch counts; queued one by one without graph
        """
        stream = self.kernels.stream
        repeats = 1 if self.simulated else repeats
        recorded = self.driver.capture(stream, lambda: _often(work, repeats)) if graph else None
        best = float("inf")
        for _ in range(1 if self.simulated else rounds + 1):  # the first one warms up
            self.driver.synchronize(stream)
            started = time.perf_counter()
            if recorded is None:
                _often(work, repeats)
            else:
                self.driver.replay(recorded, stream)
            self.driver.synchronize(stream)
            best = min(best, (time.perf_counter() - started) / repeats)
        return best


def _often(work: Callable[[], None], repeats: int) -> None:
    for _ in range(repeats):
        work()
