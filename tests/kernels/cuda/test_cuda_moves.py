"""Scatter, gather, move, transfer and poison: the source of the CUDA kernels against the reference, bit for bit."""

import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.kernels.test_moves import BAD_CALLS, random_pool, random_rows

from kvsweep.kernels import KernelArgumentError
from kvsweep.kernels.cuda.kernels import CudaKernels
from kvsweep.kernels.cuda.launch import Launcher
from kvsweep.kernels.cuda.rows import (
    ROW,
    Pool,
    Staged,
    descriptor_bytes,
    join,
    move_rows,
    scatter_rows,
    transfer_rows,
    write_descriptor,
)
from kvsweep.kernels.cuda.simulated import SimulatedDriver

Int32 = npt.NDArray[np.int32]
NORESERVE = 0x4000
"""Linux's MAP_NORESERVE, which the module names from Python 3.13 on."""
# (layers, blocks, bytes a block): whole tiles, a tile and a part, no multiple of 16, one byte.
SHAPES = [(4, 9, 4096), (3, 7, 12288 + 48), (2, 5, 4096 * 3 + 7), (4, 9, 96), (3, 5, 7), (1, 1, 1)]


def i32(*values: int) -> Int32:
    return np.array(values, dtype=np.int32)


@pytest.mark.parametrize(("layers", "blocks", "block_bytes"), SHAPES)
def test_c2_a4_gather_and_scatter_equal_the_reference(
    same: Callable[..., Any], rng: np.random.Generator, layers: int, blocks: int, block_bytes: int
) -> None:
    active = i32(*range(min(1, layers - 1), layers))
    rows = random_rows(rng, active.size, blocks)
    pool = random_pool(rng, layers, blocks, block_bytes)
    staged = rng.integers(0, 256, (rows.ids.size, block_bytes), dtype=np.uint8)
    same("scatter_blocks", staged, pool, active, rows.row_ptr, rows.ids)
    same("gather_blocks", pool, active, rows.row_ptr, rows.ids, np.full_like(staged, 0xA5))
    same("poison_blocks", pool, active, rows.row_ptr, rows.ids, 0xFF)


@pytest.mark.parametrize(("layers", "blocks", "block_bytes"), SHAPES[:-1])
def test_c2_moves_equal_the_reference(
    same: Callable[..., Any], rng: np.random.Generator, layers: int, blocks: int, block_bytes: int
) -> None:
    sources, destinations, row_ptr = [], [], [0]
    for _ in range(layers):
        order, count = rng.permutation(blocks), int(rng.integers(0, blocks // 2 + 1))
        sources += order[:count].tolist()
        destinations += order[count : 2 * count].tolist()
        row_ptr.append(len(sources))
    pool = random_pool(rng, layers, blocks, block_bytes)
    same("move_blocks", pool, i32(*range(layers)), i32(*row_ptr), i32(*sources), i32(*destinations))


def test_c2_blocks_that_are_not_aligned_are_moved_by_the_byte(cuda: CudaKernels, rng: np.random.Generator) -> None:
    whole = rng.integers(0, 256, 1 + 2 * 3 * 4096, dtype=np.uint8)
    expected = whole.copy()
    pool, wanted = whole[1:].reshape(2, 3, 4096), expected[1:].reshape(2, 3, 4096)
    wanted[1, 2], wanted[0, 0] = wanted[1, 0], wanted[0, 1]
    cuda.move_blocks(pool, i32(0, 1), i32(0, 1, 2), i32(1, 0), i32(0, 2))
    assert whole.tobytes() == expected.tobytes()


def test_a4_d7_layers_of_several_groups_go_in_one_launch(rng: np.random.Generator) -> None:
    """Groups of other block sizes, an empty row among them, rows of other lengths: one launch."""
    driver = SimulatedDriver(seed=1, multiprocessors=1)
    pools = [random_pool(rng, 2, 5, 4096 + 16), random_pool(rng, 1, 7, 96), random_pool(rng, 3, 4, 7)]
    expected = [pool.copy() for pool in pools]
    batches, held = [], []
    for pool, wanted in zip(pools, expected, strict=True):
        rows = random_rows(rng, pool.shape[0], pool.shape[1])
        row_ptr, ids = rows.row_ptr.copy(), rows.ids
        staged = rng.integers(0, 256, (ids.size, pool.shape[2]), dtype=np.uint8)
        for layer in range(pool.shape[0]):
            wanted[layer, rows.row(layer)] = staged[row_ptr[layer] : row_ptr[layer + 1]]
        where = driver.borrow(pool)
        given = driver.borrow(staged)
        held.append(given)
        assert where is not None
        assert given is not None
        layers, blocks, block_bytes = pool.shape
        batches.append(
            scatter_rows(
                Staged(given.address, ids.size, block_bytes),
                Pool(where.address, layers, blocks, block_bytes),
                np.arange(layers, dtype=np.int32),
                row_ptr,
                ids,
            )
        )
    launch_once(driver, join(batches))
    assert driver.launches["copy_blocks"] == 1
    for pool, wanted in zip(pools, expected, strict=True):
        assert pool.tobytes() == wanted.tobytes()


def launch_once(driver: SimulatedDriver, batch: Any) -> None:
    memory, stream = driver.allocate(descriptor_bytes(batch.rows.size, batch.entries)), driver.stream()
    buffer = np.zeros(memory.nbytes, dtype=np.uint8)
    placed, used = write_descriptor(batch, buffer, memory.address)
    assert used <= memory.nbytes
    driver.write(memory.address, buffer, stream)
    Launcher(driver).copy(placed, stream)
    driver.synchronize(stream)


def test_c2_ids_past_two_to_the_31_bytes_are_reached(rng: np.random.Generator) -> None:
    """A pool of 6 GiB of which a few pages are touched: block id x block bytes does not fit 32 bits."""
    block_bytes, blocks = 1 << 16, 3 << 15
    with mmap.mmap(-1, blocks * block_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE) as memory:
        pool = np.frombuffer(memory, dtype=np.uint8).reshape(1, blocks, block_bytes)
        last = blocks - 1
        content = rng.integers(0, 256, (2, block_bytes), dtype=np.uint8)
        cuda = CudaKernels(SimulatedDriver(seed=1, multiprocessors=1))
        cuda.scatter_blocks(content, pool, i32(0), i32(0, 2), i32(last, 1 << 15))
        assert (pool[0, last] == content[0]).all()
        cuda.move_blocks(pool, i32(0), i32(0, 1), i32(last), i32(last - 1))
        assert (pool[0, last - 1] == content[0]).all()
        out = np.zeros_like(content)
        cuda.gather_blocks(pool, i32(0), i32(0, 2), i32(last - 1, 1 << 15), out)
        assert (out == content).all()
        assert not pool[0, [0, 1, (1 << 15) - 1, (1 << 15) + 1]].any()
        del pool, cuda


@pytest.mark.parametrize("rows", [0, 2])
def test_an_empty_selection_launches_nothing(cuda: CudaKernels, rows: int) -> None:
    pool = np.ones((2, 3, 16), dtype=np.uint8)
    layers, row_ptr, none = i32(*range(rows)), np.zeros(rows + 1, dtype=np.int32), i32()
    blocks = np.zeros((0, 16), dtype=np.uint8)
    cuda.gather_blocks(pool, layers, row_ptr, none, blocks)
    cuda.scatter_blocks(blocks, pool, layers, row_ptr, none)
    cuda.move_blocks(pool, layers, row_ptr, none, none)
    cuda.poison_blocks(pool, layers, row_ptr, none, 9)
    assert (pool == 1).all()
    assert isinstance(cuda.driver, SimulatedDriver)
    assert not any(cuda.driver.launches.values())


def test_transfer_goes_straight_from_one_pool_to_another(cuda: CudaKernels, rng: np.random.Generator) -> None:
    origin, pool = random_pool(rng, 3, 6, 4096), random_pool(rng, 3, 4, 4096)
    expected = pool.copy()
    expected[0, [3, 1]], expected[2, 0] = origin[0, [5, 3]], origin[2, 0]
    cuda.transfer_blocks(origin, pool, i32(0, 2), i32(0, 2, 3), i32(5, 3, 0), i32(3, 1, 0))
    assert pool.tobytes() == expected.tobytes()


# ---- refusals


@pytest.mark.parametrize(("call", "message"), BAD_CALLS, ids=[message for _, message in BAD_CALLS])
def test_bad_arguments_are_refused_as_by_the_reference(
    monkeypatch: pytest.MonkeyPatch, call: Callable[[], None], message: str
) -> None:
    """The same calls, with the functions of this implementation in place of the reference's."""
    cuda = CudaKernels(SimulatedDriver(seed=1))
    for name in ("gather_blocks", "scatter_blocks", "move_blocks", "poison_blocks"):
        monkeypatch.setitem(call.__globals__, name, getattr(cuda, name))
    with pytest.raises(KernelArgumentError) as caught:
        call()
    assert str(caught.value) == message
    assert isinstance(cuda.driver, SimulatedDriver)
    assert not any(cuda.driver.launches.values())


def test_pools_of_a_transfer_must_fit_and_lie_apart() -> None:
    one, other = Pool(4096, 2, 4, 8), Pool(65536, 2, 4, 16)
    args = (i32(0), i32(0, 1), i32(3), i32(0))
    with pytest.raises(KernelArgumentError, match="pool: expected 2 layers of blocks of 8 bytes, as in the origin"):
        transfer_rows(one, other, *args)
    with pytest.raises(KernelArgumentError, match="pool: expected memory apart from origin"):
        transfer_rows(one, Pool(4096 + 63, 2, 4, 8), *args)
    transfer_rows(one, Pool(4096 + 64, 2, 4, 8), *args)


def test_launches_of_other_kinds_are_not_joined() -> None:
    pool = Pool(4096, 2, 4, 8)
    move = move_rows(pool, i32(0), i32(0, 1), i32(3), i32(0))
    scatter = scatter_rows(Staged(0, 1, 8), pool, i32(0), i32(0, 1), i32(0))
    for wrong in ([], [move, scatter]):
        with pytest.raises(KernelArgumentError, match="batches: expected launches of one kind, at least one"):
            join(wrong)


def test_a_row_is_what_the_source_says() -> None:
    assert ROW.itemsize == 48
    assert [ROW.fields[name][1] for name in ROW.names or ()] == [0, 8, 16, 24, 32, 40, 44]  # type: ignore[index]


@pytest.mark.parametrize("cap", [0, 9])
def test_the_cap_of_a_grid_has_limits(cap: int) -> None:
    with pytest.raises(KernelArgumentError, match=r"blocks_per_multiprocessor: expected an integer in \[1, 8\]"):
        CudaKernels(SimulatedDriver(seed=1), blocks_per_multiprocessor=cap)
