"""The kernels' source: one text out of several files, and what each kernel takes."""

import functools
from pathlib import Path

import numpy as np

from kvsweep.kernels.errors import KernelArgumentError

FOLDER = Path(__file__).resolve().parent
FILES = ("common.cu", "copy.cu", "packing.cu", "tables.cu", "diff.cu")
OPTIONS = ("-std=c++17",)

# One letter a parameter: p an address, i an int, q a long long.
KERNELS: dict[str, str] = {
    "copy_blocks": "ppppiii",
    "poison_blocks": "pppiiii",
    "unpack_blocks": "ppppiiii",
    "pack_blocks": "ppppiiii",
    "write_tables": "pppppiiq",
    "remap_tables": "pppppppiiq",
    "diff_count": "ppppppiippp",
    "diff_emit": "pppiippiipppp",
}
SYNCING = frozenset({"remap_tables", "diff_count", "diff_emit"})
"""Kernels with a barrier: their threads have to be run side by side."""

_TYPES: dict[str, type[np.uint64] | type[np.int32] | type[np.int64]] = {"p": np.uint64, "i": np.int32, "q": np.int64}


@functools.cache
def module_source() -> str:
    """All kernels as one text that includes nothing; compilers name the file and line of what they find wrong."""
    return "\n".join(f'#line 1 "{name}"\n{(FOLDER / name).read_text(encoding="utf-8")}' for name in FILES)


def arguments_of(kernel: str, *values: int) -> tuple[np.generic, ...]:
    """The values in the kernel's own types. Raises KernelArgumentError for another kernel, number or size."""
    types = KERNELS.get(kernel)
    if types is None:
        raise KernelArgumentError("kernel", " or ".join(KERNELS), repr(kernel))
    if len(values) != len(types):
        raise KernelArgumentError("arguments", f"{len(types)} for {kernel}", str(len(values)))
    for index, (letter, value) in enumerate(zip(types, values, strict=True)):
        limits = np.iinfo(_TYPES[letter])
        if not limits.min <= value <= limits.max:
            expected = f"an integer in [{limits.min}, {limits.max}]"
            raise KernelArgumentError(f"arguments[{index}] of {kernel}", expected, str(value))
    return tuple(_TYPES[letter](value) for letter, value in zip(types, values, strict=True))
