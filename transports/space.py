"""Which block ids there are and what a block of each layer looks like: what memories of every kind have in common."""

from collections.abc import Sequence
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from kvsweep.kernels import BlockShape, Packing
from kvsweep.ledger.errors import LayoutError
from kvsweep.ledger.ids import Int32
from kvsweep.ledger.layout import Layout


class BlockSpace:
    """Pools of blocks, one a KV-cache group, without the bytes.

    shapes   of one block of each group
    packing  order of the elements inside a block
    """

    def __init__(self, layout: Layout, blocks: Sequence[int], packing: Packing) -> None:
        """blocks: size of each group's pool. Raises LayoutError for another number of pools or a size below 1."""
        if len(blocks) != layout.groups or any(count < 1 for count in blocks):
            raise LayoutError("blocks", f"at least 1 block for each of {layout.groups} groups", str(tuple(blocks)))
        self.layout = layout
        self.packing = packing
        self.shapes: list[BlockShape] = []
        self._counts = tuple(blocks)
        self._place: dict[int, tuple[int, int]] = {}
        for group in range(layout.groups):
            layers = layout.group_layers(group)
            one = layout.layers[layers[0]]
            dtype = cast(Literal["float32", "bfloat16"], layout.dtype)  # checked by Layout.check
            shape = BlockShape(one.kv_heads, layout.block_size, one.head_dim, dtype)
            shape.check_packing(packing)
            self.shapes.append(shape)
            self._place.update({layer: (group, at) for at, layer in enumerate(layers)})

    def place(self, layer: int) -> tuple[int, int]:
        """(group, index on the first axis of the group's array). Raises LayoutError for an unknown layer."""
        try:
            return self._place[layer]
        except KeyError:
            raise LayoutError("layer", f"a layer in [0, {len(self._place)})", str(layer)) from None

    def blocks(self, group: int) -> int:
        """Size of one group's pool."""
        return self._counts[group]

    def shape_of(self, layer: int) -> BlockShape:
        """Of one block of a layer."""
        return self.shapes[self.place(layer)[0]]

    def check_group(self, group: int) -> None:
        """Raise LayoutError for a group that is not there."""
        if not 0 <= group < len(self._counts):
            raise LayoutError("group", f"a group in [0, {len(self._counts)})", str(group))

    def check_blocks(self, argument: str, layer: int, blocks: object) -> Int32:
        """The ids, if they are int32[n] inside the layer's pool; LayoutError otherwise."""
        count = self.blocks(self.place(layer)[0])
        if not isinstance(blocks, np.ndarray) or blocks.dtype != np.int32 or blocks.ndim != 1:
            got = f"{blocks.dtype} of shape {blocks.shape}" if isinstance(blocks, np.ndarray) else type(blocks).__name__
            raise LayoutError(argument, "int32[n] block ids", got)
        outside = (blocks < 0) | (blocks >= count)
        if outside.any():
            raise LayoutError(argument, f"ids in [0, {count}) in layer {layer}", str(int(blocks[outside][0])))
        return blocks

    def check_tokens(
        self, layer: int, block: int, first_token: int, k: npt.NDArray[Any], v: npt.NDArray[Any]
    ) -> BlockShape:
        """The shape of the layer's blocks, if k and v are n tokens that fit the block from first_token on.

        Raises LayoutError otherwise.
        """
        self.check_blocks("block", layer, np.asarray([block], dtype=np.int32))
        shape = self.shape_of(layer)
        for name, rows in (("k", k), ("v", v)):
            expected = (shape.kv_heads, k.shape[1] if k.ndim == 3 else 0, shape.head_dim)
            if rows.dtype != element_type(shape) or rows.shape != expected:
                axes = f"({shape.kv_heads}, n, {shape.head_dim}), n as in k"
                raise LayoutError(
                    name, f"{np.dtype(element_type(shape))} of shape {axes}", f"{rows.dtype} of shape {rows.shape}"
                )
        end = first_token + k.shape[1]
        if first_token < 0 or end > shape.block_size:
            raise LayoutError("first_token", f"tokens inside [0, {shape.block_size})", f"{first_token} … {end - 1}")
        return shape


def element_type(shape: BlockShape) -> type[np.float32] | type[np.uint16]:
    """float32, or the 16-bit words that bfloat16 is kept as."""
    return np.float32 if shape.dtype == "float32" else np.uint16
