"""Scoring the whole blocks of one layer: how much attention each would get. Higher is better.

Pure functions over NumPy arrays; the same inputs give the same bits on one machine and thread count. They score whole
blocks only: tokens after the last whole block take their part of the softmax and get no score. A NaN or infinity
in the inputs comes out as one, and ranking the scores then refuses it with its place.
"""

import numpy as np
import numpy.typing as npt

from kvsweep.kernels.checks import check_array, check_integer, check_shape
from kvsweep.kernels.errors import KernelArgumentError

Float32 = npt.NDArray[np.float32]

_EXACT_IN_FLOAT32 = 2**24


def attention_mass(
    queries: Float32, keys: Float32, query_positions: npt.NDArray[np.integer], block_size: int
) -> Float32:
    """Attention probability that falls on each whole block, summed over heads and queries.

    Query head h reads kv head h // (heads / kv_heads). Key i stands at position i and is visible to a query at
    position p where i <= p; probabilities are the softmax of q·k / sqrt(D) over the visible keys.

    queries          float32[heads, w, D], w >= 1, rotated
    keys             float32[kv_heads, n, D], rotated; heads is a multiple of kv_heads
    query_positions  int[w], token positions, 0 or above; n or above sees every key
    block_size       tokens, at least 1
    Returns float32[n // block_size]; the sum is at most heads * w. Raises KernelArgumentError.
    """
    size = check_integer("block_size", block_size, least=1)
    grouped = _queries_by_kv_head(queries, keys, "keys")
    count, dimensions = keys.shape[1:]
    positions = _check_positions(query_positions, queries.shape[1])
    blocks = count // size
    if blocks == 0:
        return np.zeros(0, dtype=np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        weights = np.matmul(grouped, keys.transpose(0, 2, 1))
        weights *= np.float32(1.0 / np.sqrt(dimensions))
        if positions.min() < count - 1:
            hidden = np.arange(count) > positions[:, None]
            by_query = weights.reshape(keys.shape[0], -1, positions.size, count)
            np.copyto(by_query, np.float32(-np.inf), where=hidden)
        weights -= weights.max(axis=2, keepdims=True)
        np.exp(weights, out=weights)
        share = weights[:, :, : blocks * size].reshape(*weights.shape[:2], blocks, size).sum(axis=3)
        share /= weights.sum(axis=2, keepdims=True)
        mass: Float32 = share.sum(axis=(0, 1), dtype=np.float64).astype(np.float32)
    return mass


def block_bounds(keys: Float32, block_size: int) -> tuple[Float32, Float32]:
    """The smallest and the largest key of each whole block, by dimension.

    keys        float32[kv_heads, n, D]
    block_size  tokens, at least 1
    Returns (key_min, key_max), float32[kv_heads, n // block_size, D] each. Raises KernelArgumentError.
    """
    size = check_integer("block_size", block_size, least=1)
    check_array("keys", keys, np.float32, 3)
    kv_heads, count, dimensions = keys.shape
    blocks = count // size
    rows = keys[:, : blocks * size].reshape(kv_heads, blocks, size, dimensions)
    return rows.min(axis=2), rows.max(axis=2)


def quest(queries: Float32, key_min: Float32, key_max: Float32) -> Float32:
    """The largest logit that a key inside each block's bounds could have, for the best query, summed over heads.

    Per head and query the bound is the sum over d of max(q_d * min_d, q_d * max_d), over sqrt(D): no key of the
    block gives more. Then the largest over queries, then the sum over heads. Every block counts as visible.

    queries           float32[heads, w, D], w >= 1, rotated
    key_min, key_max  float32[kv_heads, blocks, D], from block_bounds; heads is a multiple of kv_heads
    Returns float32[blocks]. Raises KernelArgumentError.
    """
    grouped = _queries_by_kv_head(queries, key_min, "key_min")
    check_array("key_max", key_max, np.float32, 3)
    check_shape("key_max", key_max, key_min.shape)
    kv_heads, blocks, dimensions = key_min.shape
    with np.errstate(invalid="ignore", over="ignore"):
        bound = np.matmul(np.maximum(grouped, 0), key_max.transpose(0, 2, 1))
        bound += np.matmul(np.minimum(grouped, 0), key_min.transpose(0, 2, 1))
        best = bound.reshape(kv_heads, -1, queries.shape[1], blocks).max(axis=2)
        scores: Float32 = (best.sum(axis=(0, 1), dtype=np.float64) / np.sqrt(dimensions)).astype(np.float32)
    return scores


def recency(whole_blocks: int) -> Float32:
    """The later the block, the higher: its own index.

    whole_blocks  number of whole blocks, at most 2**24 (float32 tells no more apart)
    Returns float32[whole_blocks]. Raises KernelArgumentError.
    """
    return np.arange(check_integer("whole_blocks", whole_blocks, least=0, most=_EXACT_IN_FLOAT32), dtype=np.float32)


def _queries_by_kv_head(queries: Float32, keys: Float32, argument: str) -> Float32:
    """float32[kv_heads, heads / kv_heads * w, D], the queries that read each kv head."""
    check_array("queries", queries, np.float32, 3)
    check_array(argument, keys, np.float32, 3)
    heads, window, dimensions = queries.shape
    kv_heads = keys.shape[0]
    if heads < 1 or window < 1 or dimensions < 1:
        raise KernelArgumentError("queries", "at least one head, query and dimension", f"shape {queries.shape}")
    if keys.shape[2] != dimensions:
        raise KernelArgumentError(argument, f"{dimensions} dimensions, as queries has", f"shape {keys.shape}")
    if kv_heads < 1 or heads % kv_heads:
        raise KernelArgumentError(argument, f"a number of kv heads that divides {heads} heads", f"shape {keys.shape}")
    return queries.reshape(kv_heads, -1, dimensions)


def _check_positions(positions: npt.NDArray[np.integer], window: int) -> npt.NDArray[np.int64]:
    if positions.dtype not in (np.int32, np.int64) or positions.shape != (window,):
        raise KernelArgumentError(
            "query_positions",
            f"int32[{window}] or int64[{window}]",
            f"dtype {positions.dtype}, shape {positions.shape}",
        )
    if positions.min() < 0:
        raise KernelArgumentError("query_positions", "positions of 0 or above", str(positions.min()))
    return positions.astype(np.int64)
