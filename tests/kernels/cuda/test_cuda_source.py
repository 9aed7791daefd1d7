"""The source itself: it includes nothing, its signatures are as declared, and the shim sees barriers that are not."""

import re
from pathlib import Path

import numpy as np
import pytest

from kvsweep.kernels import KernelArgumentError
from kvsweep.kernels.cuda.errors import CudaError, NoDevice
from kvsweep.kernels.cuda.shim import Shim, build
from kvsweep.kernels.cuda.source import FILES, FOLDER, KERNELS, SYNCING, arguments_of, module_source

KERNEL = re.compile(r'extern "C" __global__ void (\w+)\(([^)]*)\)\s*\{(.*?)^\}', re.DOTALL | re.MULTILINE)


def test_every_file_is_part_of_the_source_and_includes_nothing() -> None:
    assert sorted(FILES) == sorted(path.name for path in FOLDER.glob("*.cu"))
    assert "#include" not in module_source()
    assert all(f'#line 1 "{name}"' in module_source() for name in FILES)


def test_the_declared_arguments_are_those_of_the_source() -> None:
    letters = {"int": "i", "long long": "q"}
    found = {}
    for name, parameters, _ in KERNEL.findall(module_source()):
        kinds = [re.sub(r"\s*\w+$", "", each.strip()) for each in parameters.split(",")]
        found[name] = "".join("p" if kind.endswith("*") else letters[kind] for kind in kinds)
    assert found == KERNELS


def test_the_kernels_that_are_said_to_wait_are_those_that_do() -> None:
    """Directly or through a helper that waits, as the scan does."""
    waits = {
        name for name, _, body in KERNEL.findall(module_source()) if re.search(r"__syncthreads|scan\(|emit\(", body)
    }
    assert waits == SYNCING


@pytest.mark.parametrize(
    ("kernel", "values", "message"),
    [
        ("copy", (), "kernel: expected copy_blocks or poison_blocks or unpack_blocks"),
        ("copy_blocks", (1, 2), "arguments: expected 7 for copy_blocks, got 2"),
        (
            "copy_blocks",
            (1, 2, 3, 4, 5, 2**31, 7),
            "arguments[5] of copy_blocks: expected an integer in [-2147483648, ",
        ),
        ("copy_blocks", (-1, 2, 3, 4, 5, 6, 7), "arguments[0] of copy_blocks: expected an integer in [0, "),
    ],
)
def test_arguments_that_do_not_fit_are_refused(kernel: str, values: tuple[int, ...], message: str) -> None:
    with pytest.raises(KernelArgumentError) as caught:
        arguments_of(kernel, *values)
    assert str(caught.value).startswith(message)


def test_addresses_are_64_bits_and_counts_are_32() -> None:
    given = arguments_of("write_tables", 2**63, 2, 3, 4, 5, 6, 7, 2**40)
    assert [value.dtype.name for value in given] == ["uint64"] * 5 + ["int32", "int32", "int64"]


# ---- the shim


def shim_of(tmp_path: Path, body: str, name: str) -> Shim:
    """All kernels empty but one, which gets this body."""
    types = {"p": "int*", "i": "int", "q": "long long"}
    texts = []
    for kernel, letters in KERNELS.items():
        parameters = ", ".join(f"{types[letter]} a{at}" for at, letter in enumerate(letters))
        texts.append(f'extern "C" __global__ void {kernel}({parameters}) {{ {body if kernel == name else ""} }}')
    return Shim(build("\n".join(texts), tmp_path, ("-O0",)))


def test_a_barrier_in_a_kernel_that_is_said_to_have_none_is_reported(tmp_path: Path) -> None:
    shim = shim_of(tmp_path, "__syncthreads();", "copy_blocks")
    with pytest.raises(CudaError, match="launch copy_blocks: a barrier in a kernel that is said to have none"):
        shim.run("copy_blocks", grid=1, threads=2, arguments=arguments_of("copy_blocks", *[0] * 7))


def test_a_barrier_that_only_some_threads_reach_is_reported(tmp_path: Path) -> None:
    shim = shim_of(tmp_path, "if (threadIdx.x > 0) __syncthreads();", "diff_count")
    with pytest.raises(CudaError, match="launch diff_count: a barrier that only some threads reached"):
        shim.run("diff_count", grid=1, threads=3, arguments=arguments_of("diff_count", *[0] * 11))


def test_every_thread_of_every_block_runs_once(tmp_path: Path) -> None:
    body = "a0[blockIdx.x * blockDim.x + threadIdx.x] += 1 + gridDim.x;"
    shim = shim_of(tmp_path, body, "copy_blocks")
    for order in (0, 1, 7):
        shim.order = order
        seen = np.zeros(3 * 5 + 1, dtype=np.int32)
        arguments = arguments_of("copy_blocks", seen.ctypes.data, *[0] * 6)
        shim.run("copy_blocks", grid=3, threads=5, arguments=arguments)
        assert seen.tolist() == [4] * 15 + [0]


def test_source_that_does_not_compile_is_reported(tmp_path: Path) -> None:
    with pytest.raises(NoDevice, match="does not take the kernels"):
        build("this is no kernel", tmp_path)
