"""Until when an operation may wait for its ranks."""

from kvsweep.ledger import events as e
from kvsweep.ledger.event_base import Event
from kvsweep.ledger.ids import Operation
from kvsweep.runtime.clock import Clock


class Deadlines:
    """Runs from an operation's start until its ranks are done or it is aborted.

    limit_s  seconds that an operation has, on `clock`
    """

    def __init__(self, clock: Clock, limit_s: float) -> None:
        self._clock, self._limit_s = clock, limit_s
        self._open: dict[int, tuple[float, Operation]] = {}

    def apply(self, event: Event) -> None:
        match event:
            case e.TransferStarted() | e.ReadersDrained() | e.StoreStarted():
                self._open[event.operation.operation_id] = (self._clock.now() + self._limit_s, event.operation)
            case (
                e.TransferCompleted()
                | e.AllRanksApplied()
                | e.StoreCompleted()
                | e.UploadAborted()
                | e.RetainAborted()
                | e.StoreAborted()
            ):
                self._open.pop(event.operation.operation_id, None)
            case _:
                pass

    def next(self) -> float | None:
        """Earliest moment at which one passes; None where nothing waits."""
        return min((deadline for deadline, _ in self._open.values()), default=None)

    def due(self) -> list[Operation]:
        """Operations whose deadline has passed."""
        now = self._clock.now()
        return [operation for deadline, operation in self._open.values() if deadline <= now]
