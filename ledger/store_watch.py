"""Who is told when a ledger's durable position moves on."""

from collections.abc import Callable
from typing import TypeAlias

from kvsweep.ledger.store import Position

Watcher: TypeAlias = Callable[[Position], None]


class Watchers:
    """Called in the order in which they came, by the thread that stored the batch. A watcher raises nothing."""

    def __init__(self) -> None:
        self._watchers: tuple[Watcher, ...] = ()

    def add(self, watcher: Watcher) -> Callable[[], None]:
        """Returns what takes the watcher away again."""
        self._watchers = (*self._watchers, watcher)

        def remove() -> None:
            self._watchers = tuple(one for one in self._watchers if one is not watcher)

        return remove

    def tell(self, position: Position) -> None:
        for watcher in self._watchers:
            watcher(position)
