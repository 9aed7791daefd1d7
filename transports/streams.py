"""Streams of a simulated device: in order inside one, any (seeded) order between them, nothing run when queued."""

from collections import deque
from collections.abc import Callable

import numpy as np
from msgspec import Struct


class Item(Struct, frozen=True, kw_only=True):
    """One piece of work of one operation."""

    operation_id: int
    run: Callable[[], None]
    ready: Callable[[], bool]


class Streams:
    """Named queues of items and the seeded choice of which one runs next."""

    def __init__(self, names: tuple[str, ...], seed: int) -> None:
        self._queues: dict[str, deque[Item]] = {name: deque() for name in names}
        self._random = np.random.Generator(np.random.PCG64(seed))

    def __len__(self) -> int:
        """Items queued over all streams."""
        return sum(len(queue) for queue in self._queues.values())

    def add(self, name: str, item: Item) -> None:
        self._queues[name].append(item)

    def drop(self, operation_id: int) -> None:
        """Take out what is left of one operation; the order of the rest stays."""
        for queue in self._queues.values():
            kept = [item for item in queue if item.operation_id != operation_id]
            queue.clear()
            queue.extend(kept)

    def take(self, held: set[int]) -> Item | None:
        """The head of one stream whose head can run, or None. A head that cannot run stops its stream."""
        runnable = [
            queue for queue in self._queues.values() if queue and queue[0].operation_id not in held and queue[0].ready()
        ]
        if not runnable:
            return None
        return runnable[int(self._random.integers(len(runnable)))].popleft()
