"""Attention against a naive oracle in numpy, and paged reads against the contiguous cache bit for bit."""

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from kvsweep.scenarios.demo.attention import ContiguousKv, attention, gather_blocks_torch
from kvsweep.scenarios.demo.bundle import Bundle
from kvsweep.scenarios.demo.model import DType, Model, ModelConfig
from kvsweep.scenarios.demo.synthetic import synthetic_config, synthetic_model

SEED = 20260916


def naive(
    q: Tensor, k: Tensor, v: Tensor, q_positions: list[int], k_positions: list[int], window: int | None
) -> npt.NDArray[np.float64]:
    """Attention one query and one head at a time, in float64, straight from the definition of visibility."""
    heads, n, dim = q.shape
    groups = heads // k.shape[0]
    out = np.zeros((heads, n, dim))
    for head in range(heads):
        for i, q_position in enumerate(q_positions):
            seen = [
                j
                for j, k_position in enumerate(k_positions)
                if k_position <= q_position and (window is None or q_position - k_position < window)
            ]
            keys = k[head // groups].double().numpy()[seen]
            scores = keys @ q[head, i].double().numpy() / np.sqrt(dim)
            weights = np.exp(scores - scores.max())
            out[head, i] = weights @ v[head // groups].double().numpy()[seen] / weights.sum()
    return out


def rows(generator: torch.Generator, heads: int, n: int, dim: int = 16) -> Tensor:
    return torch.randn(heads, n, dim, generator=generator)


@pytest.mark.parametrize("window", [None, 1, 5, 16, 100])
@pytest.mark.parametrize(
    ("q_positions", "k_positions"),
    [
        (list(range(20)), list(range(20))),  # prefill from nothing
        (list(range(20, 27)), list(range(27))),  # a chunk after a cache
        ([26], list(range(27))),  # decode
        ([40, 41, 42], [0, 1, 2, 3, 16, 17, 18, 19, 39, 40, 41, 42]),  # a compacted cache: holes
        ([5, 6], [6, 0, 3, 5, 1]),  # keys in no order
        ([0], [0]),
    ],
)
def test_attention_equals_naive_oracle(q_positions: list[int], k_positions: list[int], window: int | None) -> None:
    generator = torch.Generator().manual_seed(SEED)
    q = rows(generator, 6, len(q_positions))
    k, v = rows(generator, 2, len(k_positions)), rows(generator, 2, len(k_positions))
    got = attention(q, k, v, torch.tensor(q_positions), torch.tensor(k_positions), window)
    np.testing.assert_allclose(got.numpy(), naive(q, k, v, q_positions, k_positions, window), rtol=0, atol=2e-6)


@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("window", [8, 16])
def test_keys_before_the_window_change_no_bit(n: int, window: int) -> None:
    """A paged reader hands over whole blocks; what lies before the window is cut off, not masked."""
    generator = torch.Generator().manual_seed(SEED)
    q, k, v = rows(generator, 6, n), rows(generator, 2, 60), rows(generator, 2, 60)
    q_positions, k_positions = torch.arange(50, 50 + n), torch.arange(60)
    whole = attention(q, k, v, q_positions, k_positions, window)
    cut = 50 - window + 1
    exact = attention(q, k[:, cut : 50 + n], v[:, cut : 50 + n], q_positions, k_positions[cut : 50 + n], window)
    assert torch.equal(whole, exact)


def test_attention_refuses_bad_input() -> None:
    q, k, at = torch.zeros(4, 1, 8), torch.zeros(2, 3, 8), torch.tensor([5])
    keys = torch.arange(3)
    with pytest.raises(ValueError, match=r"q: expected .* heads a multiple of k's"):
        attention(torch.zeros(3, 1, 8), k, k, at, keys)
    with pytest.raises(ValueError, match=r"v: expected the shape of k \(2, 3, 8\), got \(2, 2, 8\)"):
        attention(q, k, k[:, :2], at, keys)
    with pytest.raises(ValueError, match=r"q_positions: expected \[1\] with n >= 1, got \(2,\)"):
        attention(q, k, k, torch.arange(2), keys)
    with pytest.raises(ValueError, match=r"k_positions: expected \[3\], got \(2,\)"):
        attention(q, k, k, at, keys[:2])
    with pytest.raises(ValueError, match=r"window: expected at least 1 token, got 0"):
        attention(q, k, k, at, keys, window=0)
    with pytest.raises(ValueError, match=r"query at position 5 sees no key"):
        attention(q, k, k, at, keys, window=2)
    with pytest.raises(ValueError, match=r"query at position 0 sees no key"):
        attention(torch.zeros(4, 2, 8), k, k, torch.tensor([0, 9]), torch.tensor([3, 2, 1]))


class PagedKv:
    """A paged cache for the test: each layer has its own scattered physical blocks; a free block is full of NaN."""

    def __init__(self, config: ModelConfig, block: int, capacity: int, seed: int) -> None:
        self.config, self.block = config, block
        count = -(-capacity // block)
        generator = np.random.default_rng(seed)
        # Three times the blocks that are needed, so that physical order says nothing.
        self.tables = [torch.from_numpy(generator.permutation(3 * count)[:count]) for _ in config.layers]
        shape = (len(config.layers), 3 * count, 2, config.kv_heads, block, config.head_dim)
        self.pool = torch.full(shape, float("nan"), dtype=config.torch_dtype)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
        table = self.tables[layer]
        for i, position in enumerate(positions.tolist()):
            physical, offset = int(table[position // self.block]), position % self.block
            self.pool[layer, physical, 0, :, offset] = k[:, i]
            self.pool[layer, physical, 1, :, offset] = v[:, i]
        window = self.config.layers[layer].window
        end = int(positions[-1]) + 1
        first = 0 if window is None else max(0, int(positions[0]) - window + 1) // self.block
        used = table[first : -(-end // self.block)]
        keys, values = gather_blocks_torch(self.pool[layer], used, end - first * self.block)
        return attention(q, keys, values, positions, torch.arange(first * self.block, end), window)


def run(model: Model, kv: ContiguousKv | PagedKv, tokens: Tensor, cuts: list[int]) -> list[Tensor]:
    """Logits of the spans between `cuts`, each one forward call."""
    return [model.forward(tokens[a:b], torch.arange(a, b), kv) for a, b in pairwise(cuts)]


@pytest.mark.parametrize("block", [16, 32, 64])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_c2_paged_equals_contiguous_bit_for_bit_on_mixed_layers(dtype: DType, block: int) -> None:
    """C2: full and sliding-window layers, prefill, single steps, a verify of 5, and a second chunk."""
    model = synthetic_model(SEED, synthetic_config(dtype))
    tokens = torch.from_numpy(np.random.default_rng(SEED).integers(0, 256, 230))
    cuts = [0, 150, *range(151, 170), 175, 230]
    plain = run(model, ContiguousKv(model.config, 256), tokens, cuts)
    paged = run(model, PagedKv(model.config, block, 256, SEED), tokens, cuts)
    assert all(torch.equal(a, b) for a, b in zip(plain, paged, strict=True))


def test_c2_paged_equals_contiguous_bit_for_bit_on_the_real_model(smollm2: Bundle) -> None:
    """C2: 30 layers, random physical ids per layer, block 32, fp32."""
    model = smollm2.model
    tokens = torch.tensor(smollm2.tokenizer.encode("We the People of the United States, in Order to form " * 12)[:120])
    cuts = [0, 100, *range(101, 108), 112]
    plain = run(model, ContiguousKv(model.config, 128), tokens, cuts)
    paged = run(model, PagedKv(model.config, 32, 128, SEED), tokens, cuts)
    assert all(torch.equal(a, b) for a, b in zip(plain, paged, strict=True))


def test_contiguous_rows_can_be_taken_back() -> None:
    """Writing again from an earlier position forgets what lay above: the logits are those of the new tokens."""
    model = synthetic_model(SEED)
    kv, fresh = ContiguousKv(model.config, 64), ContiguousKv(model.config, 64)
    prompt, wrong, right = torch.arange(20), torch.tensor([7, 8, 9]), torch.tensor([1, 2])
    for cache in (kv, fresh):
        model.forward(prompt, torch.arange(20), cache)
    model.forward(wrong, torch.arange(20, 23), kv)
    assert kv.length == 23
    got = model.forward(right, torch.arange(20, 22), kv)
    assert kv.length == 22
    assert torch.equal(got, model.forward(right, torch.arange(20, 22), fresh))


def test_contiguous_refuses_gaps_and_overflow() -> None:
    model = synthetic_model(SEED)
    kv = ContiguousKv(model.config, 8)
    with pytest.raises(ValueError, match=r"layer 0 holds 0 tokens, expected consecutive positions"):
        model.forward(torch.tensor([1]), torch.tensor([1]), kv)
    with pytest.raises(ValueError, match=r"expected consecutive positions .* got \[0, 2\]"):
        model.forward(torch.tensor([1, 1]), torch.tensor([0, 2]), kv)
    with pytest.raises(ValueError, match=r"room for 8 tokens, got position 8"):
        model.forward(torch.zeros(9, dtype=torch.int64), torch.arange(9), kv)
    with pytest.raises(ValueError, match=r"capacity: expected 1 to 65536 tokens, got 0"):
        ContiguousKv(model.config, 0)


def test_gather_equals_python_loop() -> None:
    generator = torch.Generator().manual_seed(SEED)
    pool = torch.randn(7, 2, 3, 4, 5, generator=generator)
    ids = [6, 0, 3]
    k, v = gather_blocks_torch(pool, torch.tensor(ids), 10)
    assert k.shape == v.shape == (3, 10, 5)
    for token in range(10):
        for head in range(3):
            assert torch.equal(k[head, token], pool[ids[token // 4], 0, head, token % 4])
            assert torch.equal(v[head, token], pool[ids[token // 4], 1, head, token % 4])
    empty, _ = gather_blocks_torch(pool, torch.tensor([], dtype=torch.int64), 0)
    assert empty.shape == (3, 0, 5)


@pytest.mark.parametrize(
    ("ids", "tokens", "message"),
    [
        ([0, 7], 8, r"ids: expected block ids in \[0, 7\), got 7"),
        ([0, -1], 8, r"ids: expected block ids in \[0, 7\), got -1"),
        ([0, 1], 9, "tokens: expected 5 to 8 tokens in 2 blocks of 4, got 9"),
        ([0, 1], 4, "tokens: expected 5 to 8 tokens in 2 blocks of 4, got 4"),
        ([0], 0, "tokens: expected 1 to 4 tokens in 1 blocks of 4, got 0"),
    ],
)
def test_gather_refuses_bad_input(ids: list[int], tokens: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gather_blocks_torch(torch.zeros(7, 2, 3, 4, 5), torch.tensor(ids), tokens)


def test_gather_refuses_other_shapes_and_dtypes() -> None:
    with pytest.raises(ValueError, match=r"pool_view: expected \[blocks, 2, kv_heads, B, D\], got \(7, 3, 3, 4, 5\)"):
        gather_blocks_torch(torch.zeros(7, 3, 3, 4, 5), torch.tensor([0]), 1)
    with pytest.raises(ValueError, match=r"ids: expected int64\[n\], got torch.int32"):
        gather_blocks_torch(torch.zeros(7, 2, 3, 4, 5), torch.tensor([0], dtype=torch.int32), 1)
