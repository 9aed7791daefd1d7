"""A small seeded model with full and sliding-window layers, for runs without a model file."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from kvsweep.scenarios.demo.model import DType, LayerShape, LayerWeights, Model, ModelConfig, ModelWeights

DEFAULT_LAYERS = tuple(LayerShape("sliding", 64) if i % 3 == 1 else LayerShape("full") for i in range(6))


def synthetic_config(dtype: DType = "fp32", layers: tuple[LayerShape, ...] = DEFAULT_LAYERS) -> ModelConfig:
    """The shape of the synthetic model: by default 6 layers, of which 1 and 4 see 64 tokens; one id a byte."""
    return ModelConfig(
        name="synthetic",
        layers=layers,
        hidden=128,
        heads=6,
        kv_heads=3,
        head_dim=32,
        ffn=256,
        vocab=256,
        context=65536,
        rope_base=10000.0,
        norm_eps=1e-5,
        dtype=dtype,
    )


def synthetic_model(seed: int, config: ModelConfig | None = None) -> Model:
    """Random weights drawn in a fixed order from numpy's PCG64(seed); equal seeds give equal bytes.

    Raises ValueError for a negative seed.
    """
    if seed < 0:
        raise ValueError(f"seed: expected an integer >= 0, got {seed}")
    config = config or synthetic_config()
    generator = np.random.Generator(np.random.PCG64(seed))

    def draw(rows: int, columns: int, gain: float) -> Tensor:
        values = generator.standard_normal((rows, columns), dtype=np.float32) * np.float32(gain / columns**0.5)
        return torch.from_numpy(values).to(config.torch_dtype)

    ones = torch.ones(config.hidden, dtype=config.torch_dtype)
    q_out, kv_out = config.heads * config.head_dim, config.kv_heads * config.head_dim
    embedding = draw(config.vocab, config.hidden, config.hidden**0.5)
    layers = tuple(
        LayerWeights(
            attention_norm=ones,
            q=draw(q_out, config.hidden, _QK_GAIN),
            k=draw(kv_out, config.hidden, _QK_GAIN),
            v=draw(kv_out, config.hidden, 1.0),
            o=draw(config.hidden, q_out, _RESIDUAL_GAIN),
            ffn_norm=ones,
            gate=draw(config.ffn, config.hidden, 1.0),
            up=draw(config.ffn, config.hidden, 1.0),
            down=draw(config.hidden, config.ffn, 1.0),
        )
        for _ in config.layers
    )
    # A head of its own: tied to the embedding, random weights mostly repeat the last token.
    head = draw(config.vocab, config.hidden, _HEAD_GAIN)
    return Model(config, ModelWeights(embedding=embedding, layers=layers, norm=ones, head=head))


# Peaked attention, so that dropped blocks are felt; a residual that outgrows the embedding, so that context decides the
# next token; logits of standard deviation ~3, so that greedy and sampled choices are clear but not certain.
_QK_GAIN = 1.25
_RESIDUAL_GAIN = 1.0
_HEAD_GAIN = 3.0
