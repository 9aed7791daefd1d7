"""The synthetic model: the same bytes from the same seed, and logits that mean something."""

import pytest
import torch
from torch import Tensor

from kvsweep.scenarios.engine.attention import ContiguousKv
from kvsweep.scenarios.engine.bundle import load_synthetic
from kvsweep.scenarios.engine.model import LayerShape, Model
from kvsweep.scenarios.engine.synthetic import synthetic_config, synthetic_model
from kvsweep.scenarios.engine.text import load_text

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
