"""Attention over explicit key positions, the plain contiguous KV cache, and the gather that a paged reader uses.

Physical placement never changes a bit of the result; the order and the number of the keys do. So every reader here
hands over its keys by ascending position, and keys that no query can see are cut off rather than masked.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kvsweep.scenarios.demo.model import ModelConfig


def attention(
    q: Tensor, k: Tensor, v: Tensor, q_positions: Tensor, k_positions: Tensor, window: int | None = None
) -> Tensor:
    """Causal grouped-query attention of one request; a key is visible iff q - window < k <= q in token positions.

    q                    [heads, n, D]; heads a multiple of kv_heads
    k, v                 [kv_heads, m, D]
    q_positions          int64[n] ascending
    k_positions          int64[m]; ascending in every reader whose bits are to be compared with another's
    window               tokens of a sliding layer, None for a full one
    Returns [heads, n, D]. Raises ValueError naming the argument, or the query that sees no key at all.
    """
    _check(q, k, v, q_positions, k_positions, window)
    first, last = int(q_positions[0]), int(q_positions[-1])
    if bool((k_positions[1:] > k_positions[:-1]).all()):
        floor = -1 if window is None else first - window
        start = int(torch.searchsorted(k_positions, floor, right=True))
        stop = int(torch.searchsorted(k_positions, last, right=True))
        k, v, k_positions = k[:, start:stop], v[:, start:stop], k_positions[start:stop]
    n, kv_heads = q.shape[1], k.shape[0]
    if window is None and n > 1 and torch.equal(q_positions, k_positions):
        # A prefill from nothing: the fused causal kernel skips the hidden half.
        return F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True, enable_gqa=True)[0]
    mask = _mask(q_positions, k_positions, window)
    # The query heads that share a KV head become rows of one product, so that no key is copied for them.
    groups = q.shape[0] // kv_heads
    rows = q.reshape(kv_heads, groups * n, q.shape[2])[None]
    wide = None if mask is None else mask.repeat(groups, 1)
    return F.scaled_dot_product_attention(rows, k[None], v[None], attn_mask=wide)[0].reshape(q.shape)


def _mask(q_positions: Tensor, k_positions: Tensor, window: int | None) -> Tensor | None:
    """bool [n, m], True where visible; None when every query sees every key."""
    if k_positions.shape[0] == 0:
        raise ValueError(f"k_positions: the query at position {int(q_positions[0])} sees no key")
    visible = k_positions[None, :] <= q_positions[:, None]
    if window is not None:
        visible &= k_positions[None, :] > q_positions[:, None] - window
    if bool(visible.all()):
        return None
    blind = ~visible.any(dim=1)
    if bool(blind.any()):
        raise ValueError(f"k_positions: the query at position {int(q_positions[blind][0])} sees no key")
    return visible


def _check(q: Tensor, k: Tensor, v: Tensor, q_positions: Tensor, k_positions: Tensor, window: int | None) -> None:
    if q.ndim != 3 or k.ndim != 3 or q.shape[2] != k.shape[2] or q.shape[0] % k.shape[0]:
        raise ValueError(
            "q: expected [heads, n, D] with heads a multiple of k's and the same D, "
            f"got q {tuple(q.shape)} and k {tuple(k.shape)}"
        )
    if v.shape != k.shape:
        raise ValueError(f"v: expected the shape of k {tuple(k.shape)}, got {tuple(v.shape)}")
    if q.shape[1] < 1 or tuple(q_positions.shape) != (q.shape[1],):
        raise ValueError(f"q_positions: expected [{q.shape[1]}] with n >= 1, got {tuple(q_positions.shape)}")
    if tuple(k_positions.shape) != (k.shape[1],):
        raise ValueError(f"k_positions: expected [{k.shape[1]}], got {tuple(k_positions.shape)}")
    if window is not None and window < 1:
        raise ValueError(f"window: expected at least 1 token, got {window}")


class ContiguousKv:
    """The plain reference cache: one row a position, nothing paged, nothing dropped.

    Rows may be written again from any position already reached; what lay above is forgotten, which is how a rejected
    draft is taken back.
    """

    def __init__(self, config: ModelConfig, capacity: int, dtype: torch.dtype | None = None) -> None:
        """Room for `capacity` tokens, 1 to the context, in `dtype` (default: the model's). Raises ValueError."""
        if not 1 <= capacity <= config.context:
            raise ValueError(f"capacity: expected 1 to {config.context} tokens, got {capacity}")
        self.config = config
        self.capacity = capacity
        shape = (len(config.layers), 2, config.kv_heads, capacity, config.head_dim)
        self._rows = torch.zeros(shape, dtype=dtype or config.torch_dtype)
        self._positions = torch.arange(capacity)
        self._lengths = [0] * len(config.layers)

    @property
    def length(self) -> int:
        """Tokens stored in every layer."""
        return min(self._lengths)

    def rows(self, layer: int) -> tuple[Tensor, Tensor]:
        """Views of the stored k and v of `layer`, each [kv_heads, length, D]."""
        length = self._lengths[layer]
        return self._rows[layer, 0, :, :length], self._rows[layer, 1, :, :length]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
        """As `KvCache.attend`. Raises ValueError for a gap in the positions or a position past the capacity."""
        first, n = int(positions[0]), positions.shape[0]
        if first > self._lengths[layer] or int(positions[-1]) != first + n - 1:
            raise ValueError(
                f"positions: layer {layer} holds {self._lengths[layer]} tokens, expected consecutive positions from "
                f"there or below, got {positions.tolist()}"
            )
        if first + n > self.capacity:
            raise ValueError(f"positions: the cache has room for {self.capacity} tokens, got position {first + n - 1}")
        self._rows[layer, 0, :, first : first + n] = k
        self._rows[layer, 1, :, first : first + n] = v
        self._lengths[layer] = first + n
        keys, values = self.rows(layer)
        return attention(q, keys, values, positions, self._positions[: first + n], self.config.layers[layer].window)


def gather_blocks_torch(pool_view: Tensor, ids: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
    """Copy one layer's physical blocks, in the order of `ids`, into contiguous key and value rows.

    pool_view  [blocks, 2, kv_heads, B, D]: keys, then values, of one layer
    ids        int64[n], each in [0, blocks); the last block may be partly filled, the others are whole
    tokens     valid tokens in the n blocks, in ((n - 1) * B, n * B]; 0 when n is 0
    Returns (k, v), each [kv_heads, tokens, D]. Raises ValueError naming the argument.
    """
    if pool_view.ndim != 5 or pool_view.shape[1] != 2:
        raise ValueError(f"pool_view: expected [blocks, 2, kv_heads, B, D], got {tuple(pool_view.shape)}")
    if ids.ndim != 1 or ids.dtype != torch.int64:
        raise ValueError(f"ids: expected int64[n], got {ids.dtype} of shape {tuple(ids.shape)}")
    blocks, _, kv_heads, size, dim = pool_view.shape
    n = ids.shape[0]
    if tokens > n * size or tokens <= (n - 1) * size or tokens < 0:
        low = max((n - 1) * size + 1, 0)
        raise ValueError(f"tokens: expected {low} to {n * size} tokens in {n} blocks of {size}, got {tokens}")
    outside = (ids < 0) | (ids >= blocks)
    if bool(outside.any()):
        raise ValueError(f"ids: expected block ids in [0, {blocks}), got {int(ids[outside][0])}")
    # Selecting along the permuted view writes every row once, where it belongs; selecting first would copy twice.
    picked = pool_view.permute(1, 2, 0, 3, 4).index_select(2, ids).view(2, kv_heads, n * size, dim)
    return picked[0, :, :tokens], picked[1, :, :tokens]
