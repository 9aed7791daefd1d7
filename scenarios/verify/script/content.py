"""KV of a scripted run: what every token has in every layer, so that any byte read anywhere can be checked."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from kvsweep.ledger.ids import RequestKey
from kvsweep.ledger.layout import Layout

KV = npt.NDArray[np.float32]
TAGS = 1 << 20
BLOCKS_KEPT = 65536


def tag_of(key: RequestKey) -> int:
    """Number of one life of a request: other lives, and other requests, have other KV."""
    return zlib.crc32(f"{key.request_id}/{key.request_epoch}".encode()) % TAGS


class MadeUpKv(ABC):
    """What every token of a life has in every layer. Blocks are made once."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._blocks: dict[tuple[int, int, int], KV] = {}

    def shape(self, layer: int) -> tuple[int, int, int, int]:
        """Of one whole block, all heads: (2, kv_heads, block_size, head_dim)."""
        one = self.layout.layers[layer]
        return 2, one.kv_heads, self.layout.block_size, one.head_dim

    @abstractmethod
    def tokens(self, tag: int, layer: int, first: int, count: int) -> tuple[KV, KV]:
        """K and V, float32 [kv_heads, count, head_dim], of tokens from `first` on."""

    def block(self, tag: int, layer: int, logical: int) -> KV:
        """float32 [2 (K, V), kv_heads, block_size, head_dim] of one whole block, all heads."""
        known = self._blocks.get((tag, layer, logical))
        if known is None:
            size = self.layout.block_size
            known = self._blocks[tag, layer, logical] = np.stack(self.tokens(tag, layer, logical * size, size))
            if len(self._blocks) > BLOCKS_KEPT:
                del self._blocks[next(iter(self._blocks))]
        return known


class SyntheticKv(MadeUpKv):
    """K and V are a function of (life, layer, head, token); each of the four shows in the bytes."""

    def tokens(self, tag: int, layer: int, first: int, count: int) -> tuple[KV, KV]:
        one = self.layout.layers[layer]
        k = np.empty((one.kv_heads, count, one.head_dim), dtype=np.float32)
        v = np.empty_like(k)
        token = np.arange(first, first + count, dtype=np.float32)
        head = np.arange(one.kv_heads, dtype=np.float32)[:, None]
        k[..., 0], k[..., 1] = tag, token
        v[..., 0], v[..., 1] = layer * 16 + head, -1.0 - token
        return k, v


def rank_part(blocks: KV, layout: Layout, layer: int, rank: int, ranks: int) -> npt.NDArray[Any]:
    """One rank's heads of [..., kv_heads, block_size, head_dim]."""
    start, stop = layout.heads_of_rank(layer, rank, ranks)
    return blocks[..., start:stop, :, :]
