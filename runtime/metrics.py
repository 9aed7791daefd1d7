"""What a run cost, each figure counted by itself and none derived from another (contract A2). A fold over events."""

from dataclasses import dataclass, field

import numpy as np

from kvsweep.ledger import events as e
from kvsweep.ledger.event_base import Event
from kvsweep.ledger.ids import int32_view

COUNTED = frozenset(
    {
        e.UploadPlanned,
        e.BlocksLeased,
        e.TransferStarted,
        e.ReadersDrained,
        e.KeepMapPublished,
        e.RankTransferred,
        e.UploadAcknowledged,
        e.RetainPlanned,
        e.TablesApplied,
        e.OwnersCommitted,
        e.RetainAborted,
        e.RankStored,
        e.BlocksRetired,
        e.FenceOpened,
    }
)
"""Events that have a figure."""


@dataclass
class Metrics:
    """Bytes, blocks and seconds of the events folded so far."""

    cpu_gather_bytes: int = 0  # copied by the producer into copy destinations
    cpu_destination_blocks: int = 0  # copy destinations that were allocated
    h2d_bytes: int = 0  # CPU memory into staging
    unpack_bytes: int = 0  # staging into areas
    d2h_bytes: int = 0  # device-written blocks into CPU memory (the mirror)
    resident_moved_bytes: int = 0  # area to area
    packed_bytes: int = 0  # of those: moved by pack
    table_updates: int = 0  # layer tables written
    metadata_bytes: int = 0  # ids and tables in messages
    plan_s: float = 0.0
    wait_s: float = 0.0
    physical_blocks_released: int = 0
    remap: dict[str, int] = field(default_factory=lambda: {"shared": 0, "layer": 0, "move": 0, "pack": 0})
    adopted_areas: int = 0
    uploaded_areas: int = 0
    _modes: dict[int, str] = field(default_factory=dict)  # of open retains

    def apply(self, event: Event) -> None:
        if type(event) not in COUNTED:
            return
        match event:
            case e.UploadPlanned():
                self.plan_s += event.measured.plan_s
                self.uploaded_areas += event.logical.size
            case e.BlocksLeased():
                self.cpu_destination_blocks += int(int32_view(event.copies).size)
                self.adopted_areas += event.adopted.size
            case e.TransferStarted() | e.ReadersDrained() | e.KeepMapPublished():
                self.metadata_bytes += event.metadata_bytes
            case e.RankTransferred():
                self.h2d_bytes += event.h2d_bytes
                self.unpack_bytes += event.unpack_bytes
                self.table_updates += event.table_updates
                self.wait_s += event.measured.wait_s
            case e.UploadAcknowledged():
                self.cpu_gather_bytes += event.cpu_gather_bytes
            case e.RetainPlanned():
                self.plan_s += event.measured.plan_s
                self.adopted_areas += event.adopted.size
                self._modes[event.operation.operation_id] = event.mode
            case e.TablesApplied():
                self.resident_moved_bytes += event.resident_moved_bytes
                self.table_updates += event.table_updates
                self.wait_s += event.measured.wait_s
                if self._modes.get(event.operation.operation_id) == "pack":
                    self.packed_bytes += event.resident_moved_bytes
            case e.OwnersCommitted():
                mode = self._modes.pop(event.operation.operation_id, None)
                if mode is not None:  # None: folded from the middle of an operation
                    self.remap[mode] += 1
            case e.RetainAborted():
                self._modes.pop(event.operation.operation_id, None)
            case e.RankStored():
                self.d2h_bytes += event.d2h_bytes
                self.wait_s += event.measured.wait_s
            case e.BlocksRetired() | e.FenceOpened():
                self.physical_blocks_released += sum(int(np.frombuffer(ids, "<i4").size) for ids in event.freed)
            case _:
                pass
