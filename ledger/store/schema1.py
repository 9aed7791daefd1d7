"""Files of schema 1, a row an event: they are read for good, and not written any more.

A checksum over the plain columns and the body stands in every row, because a database notices a broken page and not a
changed byte.
"""

import re
import zlib
from collections.abc import Iterator
from typing import Final

import msgspec

from kvsweep.ledger.errors import LogCorrupt, LogError
from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import RequestKey
from kvsweep.ledger.store.codec import decode, encode_group
from kvsweep.ledger.store.database import FAULTS, Database, Row, expect_tables
from kvsweep.ledger.store.log import Header, Piece, Position, Record, Snapshot, Stream
from kvsweep.ledger.store.query import Where, may_match

SCHEMA: Final = 1

CHUNK: Final = 256  # records a query: a reader holds no transaction while its caller works

TABLES: Final = {
    "header": "CREATE TABLE header (id INTEGER PRIMARY KEY CHECK (id = 1), schema INTEGER NOT NULL, "
    "rules INTEGER NOT NULL, created_by TEXT NOT NULL, crc INTEGER NOT NULL)",
    "requests": "CREATE TABLE requests (rid INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE)",
    "log": "CREATE TABLE log (position INTEGER PRIMARY KEY, rid INTEGER NOT NULL, epoch INTEGER NOT NULL, "
    "seq INTEGER NOT NULL, type TEXT NOT NULL, operation_id INTEGER, rank INTEGER, body BLOB NOT NULL, "
    "crc INTEGER NOT NULL, UNIQUE (rid, epoch, seq))",
    "events": "CREATE VIEW events AS SELECT position, id AS request, epoch, seq, type, operation_id, rank, "
    "length(body) AS bytes, body FROM log JOIN requests USING (rid)",
}

# The request may be gone: that must show as a wrong checksum.
COLUMNS: Final = "position, id, epoch, seq, type, operation_id, rank, body, crc"
_COLUMNS: Final = f"SELECT {COLUMNS} FROM log LEFT JOIN requests USING (rid)"
_ALL: Final = f"{_COLUMNS} WHERE position > ? AND position <= ? ORDER BY position LIMIT {CHUNK}"
_ONE: Final = f"{_COLUMNS} WHERE log.rid = ? AND epoch = ? AND seq >= ? AND position <= ? ORDER BY seq LIMIT {CHUNK}"


def crc_of(*columns: object, body: bytes = b"") -> int:
    """CRC-32 over plain columns and a body."""
    return zlib.crc32(body, zlib.crc32(msgspec.msgpack.encode(columns)))


def record_of(row: Row) -> Record:
    """Record of a row of COLUMNS. Raises LogCorrupt with its position."""
    *plain, body, crc = row
    position: Position = row[0]
    if not isinstance(body, bytes) or crc != crc_of(*plain, body=body):
        raise LogCorrupt(position, "the row does not have the checksum that it was written with")
    try:
        return Record(position=position, event=decode(body))
    except LogError as error:
        raise LogCorrupt(position, str(error)) from error


def _piece(record: Record) -> Piece:
    return Piece(record.position, 1, encode_group([record.event]).data, lambda: ([record.event], None))


class RowSegment:
    """One file of schema 1, read."""

    writable: Final = False

    def __init__(self, db: Database) -> None:
        self.db = db
        expect_tables(db, SCHEMA, TABLES)
        self.header = _read_header(db)

    @property
    def path(self) -> str:
        return self.db.path

    def last(self) -> Position:
        return self.db.ask("SELECT coalesce(max(position), 0) FROM log")

    def read_all(self, after: Position, until: Position) -> Iterator[Record]:
        last = after
        while last < until:
            rows, error = self.db.fetch(_ALL, (last, until))
            for row in rows:
                last += 1
                if row[0] != last:
                    raise LogCorrupt(last, f"the event is missing, the next one stands at {row[0]}")
                yield record_of(row)
            if error is not None:
                self.db.unreadable(error, last + 1)
            if not rows:
                raise LogCorrupt(last + 1, f"the event is missing, the last one stands at {until}")

    def pieces(self, after: Position, until: Position) -> Iterator[Piece]:
        """A piece an event: whoever folds such a file has time."""
        for record in self.read_all(after, until):
            yield _piece(record)

    def groups(self) -> Iterator[tuple[list[Event], int]]:
        """Whole groups are not known of this schema: (events up to the first damage, 0), some at a time."""
        events: list[Event] = []
        fault: LogCorrupt | None = None
        records = self.read_all(0, self.last())
        while True:
            try:
                events.append(next(records).event)
            except StopIteration:
                break
            except LogCorrupt as error:
                fault = error
                break
            if len(events) == CHUNK:
                yield events, 0
                events = []
        if events:
            yield events, 0
        if fault is not None:
            raise fault

    def read_one(self, request: RequestKey, after: Position, until: Position) -> Iterator[Record]:
        rids, error = self.db.fetch("SELECT rid FROM requests WHERE id = ?", (request.request_id,))
        if error is not None:
            self.db.unreadable(error, 1)
        if not rids:
            return
        rid, epoch, last = rids[0][0], request.request_epoch, after
        seq = self.db.ask("SELECT count(*) FROM log WHERE rid = ? AND epoch = ? AND position <= ?", (rid, epoch, after))
        while True:
            rows, error = self.db.fetch(_ONE, (rid, epoch, seq, until))
            for row in rows:
                if row[1:4] != (request.request_id, epoch, seq):
                    raise LogCorrupt(row[0], f"expected event {seq} of {request}, got {row[3]} of {row[1]!r}, {row[2]}")
                seq, last = seq + 1, row[0]
                yield record_of(row)
            if error is not None:
                self.db.unreadable(error, last + 1)
            if len(rows) < CHUNK:
                return

    def find(self, where: Where, until: Position, newest_first: bool) -> Iterator[Record]:
        """Reads everything up to `until`: nobody writes such files any more, and those that were written are small."""
        found = (record for record in self.read_all(where.after, until) if may_match(record.event, where))
        return reversed(list(found)) if newest_first else found

    def following(self, request: RequestKey) -> int:
        sql = "SELECT coalesce(max(seq) + 1, 0) FROM log JOIN requests USING (rid) WHERE id = ? AND epoch = ?"
        return self.db.ask(sql, (request.request_id, request.request_epoch))

    def streams(self) -> list[Stream]:
        rows, error = self.db.fetch(
            "SELECT id, epoch, count(*), max(position) FROM log JOIN requests USING (rid) "
            "GROUP BY rid, epoch ORDER BY min(position)"
        )
        if error is not None:
            self.db.unreadable(error, 1)
        return [Stream(request=RequestKey(name, epoch), events=n, last=last) for name, epoch, n, last in rows]

    def tally(self) -> list[tuple[str, int, int]]:
        rows, error = self.db.fetch("SELECT type, count(*), sum(length(body)) FROM log GROUP BY type")
        if error is not None:
            self.db.unreadable(error, 1)
        return [(name, events, size) for name, events, size in rows]

    def latest(self, limit: int) -> list[Stream]:
        """Streams that began last."""
        return self.streams()[-limit:]

    def last_time(self) -> int:
        """When its last event was stored is not known: 0, long ago."""
        return 0

    def snapshot(self, until: Position) -> Snapshot | None:
        return None

    def damage(self) -> tuple[Position | None, str] | None:
        text = self.db.integrity()
        if text is None:
            return None
        row = re.search(r"\brow (\d+)", text)
        return (int(row[1]) if row else None), text

    def expect_places(self) -> None:
        """Nothing stands beside the rows of this schema."""

    def close(self) -> None:
        self.db.close()


def _read_header(db: Database) -> Header:
    try:
        row = db.raw.execute("SELECT schema, rules, created_by, crc FROM header").fetchone()
    except FAULTS as error:
        raise LogError(f"ledger {db.path} cannot be opened: {error}") from error
    if row is None or row[3] != crc_of(*row[:3]):
        raise LogError(f"ledger {db.path} is corrupt: its header does not have the checksum that it was written with")
    return Header(schema=row[0], rules=row[1], created_by=row[2])
