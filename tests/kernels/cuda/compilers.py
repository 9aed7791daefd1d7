"""Compiling the kernels for GPUs that are not here: by nvcc where it is found, else by the NVRTC library of a wheel."""

import ctypes
import importlib.util
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ARCHITECTURES = ("sm_80", "sm_90")
_WHEELS = ("nvidia.cuda_nvrtc", "nvidia.cu13")
_ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(sm_\d+)'(.*?)(?=Compiling entry function|\Z)", re.DOTALL)


@dataclass(frozen=True)
class Usage:
    """What one kernel takes on one architecture: registers a thread, and bytes of stack and spills."""

    kernel: str
    architecture: str
    registers: int
    stack: int
    spill_stores: int
    spill_loads: int


Compile = Callable[[str], str]
"""Source to the compiler's log, for all architectures; raises ValueError with the log where it is refused."""


def find_compilers() -> dict[str, Compile]:
    """By name; none where neither is installed."""
    found: dict[str, Compile] = {}
    if shutil.which("nvcc"):
        found["nvcc"] = by_nvcc
    for library in nvrtc_libraries():
        found[library.name] = partial(by_nvrtc, library)
    return found


def by_nvcc(source: str) -> str:
    targets = [f"-gencode=arch=compute_{each[3:]},code={each}" for each in ARCHITECTURES]
    command = ["nvcc", "-std=c++17", *targets, "-fatbin", "-Xptxas=-v", "-x", "cu", "-", "-o", "/dev/null"]
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(done.stderr)
    return done.stderr


def nvrtc_libraries() -> Iterator[Path]:
    """Of the wheels nvidia-cuda-nvrtc-cu12 and nvidia-cuda-nvrtc, the one for CUDA 13."""
    for wheel in _WHEELS:
        try:
            spec = importlib.util.find_spec(wheel)
        except ModuleNotFoundError:
            continue
        for folder in spec.submodule_search_locations or () if spec else ():
            yield from sorted(Path(folder, "lib").glob("libnvrtc.so.*"))


def by_nvrtc(path: Path, source: str) -> str:
    for builtins in sorted(path.parent.glob("libnvrtc-builtins.so.*")):
        ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
    nvrtc = ctypes.CDLL(str(path))
    logs = []
    for architecture in ARCHITECTURES:
        program = ctypes.c_void_p()
        text = source.encode()
        status = nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, b"kernels.cu", 0, None, None)
        options = [b"-std=c++17", f"-arch={architecture}".encode(), b"--ptxas-options=-v"]
        array = (ctypes.c_char_p * len(options))(*options)
        status = status or nvrtc.nvrtcCompileProgram(program, len(options), array)
        size = ctypes.c_size_t()
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
        if status:
            raise ValueError(log.value.decode())
        logs.append(log.value.decode())
    return "\n".join(logs)


def usage_of(log: str) -> list[Usage]:
    """One record a kernel and architecture."""
    return [
        Usage(
            kernel=kernel,
            architecture=architecture,
            registers=int(_figure(r"Used (\d+) registers", text)),
            stack=int(_figure(r"(\d+) bytes stack frame", text)),
            spill_stores=int(_figure(r"(\d+) bytes spill stores", text)),
            spill_loads=int(_figure(r"(\d+) bytes spill loads", text)),
        )
        for kernel, architecture, text in _ENTRY.findall(log)
    ]


def _figure(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    if found is None:
        raise ValueError(f"no {pattern!r} in the compiler's log: {text}")
    return found[1]
