"""The staging ring: a few buffers that copies pass through, each reused only after its completion event (D8)."""

from kvsweep.ledger.errors import LayoutError
from kvsweep.transports.blocks import UInt8, aligned


class StagingSlot:
    """One buffer. `pending` from the copy into it is started until the copy out of it has completed."""

    __slots__ = ("_buffer", "pending")

    def __init__(self, slot_bytes: int) -> None:
        self._buffer: UInt8 = aligned(slot_bytes)
        self.pending = False

    def blocks(self, count: int, block_bytes: int) -> UInt8:
        """uint8[count, block_bytes]: a view of the first bytes. Raises LayoutError where they do not fit."""
        if count * block_bytes > self._buffer.size:
            raise LayoutError("staging slot", f"at most {self._buffer.size} bytes", f"{count * block_bytes} bytes")
        return self._buffer[: count * block_bytes].reshape(count, block_bytes)

    def complete(self) -> None:
        """The completion event of whatever used the slot."""
        self.pending = False


class StagingRing:
    """Slots handed out in turn. A slot whose completion event has not happened is never handed out again."""

    def __init__(self, *, slots: int, slot_bytes: int) -> None:
        if slots < 1 or slot_bytes < 1:
            raise LayoutError("staging", "at least 1 slot of at least 1 byte", f"{slots} of {slot_bytes} bytes")
        self.slot_bytes = slot_bytes
        self._slots = [StagingSlot(slot_bytes) for _ in range(slots)]
        self._next = 0

    @property
    def ready(self) -> bool:
        """Whether `acquire` would succeed now."""
        return not self._slots[self._next].pending

    def acquire(self) -> StagingSlot:
        """The next slot, pending from now on. Raises LayoutError while its last use has not completed."""
        slot = self._slots[self._next]
        if slot.pending:
            raise LayoutError("staging slot", f"slot {self._next} completed before its reuse", "a copy still pending")
        slot.pending = True
        self._next = (self._next + 1) % len(self._slots)
        return slot
