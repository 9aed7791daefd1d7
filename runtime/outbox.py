"""What is on its way out: effects that wait for the log, and frames that wait for a link."""

import math
from collections import deque
from collections.abc import Callable, Iterable
from operator import itemgetter

import anyio

from kvsweep.ledger.messages import Effect, Need, ToRank
from kvsweep.ledger.store.log import Level, Position
from kvsweep.transports.links import RankLink
from kvsweep.transports.wire import encode


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


OUTGOING_FRAMES = 65536
"""Frames waiting for one rank. Open and settling operations bound them; a rank behind by more is given up."""


class _Queue:
    def __init__(self) -> None:
        self.frames: deque[bytes] = deque()
        self.posted = anyio.Event()


class SendQueues:
    """One bounded queue a connected rank. What is posted to another is dropped: its operations end by deadline.

    note  is told when a rank is given up
    """

    def __init__(self, ranks: Iterable[int], *, note: Callable[[str], None]) -> None:
        self._queues = {rank: _Queue() for rank in ranks}
        self._note = note

    def __len__(self) -> int:
        """Frames that wait."""
        return sum(len(queue.frames) for queue in self._queues.values())

    def connect(self, rank: int) -> None:
        """A fresh queue; what waits in the old one is of another link."""
        self._queues[rank] = _Queue()

    def post(self, rank: int, message: ToRank) -> None:
        """Waits for nothing, and one rank that takes nothing costs the others nothing."""
        queue = self._queues.get(rank)
        if queue is None:
            return
        if len(queue.frames) >= OUTGOING_FRAMES:
            del self._queues[rank]
            self._note(f"rank {rank}: {OUTGOING_FRAMES} frames wait for it; given up until it connects again")
            return
        queue.frames.append(encode(message))
        queue.posted.set()

    async def send(self, rank: int, link: RankLink) -> None:
        """Send the rank's frames over this link until it ends."""
        queue = self._queues[rank]
        try:
            while True:
                if not queue.frames:
                    queue.posted = anyio.Event()
                    await queue.posted.wait()
                    continue
                await link.send(queue.frames.popleft())
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return  # what it was sent and did not do ends by deadline, or with its process epoch
