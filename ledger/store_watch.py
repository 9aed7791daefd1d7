"""What happens around a ledger that is written: who is told how far it is, and what becomes of its files."""

import os
from collections.abc import Callable
from typing import TypeAlias

from kvsweep.ledger.errors import LogError
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


class Presence:
    """Notices that a ledger's file, or its write-ahead file, was removed, replaced or shortened under its writer.

    SQLite would go on writing into files that nobody can open any more.
    """

    def __init__(self, path: str) -> None:
        self._paths = (path, f"{path}-wal")
        self._seen: dict[str, tuple[int, int, int]] = {}

    def expect(self) -> None:
        """Raise LogError for what happened to a file since the last call."""
        for path in self._paths:
            try:
                found = os.stat(path)
            except FileNotFoundError as error:
                if path not in self._seen:
                    continue  # the write-ahead file comes with the first write
                raise LogError(f"{path} was removed under its writer") from error
            inode, device, size = self._seen.get(path, (found.st_ino, found.st_dev, 0))
            if (found.st_ino, found.st_dev) != (inode, device):
                raise LogError(f"{path} was replaced under its writer")
            if found.st_size < size:
                raise LogError(f"{path} was shortened under its writer: expected {size} bytes, got {found.st_size}")
            self._seen[path] = (inode, device, found.st_size)
