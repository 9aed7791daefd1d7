"""A Llama-shaped decoder that knows nothing of where its KV rows live.

The forward pass hands every layer's rotated query, key and value rows to a `KvCache` and gets the attention output
back, so one model serves the full cache, a compacted draft cache and a plain reference cache alike. The order of
operations follows transformers' LlamaForCausalLM, so that fp32 logits can be compared with it without a tolerance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

DType = Literal["fp32", "bf16"]
DTYPES: dict[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one decoder layer may see: every earlier position, or the last `window` positions, its own included."""

    kind: Literal["full", "sliding"]
    window: int | None = None  # tokens; None for a full layer

    def __post_init__(self) -> None:
        if self.kind not in ("full", "sliding"):
            raise ValueError(f"LayerShape.kind: expected 'full' or 'sliding', got {self.kind!r}")
        if self.kind == "full" and self.window is not None:
            raise ValueError(f"LayerShape.window: a full layer has none, got {self.window}")
        if self.kind == "sliding" and (self.window is None or self.window < 1):
            raise ValueError(f"LayerShape.window: a sliding layer needs at least 1 token, got {self.window}")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a model; counts are in units of their names, `context` in tokens."""

    name: str
    layers: tuple[LayerShape, ...]
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    context: int
    rope_base: float
    norm_eps: float
    dtype: DType

    def __post_init__(self) -> None:
        for field in ("hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "context"):
            if getattr(self, field) < 1:
                raise ValueError(f"ModelConfig.{field}: expected at least 1, got {getattr(self, field)}")
        if not self.layers:
            raise ValueError("ModelConfig.layers: expected at least one layer, got none")
        if self.heads % self.kv_heads:
            raise ValueError(f"ModelConfig.heads: expected a multiple of kv_heads={self.kv_heads}, got {self.heads}")
        if self.head_dim % 2:
            raise ValueError(f"ModelConfig.head_dim: rotary pairs need an even size, got {self.head_dim}")
        if self.dtype not in DTYPES:
            raise ValueError(f"ModelConfig.dtype: expected one of {sorted(DTYPES)}, got {self.dtype!r}")

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype of weights and KV rows."""
        return DTYPES[self.dtype]

    @property
    def full_layers(self) -> tuple[int, ...]:
        """Indices of the full-attention layers, ascending."""
        return tuple(i for i, layer in enumerate(self.layers) if layer.kind == "full")


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer's tensors in the model dtype; projections [out, in], norms [hidden], Q/K rows in half-rotary order."""

    attention_norm: Tensor
    q: Tensor  # [heads * head_dim, hidden]
    k: Tensor  # [kv_heads * head_dim, hidden]
    v: Tensor  # [kv_heads * head_dim, hidden]
    o: Tensor  # [hidden, heads * head_dim]
    ffn_norm: Tensor
    gate: Tensor  # [ffn, hidden]
    up: Tensor  # [ffn, hidden]
    down: Tensor  # [hidden, ffn]


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """All tensors of a model; `head` is the embedding itself where the model ties them."""

    embedding: Tensor  # [vocab, hidden]
    layers: tuple[LayerWeights, ...]
    norm: Tensor  # [hidden]
    head: Tensor  # [vocab, hidden]


class KvCache(Protocol):
    """Where the KV rows of one request live, and the attention that reads them."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
        """Store the rows k, v of `positions` for `layer`, then attend from q over all that the layer may see.

        q [heads, n, head_dim], k and v [kv_heads, n, head_dim] in the model dtype, q and k already rotated;
        positions int64[n].
        Returns [heads, n, head_dim].
        """
        ...


class Model:
    """A decoder over fixed weights; holds no per-request state."""

    def __init__(self, config: ModelConfig, weights: ModelWeights) -> None:
        if len(weights.layers) != len(config.layers):
            raise ValueError(f"weights.layers: expected {len(config.layers)} layers, got {len(weights.layers)}")
        _expect("embedding", weights.embedding, (config.vocab, config.hidden), config)
        _expect("head", weights.head, (config.vocab, config.hidden), config)
        _expect("norm", weights.norm, (config.hidden,), config)
        q_out, kv_out = config.heads * config.head_dim, config.kv_heads * config.head_dim
        for i, layer in enumerate(weights.layers):
            _expect(f"layers[{i}].attention_norm", layer.attention_norm, (config.hidden,), config)
            _expect(f"layers[{i}].q", layer.q, (q_out, config.hidden), config)
            _expect(f"layers[{i}].k", layer.k, (kv_out, config.hidden), config)
            _expect(f"layers[{i}].v", layer.v, (kv_out, config.hidden), config)
            _expect(f"layers[{i}].o", layer.o, (config.hidden, q_out), config)
            _expect(f"layers[{i}].ffn_norm", layer.ffn_norm, (config.hidden,), config)
            _expect(f"layers[{i}].gate", layer.gate, (config.ffn, config.hidden), config)
            _expect(f"layers[{i}].up", layer.up, (config.ffn, config.hidden), config)
            _expect(f"layers[{i}].down", layer.down, (config.hidden, config.ffn), config)
        self.config = config
        self.weights = weights
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
        self._inverse_frequencies = 1.0 / (config.rope_base**exponents)

    @torch.no_grad()
    def forward(self, tokens: Tensor, positions: Tensor, kv: KvCache, *, logits_for: slice | None = None) -> Tensor:
        """Run `tokens` at `positions` of one request through every layer, storing their KV rows in `kv`.

        tokens, positions  int64[n], n >= 1; positions ascending, each in [0, context)
        logits_for         rows whose logits are wanted (default: all); `slice(-1, None)` spares the head for the rest
        Returns float32 [rows, vocab]. Raises ValueError for a wrong shape, dtype, token or position.
        """
        self._check(tokens, positions)
        config, weights = self.config, self.weights
        n = tokens.shape[0]
        cos, sin = self._rotation(positions)
        x = F.embedding(tokens, weights.embedding)
        for index, layer in enumerate(weights.layers):
            y = _rms_norm(x, layer.attention_norm, config.norm_eps)
            q = F.linear(y, layer.q).view(n, config.heads, config.head_dim).transpose(0, 1)
            k = F.linear(y, layer.k).view(n, config.kv_heads, config.head_dim).transpose(0, 1)
            v = F.linear(y, layer.v).view(n, config.kv_heads, config.head_dim).transpose(0, 1)
            read = kv.attend(index, _rotate(q, cos, sin), _rotate(k, cos, sin), v, positions)
            x = x + F.linear(read.transpose(0, 1).reshape(n, config.heads * config.head_dim), layer.o)
            y = _rms_norm(x, layer.ffn_norm, config.norm_eps)
            x = x + F.linear(F.silu(F.linear(y, layer.gate)) * F.linear(y, layer.up), layer.down)
        x = _rms_norm(x, weights.norm, config.norm_eps)
        if logits_for is not None:
            x = x[logits_for]
        return F.linear(x, weights.head).float()

    def _rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines [n, head_dim] of the rotary angles, in the model dtype."""
        angles = positions.float()[:, None] * self._inverse_frequencies[None, :]
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos().to(self.config.torch_dtype), angles.sin().to(self.config.torch_dtype)

    def _check(self, tokens: Tensor, positions: Tensor) -> None:
        for name, tensor in (("tokens", tokens), ("positions", positions)):
            if tensor.dtype != torch.int64 or tensor.ndim != 1 or tensor.shape[0] < 1:
                shape = tuple(tensor.shape)
                raise ValueError(f"{name}: expected int64[n] with n >= 1, got {tensor.dtype} of shape {shape}")
        if tokens.shape != positions.shape:
            raise ValueError(f"positions: expected one a token ({tokens.shape[0]}), got {positions.shape[0]}")
        low, high = int(tokens.min()), int(tokens.max())
        if low < 0 or high >= self.config.vocab:
            raise ValueError(f"tokens: expected ids in [0, {self.config.vocab}), got {low if low < 0 else high}")
        if bool((positions[1:] <= positions[:-1]).any()):
            raise ValueError(f"positions: expected ascending positions, got {positions.tolist()}")
        first, last = int(positions[0]), int(positions[-1])
        if first < 0 or last >= self.config.context:
            got = first if first < 0 else last
            raise ValueError(f"positions: expected positions in [0, {self.config.context}), got {got}")


def _expect(name: str, tensor: Tensor, shape: tuple[int, ...], config: ModelConfig) -> None:
    if tuple(tensor.shape) != shape or tensor.dtype != config.torch_dtype:
        raise ValueError(
            f"weights.{name}: expected {config.torch_dtype} of shape {shape}, got {tensor.dtype} {tuple(tensor.shape)}"
        )


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the last axis; the mean is taken in fp32 whatever the model dtype."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * wide.to(x.dtype)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of [heads, n, head_dim]: dimension d is paired with d + head_dim / 2."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return (x * cos) + (turned * sin)
