"""How a group of batches gets into the file: one statement, whatever the number of its events.

The statement runs without Python's lock, and a thread that asks for that lock beside one that computes gets it only
every few milliseconds. So the writer inserts one row into a temporary view, and a trigger, which runs inside the
database, puts the group, its places and new request ids where they belong.
"""

import sqlite3
from collections.abc import Iterable
from typing import Final

import msgspec

from kvsweep.ledger.store.database import Database
from kvsweep.ledger.store.format import Group

NAMES: Final = 16384  # request ids whose number is remembered

NAMES_A_STATEMENT: Final = 4096

_VIEW: Final = (
    "CREATE TEMP VIEW intake AS SELECT 0 AS first, 0 AS events, 0 AS time, 0 AS crc, x'' AS crcs, '' AS plain, "
    "x'' AS body, '' AS places, '' AS names"
)
_TRIGGER: Final = (
    "CREATE TEMP TRIGGER take INSTEAD OF INSERT ON intake BEGIN "
    "INSERT INTO requests SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(NEW.names); "
    "INSERT INTO groups VALUES (NEW.first, NEW.events, NEW.time, NEW.crc, NEW.crcs, NEW.plain, NEW.body); "
    "INSERT INTO places SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'), "
    "json_extract(value, '$[3]'), json_extract(value, '$[4]'), NEW.first, json_extract(value, '$[5]'), "
    "json_extract(value, '$[6]') FROM json_each(NEW.places); "
    "END"
)
_TAKE: Final = "INSERT INTO intake VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"

NewNames = list[tuple[int, str]]


class Names:
    """Numbers of request ids, given in order. Of ids that were forgotten the file is asked again."""

    def __init__(self, db: sqlite3.Connection, *, limit: int = NAMES) -> None:
        self._db, self._limit = db, limit
        [self._next] = db.execute("SELECT coalesce(max(rid), 0) + 1 FROM requests").fetchone()
        latest = db.execute("SELECT id, rid FROM requests ORDER BY rid DESC LIMIT ?", (limit,)).fetchall()
        self._known: dict[str, int] = dict(reversed(latest))
        self._complete = len(self._known) == self._next - 1

    def assign(self, ids: Iterable[str]) -> tuple[dict[str, int], NewNames]:
        """(number of each id, those that are not in the file yet)."""
        numbers: dict[str, int] = {}
        new: NewNames = []
        for name in ids:
            if name in numbers:
                continue
            number = self._known.get(name)
            if number is None and not self._complete:
                row = self._db.execute("SELECT rid FROM requests WHERE id = ?", (name,)).fetchone()
                number = row[0] if row else None
            if number is None:
                number = self._next + len(new)
                new.append((number, name))
            numbers[name] = number
        return numbers, new

    def keep(self, numbers: dict[str, int], new: NewNames) -> None:
        """They are in the file now."""
        self._next += len(new)
        for name, number in numbers.items():
            self._known.pop(name, None)
            self._known[name] = number
        while len(self._known) > self._limit:
            del self._known[next(iter(self._known))]
            self._complete = False


class Intake:
    """The writer's way into a file. Raises the database's own errors; then nothing of the group is stored."""

    def __init__(self, db: Database) -> None:
        self._db = db.raw
        self._db.execute(_VIEW)
        self._db.execute(_TRIGGER)

    def store(self, group: Group, new: NewNames) -> None:
        """The group and the request ids that are new in it, all or none."""
        # Within JSON, SQLite would end an id at its first NUL. Such ids go before, in the same transaction.
        bound = [row for row in new if "\0" in row[1]]
        plain = msgspec.json.encode([row for row in new if "\0" not in row[1]] if bound else new).decode()
        row = (group.first, group.events, group.time, group.crc, group.crcs, group.plain, group.body, group.places)
        if not bound:
            self._db.execute(_TAKE, (*row, plain))
            return
        self._db.execute("BEGIN IMMEDIATE")
        try:
            for start in range(0, len(bound), NAMES_A_STATEMENT):
                self._insert_names(bound[start : start + NAMES_A_STATEMENT])
            self._db.execute(_TAKE, (*row, plain))
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def _insert_names(self, new: NewNames) -> None:
        values = ", ".join(["(?, ?)"] * len(new))
        self._db.execute(f"INSERT INTO requests (rid, id) VALUES {values}", [field for row in new for field in row])
