"""The forward pass: equal to transformers on the real model, and to a naive float64 one on mixed layers."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from kvsweep.scenarios.demo.attention import ContiguousKv
from kvsweep.scenarios.demo.bundle import Bundle
from kvsweep.scenarios.demo.model import LayerShape, LayerWeights, Model, ModelWeights
from kvsweep.scenarios.demo.synthetic import synthetic_config, synthetic_model
from kvsweep.scenarios.demo.text import load_text

SEED = 20260916
TOKENS = 192


def as_transformers(weights: ModelWeights) -> dict[str, Tensor]:
    """The tensors under LlamaForCausalLM's names."""
    names = {
        "attention_norm": "input_layernorm",
        "q": "self_attn.q_proj",
        "k": "self_attn.k_proj",
        "v": "self_attn.v_proj",
        "o": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "gate": "mlp.gate_proj",
        "up": "mlp.up_proj",
        "down": "mlp.down_proj",
    }
    out = {
        f"model.layers.{i}.{name}.weight": getattr(layer, field)
        for i, layer in enumerate(weights.layers)
        for field, name in names.items()
    }
    out["model.embed_tokens.weight"] = weights.embedding
    out["model.norm.weight"] = weights.norm
    out["lm_head.weight"] = weights.head
    return out


def transformers_logits(model: Model, tokens: Tensor) -> Tensor:
    """Logits of transformers' LlamaForCausalLM over the same tensors."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = model.config
    oracle_config = LlamaConfig(
        vocab_size=config.vocab,
        hidden_size=config.hidden,
        intermediate_size=config.ffn,
        num_hidden_layers=len(config.layers),
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.context,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        oracle = LlamaForCausalLM(oracle_config)
    oracle.load_state_dict(as_transformers(model.weights), assign=True)
    rotary = oracle.model.rotary_emb
    oracle.model.rotary_emb = type(rotary)(oracle_config)  # its frequencies are no parameter, so they stayed on meta
    oracle.eval()
    with torch.no_grad():
        return oracle(tokens[None], use_cache=False).logits[0].float()


def test_fp32_logits_equal_transformers(smollm2: Bundle) -> None:
    """No tolerance: the same operations in the same order on the real model."""
    tokens = torch.tensor(smollm2.tokenizer.encode(load_text().body)[:TOKENS])
    ours = smollm2.model.forward(tokens, torch.arange(TOKENS), ContiguousKv(smollm2.model.config, TOKENS))
    theirs = transformers_logits(smollm2.model, tokens)
    assert (ours - theirs).abs().max().item() == 0.0


def test_bf16_logits_equal_transformers(smollm2: Bundle) -> None:
    """The same in bf16, with the fp32 tensors rounded once."""
    weights = smollm2.model.weights
    layers = tuple(
        LayerWeights(**{name: getattr(layer, name).bfloat16() for name in LayerWeights.__slots__})
        for layer in weights.layers
    )
    embedding = weights.embedding.bfloat16()
    rounded = ModelWeights(embedding=embedding, layers=layers, norm=weights.norm.bfloat16(), head=embedding)
    model = Model(replace(smollm2.model.config, dtype="bf16"), rounded)
    tokens = torch.tensor(smollm2.tokenizer.encode(load_text().body)[:TOKENS])
    ours = model.forward(tokens, torch.arange(TOKENS), ContiguousKv(model.config, TOKENS))
    assert (ours - transformers_logits(model, tokens)).abs().max().item() == 0.0


def naive_forward(model: Model, tokens: list[int]) -> npt.NDArray[np.float64]:
    """The same decoder written again in float64, one head at a time, with a mask made from the layer shapes."""
    config = model.config
    n, half = len(tokens), config.head_dim // 2
    array = {id(t): t.double().numpy() for t in _tensors(model.weights)}

    def norm(x: npt.NDArray[np.float64], weight: Tensor) -> npt.NDArray[np.float64]:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + config.norm_eps) * array[id(weight)]

    def rotate(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        angle = np.arange(n)[:, None] * config.rope_base ** (-np.arange(half) / half)[None]
        turned = (x[:, :half] + 1j * x[:, half:]) * np.exp(1j * angle)
        return np.concatenate([turned.real, turned.imag], axis=1)

    x = array[id(model.weights.embedding)][tokens]
    for shape, layer in zip(config.layers, model.weights.layers, strict=True):
        y = norm(x, layer.attention_norm)
        distance = np.arange(n)[:, None] - np.arange(n)[None]
        hidden = (distance < 0) | (distance >= (shape.window or n))
        heads = []
        for head in range(config.heads):
            shared = head * config.kv_heads // config.heads
            take, share = (slice(h * config.head_dim, (h + 1) * config.head_dim) for h in (head, shared))
            q, k = rotate(y @ array[id(layer.q)][take].T), rotate(y @ array[id(layer.k)][share].T)
            scores = np.where(hidden, -np.inf, q @ k.T / np.sqrt(config.head_dim))
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            heads.append(scores / scores.sum(-1, keepdims=True) @ (y @ array[id(layer.v)][share].T))
        x = x + np.concatenate(heads, axis=1) @ array[id(layer.o)].T
        y = norm(x, layer.ffn_norm)
        gate = y @ array[id(layer.gate)].T
        x = x + (gate / (1 + np.exp(-gate)) * (y @ array[id(layer.up)].T)) @ array[id(layer.down)].T
    logits: npt.NDArray[np.float64] = norm(x, model.weights.norm) @ array[id(model.weights.head)].T
    return logits


def _tensors(weights: ModelWeights) -> list[Tensor]:
    per_layer = [getattr(layer, name) for layer in weights.layers for name in LayerWeights.__slots__]
    return [weights.embedding, weights.norm, weights.head, *per_layer]


def test_mixed_layers_equal_a_naive_forward() -> None:
    """Full and sliding-window layers over more tokens than the window holds."""
    model = synthetic_model(SEED)
    tokens = np.random.default_rng(SEED).integers(0, 256, 100).tolist()
    logits = model.forward(torch.tensor(tokens), torch.arange(100), ContiguousKv(model.config, 100))
    np.testing.assert_allclose(logits.numpy(), naive_forward(model, tokens), rtol=0, atol=1e-4)


def test_logits_for_gives_only_those_rows() -> None:
    model = synthetic_model(SEED)
    tokens, positions = torch.arange(30), torch.arange(30)
    every = model.forward(tokens, positions, ContiguousKv(model.config, 30))
    last = model.forward(tokens, positions, ContiguousKv(model.config, 30), logits_for=slice(-2, None))
    assert every.shape == (30, 256)
    assert last.shape == (2, 256)
    torch.testing.assert_close(last, every[-2:], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("tokens", "positions", "message"),
    [
        (torch.tensor([256]), torch.tensor([0]), r"tokens: expected ids in \[0, 256\), got 256"),
        (torch.tensor([-1]), torch.tensor([0]), r"tokens: expected ids in \[0, 256\), got -1"),
        (torch.tensor([], dtype=torch.int64), torch.tensor([], dtype=torch.int64), r"tokens: expected int64\[n\]"),
        (torch.tensor([1]), torch.tensor([0], dtype=torch.int32), r"positions: expected int64\[n\] with n >= 1, got"),
        (torch.tensor([1, 2]), torch.tensor([0]), r"positions: expected one a token \(2\), got 1"),
        (torch.tensor([1, 2]), torch.tensor([3, 3]), r"positions: expected ascending positions, got \[3, 3\]"),
        (torch.tensor([1]), torch.tensor([65536]), r"positions: expected positions in \[0, 65536\), got 65536"),
        (torch.tensor([1]), torch.tensor([-2]), r"positions: expected positions in \[0, 65536\), got -2"),
    ],
)
def test_forward_refuses_bad_input(tokens: Tensor, positions: Tensor, message: str) -> None:
    model = synthetic_model(SEED)
    with pytest.raises(ValueError, match=message):
        model.forward(tokens, positions, ContiguousKv(model.config, 8))


def test_shapes_are_refused_with_their_field() -> None:
    config = synthetic_config()
    with pytest.raises(ValueError, match=r"LayerShape.window: a sliding layer needs at least 1 token, got None"):
        LayerShape("sliding")
    with pytest.raises(ValueError, match=r"LayerShape.window: a full layer has none, got 4"):
        LayerShape("full", 4)
    with pytest.raises(ValueError, match=r"LayerShape.kind: expected 'full' or 'sliding', got 'wide'"):
        LayerShape("wide")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"ModelConfig.heads: expected a multiple of kv_heads=3, got 5"):
        replace(config, heads=5)
    with pytest.raises(ValueError, match=r"ModelConfig.ffn: expected at least 1, got 0"):
        replace(config, ffn=0)
    with pytest.raises(ValueError, match=r"ModelConfig.head_dim: rotary pairs need an even size, got 33"):
        replace(config, head_dim=33)
    with pytest.raises(ValueError, match=r"ModelConfig.dtype: expected one of .*, got 'fp16'"):
        replace(config, dtype="fp16")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"ModelConfig.layers: expected at least one layer, got none"):
        replace(config, layers=())


def test_weights_are_refused_with_their_name() -> None:
    model = synthetic_model(SEED)
    wrong = replace(model.weights, norm=torch.ones(3))
    with pytest.raises(ValueError, match=r"weights.norm: expected torch.float32 of shape \(128,\), got"):
        Model(model.config, wrong)
    with pytest.raises(ValueError, match=r"weights.layers: expected 6 layers, got 5"):
        Model(model.config, replace(model.weights, layers=model.weights.layers[:5]))
