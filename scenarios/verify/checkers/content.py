"""Byte oracle: what each reader would read now, held against the full KV of what it was handed.

The truth comes from who wrote the KV, never from the memory that is checked. Freed blocks are poisoned by whoever
frees them, so a reader of one reads no block's bytes.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Final, Protocol, TypeAlias

import numpy as np

from kvsweep.ledger.errors import LayoutError
from kvsweep.ledger.ids import RequestKey
from kvsweep.runtime.core.steps import HandedOut
from kvsweep.scenarios.verify.checkers.breaks import Breaks
from kvsweep.scenarios.verify.checkers.ownership import Ownership
from kvsweep.transports.blocks import BlockMemory
from kvsweep.transports.host import HostDevice

LAW: Final = "bytes"

Content: TypeAlias = bytes | str | int | tuple[object, ...]
"""Bytes of one area, or whatever stands for them in an abstract memory. Only equality matters."""


class Memory(Protocol):
    """Where ranks read. Layers are decoder layers, blocks are ids of the layer's group."""

    @property
    def ranks(self) -> tuple[int, ...]: ...

    def table(self, rank: int, request: RequestKey, row: int, generation: int, layer: int) -> list[int] | None:
        """Physical block of each slot; None where the row does not show this generation."""

    def device(self, rank: int, layer: int, block: int) -> Content:
        """What the area holds now."""

    def cpu(self, rank: int, layer: int, block: int) -> Content:
        """What the rank's part of the CPU block holds now."""


Truth: TypeAlias = Callable[[int, RequestKey, int, int], Content | None]
"""(rank, request, layer, logical block) -> the full KV's content; None where nothing was written there yet."""


class Contents(Breaks):
    """`look` at any moment: whatever is wrong then would have been read by a step that runs then."""

    def __init__(self, ownership: Ownership, memory: Memory, truth: Truth) -> None:
        super().__init__()
        self._ownership, self._memory, self._truth = ownership, memory, truth

    def look(self) -> None:
        """Read for every open step and every current view, on every rank, layer and slot; and every valid CPU block."""
        self.position = self._ownership.position
        for number, handed in self._ownership.steps.items():
            self.read(f"step {number}", handed)
        for key, life in self._ownership.lives.items():
            if life.table is not None and life.life == "RUNNING":
                self._table(f"the current view of {key.request_id}", key, life.current)
            for logical, block in life.sources.items():
                self._source(key, logical, block)

    def read(self, reader: str, handed: Mapping[RequestKey, HandedOut]) -> None:
        """What one reader reads of each generation it was handed."""
        for key, out in handed.items():
            if out.generation:
                self._table(reader, key, out.generation)

    def _table(self, reader: str, key: RequestKey, generation: int) -> None:
        life = self._ownership.lives.get(key)
        table = life.tables.get(generation) if life else None
        if table is None:
            self.add(LAW, f"{reader} was handed generation {generation} of {key.request_id}, which is gone")
            return
        for rank in self._memory.ranks:
            for layer in table.logical:
                seen = self._memory.table(rank, key, table.row, generation, layer)
                slots = table.slots(layer)
                if seen is None or seen != [physical for _, physical in slots]:
                    shown = "another generation" if seen is None else str(seen)
                    self.add(LAW, f"{reader}: rank {rank}, layer {layer}: row {table.row} shows {shown}, not {slots}")
                    continue
                for slot, (logical, physical) in enumerate(slots):
                    got = self._memory.device(rank, layer, physical)
                    if got != self._truth(rank, key, layer, logical):
                        where = f"rank {rank}, layer {layer}, slot {slot} (logical {logical}, block {physical})"
                        self.add(LAW, f"{reader}: generation {generation}, {where} reads other bytes")

    def _source(self, key: RequestKey, logical: int, block: int) -> None:
        for rank in self._memory.ranks:
            for layer in self._ownership.relation.group_of_layer:
                want = self._truth(rank, key, layer, logical)
                if want is not None and self._memory.cpu(rank, layer, block) != want:
                    where = f"rank {rank}, layer {layer}, logical {logical}"
                    self.add(LAW, f"CPU block {block} of {key.request_id} is called valid: {where} holds other bytes")


class HostMemory:
    """Host devices and the CPU shard that each of them reads."""

    def __init__(self, devices: Mapping[int, HostDevice], shards: Mapping[int, BlockMemory]) -> None:
        """devices, shards: by rank; both may be changed in place when a rank starts anew."""
        self.devices, self.shards = devices, shards

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(self.devices)

    def table(self, rank: int, request: RequestKey, row: int, generation: int, layer: int) -> list[int] | None:
        try:
            ids: list[int] = self.devices[rank].table(request, row, generation, layer).tolist()
        except LayoutError:
            return None
        return ids

    def device(self, rank: int, layer: int, block: int) -> bytes:
        return self.devices[rank].read(layer, np.asarray([block], dtype=np.int32)).tobytes()

    def cpu(self, rank: int, layer: int, block: int) -> bytes:
        return self.shards[rank].peek(layer, np.asarray([block], dtype=np.int32)).tobytes()


def pattern(rank: int, request: RequestKey, layer: int, logical: int, size: int) -> bytes:
    """size bytes that no other (rank, life, layer, logical block) has: a synthetic block of KV, in natural order."""
    name = f"{rank}/{request.request_epoch}/{layer}/{logical}/{request.request_id}".encode()
    return hashlib.shake_128(name).digest(size)
