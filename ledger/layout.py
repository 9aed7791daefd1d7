"""The layout of a model's KV cache: which layers, in which group, how large a block is. The engine states it once."""

import hashlib
from functools import cached_property
from typing import Literal

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from kvsweep.ledger.errors import LayoutError
from kvsweep.ledger.ids import Int32, int32_bytes

DTYPE_BYTES = {"float32": 4, "bfloat16": 2}
GroupKind = Literal["full", "sliding"]
Packing = Literal["natural", "vnni"]


class LayerLayout(Struct, frozen=True, kw_only=True, array_like=True):
    """One decoder layer. Only layers of kind "full" are active: selected, packed and compacted."""

    layer: int
    group: int  # KV-cache group: the layers that share one allocation
    kind: GroupKind
    kv_heads: int
    head_dim: int
    window_tokens: int = 0  # sliding layers only


class Layout(Struct, frozen=True, kw_only=True, array_like=True, dict=True):
    """What both sides must agree on. Call `check()` on one built by hand; `Layout.of` does."""

    model_hash: str
    dtype: str  # "float32" | "bfloat16"
    block_size: int  # tokens
    layers: tuple[LayerLayout, ...]
    packing: Packing = "natural"  # how the CPU pool keeps a block; the device is always natural

    @classmethod
    def of(
        cls,
        *,
        model_hash: str,
        dtype: str,
        block_size: int,
        layers: tuple[LayerLayout, ...],
        packing: Packing = "natural",
    ) -> "Layout":
        """Build and check. Raises LayoutError naming the field."""
        layout = cls(model_hash=model_hash, dtype=dtype, block_size=block_size, layers=layers, packing=packing)
        layout.check()
        return layout

    def check(self) -> None:
        if self.dtype not in DTYPE_BYTES:
            raise LayoutError("dtype", f"one of {sorted(DTYPE_BYTES)}", repr(self.dtype))
        if self.block_size < 1:
            raise LayoutError("block_size", "at least 1 token", str(self.block_size))
        if self.packing not in ("natural", "vnni"):
            raise LayoutError("packing", "natural or vnni", repr(self.packing))
        if not self.layers:
            raise LayoutError("layers", "at least one layer", "none")
        for index, layer in enumerate(self.layers):
            if layer.layer != index:
                raise LayoutError(f"layers[{index}].layer", f"{index} (in order, none left out)", str(layer.layer))
            if layer.kv_heads < 1 or layer.head_dim < 1:
                raise LayoutError(
                    f"layers[{index}]", "kv_heads and head_dim of at least 1", f"{layer.kv_heads}, {layer.head_dim}"
                )
            if layer.kind not in ("full", "sliding"):
                raise LayoutError(f"layers[{index}].kind", "full or sliding", repr(layer.kind))
            if layer.group < 0:
                raise LayoutError(f"layers[{index}].group", "a group from 0", str(layer.group))
            if layer.window_tokens < 0 or (layer.kind == "sliding") != (layer.window_tokens > 0):
                raise LayoutError(
                    f"layers[{index}].window_tokens",
                    "more than 0 for a sliding layer, 0 for a full one",
                    f"{layer.window_tokens} for {layer.kind}",
                )
            if self.packing == "vnni" and (self.dtype != "bfloat16" or self.block_size % 32 or layer.head_dim % 32):
                raise LayoutError(
                    "packing",
                    "bfloat16, block_size and head_dim multiples of 32 for vnni",
                    f"{self.dtype}, {self.block_size}, {layer.head_dim}",
                )
        for group in range(self.groups):
            members = [layer for layer in self.layers if layer.group == group]
            if not members:
                raise LayoutError(
                    "layers", f"groups numbered 0 to {self.groups - 1} without a gap", f"no group {group}"
                )
            if len({(m.kind, m.window_tokens, m.kv_heads, m.head_dim) for m in members}) > 1:
                raise LayoutError(f"group {group}", "layers of one kind, window and block shape", "several")
        if not self.active_layers:
            raise LayoutError("layers", "at least one full-attention layer", "none")

    @cached_property
    def groups(self) -> int:
        return max(layer.group for layer in self.layers) + 1

    @cached_property
    def group_of_layer(self) -> Int32:
        """int32[layers]: the group of each."""
        return np.fromiter((layer.group for layer in self.layers), dtype=np.int32, count=len(self.layers))

    @cached_property
    def active_layer_bytes(self) -> bytes:
        """'<i4': the active layers, as rows over them begin."""
        return int32_bytes(self.active_layers)

    @cached_property
    def active_group_bytes(self) -> bytes:
        """'<i4': the group of each active layer."""
        return int32_bytes([self.layers[layer].group for layer in self.active_layers])

    @cached_property
    def active_layers(self) -> tuple[int, ...]:
        """Decoder layers with full attention: the only ones selected and packed."""
        return tuple(layer.layer for layer in self.layers if layer.kind == "full")

    def group_layers(self, group: int) -> tuple[int, ...]:
        return self._layers_by_group[group]

    @cached_property
    def _layers_by_group(self) -> tuple[tuple[int, ...], ...]:
        groups = range(self.groups)
        return tuple(tuple(layer.layer for layer in self.layers if layer.group == group) for group in groups)

    def rows_of_group(self, group: int) -> bytes:
        """'<i4' a layer: its place among the group's layers, -1 where it is in another group."""
        return self._rows_by_group[group]

    @cached_property
    def _rows_by_group(self) -> tuple[bytes, ...]:
        def rows(group: int) -> list[int]:
            members = {layer: row for row, layer in enumerate(self.group_layers(group))}
            return [members.get(layer.layer, -1) for layer in self.layers]

        return tuple(int32_bytes(rows(group)) for group in range(self.groups))

    def group_kind(self, group: int) -> GroupKind:
        return next(layer.kind for layer in self.layers if layer.group == group)

    def window_tokens(self, group: int) -> int:
        return next(layer.window_tokens for layer in self.layers if layer.group == group)

    def block_bytes(self, layer: int) -> int:
        """Bytes of one block's K and V in one layer, all heads."""
        one = self.layers[layer]
        return 2 * one.kv_heads * self.block_size * one.head_dim * DTYPE_BYTES[self.dtype]

    def heads_of_rank(self, layer: int, rank: int, ranks: int) -> tuple[int, int]:
        """KV heads [start, stop) of a layer on a tensor-parallel rank: as even as possible, low ranks take the rest."""
        base, more = divmod(self.layers[layer].kv_heads, ranks)
        start = rank * base + min(rank, more)
        return start, start + base + (rank < more)

    def shard(self, rank: int, ranks: int) -> "Layout":
        """One rank's part: the same layers and groups with its KV heads. Raises LayoutError where a rank has none."""
        fewest = min(layer.kv_heads for layer in self.layers)
        if not 0 <= rank < ranks or ranks > fewest:
            raise LayoutError("ranks", f"1 to {fewest}, a KV head for each", f"rank {rank} of {ranks}")
        layers = []
        for layer in self.layers:
            start, stop = self.heads_of_rank(layer.layer, rank, ranks)
            layers.append(replace(layer, kv_heads=stop - start))
        return replace(self, layers=tuple(layers))

    @property
    def layout_hash(self) -> str:
        """SHA-256 over the model hash and every layer's shape (contract D4)."""
        return hashlib.sha256(msgspec.msgpack.encode(self, order="deterministic")).hexdigest()
