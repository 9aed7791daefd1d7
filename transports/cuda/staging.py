"""Buffers that copies and launches pass through, each reused only after the completion event of its last use (D8)."""

import numpy as np

from kvsweep.kernels.cuda.api import CudaDriver, DeviceMemory, Event, PinnedMemory, Stream
from kvsweep.kernels.cuda.errors import CudaError
from kvsweep.ledger.errors import LayoutError
from kvsweep.transports.device import DeviceLost


def mark(driver: CudaDriver, event: Event, stream: Stream) -> None:
    """Record an event. Raises DeviceLost: what was queued without a mark could never be known to have run."""
    try:
        driver.record(event, stream)
    except CudaError as error:
        raise DeviceLost(str(error)) from error


def passed(driver: CudaDriver, event: Event) -> bool:
    """Whether what the event marks has run. Raises DeviceLost where the device cannot tell."""
    try:
        return driver.done(event)
    except CudaError as error:
        raise DeviceLost(str(error)) from error


class RingSlot:
    """Device bytes, and pinned bytes of the same size (or none) that are copied into them or out of them.

    event  marks the end of the slot's last use
    """

    __slots__ = ("device", "event", "held", "pinned")

    def __init__(self, pinned: PinnedMemory, device: DeviceMemory, event: Event) -> None:
        self.pinned = pinned
        self.device = device
        self.event = event
        self.held = False


class EventRing:
    """Slots handed out in turn. One that the device may still read or write is never handed out."""

    def __init__(self, driver: CudaDriver, *, slots: int, slot_bytes: int, pinned: bool = True) -> None:
        """Raises LayoutError below 1 slot of 1 byte, OutOfDeviceMemory where they do not fit."""
        if slots < 1 or slot_bytes < 1:
            raise LayoutError("staging", "at least 1 slot of at least 1 byte", f"{slots} of {slot_bytes} bytes")
        self.slot_bytes = slot_bytes
        self._driver = driver
        self._slots = [
            RingSlot(
                driver.pin(slot_bytes) if pinned else PinnedMemory(np.empty(0, dtype=np.uint8), 0),
                driver.allocate(slot_bytes),
                driver.event(),
            )
            for _ in range(slots)
        ]
        self._next = 0

    def acquire(self) -> RingSlot | None:
        """The next slot, until `release`; None while it is held or the event of its last use has not happened.

        Raises DeviceLost where the device cannot tell.
        """
        slot = self._slots[self._next]
        if slot.held or not passed(self._driver, slot.event):
            return None
        slot.held = True
        self._next = (self._next + 1) % len(self._slots)
        return slot

    def release(self, slot: RingSlot, stream: Stream) -> None:
        """Hand the slot back: it is used again when what is queued on the stream by now has run."""
        mark(self._driver, slot.event, stream)
        slot.held = False

    def close(self) -> None:
        """Free the device's bytes. Nothing that is queued may still use them."""
        for slot in self._slots:
            self._driver.free(slot.device)
        self._slots = []
