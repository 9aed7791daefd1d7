"""E2: scores of whole blocks, against plain loops in Python floats."""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from kvsweep.kernels import KernelArgumentError, NonFiniteInput, rank_blocks
from kvsweep.runtime.scorers import attention_mass, block_bounds, quest, recency

Float32 = npt.NDArray[np.float32]

SIZES = [1, 2, 32, 64]


def normal(rng: np.random.Generator, *shape: int) -> Float32:
    return rng.standard_normal(shape, dtype=np.float32)


def naive_mass(queries: Float32, keys: Float32, positions: list[int], size: int) -> list[float]:
    heads, window, dim = queries.shape
    kv_heads, count, _ = keys.shape
    mass = [0.0] * (count // size)
    for head in range(heads):
        mine = keys[head * kv_heads // heads].tolist()
        for index in range(window):
            query = queries[head, index].tolist()
            visible = [i for i in range(count) if i <= positions[index]]
            logits = [sum(a * b for a, b in zip(query, mine[i], strict=True)) / math.sqrt(dim) for i in visible]
            top = max(logits)
            weights = [math.exp(logit - top) for logit in logits]
            for i, weight in zip(visible, weights, strict=True):
                if i // size < len(mass):
                    mass[i // size] += weight / sum(weights)
    return mass


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("seed", range(2))
def test_e2_attention_mass_equals_the_naive_softmax(size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = 2 * size + int(rng.integers(0, size)) + 1
    queries, keys = normal(rng, 4, 3, 8), normal(rng, 2, count, 8)
    # One query sees the first key only, one sees all, one stands past the end.
    positions = np.array([0, count - 1, count + 5])
    mass = attention_mass(queries, keys, positions, size)
    assert mass.dtype == np.float32
    assert mass.tolist() == pytest.approx(naive_mass(queries, keys, positions.tolist(), size), rel=1e-5), f"seed {seed}"


def test_e2_tokens_after_the_last_whole_block_get_no_score_but_take_their_share() -> None:
    rng = np.random.default_rng(3)
    queries, keys = normal(rng, 2, 1, 4), normal(rng, 1, 7, 4)
    partial = attention_mass(queries, keys, np.array([6]), 4)
    assert partial.shape == (1,)
    assert 0 < partial[0] < 2
    whole = attention_mass(queries, keys[:, :4].copy(), np.array([6]), 4)
    assert whole[0] == pytest.approx(2)


@pytest.mark.parametrize(("count", "blocks"), [(0, 0), (31, 0), (32, 1), (33, 1)])
def test_e2_one_token_short_is_no_block(count: int, blocks: int) -> None:
    keys = np.ones((1, count, 4), dtype=np.float32)
    assert attention_mass(np.ones((1, 1, 4), dtype=np.float32), keys, np.array([40]), 32).shape == (blocks,)
    low, high = block_bounds(keys, 32)
    assert low.shape == high.shape == (1, blocks, 4)


def test_attention_mass_survives_large_logits_and_repeats_its_bits() -> None:
    rng = np.random.default_rng(5)
    queries, keys = normal(rng, 6, 8, 16) * 1000, normal(rng, 3, 100, 16) * 1000
    first = attention_mass(queries, keys, np.arange(92, 100), 16)
    assert np.isfinite(first).all()
    assert first.sum() <= 6 * 8 * (1 + 1e-6)
    assert first.tobytes() == attention_mass(queries, keys, np.arange(92, 100), 16).tobytes()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_e2_a_broken_key_comes_out_as_a_refused_score(value: float) -> None:
    rng = np.random.default_rng(6)
    queries, keys = normal(rng, 2, 2, 4), normal(rng, 1, 16, 4)
    keys[0, 3, 1] = value
    scores = attention_mass(queries, keys, np.array([14, 15]), 4)
    with pytest.raises(NonFiniteInput):
        rank_blocks(scores[None])
    bounds = quest(queries, *block_bounds(keys, 4))
    with pytest.raises(NonFiniteInput) as caught:
        rank_blocks(bounds[None])
    assert caught.value.column == 0


@pytest.mark.parametrize("size", SIZES)
def test_block_bounds_equal_the_naive_ones(size: int) -> None:
    rng = np.random.default_rng(size)
    keys = normal(rng, 2, 3 * size + size // 2, 5)
    low, high = block_bounds(keys, size)
    for head in range(2):
        for block in range(3):
            rows = keys[head, block * size : (block + 1) * size].tolist()
            assert low[head, block].tolist() == [min(column) for column in zip(*rows, strict=True)]
            assert high[head, block].tolist() == [max(column) for column in zip(*rows, strict=True)]


def test_quest_equals_the_naive_bound_and_no_key_exceeds_it() -> None:
    rng = np.random.default_rng(9)
    size, dim = 8, 6
    queries, keys = normal(rng, 4, 3, dim), normal(rng, 2, 5 * size, dim)
    low, high = block_bounds(keys, size)
    scores = quest(queries, low, high)
    assert scores.shape == (5,)
    assert scores.dtype == np.float32
    for block in range(5):
        expected, reached = 0.0, 0.0
        for head in range(4):
            kv = head // 2
            bounds, logits = [], []
            for query in queries[head].tolist():
                ends = zip(query, low[kv, block].tolist(), high[kv, block].tolist(), strict=True)
                bounds.append(sum(max(q * least, q * most) for q, least, most in ends) / math.sqrt(dim))
                for key in keys[kv, block * size : (block + 1) * size].tolist():
                    logits.append(sum(a * b for a, b in zip(query, key, strict=True)) / math.sqrt(dim))
            expected += max(bounds)
            reached += max(logits)
        assert scores[block] == pytest.approx(expected, rel=1e-5)
        assert reached <= scores[block] + 1e-5


def test_quest_is_exact_for_blocks_of_one_token() -> None:
    rng = np.random.default_rng(10)
    queries, keys = normal(rng, 2, 1, 4), normal(rng, 1, 6, 4)
    exact = [sum(float(queries[head, 0] @ key) for head in range(2)) / 2 for key in keys[0]]
    assert quest(queries, *block_bounds(keys, 1)).tolist() == pytest.approx(exact, rel=1e-5)


def test_recency_ranks_the_last_block_first() -> None:
    assert rank_blocks(recency(4)[None]).tolist() == [[3, 2, 1, 0]]
    assert recency(0).shape == (0,)


ONE = np.ones((4, 2, 8), dtype=np.float32)
KEYS = np.ones((2, 16, 8), dtype=np.float32)
AT = np.array([14, 15])

BAD_CALLS: list[tuple[Callable[[], object], str]] = [
    (lambda: attention_mass(ONE, KEYS, AT, 0), "block_size: expected an integer of at least 1, got 0"),
    (lambda: block_bounds(KEYS, 0), "block_size: expected an integer of at least 1, got 0"),
    (
        lambda: attention_mass(ONE.astype(np.float64), KEYS, AT, 4),
        "queries: expected a C-contiguous float32 array with 3 axes, got dtype float64",
    ),
    (
        lambda: attention_mass(ONE, KEYS[0], AT, 4),
        "keys: expected a C-contiguous float32 array with 3 axes, got shape (16, 8)",
    ),
    (
        lambda: attention_mass(ONE[:, :0].copy(), KEYS, AT, 4),
        "queries: expected at least one head, query and dimension, got shape (4, 0, 8)",
    ),
    (
        lambda: attention_mass(ONE, KEYS[:, :, :4].copy(), AT, 4),
        "keys: expected 8 dimensions, as queries has, got shape (2, 16, 4)",
    ),
    (
        lambda: attention_mass(ONE[:3].copy(), KEYS, AT, 4),
        "keys: expected a number of kv heads that divides 3 heads, got shape (2, 16, 8)",
    ),
    (
        lambda: attention_mass(ONE, KEYS, AT[:1], 4),
        "query_positions: expected int32[2] or int64[2], got dtype int64, shape (1,)",
    ),
    (
        lambda: attention_mass(ONE, KEYS, AT - 15, 4),
        "query_positions: expected positions of 0 or above, got -1",
    ),
    (
        lambda: quest(ONE, KEYS, KEYS[:, :4].copy()),
        "key_max: expected shape (2, 16, 8), got shape (2, 4, 8)",
    ),
    (
        lambda: quest(ONE, KEYS[:, :, :4].copy(), KEYS),
        "key_min: expected 8 dimensions, as queries has, got shape (2, 16, 4)",
    ),
    (lambda: recency(-1), "whole_blocks: expected an integer in [0, 16777216], got -1"),
    (lambda: recency(2**24 + 1), "whole_blocks: expected an integer in [0, 16777216], got 16777217"),
]


@pytest.mark.parametrize(("call", "message"), BAD_CALLS, ids=[message for _, message in BAD_CALLS])
def test_bad_argument_is_refused_with_its_name(call: Callable[[], object], message: str) -> None:
    with pytest.raises(KernelArgumentError) as caught:
        call()
    assert str(caught.value) == message
