"""Block pools in device memory, our own or borrowed from an engine, with the same functions as memory on the CPU."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kvsweep.kernels import Packing
from kvsweep.kernels.cuda.api import CudaDriver, DeviceArray, DeviceMemory
from kvsweep.kernels.cuda.launch import Launcher
from kvsweep.kernels.cuda.rows import ALIGNMENT, Pool, descriptor_bytes, poison_rows, write_descriptor
from kvsweep.ledger.errors import LayoutError
from kvsweep.ledger.ids import Int32
from kvsweep.ledger.layout import Layout
from kvsweep.transports.blocks import POISON, Traffic, UInt8
from kvsweep.transports.space import BlockSpace, element_type


class CudaMemory(BlockSpace):
    """Blocks of every KV-cache group in device memory, natural order. Own memory is poisoned when it is new.

    groups   one array of the driver's library a group, uint8[layers, blocks, block_bytes]; others share it by DLPack
    pools    the same as the kernels take it
    traffic  bytes that operations copied; views, `peek` and `write_tokens` are not counted

    `peek`, `write_tokens` and `poison` wait, on the calling thread, for a stream of their own: they serve tests, demos
    and an engine on the CPU. An engine on the device writes its tokens itself, through its own view of the memory.
    """

    def __init__(
        self,
        driver: CudaDriver,
        layout: Layout,
        blocks: Sequence[int] | None = None,
        *,
        borrowed: Sequence[object] | None = None,
        blocks_per_multiprocessor: int = 2,
    ) -> None:
        """Memory of our own, of these sizes; or borrowed, one array a group with DLPack, kept alive and never copied.

        borrowed  C-contiguous uint8[layers of the group, blocks, block_bytes] on the device
        Raises LayoutError for both, neither or arrays of another kind, OutOfDeviceMemory where ours does not fit.
        """
        if (blocks is None) == (borrowed is None):
            raise LayoutError("pools", "either sizes or borrowed arrays", "both" if borrowed else "neither")
        arrays = [] if borrowed is None else [_borrow(driver, group, array) for group, array in enumerate(borrowed)]
        super().__init__(layout, [one.shape[1] for one in arrays] if blocks is None else blocks, Packing.NATURAL)
        self.traffic = Traffic()
        self._driver = driver
        self._launcher = Launcher(driver, blocks_per_multiprocessor=blocks_per_multiprocessor)
        self._stream = driver.stream()
        self._owned: list[DeviceMemory] = []
        self.groups: list[Any] = []
        self.pools: list[Pool] = []
        for group, shape in enumerate(self.shapes):
            layers = len(layout.group_layers(group))
            sizes = (layers, self.blocks(group), shape.block_bytes)
            if blocks is None:
                _check_borrowed(group, arrays[group], sizes)
                memory: DeviceArray | DeviceMemory = arrays[group]
            else:
                memory = driver.allocate(int(np.prod(sizes, dtype=np.int64)))
                self._owned.append(memory)
            self.groups.append(driver.view(memory, "uint8", sizes))
            self.pools.append(Pool(memory.address, *sizes, shape))
        if self._owned:
            for group in range(layout.groups):
                self.poison(group, np.arange(self.blocks(group), dtype=np.int32))

    def close(self) -> None:
        """Give our own memory back. Nothing that is queued may still use it."""
        while self._owned:
            self._driver.free(self._owned.pop())

    def areas(self, layer: int) -> Any:
        """uint8[blocks, block_bytes]: a view of one layer, an array of the driver's library."""
        group, at = self.place(layer)
        return self.groups[group][at]

    def typed(self, layer: int) -> Any:
        """[blocks, 2, kv_heads, block_size, head_dim]: a view of one layer, float32 (or uint16: the bits of bfloat16).

        An array of the driver's library over the memory itself.
        """
        shape = self.shape_of(layer)
        return self.areas(layer).view(element_type(shape)).reshape(-1, *shape.natural_axes)

    def peek(self, layer: int, blocks: Int32) -> UInt8:
        """uint8[n, block_bytes]: a copy of these blocks, natural order."""
        ids = self.check_blocks("blocks", layer, blocks)
        size = self.shape_of(layer).block_bytes
        out: UInt8 = np.empty((ids.size, size), dtype=np.uint8)
        for row, block in enumerate(ids.tolist()):
            out[row] = self._driver.read(self._address(layer, block), size, self._stream)
        return out

    def write_tokens(self, layer: int, block: int, first_token: int, k: npt.NDArray[Any], v: npt.NDArray[Any]) -> None:
        """Write n tokens of one block; see BlockMemory.write_tokens."""
        shape = self.check_tokens(layer, block, first_token, k, v)
        head = shape.tile_elements * shape.element_bytes
        start = self._address(layer, block) + first_token * shape.head_dim * shape.element_bytes
        for part, rows in enumerate((k, v)):
            for index, one in enumerate(rows):
                if one.size:
                    self._driver.write(start + (part * shape.kv_heads + index) * head, one, self._stream)

    def poison(self, group: int, blocks: Int32) -> None:
        """Overwrite blocks in every layer of the group, so that an early reuse or late read is seen."""
        self.check_group(group)
        ids = np.unique(self.check_blocks("blocks", self.layout.group_layers(group)[0], blocks))
        if not ids.size:
            return
        layers = self.pools[group].layers
        batch = poison_rows(
            self.pools[group],
            np.arange(layers, dtype=np.int32),
            np.arange(layers + 1, dtype=np.int32) * ids.size,
            np.tile(ids, layers),
        )
        buffer: UInt8 = np.zeros(descriptor_bytes(batch.rows.size, batch.entries), dtype=np.uint8)
        memory = self._driver.allocate(buffer.size)
        try:
            placed, _ = write_descriptor(batch, buffer, memory.address)
            self._driver.write(memory.address, buffer, self._stream)
            self._launcher.poison(placed, POISON, self._stream)
            self._driver.synchronize(self._stream)
        finally:
            self._driver.free(memory)

    def _address(self, layer: int, block: int) -> int:
        group, at = self.place(layer)
        return self.pools[group].layer(at) + block * self.pools[group].block_bytes


def _borrow(driver: CudaDriver, group: int, array: object) -> DeviceArray:
    found = driver.borrow(array)
    if found is None or found.dtype != "uint8" or len(found.shape) != 3 or not found.contiguous or not found.writable:
        got = type(array).__name__ if found is None else f"{found.dtype} of shape {found.shape}"
        expected = "a C-contiguous, writable uint8[layers, blocks, block_bytes] on the device"
        raise LayoutError(f"borrowed[{group}]", expected, got)
    return found


def _check_borrowed(group: int, array: DeviceArray, sizes: tuple[int, int, int]) -> None:
    if array.shape != sizes:
        raise LayoutError(f"borrowed[{group}]", f"shape {sizes}", f"shape {array.shape}")
    if array.address % ALIGNMENT:
        raise LayoutError(f"borrowed[{group}]", f"memory at a multiple of {ALIGNMENT} bytes", f"{array.address:#x}")
