"""What the bytes of one KV block mean: its shape, its element type and the order of its elements."""

import enum
from dataclasses import dataclass
from typing import Literal

from kvsweep.kernels.errors import KernelArgumentError

ElementType = Literal["float32", "bfloat16"]

ELEMENT_BYTES: dict[str, int] = {"float32": 4, "bfloat16": 2}

VNNI_MULTIPLE = 32
"""Block size and head dimension must be multiples of this for whole matrix tiles."""


class Packing(enum.Enum):
    """Order of the elements of K and V inside one block of one layer. A block has the same size in every packing.

    Letters: h kv head, t token in the block, d dimension in the head, B block size, D head dimension; all
    divisions are integer divisions and all figures count elements.

    NATURAL
        `[2, kv_heads, B, D]`, row-major: the K of every head, then the V of every head; one token is one row.
        K is at `(h*B + t)*D + d`, V at `((kv_heads + h)*B + t)*D + d`. This is what attention reads.
    VNNI
        `[kv_heads][K tile, V tile]`: a head's K and V lie together, each `B*D` elements, in the order that the
        matrix units of a CPU load pairs of bfloat16: pairs along d for K (the product over d is Q·Kᵀ) and pairs
        along t for V (the product over t is P·V), sixteen of the other axis beside each other.
        Within the K tile:  `(t/16)*16*D + (d/2)*32 + (t%16)*2 + d%2`.
        Within the V tile:  `(d/16)*16*B + (t/2)*32 + (d%16)*2 + t%2`.
        bfloat16 only; B and D are multiples of 32. B is part of the format: bytes of one block size mean
        something else under another.

    No packing mixes blocks or heads, so whole blocks are moved as plain bytes in either. A block that is not
    full has stale elements between the valid ones: readers mask by token count, not by byte range.
    """

    NATURAL = "natural"
    VNNI = "vnni"


@dataclass(frozen=True, slots=True)
class BlockShape:
    """Shape of one block of one layer: K and V of `block_size` tokens for every kv head of this rank.

    kv_heads, head_dim  at least 1
    block_size          tokens, at least 1
    dtype               "float32" or "bfloat16" (kept as 16-bit words: NumPy has no bfloat16)
    Raises KernelArgumentError for a size below 1 or another dtype.
    """

    kv_heads: int
    block_size: int
    head_dim: int
    dtype: ElementType

    def __post_init__(self) -> None:
        for argument in ("kv_heads", "block_size", "head_dim"):
            size = getattr(self, argument)
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise KernelArgumentError(argument, "an integer of at least 1", repr(size))
        if self.dtype not in ELEMENT_BYTES:
            raise KernelArgumentError("dtype", '"float32" or "bfloat16"', repr(self.dtype))

    @property
    def element_bytes(self) -> int:
        """Bytes of one element."""
        return ELEMENT_BYTES[self.dtype]

    @property
    def tile_elements(self) -> int:
        """Elements of K alone (or V alone) of one kv head in one block."""
        return self.block_size * self.head_dim

    @property
    def token_bytes(self) -> int:
        """Bytes of K and V of one token over all kv heads of one layer."""
        return 2 * self.kv_heads * self.head_dim * self.element_bytes

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of one layer, equal in every packing."""
        return self.block_size * self.token_bytes

    @property
    def natural_axes(self) -> tuple[int, int, int, int]:
        """Axes of a block in NATURAL order: (2, kv_heads, block_size, head_dim)."""
        return (2, self.kv_heads, self.block_size, self.head_dim)

    def check_packing(self, packing: Packing) -> None:
        """Raise KernelArgumentError where this shape cannot be laid out in `packing`."""
        if packing is not Packing.VNNI:
            return
        if self.dtype != "bfloat16":
            raise KernelArgumentError("dtype", '"bfloat16" for VNNI packing', repr(self.dtype))
        for argument, size in (("block_size", self.block_size), ("head_dim", self.head_dim)):
            if size % VNNI_MULTIPLE:
                raise KernelArgumentError(argument, f"a multiple of {VNNI_MULTIPLE} for VNNI packing", str(size))
