"""Virtual time: turns, timers, and gates that open when something has happened."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

import anyio

from kvsweep.ledger.events import Event
from kvsweep.runtime.clock import TurnClock
from kvsweep.scenarios.verify.script.address import Moment


class Gate:
    """Closed until something opens it, for good."""

    def __init__(self) -> None:
        self.is_open = False
        self._then: list[Callable[[], None]] = []

    def then(self, action: Callable[[], None]) -> None:
        """Act when it opens; at once where it is open."""
        if self.is_open:
            action()
        else:
            self._then.append(action)

    def open(self) -> None:
        if not self.is_open:
            self.is_open = True
            waiting, self._then = self._then, []
            for action in waiting:
                action()


class ScriptClock(TurnClock):
    """The driver's clock. It never runs by itself: the timeline moves it, a turn is a millisecond."""

    def __init__(self) -> None:
        super().__init__()
        self._sleeper: anyio.Event | None = None
        self._until: float | None = None
        self._rung = False

    async def wait(self, event: anyio.Event, until: float | None) -> None:
        self._sleeper, self._until = event, until
        if not self._rung and (until is None or until > self.now()):
            await event.wait()
        self._rung = False

    def ring(self) -> None:
        """Wake whoever waits, or is about to: there may be something to do."""
        self._rung = True
        if self._sleeper is not None:
            self._sleeper.set()

    @property
    def due(self) -> int | None:
        """Turn at which the sleeper wants to be woken."""
        return None if self._until is None else round(self._until * 1000)


@dataclass
class _Watch:
    moment: Moment
    left: int
    gate: Gate = field(default_factory=Gate)


class Timeline:
    """Turns of one run. Only `tick` moves time."""

    def __init__(self) -> None:
        self.clock = ScriptClock()
        self.over = False  # the faults have stopped
        self._timers: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = 0
        self._watches: list[_Watch] = []
        self._soon: list[Callable[[], None]] = []

    @property
    def turn(self) -> int:
        return self.clock.turns

    def after(self, turns: int, action: Callable[[], None]) -> None:
        """Act so many turns from now; with 0, at the next one, outside of whatever runs now."""
        if turns:
            self._numbers += 1
            heapq.heappush(self._timers, (self.turn + turns, self._numbers, action))
        else:
            self._soon.append(action)

    def gate_after(self, turns: int) -> Gate:
        gate = Gate()
        self.after(turns, gate.open)
        return gate

    def when(self, moment: Moment) -> Gate:
        """The gate that this moment opens. Ask before the run begins: occurrences are counted from there."""
        for watch in self._watches:
            if watch.moment == moment:
                return watch.gate
        self._watches.append(_Watch(moment, moment.occurrence))
        return self._watches[-1].gate

    def both(self, turns: int, moment: Moment | None) -> Gate:
        """Open once so many turns have passed and the moment was there."""
        gate = Gate()
        last = self.when(moment) if moment is not None else None
        self.after(turns, (lambda: last.then(gate.open)) if last else gate.open)
        return gate

    def see(self, event: Event) -> None:
        for watch in self._watches:
            if not watch.gate.is_open and watch.moment.fits(event):
                watch.left -= 1
                if watch.left == 0:
                    watch.gate.open()

    def tick(self) -> None:
        """One turn passes: what is due acts, and the driver is woken where a deadline has come."""
        self.clock.turns += 1
        soon, self._soon = self._soon, []
        for action in soon:
            action()
        while self._timers and self._timers[0][0] <= self.turn:
            heapq.heappop(self._timers)[2]()
        due = self.clock.due
        if due is not None and due <= self.turn:
            self.clock.ring()

    def jump(self) -> bool:
        """Nothing moves: go to the turn before the next timer or deadline. False where none is due or ahead."""
        ahead = [turn for turn in (self._timers[0][0] if self._timers else None, self.clock.due) if turn is not None]
        if not self._soon and ahead and min(ahead) > self.turn:
            self.clock.turns = min(ahead) - 1
        return bool(self._soon or ahead)

    def stop_faults(self) -> None:
        """Whatever a fault still holds back is let go."""
        self.over = True
        for watch in self._watches:
            watch.gate.open()
        timers, self._timers = sorted(self._timers), []
        for _, _, action in timers:
            self._soon.append(action)
