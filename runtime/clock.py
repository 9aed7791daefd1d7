"""Clocks, and until when an operation may wait for its ranks."""

import time
from typing import Protocol

import anyio
import anyio.lowlevel

from kvsweep.ledger import events as e
from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import Operation
from kvsweep.ledger.state import OpenOperation, State


class Clock(Protocol):
    """Seconds, monotonic, and a way to wait for an event no longer than until a moment."""

    def now(self) -> float: ...

    async def wait(self, event: anyio.Event, until: float | None) -> None:
        """Return when the event is set, or at `until`, whichever is first."""


class MachineClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        return time.monotonic()

    async def wait(self, event: anyio.Event, until: float | None) -> None:
        if until is None:
            await event.wait()
            return
        with anyio.move_on_after(max(0.0, until - self.now())):
            await event.wait()


class TurnClock:
    """Counts turns of the pump, a millisecond each: deadlines come at the same turn in every run."""

    def __init__(self) -> None:
        self.turns = 0

    def now(self) -> float:
        return self.turns / 1000.0

    async def wait(self, event: anyio.Event, until: float | None) -> None:
        if until is None and not event.is_set():
            await event.wait()
        self.turns += 1
        await anyio.lowlevel.checkpoint()


BEGIN_TO_WAIT = frozenset({e.TransferStarted, e.ReadersDrained, e.StoreStarted})
END_TO_WAIT = frozenset(
    {
        e.TransferCompleted,
        e.AllRanksApplied,
        e.StoreCompleted,
        e.UploadAborted,
        e.RetainAborted,
        e.StoreAborted,
    }
)
BOUNDS = BEGIN_TO_WAIT | END_TO_WAIT
"""Events with which an operation begins or ends to wait for its ranks."""


class Deadlines:
    """Runs from an operation's start until its ranks are done or it is aborted.

    limit_s  seconds that an operation has, on `clock`
    """

    def __init__(self, clock: Clock, limit_s: float) -> None:
        self._clock, self._limit_s = clock, limit_s
        self._open: dict[int, tuple[float, Operation]] = {}
        self._settling: dict[int, tuple[float, Operation]] = {}

    def apply(self, event: Event) -> None:
        """event: one of BOUNDS; any other changes nothing."""
        if type(event) in BEGIN_TO_WAIT:
            operation: Operation = event.operation  # type: ignore[attr-defined]
            self._open[operation.operation_id] = (self._clock.now() + self._limit_s, operation)
        elif type(event) in END_TO_WAIT:
            self._open.pop(event.operation.operation_id, None)  # type: ignore[attr-defined]

    def next(self) -> float | None:
        """Earliest moment at which one passes; None where nothing waits."""
        waiting = (*self._open.values(), *self._settling.values())
        return min((moment for moment, _ in waiting), default=None)

    def due(self) -> list[Operation]:
        """Operations whose deadline has passed."""
        now = self._clock.now()
        return [operation for deadline, operation in self._open.values() if deadline <= now]

    def settle_again(self, operation: Operation) -> None:
        """Ask after an aborted operation once more in `limit_s`."""
        self._settling[operation.operation_id] = (self._clock.now() + self._limit_s, operation)

    def settled(self, operation: Operation) -> None:
        """Every rank has sent its last report."""
        self._settling.pop(operation.operation_id, None)

    def to_ask_again(self) -> list[Operation]:
        """Aborted operations that have been quiet for a limit; each is named once, `settle_again` renews it."""
        now = self._clock.now()
        due = [operation for moment, operation in self._settling.values() if moment <= now]
        for operation in due:
            del self._settling[operation.operation_id]
        return due


def silent(state: State, operation: Operation) -> str:
    """Which ranks an open operation waits for, in words."""
    request = state.request(operation.request)
    opened = [one for one in request.open_operations() if one.operation == operation] if request else []
    left = sorted({rank for one in opened for rank, _ in one.ranks} - {r for one in opened for r, _ in one.outcomes})
    return f"ranks {left} have not reported"


def settling(state: State, operation: Operation) -> OpenOperation | None:
    """The aborted operation while a rank of it is not terminal."""
    request = state.request(operation.request)
    return next((one for one in request.settling if one.operation == operation), None) if request else None
