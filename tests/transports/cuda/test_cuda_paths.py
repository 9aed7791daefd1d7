"""How blocks cross the link: runs that are joined, the choice between the paths, and its measurement."""

from itertools import count

import numpy as np
import numpy.typing as npt
import pytest
from tests.transports.conftest import small_layout

from kvsweep.kernels.cuda.launch import Launcher
from kvsweep.kernels.cuda.rows import Pool, Staged, gather_rows, transfer_rows
from kvsweep.kernels.cuda.simulated import SimulatedDriver
from kvsweep.ledger.errors import LayoutError
from kvsweep.transports.blocks import BlockMemory
from kvsweep.transports.cuda.device import CudaDevice
from kvsweep.transports.cuda.options import CudaOptions
from kvsweep.transports.cuda.paths import Measured, PathChoice, calibrate, merge_runs

HOST, DEVICE = 1 << 20, 1 << 30


def i32(*values: int) -> npt.NDArray[np.int32]:
    return np.array(values, dtype=np.int32)


def runs_of(source: list[int], destination: list[int], row_ptr: list[int] | None = None) -> list[tuple[int, int, int]]:
    """(destination block, source block, blocks) of layer 0 or beyond, in blocks of 64 bytes."""
    rows = i32(*(row_ptr or [0, len(source)]))
    pools = Pool(HOST, 3, 100, 64), Pool(DEVICE, 3, 100, 64)
    layers = np.arange(rows.size - 1, dtype=np.int32)
    found = merge_runs(transfer_rows(*pools, layers, rows, i32(*source), i32(*destination)))
    columns = (found.destination.astype(np.int64) - DEVICE, found.source.astype(np.int64) - HOST, found.nbytes)
    return [(int(to) // 64, int(at) // 64, int(size) // 64) for to, at, size in zip(*columns, strict=True)]


def test_neighbours_on_both_sides_become_one_copy() -> None:
    assert runs_of([4, 5, 6, 9, 10], [1, 2, 3, 4, 5]) == [(1, 4, 3), (4, 9, 2)]
    assert runs_of([4, 5, 6], [1, 2, 9]) == [(1, 4, 2), (9, 6, 1)]
    assert runs_of([5, 4], [2, 1]) == [(2, 5, 1), (1, 4, 1)]
    assert runs_of([7], [7]) == [(7, 7, 1)]
    assert runs_of([], []) == []


def test_a4_the_last_block_of_a_layer_and_the_first_of_the_next_may_be_one_run() -> None:
    """They are neighbours in memory, on both sides: the bytes are right whichever way they are copied."""
    assert runs_of([98, 99, 0], [98, 99, 0], [0, 2, 3]) == [(98, 98, 3)]
    assert runs_of([98, 99, 1], [98, 99, 0], [0, 2, 3]) == [(98, 98, 2), (100, 101, 1)]


def test_blocks_on_their_way_into_staging_are_joined_by_their_sources() -> None:
    batch = gather_rows(Pool(HOST, 1, 10, 64), i32(0), i32(0, 4), i32(2, 3, 7, 8), Staged(DEVICE, 4, 64))
    found = merge_runs(batch)
    assert (found.source - HOST).tolist() == [128, 448]
    assert (found.destination - DEVICE).tolist() == [0, 128]
    assert found.nbytes.tolist() == [128, 128]


MEASURED = (
    Measured(4096, 4096, pull_s=1.0, batch_s=5.0),
    Measured(4096, 16, pull_s=1.0, batch_s=0.5),
    Measured(262144, 16, pull_s=2.0, batch_s=1.0),
)


@pytest.mark.parametrize(
    ("block_bytes", "blocks", "runs", "path"),
    [
        (4096, 4096, 4096, "pull"),  # small pieces, many
        (8192, 10_000, 10_000, "pull"),
        (4096, 16, 16, "batch"),  # few
        (1 << 20, 8, 8, "batch"),  # large
        (4096, 4096, 16, "pull"),  # small blocks in long runs: 1 s for 16 MiB by the kernel, 4 s by the engine
        (0, 0, 0, "batch"),
    ],
)
def test_the_faster_path_at_the_nearest_measured_point_is_taken(
    block_bytes: int, blocks: int, runs: int, path: str
) -> None:
    assert PathChoice("auto", MEASURED).choose(block_bytes, blocks, runs) == path


def test_long_runs_make_the_engine_the_faster_one() -> None:
    """The engine copies runs, the kernel blocks: joining neighbours decides."""
    quick = (*MEASURED[:2], Measured(262144, 16, pull_s=2.0, batch_s=0.1))
    assert PathChoice("auto", quick).choose(4096, 4096, 4096) == "pull"
    assert PathChoice("auto", quick).choose(4096, 4096, 64) == "batch"


def test_a_path_that_is_asked_for_is_taken_unmeasured() -> None:
    assert PathChoice("pull").choose(1 << 20, 1, 1) == "pull"
    assert PathChoice("batch").choose(1, 1 << 20, 1 << 20) == "batch"
    with pytest.raises(LayoutError, match='measured: expected at least one measurement for "auto", got none'):
        PathChoice("auto")


def test_calibration_measures_every_size_and_count_and_gives_its_memory_back() -> None:
    driver = SimulatedDriver(seed=1)
    free, ticks = driver.free_bytes, count()
    measured = calibrate(
        driver, Launcher(driver), lambda: float(next(ticks)), sizes=(64, 4096), counts=(2, 8), most_bytes=1 << 16
    )
    assert [(one.piece_bytes, one.count) for one in measured] == [(64, 2), (64, 8), (4096, 2), (4096, 8)]
    assert {(one.pull_s, one.batch_s) for one in measured} == {(1.0, 1.0)}
    assert driver.free_bytes == free
    assert driver.launches["copy_blocks"] == driver.calls["copy_batch"] == 4 * 3
    smaller = calibrate(driver, Launcher(driver), lambda: 0.0, sizes=(64, 4096), counts=(2, 8), most_bytes=1 << 15)
    assert [(one.piece_bytes, one.count) for one in smaller] == [(64, 2), (64, 8), (4096, 2)]
    with pytest.raises(LayoutError, match="most_bytes: expected at least 16384, got 1000"):
        calibrate(driver, Launcher(driver), lambda: 0.0, sizes=(4096,), counts=(2,), most_bytes=1000)


def test_a_device_keeps_what_it_was_given_or_has_measured() -> None:
    layout, given = small_layout(), MEASURED
    driver = SimulatedDriver(seed=1)
    cpu = BlockMemory.of_cpu(layout, 2)
    device = CudaDevice(driver, layout, cpu=cpu, device_blocks=(2, 2, 2), options=CudaOptions(measured=given))
    assert device.options.measured == given
    assert driver.calls.get("copy_batch", 0) == 0
