"""The driver of a real device, on CuPy: loaded where it is first made, so that nothing else needs CuPy."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from kvsweep.kernels.cuda.api import DeviceArray, DeviceMemory, Event, Graph, PinnedMemory, Stream, UInt8, UInt64
from kvsweep.kernels.cuda.errors import CudaError, NoDevice, OutOfDeviceMemory
from kvsweep.kernels.cuda.source import OPTIONS, module_source

_BATCH_VERSIONS = (("cuMemcpyBatchAsync_v2", False), ("cuMemcpyBatchAsync", True))
"""Names of the batched copy, newest first, and whether it takes a place for the index of a failed copy."""

_OUT_OF_MEMORY = ("cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY")
_DLPACK_CUDA = (2, 13)
"""DLPack's kinds of memory that kernels reach at its own address: CUDA, and CUDA managed."""


def why_no_device() -> str | None:
    """Why kernels cannot run on a CUDA device here; None where they can."""
    try:
        import cupy
    except ImportError:
        return "CuPy is not installed: the extra cuda12 or cuda13 brings it"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"no usable driver or device ({error})"
    return None if count else "no device"


def describe_device(device: int = 0) -> str:
    """The device in words, with the version of CUDA; `why_no_device` has said that there is one."""
    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(device)
    version = cupy.cuda.runtime.runtimeGetVersion()
    return f"{properties['name'].decode()}, CUDA {version // 1000}.{version % 1000 // 10}, CuPy {cupy.__version__}"


class _CopyAttributes(ctypes.Structure):
    """CUmemcpyAttributes: order of access, hints of place, flags."""

    _fields_ = [
        ("access_order", ctypes.c_int),
        ("source_kind", ctypes.c_int),
        ("source_id", ctypes.c_int),
        ("destination_kind", ctypes.c_int),
        ("destination_id", ctypes.c_int),
        ("flags", ctypes.c_uint),
    ]


class NvidiaDriver:
    """One device. The kernels are compiled when the driver is made and kept by CuPy for the next process.

    Raises NoDevice where there is none, or no CuPy.
    """

    def __init__(self, device: int = 0) -> None:
        missing = why_no_device()
        if missing:
            raise NoDevice("cuda", missing)
        import cupy

        self._cupy = cupy
        self._runtime = cupy.cuda.runtime
        with self._named("device"):
            self._device = cupy.cuda.Device(device)
            self._device.use()
            properties = self._runtime.getDeviceProperties(device)
            self.name = describe_device(device)
        self.multiprocessors = int(properties["multiProcessorCount"])
        with self._named("compile"):
            self._module = _module(device)
        self._functions: dict[str, Any] = {}
        self._batch = _batched_copy()

    @property
    def batched(self) -> bool:
        """Whether the copy engine takes a batch in one call; otherwise each piece is one."""
        return self._batch is not None

    def stream(self) -> Stream:
        with self._named("stream"):
            return self._cupy.cuda.Stream(non_blocking=True)

    def event(self) -> Event:
        with self._named("event"):
            return self._cupy.cuda.Event(disable_timing=True)

    def record(self, event: Event, stream: Stream) -> None:
        with self._named("record"):
            event.record(stream)

    def wait(self, stream: Stream, event: Event) -> None:
        with self._named("wait"):
            stream.wait_event(event)

    def done(self, event: Event) -> bool:
        with self._named("done"):
            return bool(event.done)

    def synchronize(self, stream: Stream) -> None:
        with self._named("synchronize"):
            stream.synchronize()

    def allocate(self, nbytes: int) -> DeviceMemory:
        with self._named("allocate"):
            memory = self._cupy.cuda.alloc(nbytes)
        return DeviceMemory(int(memory.ptr), nbytes, memory)

    def free(self, memory: DeviceMemory) -> None:
        # CuPy's pool takes the bytes back when the last reference goes, and no call to CUDA is made.
        with self._named("free"):
            del memory

    def pin(self, nbytes: int) -> PinnedMemory:
        with self._named("pin"):
            memory = self._cupy.cuda.alloc_pinned_memory(nbytes)
        return PinnedMemory(np.frombuffer(memory, dtype=np.uint8, count=nbytes), int(memory.ptr))

    def register(self, array: UInt8) -> PinnedMemory:
        with self._named("register"):
            if not self._device.attributes["CanUseHostPointerForRegisteredMem"]:
                raise NoDevice("register", "this device does not read registered memory at its own address")
            self._runtime.hostRegister(array.ctypes.data, array.nbytes, 0)
        return PinnedMemory(array.reshape(-1), array.ctypes.data)

    def unregister(self, memory: PinnedMemory) -> None:
        with self._named("unregister"):
            self._runtime.hostUnregister(memory.address)

    def copy(self, destination: int, source: int, nbytes: int, stream: Stream) -> None:
        if nbytes:
            with self._named("copy"):
                self._runtime.memcpyAsync(destination, source, nbytes, self._runtime.memcpyDefault, stream.ptr)

    def copy_batch(self, destination: UInt64, source: UInt64, nbytes: UInt64, stream: Stream) -> None:
        if not nbytes.size:
            return
        if self._batch is None:
            for piece in zip(destination.tolist(), source.tolist(), nbytes.tolist(), strict=True):
                self.copy(*piece, stream)
            return
        # In stream order: the pinned source may be written by work that was queued before.
        attributes = _CopyAttributes(access_order=1)
        first = ctypes.c_size_t(0)
        places = [ctypes.c_void_p(array.ctypes.data) for array in (destination, source, nbytes)]
        with self._named("copy_batch"):
            status = self._batch(
                *places,
                ctypes.c_size_t(nbytes.size),
                ctypes.byref(attributes),
                ctypes.byref(first),
                ctypes.c_size_t(1),
                ctypes.c_void_p(stream.ptr),
            )
        if status:
            raise CudaError("copy_batch", f"CUDA error {status} for {nbytes.size} copies")

    def launch(
        self, kernel: str, *, grid: int, threads: int, arguments: tuple[np.generic, ...], stream: Stream
    ) -> None:
        with self._named(f"launch {kernel}"):
            function = self._functions.get(kernel)
            if function is None:
                function = self._functions[kernel] = self._module.get_function(kernel)
            with stream:
                function((grid,), (threads,), arguments)

    def capture(self, stream: Stream, work: Callable[[], None]) -> Graph:
        with self._named("capture"):
            stream.begin_capture()
            try:
                work()
            finally:
                graph = stream.end_capture()
            return graph

    def replay(self, graph: Graph, stream: Stream) -> None:
        with self._named("replay"):
            graph.launch(stream)

    def write(self, address: int, array: npt.NDArray[Any], stream: Stream) -> None:
        raw = np.ascontiguousarray(array)
        with self._named("write"):
            self._runtime.memcpyAsync(
                address, raw.ctypes.data, raw.nbytes, self._runtime.memcpyHostToDevice, stream.ptr
            )
            stream.synchronize()

    def read(self, address: int, nbytes: int, stream: Stream) -> UInt8:
        out: UInt8 = np.empty(nbytes, dtype=np.uint8)
        with self._named("read"):
            self._runtime.memcpyAsync(out.ctypes.data, address, nbytes, self._runtime.memcpyDeviceToHost, stream.ptr)
            stream.synchronize()
        return out

    def borrow(self, array: object) -> DeviceArray | None:
        where = getattr(array, "__dlpack_device__", None)
        if where is None or where()[0] not in _DLPACK_CUDA:
            return None
        with self._named("borrow"):
            shared = self._cupy.from_dlpack(array)
        return DeviceArray(
            address=int(shared.data.ptr),
            dtype=shared.dtype.name,
            shape=shared.shape,
            strides=shared.strides,
            writable=True,
            owner=shared,
        )

    def view(self, memory: DeviceMemory | DeviceArray, dtype: str, shape: tuple[int, ...]) -> Any:
        if isinstance(memory, DeviceMemory):
            return self._cupy.ndarray(shape, dtype=dtype, memptr=memory.owner)
        return memory.owner.view(dtype).reshape(shape)

    # ---- inside

    @contextmanager
    def _named(self, call: str) -> Iterator[None]:
        """CUDA's errors under the name of the call."""
        try:
            yield
        except self._cupy.cuda.memory.OutOfMemoryError as error:
            raise OutOfDeviceMemory(call, str(error)) from error
        except (self._runtime.CUDARuntimeError, self._cupy.cuda.driver.CUDADriverError) as error:
            full = any(word in str(error) for word in _OUT_OF_MEMORY)
            raise (OutOfDeviceMemory if full else CudaError)(call, str(error)) from error
        except self._cupy.cuda.compiler.CompileException as error:
            raise CudaError(call, str(error)) from error


@functools.cache
def _module(device: int) -> Any:
    """The compiled kernels, once a device."""
    import cupy

    module = cupy.RawModule(code=module_source(), options=OPTIONS)
    module.compile()
    return module


def _batched_copy() -> Any:
    """The driver's batched copy as fn(destinations, sources, sizes, count, attributes, first, 1, stream), or None."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    for symbol, reports in _BATCH_VERSIONS:
        function = getattr(library, symbol, None)
        if function is None:
            continue
        if not reports:
            return function

        def with_report(*arguments: Any, call: Any = function) -> int:
            failed = ctypes.c_size_t(0)
            return int(call(*arguments[:-1], ctypes.byref(failed), arguments[-1]))

        return with_report
    return None
