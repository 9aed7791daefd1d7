"""The kernels' own source as a library for this CPU: slow, exact, and the same text that a GPU gets."""

import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from kvsweep.kernels.cuda.errors import CudaError, NoDevice
from kvsweep.kernels.cuda.source import FOLDER, KERNELS, SYNCING, module_source

FLAGS = ("-O2",)
SANITIZED = ("-O1", "-g", "-fsanitize=address", "-fno-omit-frame-pointer")
_STATUS = {
    1: "a barrier in a kernel that is said to have none",
    2: "a barrier that only some threads reached",
    3: "no memory for the threads' stacks",
}


class Shim:
    """Kernels by name, run at once on the calling thread.

    order    in which the threads of a block and the blocks of a grid run: 0 ascending, 1 descending, above a seed
    skipped  the barrier of the source that is left out, counted in the text from 0; None for none
    """

    def __init__(self, library: Path, order: int = 0, skipped: int | None = None) -> None:
        self.order = order
        self.skipped = skipped
        self._library = ctypes.CDLL(str(library))

    def run(self, kernel: str, *, grid: int, threads: int, arguments: tuple[np.generic, ...]) -> None:
        """Run one kernel to its end. Raises CudaError where its barriers are not as declared."""
        values = [np.array([value]) for value in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(value.ctypes.data for value in values))
        function = getattr(self._library, f"shim_{kernel}")
        self._library.shim_skip(-1 if self.skipped is None else self.skipped)
        status = function(grid, threads, pointers, ctypes.c_uint(self.order), int(kernel in SYNCING))
        if status:
            raise CudaError(f"launch {kernel}", _STATUS[status])


def build(source: str, folder: Path, flags: tuple[str, ...] = FLAGS) -> Path:
    """Compile one text of kernels for this CPU into `folder`. Raises NoDevice without a compiler that takes it."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        raise NoDevice("shim", "no C++ compiler (c++ or g++) is on the path")
    text = "\n".join([f'#include "{FOLDER / "shim.hpp"}"', source, *(f"SHIM_KERNEL({name})" for name in KERNELS)])
    library = folder / "kernels_on_cpu.so"
    command = [compiler, "-x", "c++", "-std=c++20", "-fPIC", "-shared", "-Wno-unknown-pragmas", *flags]
    done = subprocess.run([*command, "-", "-o", str(library)], input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoDevice("shim", f"{compiler} does not take the kernels: {done.stderr.strip()}")
    return library


@functools.cache
def built() -> Path:
    """The library of this installation's kernels, built once a process."""
    return build(module_source(), Path(_folder().name))


@functools.cache
def _folder() -> "tempfile.TemporaryDirectory[str]":
    """Where it is built; gone with the process."""
    return tempfile.TemporaryDirectory(prefix="kvsweep-shim-")
