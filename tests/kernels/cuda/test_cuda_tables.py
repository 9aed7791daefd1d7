"""Tables rewritten in place and written whole, at addresses that stay."""

import numpy as np
import pytest
from tests.kernels.cuda.cases import random_tables, remapped

from kvsweep.kernels import Csr, KernelArgumentError
from kvsweep.kernels.cuda.kernels import CudaKernels
from kvsweep.kernels.cuda.launch import Launcher
from kvsweep.kernels.cuda.simulated import SimulatedDriver


@pytest.mark.parametrize(("layers", "slots"), [(1, 1), (3, 7), (5, 600), (2, 257)])
def test_b2_a_remap_in_place_equals_the_reference(cuda: CudaKernels, layers: int, slots: int) -> None:
    for seed in range(2):
        tables, keep = random_tables(np.random.default_rng([20260916, seed]), layers=layers, slots=slots)
        expected, address = remapped(tables, keep), tables.table.ctypes.data
        cuda.remap_tables(tables.table, tables.lengths, keep, generation=tables.generation, shown=7)
        assert tables.table.tolist() == expected, f"seed {seed}"
        assert tables.lengths.tolist() == keep.counts.tolist()
        assert tables.generation.tolist() == [7]
        assert tables.table.ctypes.data == address


def test_b2_a_remap_into_another_row_leaves_the_old_one_to_its_readers(cuda: CudaKernels) -> None:
    """Two table rows of one request: readers of the old generation are still in the first."""
    tables, keep = random_tables(np.random.default_rng(20260916), layers=4, slots=300)
    expected, before = remapped(tables, keep), tables.table.copy()
    driver = cuda.driver
    target, lengths, generation = np.full_like(before, 99), np.zeros_like(tables.lengths), np.zeros(1, dtype=np.int64)
    stream = driver.stream()
    arrays = [tables.table, target, tables.lengths, lengths, generation, keep.row_ptr.copy(), keep.ids.copy()]
    at = [array.address for array in map(driver.borrow, arrays) if array is not None]
    Launcher(driver).remap_tables(
        at[0],
        at[1],
        origin_lengths=at[2],
        lengths=at[3],
        generation=at[4],
        keep_ptr=at[5],
        keep=at[6],
        layers=4,
        slots=300,
        shown=9,
        stream=stream,
    )
    driver.synchronize(stream)
    assert target.tolist() == expected
    assert tables.table.tolist() == before.tolist()
    assert (lengths.tolist(), generation.tolist()) == (keep.counts.tolist(), [9])


def test_a_table_is_written_whole_with_holes_behind(cuda: CudaKernels) -> None:
    driver, stream = cuda.driver, cuda.driver.stream()
    rows = Csr.of([[5, 3], [], list(range(300))])
    table, lengths = np.full((3, 310), 99, dtype=np.int32), np.full(3, 99, dtype=np.int32)
    generation = np.zeros(1, dtype=np.int64)
    at = [each.address for each in map(driver.borrow, (table, lengths, generation, rows.row_ptr, rows.ids)) if each]
    Launcher(driver).write_tables(*at[:3], row_ptr=at[3], ids=at[4], layers=3, slots=310, shown=1 << 40, stream=stream)
    driver.synchronize(stream)
    assert table.tolist() == [row + [-1] * (310 - len(row)) for row in rows.lists()]
    assert (lengths.tolist(), generation.tolist()) == ([2, 0, 300], [1 << 40])


def refusal(keep: list[list[int]], **wrong: np.ndarray) -> str:
    cuda = CudaKernels(SimulatedDriver(seed=1))
    table = np.array([[5, 6, -1, -1], [7, -1, 8, -1]], dtype=np.int32)
    arrays = {"table": table, "lengths": np.array([2, 3], dtype=np.int32), "generation": np.zeros(1, dtype=np.int64)}
    arrays |= wrong
    with pytest.raises(KernelArgumentError) as caught:
        cuda.remap_tables(arrays["table"], arrays["lengths"], Csr.of(keep), generation=arrays["generation"], shown=1)
    assert isinstance(cuda.driver, SimulatedDriver)
    assert cuda.driver.launches["remap_tables"] == 0
    return str(caught.value)


def test_b2_bad_keep_rows_are_refused() -> None:
    assert refusal([[0]]) == "keep: expected 2 rows, as many as layers, got 1 rows"
    assert refusal([[0, 2], []]) == "keep.ids: expected slots in [0, 2), got 2 in row 0"
    assert refusal([[1, 0], []]) == "keep.ids: expected ascending slots, each once, got 0 after 1 in row 0"
    assert refusal([[], [1]]) == "keep.ids: expected slots that hold a block, got empty slot 1 in row 1"
    short = np.zeros(1, dtype=np.int32)
    assert refusal([[], []], lengths=short) == "lengths: expected shape (2,), got shape (1,)"
    assert refusal([[], []], generation=short).startswith("generation: expected a C-contiguous int64 array")
