"""Quest's bounds from vLLM's cache: every order of keys gives the same, and nothing is scored from half of them."""

import numpy as np
import pytest
import torch

from kvsweep.ledger.errors import LayoutError
from kvsweep.ledger.ids import RequestKey
from kvsweep.transports.vllm.scoring import Float32, Scoring, key_bounds

HEADS, BLOCK, DIM, LAYERS = 2, 32, 64, 2
KEY = RequestKey("r", 1)


def block_of(keys: torch.Tensor, order: str) -> torch.Tensor:
    """One block [heads, tokens, 2 * dim] that holds these keys [heads, tokens, dim] in a kernel's order; V is noise."""
    flat = torch.full((HEADS, 2 * BLOCK * DIM), 1e6)
    for token in range(BLOCK):
        for d in range(DIM):
            packed = (token // 16) * 16 * DIM + (d // 2) * 32 + (token % 16) * 2 + d % 2
            flat[:, packed if order == "amx" else d * BLOCK + token] = keys[:, token, d]
    return flat.reshape(HEADS, BLOCK, 2 * DIM)


@pytest.mark.parametrize("order", ["vec", "vec16", "amx"])
def test_bounds_are_those_of_the_keys_whatever_their_order(order: str) -> None:
    keys = torch.randn(HEADS, BLOCK, DIM, generator=torch.Generator().manual_seed(1))
    low, high = key_bounds(block_of(keys, order), head_dim=DIM, block_size=BLOCK, order=order)
    assert np.array_equal(low, keys.amin(dim=1).numpy())
    assert np.array_equal(high, keys.amax(dim=1).numpy())


def test_an_order_that_is_not_known_is_refused() -> None:
    with pytest.raises(LayoutError, match="order of keys"):
        key_bounds(torch.zeros(HEADS, BLOCK, 2 * DIM), head_dim=DIM, block_size=BLOCK, order="rvv")


def sums(queries: Float32, low: Float32, high: Float32) -> Float32:
    out: Float32 = (high.max(axis=(0, 2)) + queries.sum()).astype(np.float32)
    return out


def make() -> Scoring:
    return Scoring(rank=1, layers=LAYERS, kv_heads=HEADS, head_dim=DIM, block_size=BLOCK, order="vec", score=sums)


def test_scores_come_from_each_layers_bounds_and_the_last_query_of_the_row() -> None:
    scoring, cache = make(), torch.zeros(20, HEADS, BLOCK, 2 * DIM)
    cache[4], cache[7] = 1.0, 2.0
    for layer in range(LAYERS):
        scoring.note_layer(layer, cache * (layer + 1), [(KEY, 0, 4), (KEY, 18, 7)])
        scoring.note_layer(layer, cache, [(KEY, at, 0) for at in range(1, 18)])
    scoring.ask([(KEY, 19)], torch.tensor([2]))
    for layer in range(LAYERS):
        query = torch.zeros(5, 4, DIM)
        query[2, 0, 0] = 10.0 * layer
        scoring.note_query(layer, query)
    (found,) = scoring.take()
    values = np.frombuffer(found.values, dtype="<f4").reshape(LAYERS, 19)
    assert (found.request, found.rank, found.blocks) == (KEY, 1, 19)
    assert values[:, 0].tolist() == [1.0, 12.0]
    assert values[:, 18].tolist() == [2.0, 14.0]
    assert scoring.take() == ()


def test_a_block_that_a_layer_has_not_noted_scores_nothing() -> None:
    scoring, cache = make(), torch.zeros(4, HEADS, BLOCK, 2 * DIM)
    scoring.note_layer(0, cache, [(KEY, 0, 1)])
    scoring.ask([(KEY, 1), (RequestKey("other", 1), 1)], torch.tensor([0, 1]))
    for layer in range(LAYERS):
        scoring.note_query(layer, torch.zeros(2, 4, DIM))
    assert scoring.take() == ()
    scoring.forget(KEY)
