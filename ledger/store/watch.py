"""What happens around a ledger that is written: who is told how far it is, and what becomes of its files."""

import os
from collections.abc import Callable
from typing import TypeAlias

from kvsweep.ledger.errors import LogError
from kvsweep.ledger.store import encoding
from kvsweep.ledger.store.encoding import Seen
from kvsweep.ledger.store.log import Position

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


class Presence:
    """Notices that a ledger's file, or its write-ahead file, was removed, replaced or shortened under its writer.

    SQLite would go on writing into files that nobody can open any more.
    """

    def __init__(self, path: str) -> None:
        self._look = encoding.look
        self._seen: list[tuple[str, bytes, Seen | None]] = [
            (name, os.fsencode(name), None) for name in (path, f"{path}-wal")
        ]

    def expect(self) -> None:
        """Raise LogError for what happened to a file since the last call."""
        for at, (path, name, before) in enumerate(self._seen):
            found = self._look(name)
            if found is None:
                if before is None:
                    continue  # the write-ahead file comes with the first write
                raise LogError(f"{path} was removed under its writer")
            if before is not None and found != before:
                if found[:2] != before[:2]:
                    raise LogError(f"{path} was replaced under its writer")
                if found[2] < before[2]:
                    raise LogError(f"{path} was shortened under its writer: expected {before[2]} bytes, got {found[2]}")
            self._seen[at] = (path, name, found)
