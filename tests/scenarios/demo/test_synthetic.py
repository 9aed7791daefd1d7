"""The synthetic model: the same bytes from the same seed, and logits that mean something."""

import pytest
import torch
from torch import Tensor

from kvsweep.scenarios.demo.attention import ContiguousKv
from kvsweep.scenarios.demo.bundle import load_synthetic
from kvsweep.scenarios.demo.model import LayerShape, Model
from kvsweep.scenarios.demo.synthetic import synthetic_config, synthetic_model
from kvsweep.scenarios.demo.text import load_text

SEED = 20260916


def logits(model: Model, tokens: Tensor) -> Tensor:
    return model.forward(tokens, torch.arange(len(tokens)), ContiguousKv(model.config, len(tokens)))


def prompt(count: int) -> Tensor:
    return torch.tensor(list(load_text().body.encode())[:count])


def test_equal_seeds_give_equal_bits_and_others_do_not() -> None:
    tokens = prompt(64)
    first = logits(synthetic_model(SEED), tokens)
    assert torch.equal(first, logits(synthetic_model(SEED), tokens))
    assert not torch.equal(first, logits(synthetic_model(SEED + 1), tokens))


def test_default_layers_mix_full_and_sliding() -> None:
    config = synthetic_config()
    assert [layer.window for layer in config.layers] == [None, 64, None, None, 64, None]
    assert config.full_layers == (0, 2, 3, 5)
    assert synthetic_config(layers=(LayerShape("full"),) * 3).full_layers == (0, 1, 2)


class Recording(ContiguousKv):
    """Keeps the share of attention that the best quarter of the keys has for the last query of each layer."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
        shared = k.repeat_interleave(q.shape[0] // k.shape[0], dim=0)
        mass = (shared @ q[:, -1, :, None] / q.shape[2] ** 0.5)[..., 0].softmax(-1).sort(descending=True).values
        self.shares.append(mass[:, : k.shape[1] // 4].sum(-1).mean().item())
        return super().attend(layer, q, k, v, positions)

    def __init__(self, model: Model, capacity: int) -> None:
        super().__init__(model.config, capacity)
        self.shares: list[float] = []


def test_attention_is_peaked_so_that_dropped_blocks_are_felt() -> None:
    """Flat attention would give the best quarter 0.25."""
    model = synthetic_model(SEED)
    kv = Recording(model, 256)
    model.forward(prompt(256), torch.arange(256), kv)
    assert min(kv.shares) > 0.5


@pytest.mark.parametrize("seed", [0, 1, SEED])
def test_logits_are_not_degenerate(seed: int) -> None:
    """Neither flat nor certain, different choices along a text, and a far context that is felt."""
    model = synthetic_model(seed)
    tokens = prompt(512)
    out = logits(model, tokens)
    entropy = torch.distributions.Categorical(logits=out).entropy()
    assert 1.0 < entropy.mean() < 4.5
    assert len(set(out.argmax(-1).tolist())) > 20
    changed = tokens.clone()
    changed[:128] = tokens[128:256]
    moved = (logits(model, changed)[-1] - out[-1]).abs().max()
    assert moved > 0.05


def test_the_bundle_has_bytes_for_tokens_and_no_file() -> None:
    bundle = load_synthetic(SEED, "bf16")
    assert bundle.path is None
    assert bundle.sha256 is None
    assert bundle.tokenizer.vocab_size == bundle.model.config.vocab
    assert bundle.model.weights.head.dtype == torch.bfloat16
    assert torch.get_num_threads() == 1


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(ValueError, match=r"seed: expected an integer >= 0, got -1"):
        synthetic_model(-1)
