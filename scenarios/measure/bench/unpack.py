"""VNNI unpack and pack: K and V of one block, and arrays of K or V alone, to both orders of the natural axes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
import torch

from kvsweep.kernels import BlockShape, _native, reference
from kvsweep.kernels.compiled import ISAS, NativeKernels
from kvsweep.scenarios.measure.bench.measure import Case, UInt8, aligned, copy_of

HEADS_FIRST, TOKENS_FIRST = 0, 1
K, V, BOTH = 1, 2, 3
NAMES = {K: "K", V: "V", BOTH: "K and V"}
SHAPE = BlockShape(8, 32, 128, "bfloat16")  # 128 KiB a block
TOTAL = 256 << 20
QUICK_TOTAL = 2 << 20


def cases(native: NativeKernels, rng: np.random.Generator, *, quick: bool) -> Iterator[Case]:
    count = (QUICK_TOTAL if quick else TOTAL) // SHAPE.block_bytes
    packed, natural = aligned((count, SHAPE.block_bytes)), aligned((count, SHAPE.block_bytes))
    packed[...] = rng.integers(0, 256, packed.shape, dtype=np.uint8)
    copies = copy_of(packed.size)
    half = SHAPE.block_bytes // 2
    packed_alone, natural_alone = (
        array.reshape(-1)[: count * half].reshape(count, half) for array in (packed, natural)
    )
    for part in (BOTH, K, V):
        tiles, rows = (packed, natural) if part == BOTH else (packed_alone, natural_alone)
        for order in (HEADS_FIRST, TOKENS_FIRST):
            yield _case(native, "unpack", part, order, tiles, rows, copies)
        yield _case(native, "pack", part, HEADS_FIRST, tiles, rows, copies)
    for part in (K, V):
        yield _case(native, "unpack", part, HEADS_FIRST, packed, natural, copies)
    small = BlockShape(1, 32, 32, "bfloat16")
    yield _short(native, small, aligned((8, small.block_bytes)), aligned((8, small.block_bytes)))


def _case(
    native: NativeKernels,
    verb: Literal["pack", "unpack"],
    part: int,
    order: int,
    packed: UInt8,
    natural: UInt8,
    copies: tuple[UInt8, UInt8],
) -> Case:
    sizes = SHAPE.kv_heads, SHAPE.block_size, SHAPE.head_dim
    isa, threads = ISAS.index(native.isa), native.threads
    kernel = _native.unpack_vnni if verb == "unpack" else _native.pack_vnni
    source, target = (packed, natural) if verb == "unpack" else (natural, packed)
    together = packed.shape[1] == SHAPE.block_bytes
    views = [_views(packed, natural, each, order, together) for each in (K, V) if part & each]
    moved = packed.size if part == BOTH or not together else packed.size // 2

    def ours() -> None:
        kernel(source, target, *sizes, order, part, isa, threads)

    def permute() -> None:
        for tiles, rows in views:
            if verb == "unpack":
                rows.copy_(tiles)
            else:
                tiles.copy_(rows)

    def check() -> bool:
        ours()
        mine = target.copy()
        target[...] = 0
        permute()
        theirs = target.view(np.uint16).reshape(target.shape[0], -1)
        tile = SHAPE.tile_elements
        # Axes (block, heads or all, K or V, elements): a packed block has K and V a head, a natural one has them whole.
        halves = 2 if together else 1
        heads, size = (SHAPE.kv_heads, tile) if verb == "pack" else (1, SHAPE.kv_heads * tile)
        axes = (target.shape[0], heads, halves, size)
        chosen = [each - 1 for each in (K, V) if part & each] if together else [0]
        same = theirs.reshape(axes)[:, :, chosen] == mine.view(np.uint16).reshape(axes)[:, :, chosen]
        target[...] = mine
        return bool(same.all())

    axes = "to (head, token, dim)" if order == HEADS_FIRST else "to (token, head, dim)"
    inside = ", out of blocks of K and V" if together and part != BOTH else ""
    return Case(
        path=f"{verb} {NAMES[part]}{inside}, {axes}",
        size=f"{packed.shape[0]:,} blocks, {moved >> 20} MiB",
        ours=ours,
        check=check,
        peers={"torch permute": permute},
        reads=[copies[0][:moved]],
        copy=(copies[0][:moved], copies[1][:moved]),
        limit="stream copy",
    )


def _views(packed: UInt8, natural: UInt8, part: int, order: int, together: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The same elements as two tensors of one shape: tiles permuted to rows, and rows. K as pairs of 32 bits."""
    heads, tokens, dims = SHAPE.kv_heads, SHAPE.block_size, SHAPE.head_dim
    halves = 2 if together else 1
    half = halves - 1 if part == V else 0
    if part == K:
        tiles = torch.from_numpy(packed.view(np.int32)).view(-1, heads, halves, tokens // 16, dims // 2, 16)[:, :, half]
        tiles = tiles.permute(0, 1, 2, 4, 3)  # n, h, t/16, t%16, d/2
        rows = torch.from_numpy(natural.view(np.int32))
        if order == HEADS_FIRST:
            return tiles, rows.view(-1, halves, heads, tokens // 16, 16, dims // 2)[:, half]
        return tiles, rows.view(-1, halves, tokens // 16, 16, heads, dims // 2)[:, half].permute(0, 3, 1, 2, 4)
    tiles = torch.from_numpy(packed.view(np.int16)).view(-1, heads, halves, dims // 16, tokens // 2, 16, 2)[:, :, half]
    tiles = tiles.permute(0, 1, 3, 5, 2, 4)  # n, h, t/2, t%2, d/16, d%16
    rows = torch.from_numpy(natural.view(np.int16))
    if order == HEADS_FIRST:
        return tiles, rows.view(-1, halves, heads, tokens // 2, 2, dims // 16, 16)[:, half]
    return tiles, rows.view(-1, halves, tokens // 2, 2, heads, dims // 16, 16)[:, half].permute(0, 3, 1, 2, 4, 5)


def _short(native: NativeKernels, shape: BlockShape, packed: UInt8, natural: UInt8) -> Case:
    def check() -> bool:
        native.unpack_vnni(packed, shape, natural)
        expected = np.empty_like(natural)
        reference.unpack_vnni(packed, shape, expected)
        return bool((natural == expected).all())

    return Case(
        path="unpack K and V, short",
        size=f"{packed.shape[0]} x {shape.block_bytes >> 10} KiB",
        ours=lambda: native.unpack_vnni(packed, shape, natural),
        check=check,
        peers={"numpy": lambda: reference.unpack_vnni(packed, shape, natural)},
        reads=[packed],
        copy=copy_of(packed.size),
        limit="stream copy",
    )
