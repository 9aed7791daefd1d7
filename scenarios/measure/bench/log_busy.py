"""A serving thread that computes without a pause, and a ledger's writer thread beside it."""

from __future__ import annotations

import queue
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from kvsweep.ledger.events import Event
from kvsweep.ledger.store.codec import encode_batch
from kvsweep.ledger.store.log import QueueBounds
from kvsweep.ledger.store.open import open_log

EVERY_S = 0.01
SPIN = 1000  # turns of the loop between two looks at the clock
Done = Callable[[int], None]
"""Called with the number of events that are stored."""

NO_BOUND = QueueBounds(bytes=2**40, events=2**40)


class Ledger:
    """Ours: appended, stored by its own thread."""

    def __init__(self, folder: Path, done: Done) -> None:
        self._log = open_log(f"sqlite:{folder / 'ledger.db'}", queue=NO_BOUND)
        self._log.watch(done)

    def hand_over(self, events: Sequence[Event]) -> None:
        self._log.append(events)

    def close(self) -> None:
        self._log.close()


class Threaded:
    """A store that knows no thread, called by one, batch after batch; it gets its events encoded."""

    def __init__(self, store: Any, done: Done) -> None:
        self._store, self._done = store, done
        self._stored = 0
        self._queue: queue.SimpleQueue[Sequence[Event] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def hand_over(self, events: Sequence[Event]) -> None:
        self._queue.put(events)

    def _run(self) -> None:
        while (events := self._queue.get()) is not None:
            self._store.store(events, encode_batch(events))
            self._stored += len(events)
            self._done(self._stored)

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()
        self._store.close()


class Nothing:
    """Encodes and drops: what the loop does without a ledger."""

    def hand_over(self, events: Sequence[Event]) -> None:
        encode_batch(events)

    def close(self) -> None:
        """Nothing to give back."""


def serve(make: Callable[[Done], Any], groups: Iterator[list[Event]], count: int) -> tuple[float, float]:
    """(median seconds from handing a group over until it was stored, turns of the loop a second).

    make  opens the store; it is given what to call when events have been stored
    """
    stored: list[tuple[int, float]] = []
    ready = [next(groups) for _ in range(count)]
    store = make(lambda events: stored.append((events, time.perf_counter())))
    given: list[float] = []
    turns = 0
    try:
        started = due = time.perf_counter()
        while len(given) < count or time.perf_counter() < due:
            total = 0
            for number in range(SPIN):
                total += number & 7
            turns += 1
            now = time.perf_counter()
            if now >= due and len(given) < count:
                due += EVERY_S
                given.append(now)
                store.hand_over(ready[len(given) - 1])
        rate = turns / (time.perf_counter() - started)
    finally:
        store.close()
    took, events, at = [], 0, 0
    for batch, handed in zip(ready, given, strict=True):
        events += len(batch)
        while at < len(stored) and stored[at][0] < events:
            at += 1
        if at < len(stored):
            took.append(stored[at][1] - handed)
    return (statistics.median(took) if took else 0.0), rate
