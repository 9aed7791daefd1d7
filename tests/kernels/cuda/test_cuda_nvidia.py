"""The driver of a real device, against a stand-in for CuPy: what is asked of it, and what its errors become."""

import ctypes
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvsweep.kernels.cuda import nvidia
from kvsweep.kernels.cuda.errors import CudaError, NoDevice, OutOfDeviceMemory
from kvsweep.kernels.cuda.nvidia import NvidiaDriver, why_no_device
from kvsweep.kernels.cuda.source import OPTIONS, arguments_of, module_source


class RuntimeFault(RuntimeError):
    """CUDARuntimeError."""


class DriverFault(RuntimeError):
    """CUDADriverError."""


class PoolFault(MemoryError):
    """CuPy's own out of memory."""


class CompileFault(Exception):
    """CompileException."""


class Stream:
    def __init__(self, calls: list[Any], non_blocking: bool) -> None:
        self.calls, self.ptr = calls, 77
        calls.append(("stream", non_blocking))

    def __enter__(self) -> "Stream":
        self.calls.append("in stream")
        return self

    def __exit__(self, *error: object) -> None: ...

    def synchronize(self) -> None:
        self.calls.append("synchronize")

    def wait_event(self, event: object) -> None:
        self.calls.append("wait_event")

    def begin_capture(self) -> None:
        self.calls.append("begin")

    def end_capture(self) -> Any:
        self.calls.append("end")
        return SimpleNamespace(launch=lambda stream: self.calls.append("launch graph"))


@pytest.fixture
def calls() -> list[Any]:
    return []


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch, calls: list[Any]) -> Any:
    """One device called GPU, CUDA 13.0; every call is noted."""

    def kernel(name: str) -> Any:
        return lambda grid, block, arguments: calls.append((name, grid, block, arguments))

    def compiled(*, code: str, options: tuple[str, ...]) -> Any:
        calls.append(("compile", code, options))
        return SimpleNamespace(compile=lambda: None, get_function=kernel)

    module: Any = ModuleType("cupy")
    module.__version__ = "14.2"
    runtime = SimpleNamespace(
        CUDARuntimeError=RuntimeFault,
        memcpyDefault=4,
        memcpyHostToDevice=1,
        memcpyDeviceToHost=2,
        getDeviceCount=lambda: 1,
        getDeviceProperties=lambda device: {"name": b"GPU", "multiProcessorCount": 132},
        runtimeGetVersion=lambda: 13000,
        hostRegister=lambda *given: calls.append(("register", *given)),
        hostUnregister=lambda *given: calls.append(("unregister", *given)),
        memcpyAsync=lambda *given: calls.append(("memcpy", *given)),
    )
    module.RawModule = compiled
    module.cuda = SimpleNamespace(
        runtime=runtime,
        memory=SimpleNamespace(OutOfMemoryError=PoolFault),
        driver=SimpleNamespace(CUDADriverError=DriverFault),
        compiler=SimpleNamespace(CompileException=CompileFault),
        Device=lambda device: SimpleNamespace(use=lambda: None, attributes={"CanUseHostPointerForRegisteredMem": 1}),
        Stream=lambda non_blocking: Stream(calls, non_blocking),
        Event=lambda disable_timing: SimpleNamespace(done=True, record=lambda stream: calls.append("record")),
        alloc=lambda nbytes: SimpleNamespace(ptr=4096),
    )
    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.setattr(nvidia, "_batched_copy", lambda: None)
    nvidia._module.cache_clear()
    yield module
    nvidia._module.cache_clear()


def test_without_cupy_a_driver_or_a_device_it_is_said_which(monkeypatch: pytest.MonkeyPatch, cupy: Any) -> None:
    assert why_no_device() is None
    cupy.cuda.runtime.getDeviceCount = lambda: 0
    assert why_no_device() == "no device"

    def no_driver() -> int:
        raise RuntimeFault("cudaErrorInsufficientDriver: driver version is insufficient")

    cupy.cuda.runtime.getDeviceCount = no_driver
    assert str(why_no_device()).startswith("no usable driver or device (cudaErrorInsufficientDriver")
    with pytest.raises(NoDevice, match="cuda: no usable driver or device"):
        NvidiaDriver()
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert why_no_device() == "CuPy is not installed: the extra cuda12 or cuda13 brings it"


def test_kernels_are_compiled_once_a_device_and_launched_in_their_stream(cupy: Any, calls: list[Any]) -> None:
    driver = NvidiaDriver()
    NvidiaDriver()
    assert (driver.name, driver.multiprocessors) == ("GPU, CUDA 13.0, CuPy 14.2", 132)
    assert [call for call in calls if call[0] == "compile"] == [("compile", module_source(), OPTIONS)]
    stream = driver.stream()
    arguments = arguments_of("copy_blocks", *range(7))
    driver.launch("copy_blocks", grid=3, threads=256, arguments=arguments, stream=stream)
    assert calls[-3:] == [("stream", True), "in stream", ("copy_blocks", (3,), (256,), arguments)]


def test_streams_wait_by_events_and_graphs_are_captured(cupy: Any, calls: list[Any]) -> None:
    driver = NvidiaDriver()
    stream, event = driver.stream(), driver.event()
    driver.record(event, stream)
    driver.wait(stream, event)
    assert driver.done(event)
    graph = driver.capture(stream, lambda: calls.append("work"))
    driver.replay(graph, stream)
    assert calls[-6:] == ["record", "wait_event", "begin", "work", "end", "launch graph"]


def test_memory_of_the_host_is_locked_where_it_is(cupy: Any, calls: list[Any]) -> None:
    driver, array = NvidiaDriver(), np.zeros((2, 8), dtype=np.uint8)
    pinned = driver.register(array)
    assert (pinned.address, pinned.array.base is array) == (array.ctypes.data, True)
    driver.unregister(pinned)
    assert calls[-2:] == [("register", array.ctypes.data, 16, 0), ("unregister", array.ctypes.data)]
    cupy.cuda.Device = lambda device: SimpleNamespace(
        use=lambda: None, attributes={"CanUseHostPointerForRegisteredMem": 0}
    )
    with pytest.raises(NoDevice, match="register: this device does not read registered memory"):
        NvidiaDriver().register(array)


def pieces(*values: int) -> "np.ndarray[Any, np.dtype[np.uint64]]":
    return np.array(values, dtype=np.uint64)


def test_a_batch_is_one_call_where_the_driver_takes_it_and_a_copy_each_where_not(
    cupy: Any, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = NvidiaDriver()
    stream = driver.stream()
    driver.copy_batch(pieces(1, 2), pieces(3, 4), pieces(8, 9), stream)
    assert calls[-2:] == [("memcpy", 1, 3, 8, 4, 77), ("memcpy", 2, 4, 9, 4, 77)]
    assert not driver.batched
    seen: list[tuple[Any, ...]] = []

    def batch(*given: Any) -> int:
        seen.append(given)
        return 1 if len(seen) > 1 else 0

    monkeypatch.setattr(nvidia, "_batched_copy", lambda: batch)
    driver = NvidiaDriver()
    driver.copy_batch(pieces(1, 2), pieces(3, 4), pieces(8, 9), stream)
    assert (seen[0][3].value, seen[0][6].value, seen[0][7].value) == (2, 1, 77)
    with pytest.raises(CudaError, match="copy_batch: CUDA error 1 for 1 copies"):
        driver.copy_batch(pieces(1), pieces(3), pieces(8), stream)
    driver.copy_batch(pieces(), pieces(), pieces(), stream)
    assert len(seen) == 2


def test_the_attributes_of_a_batch_have_the_size_that_cuda_gives_them() -> None:
    assert ctypes.sizeof(nvidia._CopyAttributes) == 24


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (PoolFault("out"), OutOfDeviceMemory),
        (RuntimeFault("cudaErrorMemoryAllocation: out of memory"), OutOfDeviceMemory),
        (DriverFault("CUDA_ERROR_OUT_OF_MEMORY: out of memory"), OutOfDeviceMemory),
        (RuntimeFault("cudaErrorIllegalAddress: an illegal memory access"), CudaError),
        (CompileFault("line 3"), CudaError),
    ],
)
def test_errors_carry_the_name_of_the_call(cupy: Any, error: Exception, kind: type[CudaError]) -> None:
    def fail(nbytes: int) -> None:
        raise error

    driver = NvidiaDriver()
    cupy.cuda.alloc = fail
    with pytest.raises(CudaError) as caught:
        driver.allocate(8)
    assert type(caught.value) is kind
    assert str(caught.value) == f"allocate: {error}"


def test_arrays_of_the_host_are_not_borrowed(cupy: Any) -> None:
    assert NvidiaDriver().borrow(np.zeros(3)) is None
    assert NvidiaDriver().borrow("text") is None
