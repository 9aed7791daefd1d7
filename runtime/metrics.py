"""What a run cost, each figure counted by itself and none derived from another (contract A2). A fold over events."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MethodType
from typing import Any, ClassVar, Final

from msgspec.structs import force_setattr

from kvsweep.ledger import events as e
from kvsweep.ledger.events import Event, Measured

PLANS: Final = frozenset({e.UploadPlanned, e.RetainPlanned})
"""Events that say how long it took to plan them."""


def stamp(events: Iterable[Event], plan_s: float) -> None:
    """Put in how long planning took, evenly over the plans among the events, which nobody has seen yet.

    The clock stays outside the core; after this the events are facts, and frozen.
    """
    plans = [event for event in events if type(event) in PLANS]
    for event in plans:
        force_setattr(event, "measured", Measured(plan_s=plan_s / len(plans)))


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
        figure = self.FIGURES.get(type(event))
        if figure is not None:
            figure(self, event)

    def figures(self) -> dict[type[Event], Callable[[Any], None]]:
        """What adds up an event of each type that has a figure."""
        return {kind: MethodType(figure, self) for kind, figure in self.FIGURES.items()}

    # ---- one event each

    def _upload_planned(self, event: e.UploadPlanned) -> None:
        self.plan_s += event.measured.plan_s
        self.uploaded_areas += event.logical.size

    def _leased(self, event: e.BlocksLeased) -> None:
        self.cpu_destination_blocks += _ids(event.copies)
        self.adopted_areas += event.adopted.size

    def _sent(self, event: e.TransferStarted | e.ReadersDrained | e.KeepMapPublished) -> None:
        self.metadata_bytes += event.metadata_bytes

    def _transferred(self, event: e.RankTransferred) -> None:
        self.h2d_bytes += event.h2d_bytes
        self.unpack_bytes += event.unpack_bytes
        self.table_updates += event.table_updates
        self.wait_s += event.measured.wait_s

    def _acknowledged(self, event: e.UploadAcknowledged) -> None:
        self.cpu_gather_bytes += event.cpu_gather_bytes

    def _retain_planned(self, event: e.RetainPlanned) -> None:
        self.plan_s += event.measured.plan_s
        self.adopted_areas += event.adopted.size
        self._modes[event.operation.operation_id] = event.mode

    def _applied(self, event: e.TablesApplied) -> None:
        self.resident_moved_bytes += event.resident_moved_bytes
        self.table_updates += event.table_updates
        self.wait_s += event.measured.wait_s
        if self._modes.get(event.operation.operation_id) == "pack":
            self.packed_bytes += event.resident_moved_bytes

    def _committed(self, event: e.OwnersCommitted) -> None:
        mode = self._modes.pop(event.operation.operation_id, None)
        if mode is not None:  # None: folded from the middle of an operation
            self.remap[mode] += 1

    def _aborted(self, event: e.RetainAborted) -> None:
        self._modes.pop(event.operation.operation_id, None)

    def _stored(self, event: e.RankStored) -> None:
        self.d2h_bytes += event.d2h_bytes
        self.wait_s += event.measured.wait_s

    def _freed(self, event: e.BlocksRetired | e.FenceOpened) -> None:
        self.physical_blocks_released += sum(map(_ids, event.freed))

    FIGURES: ClassVar[Mapping[type[Event], Callable[["Metrics", Any], None]]] = {
        e.UploadPlanned: _upload_planned,
        e.BlocksLeased: _leased,
        e.TransferStarted: _sent,
        e.ReadersDrained: _sent,
        e.KeepMapPublished: _sent,
        e.RankTransferred: _transferred,
        e.UploadAcknowledged: _acknowledged,
        e.RetainPlanned: _retain_planned,
        e.TablesApplied: _applied,
        e.OwnersCommitted: _committed,
        e.RetainAborted: _aborted,
        e.RankStored: _stored,
        e.BlocksRetired: _freed,
        e.FenceOpened: _freed,
    }
    """Events that have a figure, and what adds it up."""


def _ids(data: bytes) -> int:
    """How many of '<i4'."""
    return len(data) // 4
