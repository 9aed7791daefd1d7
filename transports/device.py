"""What a rank's device has to offer, whatever it is made of."""

from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

from msgspec import Struct

from kvsweep.ledger.errors import KvsweepError
from kvsweep.ledger.ids import Int32, Operation, RequestKey
from kvsweep.ledger.messages import MoveBlocks, StoreBlocks, Transfer
from kvsweep.transports.blocks import UInt8

DeviceWork: TypeAlias = Transfer | MoveBlocks | StoreBlocks


class DeviceLost(KvsweepError):
    """The device cannot say any more whether what was queued has run. Only the end of this process settles it."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(f"device lost: {what}")


class Completion(Struct, frozen=True, kw_only=True):
    """A device's terminal report on one operation: every copy and the table row are visible, or it failed.

    Bytes are those of the copies that ran, also where a later one failed.
    """

    operation: Operation
    outcome: Literal["completed", "failed"]
    reason: str = ""  # of a failure
    h2d_bytes: int = 0  # CPU memory into staging
    unpack_bytes: int = 0  # staging into areas
    d2h_bytes: int = 0  # areas into CPU memory
    resident_moved_bytes: int = 0  # area to area
    table_updates: int = 0  # layer tables written
    wait_s: float = 0.0  # seconds from queueing to completion


class Device(Protocol):
    """One rank's bytes: stream-ordered, asynchronous."""

    @property
    def room(self) -> int:
        """Operations that `queue` would still take."""

    def queue(self, work: DeviceWork) -> None:
        """Returns at once; copies read their sources when they run. Raises LayoutError or Busy and queues nothing."""

    def cancel(self, operation_id: int) -> bool:
        """True: nothing of it had run and nothing will, no completion comes. False: it runs on, or is unknown."""

    def poll(self) -> Sequence[Completion]:
        """Completions since the last call, each once, in any order."""

    def table(self, request: RequestKey, row: int, generation: int, layer: int) -> Int32:
        """int32[slots] physical blocks. Raises LayoutError unless the row shows this generation."""

    def read(self, layer: int, blocks: Int32) -> UInt8:
        """uint8[n, block_bytes], natural order: a copy."""


class ServedDevice(Device, Protocol):
    """A device that its rank's process drives: nothing moves on unless `advance` is called."""

    @property
    def queued(self) -> int:
        """What has been queued and has not run: more than 0 while `advance` may still find something to do."""

    def advance(self, steps: int | None = None) -> int:
        """Do at most that many steps (None: until none can be done now). Returns how many were done.

        Raises DeviceLost where the device is of no use any more.
        """

    def try_forget(self, request: RequestKey) -> bool:
        """Give up the table rows of a closed request. False, with nothing done, while an operation of it is queued."""

    def poison(self, group: int, blocks: Int32) -> None:
        """Freed blocks: overwritten with bytes that read as NaN, where the device does so."""

    def close(self) -> None:
        """Give everything back, when the process ends. Nothing of the device is used afterwards."""
