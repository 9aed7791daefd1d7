"""How a group of batches gets into the SQLite file: one statement, whatever the number of its rows.

The statement runs without Python's lock. Row by row, each row would ask for that lock again, and a thread that computes
gives it up only every few milliseconds: a group then takes seconds where it takes milliseconds.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from kvsweep.ledger.event_base import Event
from kvsweep.ledger.store import Position
from kvsweep.ledger.store_format import row_of

NAMES: Final = 16384  # request ids whose number is remembered

NAMES_A_STATEMENT: Final = 4096

_PLAIN: Final = ", ".join(f"json_extract(value, '$[{column}]')" for column in range(7))
_LOG: Final = (
    f"INSERT INTO log SELECT {_PLAIN}, substr(?2, json_extract(value, '$[8]'), json_extract(value, '$[9]')), "
    "json_extract(value, '$[7]') FROM json_each(?1)"
)


class Names:
    """Numbers of request ids, given in order. Of ids that were forgotten the file is asked again."""

    def __init__(self, db: sqlite3.Connection, *, limit: int = NAMES) -> None:
        self._db, self._limit = db, limit
        [self._next] = db.execute("SELECT coalesce(max(rid), 0) + 1 FROM requests").fetchone()
        latest = db.execute("SELECT id, rid FROM requests ORDER BY rid DESC LIMIT ?", (limit,)).fetchall()
        self._known: dict[str, int] = dict(reversed(latest))
        self._complete = len(self._known) == self._next - 1

    def assign(self, ids: Iterable[str]) -> tuple[dict[str, int], list[tuple[int, str]]]:
        """(number of each id, those that are not in the file yet)."""
        numbers: dict[str, int] = {}
        new: list[tuple[int, str]] = []
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

    def keep(self, numbers: dict[str, int], new: list[tuple[int, str]]) -> None:
        """They are in the file now."""
        self._next += len(new)
        for name, number in numbers.items():
            self._known.pop(name, None)
            self._known[name] = number
        while len(self._known) > self._limit:
            del self._known[next(iter(self._known))]
            self._complete = False


def commit(
    db: sqlite3.Connection, names: Names, batch: Sequence[Event], bodies: Sequence[bytes], last: Position
) -> None:
    """Store events behind position `last`, all or none; a second statement only where a request id is new."""
    numbers, new = names.assign(event.request.request_id for event in batch)
    at, rows = 1, []
    for position, (event, body) in enumerate(zip(batch, bodies, strict=True), last + 1):
        *plain, _, crc = row_of(position, numbers[event.request.request_id], event, body)
        rows.append((*plain, crc, at, len(body)))
        at += len(body)
    plain_rows, all_bodies = msgspec.json.encode(rows).decode(), b"".join(bodies)
    if new:
        db.execute("BEGIN IMMEDIATE")
        for start in range(0, len(new), NAMES_A_STATEMENT):
            _insert_names(db, new[start : start + NAMES_A_STATEMENT])
    db.execute(_LOG, (plain_rows, all_bodies))
    if new:
        db.execute("COMMIT")
    names.keep(numbers, new)


def _insert_names(db: sqlite3.Connection, new: list[tuple[int, str]]) -> None:
    # Bound, not within JSON, where SQLite would end an id at its first NUL.
    values = ", ".join(["(?, ?)"] * len(new))
    db.execute(f"INSERT INTO requests (rid, id) VALUES {values}", [field for row in new for field in row])
