"""Bytes of one rank: vLLM's KV tensors as blocks of each layer, and the CPU tier that mirrors sealed blocks."""

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kvsweep.ledger.errors import LayoutError
from kvsweep.ledger.ids import Int32

UInt8 = npt.NDArray[np.uint8]
UInt32 = npt.NDArray[np.uint32]

POISON = 0x4B
"""Byte of a block that holds nothing: 1.3e7 in float32 and in bfloat16.

Not NaN: a block is whole before all of it is written, and the kernel multiplies what lies behind a row's end by 0.
"""


def blocks_of_tensor(name: str, tensor: Any, *, blocks: int, block_bytes: int) -> UInt8:
    """uint8[blocks, block_bytes] over a CPU tensor whose first axis counts blocks: a view, nothing is copied.

    tensor  torch.Tensor [blocks, ...]; inside a block the elements lie without a gap, blocks may stand apart
    Raises LayoutError naming the layer, what was expected and what came.
    """
    shape, strides, size = tuple(tensor.shape), tuple(tensor.stride()), tensor.element_size()
    inner = 1
    for length, stride in zip(reversed(shape[1:]), reversed(strides[1:]), strict=True):
        if length > 1 and stride != inner:
            raise LayoutError(name, "the elements of a block without a gap", f"shape {shape}, strides {strides}")
        inner *= length
    if shape[0] != blocks or inner * size != block_bytes:
        got = f"{shape[0]} blocks of {inner * size} bytes"
        raise LayoutError(name, f"{blocks} blocks of {block_bytes} bytes", got)
    import torch

    whole = tensor.view(torch.uint8).as_strided((blocks, block_bytes), (strides[0] * size, 1))
    found: UInt8 = whole.numpy()
    return found


class RankMemory:
    """Both tiers of one rank, block by block and layer by layer.

    layers     uint8[blocks, block_bytes] a layer, in layer order: vLLM's own memory
    cpu        uint8[layers, cpu_blocks, block_bytes]: the full tier; bytes are what vLLM wrote, whatever their order is
    checked    blocks whose checksum was compared after an upload
    wrong      of those: blocks whose bytes were not those that were stored
    """

    def __init__(self, layers: Sequence[UInt8], *, cpu_blocks: int, checksums: bool) -> None:
        """Raises LayoutError unless every layer has blocks of the same number and size and cpu_blocks is at least 1."""
        if not layers or any(layer.shape != layers[0].shape for layer in layers):
            raise LayoutError("layers", "at least one, all of one shape", str([layer.shape for layer in layers]))
        if cpu_blocks < 1:
            raise LayoutError("cpu_blocks", "at least 1", str(cpu_blocks))
        self.layers = list(layers)
        self.blocks, self.block_bytes = layers[0].shape
        self.cpu_blocks = cpu_blocks
        self.cpu = np.empty((len(layers), cpu_blocks, self.block_bytes), dtype=np.uint8)
        self.checksums = checksums
        self.checked = 0
        self.wrong = 0
        self._sums: UInt32 = np.zeros((len(layers), cpu_blocks), dtype=np.uint32)

    def check_ids(self, what: str, layer: int, ids: Int32, limit: int) -> None:
        """Raise LayoutError for a layer or an id that is not there."""
        if not 0 <= layer < len(self.layers):
            raise LayoutError(what, f"a layer in [0, {len(self.layers)})", str(layer))
        if ids.size and (int(ids.min()) < 0 or int(ids.max()) >= limit):
            raise LayoutError(f"{what}[{layer}]", f"ids in [0, {limit})", f"{int(ids.min())} … {int(ids.max())}")

    def store(self, layer: int, source: Int32, destination: Int32) -> list[int]:
        """Copy device blocks into CPU blocks; the checksums of what was copied, in order."""
        device, cpu, sums = self.layers[layer], self.cpu[layer], []
        for block, place in zip(source.tolist(), destination.tolist(), strict=True):
            cpu[place] = device[block]
            if self.checksums:
                total = zlib.crc32(cpu[place])
                self._sums[layer, place] = total
                sums.append(total)
        return sums

    def upload(self, layer: int, source: Int32, destination: Int32) -> list[int]:
        """Copy CPU blocks into areas of device blocks and compare each with the checksum it was stored under."""
        device, cpu, sums = self.layers[layer], self.cpu[layer], []
        for place, block in zip(source.tolist(), destination.tolist(), strict=True):
            device[block] = cpu[place]
            if self.checksums:
                total = zlib.crc32(device[block])
                sums.append(total)
                self.checked += 1
                self.wrong += total != int(self._sums[layer, place])
        return sums

    def move(self, layer: int, source: Int32, destination: Int32) -> list[int]:
        """Copy areas into other areas of the same layer; never in place."""
        device, sums = self.layers[layer], []
        for block, place in zip(source.tolist(), destination.tolist(), strict=True):
            device[place] = device[block]
            if self.checksums:
                sums.append(zlib.crc32(device[place]))
        return sums

    def poison(self, blocks: Sequence[int]) -> None:
        """Overwrite whole blocks in every layer."""
        ids = list(blocks)
        for layer in self.layers:
            layer[ids] = POISON


def memory_of(
    tensors: Mapping[str, Any],
    names: Sequence[str],
    *,
    blocks: int,
    block_bytes: int,
    cpu_blocks: int,
    checksums: bool,
) -> RankMemory:
    """Both tiers over vLLM's registered caches. `names` are the layers of the group, in decoder order.

    Raises LayoutError naming a layer that is missing or does not fit.
    """
    missing = [name for name in names if name not in tensors]
    if missing:
        raise LayoutError("kv_caches", f"a tensor for each of the {len(names)} layers of the group", f"none: {missing}")
    layers = [blocks_of_tensor(name, tensors[name], blocks=blocks, block_bytes=block_bytes) for name in names]
    return RankMemory(layers, cpu_blocks=cpu_blocks, checksums=checksums)
