"""Every barrier is needed, and its absence is seen: each is left out once, and some case must fail."""

import re

import numpy as np
import pytest
from tests.kernels.cuda.cases import DiffCase, plain_plan, plan, random_diff, random_tables, remapped

from kvsweep.kernels import Csr
from kvsweep.kernels.cuda.errors import CudaError
from kvsweep.kernels.cuda.kernels import CudaKernels
from kvsweep.kernels.cuda.shim import Shim, built
from kvsweep.kernels.cuda.simulated import SimulatedDriver
from kvsweep.kernels.cuda.source import module_source

BARRIERS = len(re.findall(re.escape("__syncthreads();"), module_source()))
ORDERS = (0, 1, 20260916)
"""Ascending, descending, shuffled: a race shows in one order or another."""


def hard_plans() -> list[DiffCase]:
    """What random rows seldom meet: the first row alone is short, or alone holds the largest id."""
    none: list[int] = []
    short = DiffCase(Csr.of([[1], list(range(9))]), Csr.of([none, [20]]), Csr.of([none, none]), 32)
    rows = [[599], *([index] for index in range(11))]  # more rows than thread blocks: the first block takes two
    large = DiffCase(Csr.of(rows), Csr.of([none] * 12), Csr.of([none] * 12), 600)
    return [short, large]


def right(kernels: CudaKernels) -> bool:
    """Whether remaps and plans of several shapes are what the reference makes of them."""
    for case in hard_plans():
        if plain_plan(plan(kernels, case, shared=True)) != plain_plan(plan(None, case, shared=True)):
            return False
    for seed in range(2):
        rng = np.random.default_rng([20260916, seed])
        tables, keep = random_tables(rng, layers=4, slots=300)
        expected = remapped(tables, keep)
        kernels.remap_tables(tables.table, tables.lengths, keep, generation=tables.generation, shown=1)
        if tables.table.tolist() != expected or tables.lengths.tolist() != keep.counts.tolist():
            return False
        case = random_diff(rng, rows=12, sequence=600, want=30, tail=(400, 6)[seed], held=60)
        for shared in (False, True):
            if plain_plan(plan(kernels, case, shared=shared)) != plain_plan(plan(None, case, shared=shared)):
                return False
    return True


def caught(skipped: int | None) -> bool:
    for order in ORDERS:
        driver = SimulatedDriver(seed=1, multiprocessors=1, kernels=Shim(built(), order, skipped))
        try:
            if not right(CudaKernels(driver)):
                return True
        except CudaError:
            return True
    return False


def test_the_whole_source_is_right_in_every_order() -> None:
    assert not caught(None)


@pytest.mark.parametrize("number", range(BARRIERS))
def test_a_barrier_that_is_left_out_is_seen(number: int) -> None:
    assert caught(number), f"nothing fails without barrier {number} of the source"
