"""What the kernels and the device need of CUDA: streams, events, memory, copies and launches."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

UInt8 = npt.NDArray[np.uint8]
UInt64 = npt.NDArray[np.uint64]

Stream: TypeAlias = Any
"""A handle that only its driver looks into."""
Event: TypeAlias = Any
"""A handle that only its driver looks into."""


Graph: TypeAlias = Any
"""Work of one stream that is queued again and again; a handle that only its driver looks into."""


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes that kernels read and write, until `CudaDriver.free`.

    owner  keeps them alive
    """

    address: int
    nbytes: int
    owner: Any


@dataclass(frozen=True, slots=True)
class PinnedMemory:
    """Page-locked host bytes that copies and kernels reach.

    array    uint8[nbytes]: the memory itself
    address  of the first byte, as the device sees it
    """

    array: UInt8
    address: int


@dataclass(frozen=True, slots=True)
class DeviceArray:
    """An array in memory that kernels reach, borrowed from its owner without a copy.

    strides  bytes from one index to the next on each axis
    """

    address: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    writable: bool
    owner: Any

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize

    @property
    def contiguous(self) -> bool:
        """Whether the elements lie one after the other in C order."""
        expected = np.dtype(self.dtype).itemsize
        if 0 in self.shape:
            return True
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size > 1 and stride != expected:
                return False
            expected *= max(size, 1)
        return True


class CudaDriver(Protocol):
    """One CUDA device. Every call raises CudaError with its own name; nothing waits but `synchronize`, `write`, `read`.

    Copies and launches run later, in the order of their stream; they read host memory when they run. `record` marks
    the work queued on a stream so far, and recording again moves the mark; `wait` holds a stream back until the mark of
    the moment has been passed.
    """

    @property
    def name(self) -> str:
        """The device in words, with the version of CUDA."""

    @property
    def multiprocessors(self) -> int:
        """Multiprocessors of the device."""

    def stream(self) -> Stream: ...
    def event(self) -> Event: ...
    def record(self, event: Event, stream: Stream) -> None: ...
    def wait(self, stream: Stream, event: Event) -> None: ...

    def done(self, event: Event) -> bool:
        """Whether the mark has been passed, or was never set. Raises CudaError where work before it failed."""

    def synchronize(self, stream: Stream) -> None:
        """Wait, on the calling thread, until a stream is empty."""

    def allocate(self, nbytes: int) -> DeviceMemory:
        """Raises OutOfDeviceMemory."""

    def free(self, memory: DeviceMemory) -> None:
        """Give memory back. Nothing that is queued may still use it."""

    def pin(self, nbytes: int) -> PinnedMemory:
        """New page-locked memory, for as long as its array lives."""

    def register(self, array: UInt8) -> PinnedMemory:
        """Lock an array's pages where they are, until `unregister`: kernels read and write it in place."""

    def unregister(self, memory: PinnedMemory) -> None: ...

    def copy(self, destination: int, source: int, nbytes: int, stream: Stream) -> None:
        """Queue one copy between addresses of device or pinned memory."""

    def copy_batch(self, destination: UInt64, source: UInt64, nbytes: UInt64, stream: Stream) -> None:
        """Queue many independent copies, by the copy engine where it takes a batch; the arrays are read at once."""

    def launch(
        self, kernel: str, *, grid: int, threads: int, arguments: tuple[np.generic, ...], stream: Stream
    ) -> None:
        """Queue one kernel of the source, with one-dimensional sizes."""

    def capture(self, stream: Stream, work: Callable[[], None]) -> Graph:
        """What `work` queues on the stream, recorded and not queued. Addresses and sizes stay, bytes are read anew."""

    def replay(self, graph: Graph, stream: Stream) -> None:
        """Queue a graph."""

    def write(self, address: int, array: npt.NDArray[Any], stream: Stream) -> None:
        """Copy a host array, whatever memory it is in, after what is queued on the stream. Waits."""

    def read(self, address: int, nbytes: int, stream: Stream) -> UInt8:
        """uint8[nbytes], new: what is there after what is queued on the stream. Waits."""

    def borrow(self, array: object) -> DeviceArray | None:
        """An array of another library without a copy (DLPack); None for what is no array in reach of the device."""

    def view(self, memory: DeviceMemory | DeviceArray, dtype: str, shape: tuple[int, ...]) -> Any:
        """The driver's own array type over that memory: a NumPy or a CuPy array, shared through DLPack by others."""
