"""Time for deadlines: the machine's, or one that counts turns so that a run with chaos repeats."""

import time
from typing import Protocol

import anyio
import anyio.lowlevel


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
