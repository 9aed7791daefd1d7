"""A ledger whose writer thread stores only what a test lets through."""

import threading
from collections.abc import Sequence
from pathlib import Path

from kvsweep.ledger.store.group import Part
from kvsweep.ledger.store.log import Level, Position, QueueBounds
from kvsweep.ledger.store.queue import QueuedLog
from kvsweep.ledger.store.sqlite import SqliteLog


class Gate(SqliteLog):
    """Stores a group only when it is let through; raises what a test gives it."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), any_thread=True)
        self.groups: list[tuple[int, Level]] = []
        self.statements: list[str] = []
        self.fault: BaseException | None = None
        self._arrived, self._permits = threading.Semaphore(0), threading.Semaphore(0)
        self._open = False

    def append_parts(self, parts: Sequence[Part], *, level: Level) -> Position:
        self._arrived.release()
        if not self._open:
            self._permits.acquire()
        if self.fault is not None:
            raise self.fault
        self.groups.append((sum(part.events for part in parts), level))
        return super().append_parts(parts, level=level)

    def wait(self) -> None:
        """Until a group has come to the gate."""
        assert self._arrived.acquire(timeout=30)

    def let_one(self) -> None:
        self._permits.release()

    def let_all(self) -> None:
        self._open = True
        self._permits.release()

    def trace(self) -> None:
        assert self._files is not None
        self._files.active.db.raw.set_trace_callback(self.statements.append)


class Queued:
    """A queued log behind a gate."""

    def __init__(self, path: Path, bounds: QueueBounds) -> None:
        self.gate = Gate(path)
        self.log = QueuedLog(self.gate, reader=lambda: SqliteLog(str(path), read_only=True), bounds=bounds)
