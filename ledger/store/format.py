"""A ledger's file, a row a group of events: tables, and rows that carry checksums over everything they say.

A group's bodies are one msgpack array, so that storing a group costs a row and not one an event. The
plain columns of its events stand beside them as JSON, which view `events` lays out for any SQLite tool. `places` finds
the events of one life: a row for every run of them within a group.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from kvsweep.ledger.errors import LogCorrupt, LogError
from kvsweep.ledger.events import Event
from kvsweep.ledger.store import encoding
from kvsweep.ledger.store.codec import Bodies, decode, decode_batch, decode_group, list_head, split_batch
from kvsweep.ledger.store.database import Row
from kvsweep.ledger.store.group import Part
from kvsweep.ledger.store.log import Decoded, Piece, Position

TABLES: Final = {
    "header": "CREATE TABLE header (id INTEGER PRIMARY KEY CHECK (id = 1), schema INTEGER NOT NULL, "
    "rules INTEGER NOT NULL, created_by TEXT NOT NULL, first INTEGER NOT NULL, crc INTEGER NOT NULL)",
    "requests": "CREATE TABLE requests (rid INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE)",
    "groups": "CREATE TABLE groups (first INTEGER PRIMARY KEY, events INTEGER NOT NULL, time INTEGER NOT NULL, "
    "crc INTEGER NOT NULL, crcs BLOB NOT NULL, plain TEXT NOT NULL, body BLOB NOT NULL)",
    "places": "CREATE TABLE places (rid INTEGER NOT NULL, epoch INTEGER NOT NULL, seq INTEGER NOT NULL, "
    "events INTEGER NOT NULL, position INTEGER NOT NULL, first INTEGER NOT NULL, offset INTEGER NOT NULL, "
    "bytes INTEGER NOT NULL, PRIMARY KEY (rid, epoch, seq)) WITHOUT ROWID",
    "snapshots": "CREATE TABLE snapshots (position INTEGER PRIMARY KEY, digest TEXT NOT NULL, chain BLOB NOT NULL, "
    "state BLOB NOT NULL, crc INTEGER NOT NULL)",
    "events": "CREATE VIEW events AS SELECT first + key AS position, time / 1e6 AS time, requests.id AS request, "
    "json_extract(value, '$[1]') AS epoch, json_extract(value, '$[2]') AS seq, json_extract(value, '$[3]') AS type, "
    "json_extract(value, '$[4]') AS operation_id, json_extract(value, '$[5]') AS rank, "
    "json_extract(value, '$[7]') AS bytes, "
    "substr(body, 1 + json_extract(value, '$[6]'), json_extract(value, '$[7]')) AS body "
    "FROM groups, json_each(plain) JOIN requests ON rid = json_extract(value, '$[0]')",
}

GROUP_COLUMNS: Final = "first, events, time, crc, crcs, plain, body"

Plain: TypeAlias = tuple[int, int, int, str, int | None, int | None, int, int]
"""rid, epoch, seq, type, operation id, rank, offset of the body, its bytes: what stands beside an event's body."""

Place: TypeAlias = tuple[int, int, int, int, int, int, int]
"""rid, epoch, number of the first event, events, position, offset, bytes: one life's run of events in a group."""

_PLAIN: Final[msgspec.json.Decoder[list[Plain]]] = msgspec.json.Decoder(list[Plain])


def crc_of(*columns: object) -> int:
    """CRC-32 over the columns of a row."""
    return zlib.crc32(msgspec.msgpack.encode(columns))


class Group(msgspec.Struct, frozen=True):
    """A group as it goes into the file. `places` is JSON of Place."""

    first: Position
    events: int
    time: int
    crc: int
    crcs: bytes
    plain: str
    body: bytes
    places: str


def pack(parts: Sequence[Part], numbers: Mapping[str, int], first: Position, time: int) -> Group:
    """A group of events.

    numbers  the number of each request id
    first    position of the first event
    time     microseconds since 1970
    """
    own = [[numbers[name] for name in part.names] for part in parts]
    crcs, plain, body, places = encoding.pack_parts(parts, own, first)
    events = len(crcs) // 4
    crc = crc_of(first, events, time, crcs, plain)
    return Group(first=first, events=events, time=time, crc=crc, crcs=crcs, plain=plain, body=body, places=places)


def unpack(row: Row) -> list[Event]:
    """Events of a row of GROUP_COLUMNS. Raises LogCorrupt with the position of the first that is not as written."""
    first, crcs, plain, body = expect_group(row)
    events = decode_group(body)
    if events is not None and 4 * len(events) == len(crcs):
        return events
    return [_decoded(first + index, body, entry) for index, entry in enumerate(plain_of(first, plain))]


def piece_of(row: Row) -> tuple[Piece, LogCorrupt | None]:
    """A row of GROUP_COLUMNS, undecoded; of a damaged one what stands before the damage, and what it is."""
    first, time = row[0], row[2]
    try:
        _, crcs, _, body = expect_group(row)
    except LogCorrupt as damage:
        events, bodies = _unpack_before(row, damage.position)
        return Piece(first, len(events), Bodies.of(bodies).data, lambda: (events, None), time), damage
    return Piece(first, len(crcs) // 4, body, lambda: _unpack_readable(row), time), None


def _unpack_readable(row: Row) -> Decoded:
    """Events up to the first that is not as written, and what is wrong with it."""
    try:
        return unpack(row), None
    except LogCorrupt as damage:
        return _unpack_before(row, damage.position)[0], damage


def _unpack_before(row: Row, position: Position) -> tuple[list[Event], list[bytes]]:
    """Events of a damaged row before the one that has the damage, and their bodies."""
    first, _, _, _, _, plain, body = row
    if position == first:
        return [], []
    entries = plain_of(first, plain)[: position - first]
    events = [_decoded(first + at, body, entry) for at, entry in enumerate(entries)]
    return events, [body[entry[6] : entry[6] + entry[7]] for entry in entries]


def unpack_some(row: Row, wanted: Callable[[Plain], bool], within: bytes = b"") -> list[tuple[Position, Event]]:
    """Those events of a row of GROUP_COLUMNS whose plain columns are wanted; the others are not decoded.

    within  bytes that stand in the bodies of those that are wanted
    """
    first, _, plain, body = expect_group(row)
    return [
        (first + index, _decoded(first + index, body, entry))
        for index, entry in enumerate(plain_of(first, plain))
        if wanted(entry) and body.find(within, entry[6], entry[6] + entry[7]) >= 0
    ]


def expect_group(row: Row) -> tuple[Position, bytes, str, bytes]:
    """(first, crcs, plain, body) of a row. Raises LogCorrupt unless they are those that were written."""
    first, events, time, crc, crcs, plain, body = row
    typed = isinstance(crcs, bytes) and isinstance(plain, str) and isinstance(body, bytes)
    if not typed or crc != crc_of(first, events, time, crcs, plain) or not events or len(crcs) != 4 * events:
        raise LogCorrupt(first, "its group does not have the checksum that it was written with")
    if zlib.crc32(body) != _uint32(crcs, -1):
        raise _damaged(first, crcs, plain, body)
    return first, crcs, plain, body


def plain_of(first: Position, plain: str) -> list[Plain]:
    """What stands beside the bodies of a group. Raises LogCorrupt."""
    try:
        return _PLAIN.decode(plain)
    except msgspec.DecodeError as error:
        raise LogCorrupt(first, f"its group's plain columns cannot be read: {error}") from error


def unpack_run(position: Position, events: int, first: Position, crcs: object, body: object) -> list[Event]:
    """Events of one life's run within a group. Raises LogCorrupt.

    position, events  of the run
    first, crcs       of its group
    body              the run's bodies
    """
    index = position - first
    if not isinstance(crcs, bytes) or not isinstance(body, bytes) or not 0 <= index < index + events <= len(crcs) // 4:
        raise LogCorrupt(position, "the event stands outside its group")
    before = _uint32(crcs, index - 1) if index else zlib.crc32(list_head(len(crcs) // 4))
    if zlib.crc32(body, before) != _uint32(crcs, index + events - 1):
        raise LogCorrupt(position, "the event or one after it does not have the checksum that it was written with")
    found = decode_batch(body, events)
    if found is not None:
        return found
    pieces, found = split_batch(body, events), []
    for at, piece in enumerate(pieces, position):
        try:
            found.append(decode(piece))
        except LogError as error:
            raise LogCorrupt(at, str(error)) from error
    if len(found) != events:
        raise LogCorrupt(position + len(found), f"expected {events} events from {position} on, got {len(found)}")
    return found


def _damaged(first: Position, crcs: bytes, plain: str, body: bytes) -> LogCorrupt:
    """At the first event whose running checksum is another."""
    crc = zlib.crc32(list_head(len(crcs) // 4))
    for index, entry in enumerate(plain_of(first, plain)):
        crc = zlib.crc32(body[entry[6] : entry[6] + entry[7]], crc)
        if crc != _uint32(crcs, index):
            return LogCorrupt(first + index, "the event does not have the checksum that it was written with")
    return LogCorrupt(first, "its group has bytes that belong to no event, or lacks its head")


def _decoded(position: Position, body: bytes, entry: Plain) -> Event:
    try:
        return decode(body[entry[6] : entry[6] + entry[7]])
    except LogError as error:
        raise LogCorrupt(position, str(error)) from error


def _uint32(data: bytes, index: int) -> int:
    """The index-th little-endian 32-bit integer."""
    at = 4 * index if index >= 0 else len(data) + 4 * index
    return int.from_bytes(data[at : at + 4], "little")
