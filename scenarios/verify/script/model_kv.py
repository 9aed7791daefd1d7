"""KV that a small seeded model makes of a made-up text. Needs torch."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from torch import Tensor

from kvsweep.ledger.layout import Layout
from kvsweep.scenarios.demo.attention import attention
from kvsweep.scenarios.demo.model import LayerShape, ModelConfig
from kvsweep.scenarios.demo.synthetic import synthetic_model
from kvsweep.scenarios.verify.script.content import KV, MadeUpKv

CHUNK: Final = 64
"""Tokens that go through the model at once, always from a multiple on: bits depend on it."""
TEXTS_KEPT: Final = 64


class _Rows:
    """Rotated K and V of one text so far; the cache that the model attends to."""

    def __init__(self, layout: Layout) -> None:
        self._windows = [layer.window_tokens or None for layer in layout.layers]
        self.k: list[Tensor] = [torch.empty(0) for _ in layout.layers]
        self.v: list[Tensor] = [torch.empty(0) for _ in layout.layers]
        self.tokens = 0

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
        self.k[layer] = torch.cat((self.k[layer], k), dim=1) if self.tokens else k
        self.v[layer] = torch.cat((self.v[layer], v), dim=1) if self.tokens else v
        known = torch.arange(self.k[layer].shape[1])
        return attention(q, self.k[layer], self.v[layer], positions, known, self._windows[layer])


class ModelKv(MadeUpKv):
    """K and V of a decoder with this layout's layers, over bytes drawn from the tag; one text a life."""

    def __init__(self, layout: Layout, seed: int) -> None:
        super().__init__(layout)
        first = layout.layers[0]
        self._model = synthetic_model(
            seed,
            ModelConfig(
                name="scenario",
                layers=tuple(LayerShape(layer.kind, layer.window_tokens or None) for layer in layout.layers),
                hidden=16,
                heads=first.kv_heads,
                kv_heads=first.kv_heads,
                head_dim=first.head_dim,
                ffn=32,
                vocab=256,
                context=65536,
                rope_base=10000.0,
                norm_eps=1e-5,
                dtype="fp32",
            ),
        )
        self._texts: dict[int, _Rows] = {}

    def tokens(self, tag: int, layer: int, first: int, count: int) -> tuple[KV, KV]:
        rows = self._texts.get(tag)
        if rows is None:
            rows = self._texts[tag] = _Rows(self.layout)
            if len(self._texts) > TEXTS_KEPT:
                del self._texts[next(iter(self._texts))]
        while rows.tokens < first + count:
            draw = np.random.Generator(np.random.PCG64([tag, rows.tokens]))
            text = torch.from_numpy(draw.integers(0, 256, CHUNK))
            self._model.forward(text, torch.arange(rows.tokens, rows.tokens + CHUNK), rows, logits_for=slice(-1, None))
            rows.tokens += CHUNK
        part = slice(first, first + count)
        return rows.k[layer][:, part].numpy().copy(), rows.v[layer][:, part].numpy().copy()
