"""The SQLite file's format: its tables, and rows that carry a checksum over everything they say."""

import zlib
from typing import Any, Final, TypeAlias

import msgspec

from kvsweep.ledger.codec import decode
from kvsweep.ledger.errors import LogCorrupt, LogError
from kvsweep.ledger.event_base import Event
from kvsweep.ledger.store import Position, Record

APPLICATION_ID: Final = 0x6B767377  # "kvsw": how `file` and a reader know the file

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

COLUMNS: Final = "position, id, epoch, seq, type, operation_id, rank, body, crc"
"""What `record_of` takes, from log LEFT JOIN requests: a request that is gone must show as a wrong checksum."""

Row: TypeAlias = tuple[Any, ...]


def crc_of(*columns: object, body: bytes = b"") -> int:
    """CRC-32 over plain columns and a body."""
    return zlib.crc32(body, zlib.crc32(msgspec.msgpack.encode(columns)))


def row_of(position: Position, rid: int, event: Event, body: bytes) -> Row:
    """Columns of table log. The checksum covers the whole request id and not the number that stands for it."""
    operation = getattr(event, "operation", None)
    plain = (
        event.request.request_epoch,
        event.seq,
        type(event).__name__,
        operation.operation_id if operation else None,
        getattr(event, "rank", None),
    )
    return (position, rid, *plain, body, crc_of(position, event.request.request_id, *plain, body=body))


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
