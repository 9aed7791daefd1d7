"""The CUDA kernels on the CPU: their own source through the shim, threads in several orders."""

import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.kernels.native.conftest import outcome

from kvsweep.kernels import reference
from kvsweep.kernels.cuda.kernels import CudaKernels
from kvsweep.kernels.cuda.simulated import SimulatedDriver

if shutil.which("c++") is None and shutil.which("g++") is None:
    collect_ignore_glob = ["test_*.py"]

SEED = 20260916
ORDERS = {"ascending": 0, "descending": 1, "shuffled": SEED}
"""In which the threads of a block and the blocks of a grid run."""


@pytest.fixture(params=ORDERS)
def cuda(request: pytest.FixtureRequest) -> CudaKernels:
    """Kernels over a simulated device of one multiprocessor, so that grids are capped and loop."""
    return CudaKernels(SimulatedDriver(seed=SEED, order=ORDERS[request.param], multiprocessors=1))


@pytest.fixture
def same(cuda: CudaKernels) -> Callable[..., Any]:
    """Calls one kernel in both forms on copies of the arguments; both must do the same. Returns what both gave."""

    def compare(kernel: str, *arguments: Any, **named: Any) -> Any:
        expected = outcome(getattr(reference, kernel), *arguments, **named)
        assert outcome(getattr(cuda, kernel), *arguments, **named) == expected
        return expected[0]

    return compare


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """One seed a test, from its name; pytest shows the name."""
    return np.random.default_rng([SEED, *request.node.name.encode()])
