"""Block tables in device memory, at addresses that stay while the request lives: a captured graph stays valid."""

from dataclasses import dataclass

import numpy as np

from kvsweep.kernels.cuda.api import CudaDriver, DeviceMemory, Stream
from kvsweep.kernels.cuda.launch import Launcher
from kvsweep.ledger.errors import LayoutError
from kvsweep.ledger.ids import Int32, Physical, RequestKey, Rows
from kvsweep.transports.cuda.staging import RingSlot
from kvsweep.transports.tables import TableRows

_HEAD = 16
"""Bytes before the lengths: the generation, and room so that what follows is aligned."""


@dataclass(frozen=True, slots=True)
class TableAddress:
    """Where a step reads one row: it does not move while the request lives.

    generation  int64: the generation that the row shows
    lengths     int32[layers]: slots in use
    slots       int32[layers, slots_per_layer]: physical blocks, holes behind the used ones
    layers      decoder layers in the order of the rows
    """

    generation: int
    lengths: int
    slots: int
    slots_per_layer: int
    layers: tuple[int, ...]


class CudaTables:
    """Rows of tables over all requests: what a reader on the host is shown, and the device's copy beside it.

    shown  the host's side
    """

    def __init__(self, driver: CudaDriver, layers: tuple[int, ...], *, rows: int, slots: int) -> None:
        """layers: active ones, in order; rows: over all requests; slots: of one layer in one row, at most."""
        if slots < 1:
            raise LayoutError("table_slots", "at least 1", str(slots))
        self.layers = layers
        self.slots = slots
        self._driver = driver
        self.shown = TableRows(rows)
        self._memory: dict[tuple[RequestKey, int], DeviceMemory] = {}
        self._spare: list[DeviceMemory] = []  # of closed requests; with the others never more than `rows`

    @property
    def row_bytes(self) -> int:
        """Bytes of one row on the device."""
        return _HEAD + self._padded_lengths + 4 * len(self.layers) * self.slots

    @property
    def upload_bytes(self) -> int:
        """Bytes that a write of one row takes in a slot of the descriptor ring, at most."""
        return -(-4 * (len(self.layers) + 1) // 16) * 16 + 4 * len(self.layers) * self.slots

    @property
    def _padded_lengths(self) -> int:
        return -(-4 * len(self.layers) // 16) * 16

    def check(self, table: Rows[Physical]) -> None:
        """Raise LayoutError where a layer's table has more slots than a row."""
        for layer, ids in table.items():
            if ids.size > self.slots:
                raise LayoutError(f"table[{layer}]", f"at most {self.slots} slots", str(ids.size))

    def claim(self, request: RequestKey, row: int) -> None:
        """Make room on the host's side before anything is queued. Raises Busy at the limit."""
        self.shown.claim(request, row)

    def reserve(self, request: RequestKey, row: int) -> None:
        """Device memory of a claimed row, once. Raises OutOfDeviceMemory; nothing is changed then."""
        if (request, row) not in self._memory:
            self._memory[request, row] = self._spare.pop() if self._spare else self._driver.allocate(self.row_bytes)

    def queue_write(
        self,
        launcher: Launcher,
        slot: RingSlot,
        stream: Stream,
        *,
        request: RequestKey,
        row: int,
        generation: int,
        table: Rows[Physical],
    ) -> None:
        """Queue the write of a reserved row; layers without ids get an empty row. The slot carries the ids."""
        at = self.address(request, row)
        given = dict(table.items())
        empty: Int32 = np.empty(0, dtype=np.int32)
        parts = [given.get(layer, empty) for layer in self.layers]
        row_ptr = np.concatenate(([0], np.cumsum([part.size for part in parts]))).astype(np.int32)
        ids = np.concatenate(parts) if parts else empty
        ids_at = -(-row_ptr.nbytes // 16) * 16
        slot.pinned.array[: row_ptr.nbytes] = row_ptr.view(np.uint8)
        slot.pinned.array[ids_at : ids_at + ids.nbytes] = np.ascontiguousarray(ids).view(np.uint8)
        self._driver.copy(slot.device.address, slot.pinned.address, ids_at + ids.nbytes, stream)
        launcher.write_tables(
            at.slots,
            at.lengths,
            at.generation,
            row_ptr=slot.device.address,
            ids=slot.device.address + ids_at,
            layers=len(self.layers),
            slots=self.slots,
            shown=generation,
            stream=stream,
        )

    def show(self, request: RequestKey, row: int, generation: int, table: Rows[Physical]) -> int:
        """The write has run: readers on the host see it from now on. Returns the layer tables written."""
        return self.shown.write(request, row, generation, table)

    def read(self, request: RequestKey, row: int, generation: int, layer: int) -> Int32:
        """int32[slots], read-only. Raises LayoutError unless the row shows this generation."""
        return self.shown.read(request, row, generation, layer)

    def address(self, request: RequestKey, row: int) -> TableAddress:
        """Where the device's copy of a reserved row is. Raises LayoutError for any other."""
        memory = self._memory.get((request, row))
        if memory is None:
            raise LayoutError("row", f"a row of {request.request_id!r} that has been written", str(row))
        lengths = memory.address + _HEAD
        return TableAddress(memory.address, lengths, lengths + self._padded_lengths, self.slots, self.layers)

    def forget(self, request: RequestKey) -> None:
        """Give up every row of a request that has closed; their memory serves the next one."""
        self.shown.forget(request)
        for key in [key for key in self._memory if key[0] == request]:
            self._spare.append(self._memory.pop(key))

    def close(self) -> None:
        """Free the device's memory. Nothing that is queued may still use it."""
        for memory in (*self._memory.values(), *self._spare):
            self._driver.free(memory)
        self._memory.clear()
        self._spare.clear()
