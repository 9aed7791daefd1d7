"""Nothing beyond an array is read or written: each array ends where unmapped memory begins.

A sanitizer does not see masked vector loads; the processor does. One byte too far ends the test process.
"""

import ctypes
import mmap
from typing import Any

import numpy as np
import pytest

from kvsweep.kernels import Csr, reference
from kvsweep.kernels.layout import BlockShape, Packing

PAGE = mmap.PAGESIZE
PROT_NONE = 0


def at_the_edge(array: np.ndarray) -> np.ndarray:
    """A copy whose last byte is the last one before a page that may not be touched. Keeps its mapping alive."""
    pages = -(-array.nbytes // PAGE) + 1
    memory = mmap.mmap(-1, pages * PAGE)
    whole = np.frombuffer(memory, dtype=np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    guard = ctypes.c_void_p(whole.ctypes.data + (pages - 1) * PAGE)
    assert libc.mprotect(guard, ctypes.c_size_t(PAGE), PROT_NONE) == 0, ctypes.get_errno()
    end = (pages - 1) * PAGE
    copy = whole[end - array.nbytes : end].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def csr(*rows: Any) -> Csr:
    ragged = Csr.of(rows)
    return Csr(at_the_edge(ragged.row_ptr), at_the_edge(ragged.ids))


@pytest.mark.parametrize("block_bytes", [1, 63, 64, 100, 2000, 2048, 2112])
def test_blocks_end_at_the_edge(native: Any, rng: np.random.Generator, block_bytes: int) -> None:
    """2,200 blocks of 2,000 bytes pass the size from which the caches are bypassed."""
    count = 2_200
    pool = at_the_edge(rng.integers(0, 256, (1, count + 1, block_bytes), dtype=np.uint8))
    layers = at_the_edge(np.zeros(1, dtype=np.int32))
    rows = csr([*rng.permutation(count), count][-count:])
    out = at_the_edge(np.zeros((count, block_bytes), dtype=np.uint8))
    native.gather_blocks(pool, layers, rows.row_ptr, rows.ids, out)
    assert (out == pool[0, rows.ids]).all()
    native.scatter_blocks(out[::-1].copy(), pool, layers, rows.row_ptr, rows.ids)
    assert (pool[0, rows.ids] == out[::-1]).all()
    order = np.append(rng.permutation(count), count).astype(np.int32)  # the last area of the pool is written last
    source, target = order[: count // 2], order[-(count // 2) :]
    expected = pool[0, source]
    native.move_blocks(pool, layers, csr(source).row_ptr, at_the_edge(source), at_the_edge(target))
    assert (pool[0, target] == expected).all()


@pytest.mark.parametrize("sizes", [(1, 32, 32), (2, 32, 128), (3, 64, 64)])
@pytest.mark.parametrize("count", [1, 300])
def test_tiles_end_at_the_edge(native: Any, rng: np.random.Generator, sizes: tuple[int, int, int], count: int) -> None:
    """Coming tiles are asked for ahead of time, past the last one too; asking touches nothing."""
    shape = BlockShape(*sizes, "bfloat16")
    blocks = at_the_edge(rng.integers(0, 256, (count, shape.block_bytes), dtype=np.uint8))
    for kernel in ("pack_vnni", "unpack_vnni"):
        out, expected = at_the_edge(np.zeros_like(blocks)), np.empty_like(blocks)
        getattr(native, kernel)(blocks, shape, out)
        getattr(reference, kernel)(blocks, shape, expected)
        assert (out == expected).all()


@pytest.mark.parametrize("packing", list(Packing))
@pytest.mark.parametrize("count", [1, 31, 32, 33])
def test_tokens_of_the_last_block_end_at_the_edge(
    native: Any, rng: np.random.Generator, count: int, packing: Packing
) -> None:
    shape = BlockShape(2, 32, 32, "bfloat16")
    pool = at_the_edge(rng.integers(0, 256, (1, 4, shape.block_bytes), dtype=np.uint8))
    expected = pool.copy()
    tokens, to = rng.permutation(64)[:count] + 64, [0, 1][: -(-count // 32)]
    lists = [at_the_edge(np.array(each, dtype=np.int32)) for each in ([0], [0, count], tokens, to)]
    native.pack_tokens(pool, *lists, shape, packing)
    reference.pack_tokens(expected, *lists, shape, packing)
    assert (pool == expected).all()


@pytest.mark.parametrize("size", [1, 7, 15, 16, 17, 33, 500])
@pytest.mark.parametrize("shared", [False, True])
def test_lists_of_ids_end_at_the_edge(native: Any, rng: np.random.Generator, size: int, shared: bool) -> None:
    order = rng.permutation(1_001)
    want, held = [np.sort(order[:size]), order[: size // 2]], [order[size // 2 : size + 9], order[:size]]
    lists = csr(*want), csr(order[size:], order[size:]), csr(*held)
    plan = native.plan_diff(*lists, sequence_blocks=1_001, shared_table=shared)
    expected = reference.plan_diff(*lists, sequence_blocks=1_001, shared_table=shared)
    assert plan.upload.lists() == expected.upload.lists()
    assert native.row_classes(lists[0]).tolist() == [0, 0 if size == size // 2 else 1]
    owned, referenced = (
        at_the_edge(order[:size].astype(np.int32)),
        at_the_edge(order[size // 3 : size].astype(np.int32)),
    )
    retired = native.retired_blocks(owned, referenced, blocks=1_001)
    assert retired.tolist() == sorted(order[: size // 3].tolist())
    keep = csr(np.arange(size))
    assert native.remap_rows(csr(order[:size]), keep).ids.tolist() == order[:size].tolist()


@pytest.mark.parametrize("n", [1, 15, 16, 17, 63, 65, 4_095, 4_097, 5_001])
def test_scores_end_at_the_edge(native: Any, rng: np.random.Generator, n: int) -> None:
    from kvsweep.kernels import _native

    scores = at_the_edge(rng.standard_normal((2, n)).astype(np.float32))
    isa = ("scalar", "avx2", "avx512").index(native.isa)
    for k in sorted({1, n // 3, n - 1, n} - {0}):
        for emit, plain in ((0, reference.select_top), (1, reference.select_ascending)):
            out = at_the_edge(np.zeros((2, k), dtype=np.int32))
            _native.select_top(scores, out, emit, isa, 1)
            assert (out == plain(scores, k)).all()
