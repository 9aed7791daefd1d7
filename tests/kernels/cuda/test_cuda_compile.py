"""Every kernel compiles for the GPUs it is meant for, and keeps its values in registers."""

import pytest
from tests.kernels.cuda.compilers import ARCHITECTURES, Usage, find_compilers, usage_of

from kvsweep.kernels.cuda.source import KERNELS, module_source

COMPILERS = find_compilers()
MOST_REGISTERS = 128
"""A thread block of 256 threads with more than that leaves a multiprocessor to itself alone."""


def faults(usage: list[Usage]) -> list[str]:
    return [
        f"{one.kernel} on {one.architecture}: {one.stack} bytes of stack, {one.spill_stores + one.spill_loads} spilled"
        for one in usage
        if one.stack or one.spill_stores or one.spill_loads
    ]


@pytest.mark.skipif(not COMPILERS, reason="neither nvcc nor an NVRTC wheel is installed")
@pytest.mark.parametrize("name", COMPILERS or ["nvcc"])
def test_every_kernel_compiles_without_stack_or_spills(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    usage = usage_of(COMPILERS[name](module_source()))
    with capsys.disabled():
        figures = ", ".join(f"{one.kernel} {one.architecture} {one.registers}" for one in usage)
        print(f"\n{name}, registers a thread (stack and spills 0): {figures}")  # noqa: T201 - J2: figures are shown
    assert {(one.kernel, one.architecture) for one in usage} == {(k, a) for k in KERNELS for a in ARCHITECTURES}
    assert faults(usage) == []
    assert max(one.registers for one in usage) <= MOST_REGISTERS


@pytest.mark.skipif(not COMPILERS, reason="neither nvcc nor an NVRTC wheel is installed")
def test_a_kernel_that_spills_is_seen() -> None:
    """An array indexed by data cannot stay in registers."""
    source = """extern "C" __global__ void spilling(int* at, int n) {
      int held[64];
      for (int i = 0; i < n; ++i) held[at[i] & 63] = at[i + 1];
      at[0] = held[at[2] & 63];
    }"""
    compile = next(iter(COMPILERS.values()))
    assert faults(usage_of(compile(source)))


@pytest.mark.skipif(not COMPILERS, reason="neither nvcc nor an NVRTC wheel is installed")
def test_what_a_compiler_refuses_is_an_error() -> None:
    with pytest.raises(ValueError, match="error"):
        next(iter(COMPILERS.values()))("this is no kernel")
