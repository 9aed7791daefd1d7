"""Gather, scatter and move of whole blocks in a large pool."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
import torch

from kvsweep.kernels.compiled import NativeKernels
from kvsweep.scenarios.measure.bench.measure import Case, UInt8, aligned, copy_of

BLOCK_BYTES = (8 << 10, 16 << 10, 32 << 10, 64 << 10)
POOL_BYTES, MOVED_BYTES = 2 << 30, 256 << 20
QUICK_POOL, QUICK_MOVED = 8 << 20, 2 << 20
LAYERS = np.zeros(1, dtype=np.int32)


class Moving:
    """One pool, read as blocks of any size, and a buffer for what is gathered."""

    def __init__(self, native: NativeKernels, rng: np.random.Generator, *, quick: bool) -> None:
        self.native, self.rng = native, rng
        # "memcpy per block" is the same loop without vectors of ours: the scalar form calls memcpy for every block.
        self.plain = NativeKernels(isa="scalar")
        self.moved = QUICK_MOVED if quick else MOVED_BYTES
        self.bytes: UInt8 = aligned((QUICK_POOL if quick else POOL_BYTES,))
        self.staged: UInt8 = aligned((self.moved,))
        self.other: UInt8 = aligned((self.moved,))
        self.copy = copy_of(self.moved)
        self.sizes = BLOCK_BYTES[:1] if quick else BLOCK_BYTES

    def pool(self, block_bytes: int) -> UInt8:
        return self.bytes.reshape(1, -1, block_bytes)

    def drawn(self, block_bytes: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """(row pointers, block ids), each id once."""
        ids = self.rng.permutation(self.bytes.size // block_bytes)[:count].astype(np.int32)
        return np.array([0, count], dtype=np.int32), ids

    def gathers(self) -> Iterator[Case]:
        for block_bytes in self.sizes:
            yield self.gather(block_bytes, self.moved // block_bytes)
        yield self.gather(8 << 10, 8)

    def gather(self, block_bytes: int, count: int) -> Case:
        pool, (pointers, ids) = self.pool(block_bytes), self.drawn(block_bytes, count)
        out = self.staged[: count * block_bytes].reshape(count, block_bytes)
        tensor, index = torch.from_numpy(pool[0]), torch.from_numpy(ids)
        result, long_ids = torch.from_numpy(out), ids.astype(np.intp)
        from_address, to_address, listed = pool.ctypes.data, out.ctypes.data, ids.tolist()

        def memmove() -> None:
            for at, block in enumerate(listed):
                ctypes.memmove(to_address + at * block_bytes, from_address + block * block_bytes, block_bytes)

        return Case(
            path="gather",
            size=f"{count:,} x {block_bytes >> 10} KiB",
            ours=lambda: self.native.gather_blocks(pool, LAYERS, pointers, ids, out),
            check=lambda: self._gathered(pool, pointers, ids, out),
            peers={
                "torch.index_select(out)": lambda: torch.index_select(tensor, 0, index, out=result),
                "np.take(out, clip)": lambda: np.take(pool[0], long_ids, axis=0, out=out, mode="clip"),
                "memcpy a block": lambda: self.plain.gather_blocks(pool, LAYERS, pointers, ids, out),
                "memmove loop": memmove,
            },
            reads=[out],
            copy=(self.copy[0][: out.size], self.copy[1][: out.size]),
            limit="stream copy",
        )

    def _gathered(self, pool: UInt8, pointers: np.ndarray, ids: np.ndarray, out: UInt8) -> bool:
        out[...] = 0
        pool[0, ids, :8] = self.rng.integers(0, 256, (ids.size, 8), dtype=np.uint8)
        pool[0, ids, -8:] = self.rng.integers(0, 256, (ids.size, 8), dtype=np.uint8)
        self.native.gather_blocks(pool, LAYERS, pointers, ids, out)
        return bool((out == pool[0, ids]).all())

    def scatters(self) -> Iterator[Case]:
        for block_bytes in self.sizes:
            yield self.scatter(block_bytes, self.moved // block_bytes)
            yield self.move(block_bytes, self.moved // block_bytes)
        yield self.scatter(8 << 10, 8)
        yield self.move(8 << 10, 8)

    def scatter(self, block_bytes: int, count: int) -> Case:
        pool, (pointers, ids) = self.pool(block_bytes), self.drawn(block_bytes, count)
        staged = self.staged[: count * block_bytes].reshape(count, block_bytes)
        tensor, index, source = torch.from_numpy(pool[0]), torch.from_numpy(ids).long(), torch.from_numpy(staged)

        def check() -> bool:
            staged[...] = self.rng.integers(0, 256, (count, 1), dtype=np.uint8)
            self.native.scatter_blocks(staged, pool, LAYERS, pointers, ids)
            return bool((pool[0, ids] == staged).all())

        def assign() -> None:
            pool[0, ids] = staged

        return Case(
            path="scatter",
            size=f"{count:,} x {block_bytes >> 10} KiB",
            ours=lambda: self.native.scatter_blocks(staged, pool, LAYERS, pointers, ids),
            check=check,
            peers={
                "torch index_copy_": lambda: tensor.index_copy_(0, index, source),
                "numpy assignment": assign,
                "memcpy a block": lambda: self.plain.scatter_blocks(staged, pool, LAYERS, pointers, ids),
            },
            reads=[staged],
            copy=(self.copy[0][: staged.size], self.copy[1][: staged.size]),
            limit="stream copy",
        )

    def move(self, block_bytes: int, count: int) -> Case:
        pool, (_, ids) = self.pool(block_bytes), self.drawn(block_bytes, 2 * count)
        pointers = np.array([0, count], dtype=np.int32)
        source, target = ids[:count].copy(), ids[count:].copy()
        between = self.other[: count * block_bytes].reshape(count, block_bytes)

        def check() -> bool:
            expected = pool[0, source]
            self.native.move_blocks(pool, LAYERS, pointers, source, target)
            return bool((pool[0, target] == expected).all())

        def two_steps() -> None:
            self.native.gather_blocks(pool, LAYERS, pointers, source, between)
            self.native.scatter_blocks(between, pool, LAYERS, pointers, target)

        def assign() -> None:
            pool[0, target] = pool[0, source]

        return Case(
            path="move",
            size=f"{count:,} x {block_bytes >> 10} KiB",
            ours=lambda: self.native.move_blocks(pool, LAYERS, pointers, source, target),
            check=check,
            peers={"gather, then scatter (native)": two_steps, "numpy": assign},
            reads=[between],
            copy=(self.copy[0][: between.size], self.copy[1][: between.size]),
            limit="stream copy",
        )
