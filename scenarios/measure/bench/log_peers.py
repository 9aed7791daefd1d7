"""What a ledger is measured against: the disk itself, and the library for event sourcing that the field knows best."""

from __future__ import annotations

import functools
import os
import sqlite3
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kvsweep.ledger.events import Event

RECORDER = "eventsourcing recorder"
APPLICATION = "eventsourcing application"


class Raw:
    """Bytes written to the end of a file and synced: nothing that is durable can be faster."""

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / "raw", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)

    def store(self, events: Sequence[Event], bodies: Sequence[bytes]) -> None:
        os.write(self._file, b"".join(bodies))
        os.fdatasync(self._file)

    def close(self) -> None:
        os.close(self._file)


class RowByRow:
    """A row an event by `executemany`, as database bindings are used everywhere; WAL, every commit synced."""

    def __init__(self, folder: Path) -> None:
        self._db = sqlite3.connect(folder / "rows.db", isolation_level=None, check_same_thread=False)
        for setting in ("page_size = 16384", "journal_mode = WAL", "synchronous = FULL", "wal_autocheckpoint = 8000"):
            self._db.execute(f"PRAGMA {setting}")
        self._db.execute(
            "CREATE TABLE log (position INTEGER PRIMARY KEY, request TEXT NOT NULL, seq INTEGER NOT NULL, "
            "type TEXT NOT NULL, body BLOB NOT NULL, UNIQUE (request, seq))"
        )
        self._last = 0

    def store(self, events: Sequence[Event], bodies: Sequence[bytes]) -> None:
        rows = [
            (position, event.request.request_id, event.seq, type(event).__name__, body)
            for position, (event, body) in enumerate(zip(events, bodies, strict=True), self._last + 1)
        ]
        self._db.execute("BEGIN IMMEDIATE")
        self._db.executemany("INSERT INTO log VALUES (?, ?, ?, ?, ?)", rows)
        self._db.execute("COMMIT")
        self._last += len(rows)

    def close(self) -> None:
        self._db.close()


class Recorder:
    """eventsourcing's recorder for SQLite; the bodies come encoded, which favours it. Raises ImportError."""

    def __init__(self, folder: Path) -> None:
        from eventsourcing.persistence import StoredEvent
        from eventsourcing.sqlite import SQLiteApplicationRecorder, SQLiteDatastore

        self._stored = StoredEvent
        self._datastore = SQLiteDatastore(str(folder / "recorder.db"))
        self._recorder = SQLiteApplicationRecorder(self._datastore)
        self._recorder.create_table()
        self._ids: dict[str, uuid.UUID] = {}

    def id_of(self, name: str) -> uuid.UUID:
        if name not in self._ids:
            self._ids[name] = uuid.uuid5(uuid.NAMESPACE_OID, name)
        return self._ids[name]

    def store(self, events: Sequence[Event], bodies: Sequence[bytes]) -> None:
        self._recorder.insert_events(
            [
                self._stored(
                    originator_id=self.id_of(event.request.request_id),
                    originator_version=event.seq,
                    topic=type(event).__name__,
                    state=body,
                )
                for event, body in zip(events, bodies, strict=True)
            ]
        )

    def read(self, name: str) -> list[Any]:
        """The stored events of one request."""
        return list(self._recorder.select_events(self.id_of(name)))

    def close(self) -> None:
        self._datastore.close()


@functools.cache
def _aggregate() -> Any:
    """Made once: the library remembers each class by its name."""
    from eventsourcing.domain import Aggregate, event

    class Request(Aggregate):
        def __init__(self) -> None:
            self.last = ""

        @event("Happened")
        def happen(self, body: str) -> None:
            self.last = body

    return Request


class Application:
    """eventsourcing used as its manual shows: an aggregate a request, events triggered on it and saved. ImportError."""

    def __init__(self, folder: Path) -> None:
        from eventsourcing.application import Application as Base

        self._request = _aggregate()
        self._app: Any = Base(
            env={"PERSISTENCE_MODULE": "eventsourcing.sqlite", "SQLITE_DBNAME": str(folder / "application.db")}
        )

    def store(self, events: Sequence[Event], bodies: Sequence[bytes]) -> None:
        request = self._request()
        for body in bodies:
            request.happen(body.hex()[: len(body)])
        self._app.save(request)

    def close(self) -> None:
        self._app.close()


def available(peers: dict[str, Callable[[Path], Any]], folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """(peers that could be opened in the folder, why the others could not)."""
    opened: dict[str, Any] = {}
    missing: dict[str, str] = {}
    for name, make in peers.items():
        try:
            opened[name] = make(folder)
        except ImportError as error:
            missing[name] = f"the extra 'bench' is not installed: {error}"
    return opened, missing
