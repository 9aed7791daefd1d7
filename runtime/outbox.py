"""Effects that wait for the log. One queue a need: what needs less may leave before what needs more."""

import math
from collections import deque
from collections.abc import Iterable
from operator import itemgetter

from kvsweep.ledger.messages import Effect, Need
from kvsweep.ledger.store.log import Level, Position


class Outbox:
    """Gives back effects in the order in which they came, those of one need always, once their need is met.

    ack  what "process" stands for in this run: "power" makes every effect that waits at all wait for the disk
    """

    def __init__(self, ack: Level) -> None:
        self._ack = ack
        self._number = 0
        self._waiting: dict[Need, deque[tuple[int, Position, Effect]]] = {
            "nothing": deque(),
            "process": deque(),
            "power": deque(),
        }

    def __bool__(self) -> bool:
        waiting = self._waiting
        return bool(waiting["nothing"] or waiting["process"] or waiting["power"])

    def level(self, effects: Iterable[Effect]) -> Level:
        """What the batch that causes these must survive."""
        for effect in effects:
            if self._need(effect) == "power":
                return "power"
        return self._ack

    def put(self, position: Position, effects: Iterable[Effect]) -> None:
        """position: of the last event of the batch that caused them."""
        for effect in effects:
            self._waiting[self._need(effect)].append((self._number, position, effect))
            self._number += 1

    def take(self, *, process: Position, power: Position) -> list[Effect]:
        """Effects whose need is met, given the durable positions."""
        ready: list[tuple[int, Effect]] = []
        durable: dict[Need, float] = {"nothing": math.inf, "process": process, "power": power}
        for need, waiting in self._waiting.items():
            while waiting and waiting[0][1] <= durable[need]:
                number, _, effect = waiting.popleft()
                ready.append((number, effect))
        ready.sort(key=itemgetter(0))
        return [effect for _, effect in ready]

    def _need(self, effect: Effect) -> Need:
        needs: Need | None = getattr(effect, "needs", None)
        if needs is None:
            raise TypeError("Reserve is answered by the pools and never waits")
        return self._ack if needs == "process" else needs
