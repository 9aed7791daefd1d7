"""A CUDA driver without a GPU: it runs the kernels' own source on the CPU, late, and out of order between streams."""

import ctypes
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from kvsweep.kernels.cuda.api import DeviceArray, DeviceMemory, PinnedMemory, UInt8, UInt64
from kvsweep.kernels.cuda.errors import CudaError, OutOfDeviceMemory
from kvsweep.kernels.cuda.shim import Shim, built
from kvsweep.kernels.cuda.source import KERNELS

STEPS_A_QUERY = 3
"""Queued items that run at most while a caller asks whether an event is done."""
QUEUE_LIMIT = 1 << 16
"""Items on one stream at most; a GPU would make the caller wait there, which a serving thread must not meet."""
GARBAGE, SPOILED = 0xA5, 1 << 20
"""Byte of memory that was just allocated or freed (not what blocks are poisoned with), and how much of it is filled."""


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that a stream does, when it may."""

    run: Callable[[], None]
    ready: Callable[[], bool] = lambda: True


@dataclass(slots=True, eq=False)
class SimulatedStream:
    """Items in order."""

    items: deque[Item] = field(default_factory=deque)


@dataclass(slots=True, eq=False)
class SimulatedEvent:
    """How often it was recorded, and how many of those marks have been passed."""

    recorded: int = 0
    passed: int = 0


@dataclass(slots=True)
class Failure:
    """The next call of that name fails, after `after` good ones. lost: every later call fails too."""

    error: type[CudaError] = CudaError
    after: int = 0
    lost: bool = False


class SimulatedDriver:
    """Device memory is host memory, whose every address in a copy or launch is checked.

    failures  by name of the call ("copy", "launch copy_blocks", "allocate"): what fails next, for tests
    launches  by kernel, how often it ran
    calls     by name, how often it was asked for
    """

    name = "simulated (the kernels' source on the CPU)"

    def __init__(
        self,
        *,
        seed: int,
        order: int = 0,
        automatic: bool = True,
        multiprocessors: int = 4,
        memory_bytes: int = 1 << 34,
        kernels: Shim | None = None,
    ) -> None:
        """seed of the order between streams; order of threads, see Shim.

        automatic     asking for an event lets a few items run; otherwise only `step` and waiting do
        memory_bytes  of the device
        kernels       another build of them; None takes this installation's
        """
        self.multiprocessors = multiprocessors
        self.failures: dict[str, Failure] = {}
        self.launches = dict.fromkeys(KERNELS, 0)
        self.calls: dict[str, int] = {}
        self.free_bytes = memory_bytes
        self._automatic = automatic
        self._shim = kernels or Shim(built(), order)
        self._random = np.random.Generator(np.random.PCG64(seed))
        self._streams: list[SimulatedStream] = []
        self._regions: dict[int, int] = {}  # address -> bytes, of all memory that the device may touch
        self._lost: str | None = None

    # ---- what runs

    @property
    def queued(self) -> int:
        """Items that have not run."""
        return sum(len(stream.items) for stream in self._streams)

    def step(self, most: int | None = None) -> int:
        """Run at most that many items (None: until none can run), each at the head of a stream drawn by the seed."""
        ran = 0
        while most is None or ran < most:
            ready = [stream for stream in self._streams if stream.items and stream.items[0].ready()]
            if not ready:
                break
            ready[int(self._random.integers(len(ready)))].items.popleft().run()
            ran += 1
        return ran

    def draw(self, choices: int) -> int:
        """A number below `choices` from the driver's seed, for who drives it."""
        return int(self._random.integers(choices))

    # ---- the driver

    def stream(self) -> SimulatedStream:
        self._call("stream")
        self._streams.append(SimulatedStream())
        return self._streams[-1]

    def event(self) -> SimulatedEvent:
        self._call("event")
        return SimulatedEvent()

    def record(self, event: SimulatedEvent, stream: SimulatedStream) -> None:
        self._call("record")
        event.recorded += 1
        number = event.recorded

        def passed() -> None:
            event.passed = max(event.passed, number)

        self._add(stream, Item(passed))

    def wait(self, stream: SimulatedStream, event: SimulatedEvent) -> None:
        self._call("wait")
        number = event.recorded
        self._add(stream, Item(lambda: None, lambda: event.passed >= number))

    def done(self, event: SimulatedEvent) -> bool:
        self._call("done")
        if self._automatic:
            self.step(int(self._random.integers(STEPS_A_QUERY + 1)))
        return event.passed >= event.recorded

    def synchronize(self, stream: SimulatedStream) -> None:
        self._call("synchronize")
        while stream.items:
            if not self.step(1):
                raise CudaError("synchronize", "the stream waits for an event that nobody records")

    def allocate(self, nbytes: int) -> DeviceMemory:
        self._call("allocate")
        if nbytes > self.free_bytes:
            raise OutOfDeviceMemory("allocate", f"{nbytes} bytes, {self.free_bytes} are free")
        array = _fresh(nbytes)
        self.free_bytes -= nbytes
        self._regions[array.ctypes.data] = nbytes
        return DeviceMemory(array.ctypes.data, nbytes, array)

    def free(self, memory: DeviceMemory) -> None:
        self._call("free")
        del self._regions[memory.address]
        self.free_bytes += memory.nbytes
        memory.owner[:SPOILED] = GARBAGE

    def pin(self, nbytes: int) -> PinnedMemory:
        self._call("pin")
        array = _fresh(nbytes)
        self._reach(array)
        return PinnedMemory(array, array.ctypes.data)

    def register(self, array: UInt8) -> PinnedMemory:
        self._call("register")
        address = array.ctypes.data
        if address in self._regions:
            raise CudaError("register", "the memory is registered already")
        self._regions[address] = array.nbytes
        return PinnedMemory(array.reshape(-1), address)

    def unregister(self, memory: PinnedMemory) -> None:
        self._call("unregister")
        del self._regions[memory.address]

    def copy(self, destination: int, source: int, nbytes: int, stream: SimulatedStream) -> None:
        self._call("copy")
        self._check("copy", destination, nbytes)
        self._check("copy", source, nbytes)
        self._add(stream, Item(lambda: _copy(destination, source, nbytes)))

    def copy_batch(self, destination: UInt64, source: UInt64, nbytes: UInt64, stream: SimulatedStream) -> None:
        self._call("copy_batch")
        pieces = list(zip(destination.tolist(), source.tolist(), nbytes.tolist(), strict=True))
        for to, start, size in pieces:
            self._check("copy_batch", to, size)
            self._check("copy_batch", start, size)
        order = self._random.permutation(len(pieces))  # a batch promises no order

        def run() -> None:
            for at in order:
                _copy(*pieces[at])

        self._add(stream, Item(run))

    def launch(
        self, kernel: str, *, grid: int, threads: int, arguments: tuple[np.generic, ...], stream: SimulatedStream
    ) -> None:
        call = f"launch {kernel}"
        self._call(call)
        for value in arguments:
            if isinstance(value, np.uint64) and int(value):
                self._check(call, int(value), 1)

        def run() -> None:
            self.launches[kernel] += 1
            self._shim.run(kernel, grid=grid, threads=threads, arguments=arguments)

        self._add(stream, Item(run))

    def capture(self, stream: SimulatedStream, work: Callable[[], None]) -> tuple[Item, ...]:
        self._call("capture")
        queued, stream.items = stream.items, deque()
        try:
            work()
            return tuple(stream.items)
        finally:
            stream.items = queued

    def replay(self, graph: tuple[Item, ...], stream: SimulatedStream) -> None:
        self._call("replay")
        for item in graph:
            self._add(stream, item)

    def write(self, address: int, array: npt.NDArray[Any], stream: SimulatedStream) -> None:
        self._call("write")
        raw = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
        self._check("write", address, raw.size)
        self._add(stream, Item(lambda: _copy(address, raw.ctypes.data, raw.size)))
        self.synchronize(stream)

    def read(self, address: int, nbytes: int, stream: SimulatedStream) -> UInt8:
        self._call("read")
        self._check("read", address, nbytes)
        out: UInt8 = np.empty(nbytes, dtype=np.uint8)
        self._add(stream, Item(lambda: _copy(out.ctypes.data, address, nbytes)))
        self.synchronize(stream)
        return out

    def borrow(self, array: object) -> DeviceArray | None:
        self._call("borrow")
        if not isinstance(array, np.ndarray):
            if not hasattr(array, "__dlpack__"):
                return None
            array = np.from_dlpack(array)
        if array.ctypes.data not in self._regions:
            self._reach(array)
        return DeviceArray(
            address=array.ctypes.data,
            dtype=array.dtype.name,
            shape=array.shape,
            strides=array.strides,
            writable=array.flags.writeable,
            owner=array,
        )

    def view(self, memory: DeviceMemory | DeviceArray, dtype: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        raw: UInt8 = memory.owner.reshape(-1).view(np.uint8)
        return raw.view(dtype).reshape(shape)

    # ---- inside

    def _call(self, name: str) -> None:
        self.calls[name] = self.calls.get(name, 0) + 1
        if self._lost is not None:
            raise CudaError(name, self._lost)
        failure = self.failures.get(name)
        if failure is None:
            return
        if failure.after:
            failure.after -= 1
            return
        del self.failures[name]
        if failure.lost:
            self._lost = "the device was lost"
        raise failure.error(name, self._lost or "told to fail")

    def _reach(self, array: npt.NDArray[Any]) -> None:
        """The device may touch an array for as long as it lives."""
        self._regions[array.ctypes.data] = array.nbytes
        weakref.finalize(array, self._regions.pop, array.ctypes.data, None)

    def _check(self, call: str, address: int, nbytes: int) -> None:
        for start, size in self._regions.items():
            if start <= address and address + nbytes <= start + size:
                return
        raise CudaError(call, f"{nbytes} bytes at {address:#x} are not in memory that the device may touch")

    def _add(self, stream: SimulatedStream, item: Item) -> None:
        if len(stream.items) >= QUEUE_LIMIT:
            raise CudaError("queue", f"more than {QUEUE_LIMIT} items on one stream")
        stream.items.append(item)


def _fresh(nbytes: int) -> UInt8:
    """uint8[nbytes] at a multiple of 16, with nothing behind it: a sanitizer sees the first byte too many."""
    whole: UInt8 = np.empty(nbytes, dtype=np.uint8)
    whole[:SPOILED] = GARBAGE
    if whole.ctypes.data % 16:
        raise CudaError("allocate", f"the host's memory begins at {whole.ctypes.data:#x}, no multiple of 16")
    return whole


def _copy(destination: int, source: int, nbytes: int) -> None:
    ctypes.memmove(destination, source, nbytes)
