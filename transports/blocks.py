"""Block memory of one side: the device's pools, or the CPU's."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from kvsweep.kernels import Packing
from kvsweep.kernels.table import Kernels, choose_kernels
from kvsweep.ledger.errors import LayoutError
from kvsweep.ledger.ids import Int32
from kvsweep.ledger.layout import Layout
from kvsweep.transports.space import BlockSpace, element_type

UInt8 = npt.NDArray[np.uint8]

POISON = 0xFF
"""Byte of memory that holds nothing: 0xFFFF… is NaN in float32 and in bfloat16."""


PAGE_BYTES = 4096


@dataclass(slots=True)
class Traffic:
    """Bytes that went through one memory, counted where they pass and apart from what operations report."""

    read_bytes: int = 0  # copied out, to the other side
    written_bytes: int = 0  # copied in, from the other side
    moved_bytes: int = 0  # copied inside


class BlockMemory(BlockSpace):
    """Blocks of every KV-cache group, each one C-contiguous array; new memory is poisoned.

    groups   one uint8[layers of the group, blocks, block_bytes] a group, layers ascending
    kernels  what copies and packs
    packing  order of the elements inside a block: NATURAL is [2 (K, V), kv_heads, block_size, head_dim]
    traffic  bytes copied by `gather`, `scatter` and `move`; views and `peek` are not counted
    """

    def __init__(self, layout: Layout, blocks: Sequence[int], packing: Packing, kernels: Kernels | None = None) -> None:
        """blocks: size of each group's pool. Raises LayoutError for another number of pools or a size below 1.

        kernels  None takes the native ones where they were built
        """
        super().__init__(layout, blocks, packing)
        self.kernels = kernels or choose_kernels()
        self.traffic = Traffic()
        self.groups: list[UInt8] = [
            _pages((len(layout.group_layers(group)), count, shape.block_bytes))
            for group, (count, shape) in enumerate(zip(blocks, self.shapes, strict=True))
        ]

    @classmethod
    def of_device(cls, layout: Layout, blocks: Sequence[int], kernels: Kernels | None = None) -> "BlockMemory":
        """Device pools, one size a group, natural order."""
        return cls(layout, blocks, Packing.NATURAL, kernels)

    @classmethod
    def of_cpu(cls, layout: Layout, total_blocks: int, kernels: Kernels | None = None) -> "BlockMemory":
        """CPU pool: one block id covers every layer of every group, in the layout's packing."""
        return cls(layout, (total_blocks,) * layout.groups, Packing(layout.packing), kernels)

    def areas(self, layer: int) -> UInt8:
        """uint8[blocks, block_bytes]: a view of one layer, in this memory's packing."""
        group, at = self.place(layer)
        return cast(UInt8, self.groups[group][at])

    def typed(self, layer: int) -> npt.NDArray[Any]:
        """[blocks, 2, kv_heads, block_size, head_dim]: a view of one layer, float32 (or uint16: the bits of bfloat16).

        The view is the memory itself: wrap it once and read it as often as steps run. Natural order only, else
        LayoutError.
        """
        if self.packing is not Packing.NATURAL:
            raise LayoutError("packing", "natural, for a view by element", self.packing.value)
        shape = self.shape_of(layer)
        return self.areas(layer).view(element_type(shape)).reshape(-1, *shape.natural_axes)

    def peek(self, layer: int, blocks: Int32) -> UInt8:
        """uint8[n, block_bytes]: a copy of these blocks in NATURAL order, whatever the packing."""
        ids = self.check_blocks("blocks", layer, blocks)
        raw = np.ascontiguousarray(self.areas(layer)[ids])
        if self.packing is Packing.NATURAL:
            return raw
        natural = np.empty_like(raw)
        self.kernels.unpack_vnni(raw, self.shape_of(layer), natural)
        return natural

    def write_tokens(self, layer: int, block: int, first_token: int, k: npt.NDArray[Any], v: npt.NDArray[Any]) -> None:
        """Write n tokens of one block, at once.

        first_token  offset of the first one inside the block; first_token + n must not pass block_size
        k, v         [kv_heads, n, head_dim], float32 (or uint16: the bits of bfloat16)
        Raises LayoutError before anything is written.
        """
        shape = self.check_tokens(layer, block, first_token, k, v)
        end = first_token + k.shape[1]
        if self.packing is Packing.NATURAL:
            area = self.typed(layer)[block]
            area[0, :, first_token:end], area[1, :, first_token:end] = k, v
            return
        # Pairs of tokens lie together in the packed V, so a block is packed as a whole.
        whole = self.peek(layer, np.asarray([block], dtype=np.int32))
        area = whole.view(element_type(shape)).reshape(shape.natural_axes)
        area[0, :, first_token:end], area[1, :, first_token:end] = k, v
        packed = np.empty_like(whole)
        self.kernels.pack_vnni(whole, shape, packed)
        self.areas(layer)[block] = packed[0]

    def poison(self, group: int, blocks: Int32) -> None:
        """Overwrite freed blocks in every layer of the group, so that an early reuse or late read is seen."""
        self.check_group(group)
        ids = self.check_blocks("blocks", self.layout.group_layers(group)[0], blocks)
        self.groups[group][:, ids] = POISON

    def gather(self, group: int, layers: Int32, row_ptr: Int32, ids: Int32, out: UInt8) -> None:
        """Copy blocks out, raw; arguments as kernels.gather_blocks, `layers` as indices in the group's array."""
        self.kernels.gather_blocks(self.groups[group], layers, row_ptr, ids, out)
        self.traffic.read_bytes += out.nbytes

    def scatter(self, group: int, layers: Int32, row_ptr: Int32, ids: Int32, staged: UInt8) -> None:
        """Copy blocks in, raw; arguments as kernels.scatter_blocks."""
        self.kernels.scatter_blocks(staged, self.groups[group], layers, row_ptr, ids)
        self.traffic.written_bytes += staged.nbytes

    def pack_tokens(self, group: int, layers: Int32, row_ptr: Int32, tokens: Int32, destination: Int32) -> int:
        """Copy tokens into whole blocks of this memory; arguments as kernels.pack_tokens. Returns the bytes copied."""
        pool, shape = self.groups[group], self.shapes[group]
        self.kernels.pack_tokens(pool, layers, row_ptr, tokens, destination, shape, self.packing)
        copied = int(tokens.size) * shape.token_bytes
        self.traffic.moved_bytes += copied
        return copied

    def move(self, group: int, layers: Int32, row_ptr: Int32, source: Int32, destination: Int32) -> None:
        """Copy blocks inside this memory; arguments as kernels.move_blocks."""
        self.kernels.move_blocks(self.groups[group], layers, row_ptr, source, destination)
        self.traffic.moved_bytes += destination.size * self.groups[group].shape[2]


def aligned(size: int) -> UInt8:
    """uint8[size] of new memory at a multiple of 64 bytes: a kernel can write whole lines, past the caches."""
    room = np.empty(size + 63, dtype=np.uint8)
    start = -room.ctypes.data % 64
    return room[start : start + size]


def _pages(shape: tuple[int, int, int]) -> UInt8:
    """Poisoned uint8[shape] on pages of its own: a driver that locks pages in place must not meet another's."""
    nbytes = int(np.prod(shape, dtype=np.int64))
    whole: UInt8 = np.empty(nbytes + 2 * PAGE_BYTES, dtype=np.uint8)
    start = -whole.ctypes.data % PAGE_BYTES
    own = whole[start : start + nbytes]
    own.fill(POISON)
    return own.reshape(shape)
