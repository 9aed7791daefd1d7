"""Run by a test in a process with the address sanitizer: `python sanitized.py LIBRARY [overrun]`.

Every kernel on arrays without a spare byte, against the reference; with `overrun` one launch whose id is out of range,
as it would be if the checks before it were wrong.
"""

import sys
from pathlib import Path

import numpy as np

from kvsweep.kernels import BlockShape, Csr, reference
from kvsweep.kernels.cuda.kernels import CudaKernels
from kvsweep.kernels.cuda.launch import Launcher
from kvsweep.kernels.cuda.rows import Pool, descriptor_bytes, poison_rows, write_descriptor
from kvsweep.kernels.cuda.shim import Shim
from kvsweep.kernels.cuda.simulated import SimulatedDriver


def equal(kernels: CudaKernels, name: str, *arguments: object, outputs: list[int]) -> None:
    ours = [each.copy() if isinstance(each, np.ndarray) else each for each in arguments]
    getattr(reference, name)(*arguments)
    getattr(kernels, name)(*ours)
    for index in outputs:
        if not np.array_equal(arguments[index], ours[index]):  # type: ignore[arg-type]
            raise SystemExit(f"{name}: argument {index} differs from the reference")


def everything(kernels: CudaKernels) -> None:
    rng = np.random.default_rng(20260916)
    layers, row_ptr = np.array([0, 2], dtype=np.int32), np.array([0, 2, 5], dtype=np.int32)
    ids, free = np.array([4, 0, 1, 2, 4], dtype=np.int32), np.array([3, 1, 0, 3, 5], dtype=np.int32)
    for size in (1, 17, 4096, 8192 + 24):
        pool = rng.integers(0, 256, (3, 6, size), dtype=np.uint8)
        staged = rng.integers(0, 256, (5, size), dtype=np.uint8)
        equal(kernels, "scatter_blocks", staged, pool, layers, row_ptr, ids, outputs=[1])
        equal(kernels, "gather_blocks", pool, layers, row_ptr, ids, staged, outputs=[4])
        equal(kernels, "move_blocks", pool, layers, row_ptr, ids, free, outputs=[0])
        equal(kernels, "poison_blocks", pool, layers, row_ptr, ids, 255, outputs=[0])
    shape = BlockShape(3, 32, 64, "bfloat16")
    blocks = rng.integers(0, 256, (2, shape.block_bytes), dtype=np.uint8)
    equal(kernels, "unpack_vnni", blocks, shape, np.zeros_like(blocks), outputs=[2])
    equal(kernels, "pack_vnni", blocks, shape, np.zeros_like(blocks), outputs=[2])
    want, tail, held = Csr.of([[1, 95], [0]]), Csr.of([[2], [64, 3, 31]]), Csr.of([[-1, 1], [32]])
    for shared in (False, True):
        plan = kernels.plan_diff(want, tail, held, sequence_blocks=96, shared_table=shared)
        expected = reference.plan_diff(want, tail, held, sequence_blocks=96, shared_table=shared)
        if plan.upload.lists() != expected.upload.lists() or plan.pad.lists() != expected.pad.lists():
            raise SystemExit("plan_diff differs from the reference")
    table = np.arange(600, dtype=np.int32).reshape(2, 300)
    lengths, generation = np.full(2, 300, dtype=np.int32), np.zeros(1, dtype=np.int64)
    keep = Csr.of([list(range(1, 300)), []])
    kernels.remap_tables(table, lengths, keep, generation=generation, shown=3)
    if table[0, :299].tolist() != list(range(1, 300)) or (table[1] != -1).any():
        raise SystemExit("remap_tables differs")


def overrun(driver: SimulatedDriver) -> None:
    """One block behind the pool."""
    pool = np.zeros((1, 4, 4096), dtype=np.uint8)
    batch = poison_rows(
        Pool(pool.ctypes.data, 1, 5, 4096),  # one more than there are
        np.zeros(1, dtype=np.int32),
        np.array([0, 1], dtype=np.int32),
        np.array([4], dtype=np.int32),
    )
    memory, stream = driver.allocate(descriptor_bytes(1, 1)), driver.stream()
    buffer = np.zeros(memory.nbytes, dtype=np.uint8)
    placed, _ = write_descriptor(batch, buffer, memory.address)
    driver.write(memory.address, buffer, stream)
    Launcher(driver).poison(placed, 0, stream)
    driver.synchronize(stream)


def main(library: str, *what: str) -> None:
    for order in (0, 1):
        driver = SimulatedDriver(seed=1, multiprocessors=1, kernels=Shim(Path(library), order))
        if what:
            overrun(driver)
        else:
            everything(CudaKernels(driver))
    sys.stdout.write("all equal\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
