"""One file of a ledger: reading it by groups, by one life and by conditions."""

import re
import sqlite3
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from kvsweep.ledger.errors import LogCorrupt, LogError
from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import RequestKey
from kvsweep.ledger.store.codec import Bodies, list_head, split_batch
from kvsweep.ledger.store.database import FAULTS, Database, Row, expect_tables
from kvsweep.ledger.store.digest import Digest
from kvsweep.ledger.store.format import (
    GROUP_COLUMNS,
    TABLES,
    Place,
    Plain,
    crc_of,
    pack,
    piece_of,
    plain_of,
    unpack,
    unpack_run,
    unpack_some,
)
from kvsweep.ledger.store.group import part_of
from kvsweep.ledger.store.log import Header, Piece, Position, Record, Snapshot, Stream
from kvsweep.ledger.store.query import NAMES_BLOCKS, SENT_TO_RANKS, TURNED_BACK, Where, may_match
from kvsweep.ledger.store.snapshot import decode_state, encode_state

CHUNK: Final = 32  # groups or runs a query: a reader holds no transaction while its caller works

_ALL: Final = f"SELECT {GROUP_COLUMNS} FROM groups WHERE first >= ? AND first <= ? ORDER BY first LIMIT {CHUNK}"
_ONE: Final = (
    "SELECT p.seq, p.events, position, p.first, time, crcs, substr(body, offset + 1, bytes) FROM places AS p "
    "LEFT JOIN groups AS g ON g.first = p.first WHERE rid = ? AND epoch = ? AND p.seq > ? AND position <= ? "
    f"AND position + p.events > ? ORDER BY p.seq LIMIT {CHUNK}"
)
_PLAINS: Final = f"SELECT first, plain FROM groups WHERE first > ? ORDER BY first LIMIT {CHUNK}"
_PLACE: Final = "SELECT events, position, first, offset, bytes FROM places WHERE rid = ? AND epoch = ? AND seq = ?"
_STREAMS: Final = (
    "SELECT id, epoch, max(seq + events), max(position + events) - 1 FROM places JOIN requests USING (rid) "
    "GROUP BY rid, epoch ORDER BY min(position)"
)
_LATEST: Final = (
    "SELECT id, epoch, max(seq + events), max(position + events) - 1 FROM places JOIN requests USING (rid) "
    "GROUP BY rid, epoch ORDER BY rid DESC, epoch DESC LIMIT ?"
)
_TOLD: Final = SENT_TO_RANKS | TURNED_BACK


class Segment:
    """One file, read."""

    def __init__(self, db: Database) -> None:
        self.db = db
        expect_tables(db, TABLES)
        self.header = _read_header(db)

    @property
    def path(self) -> str:
        return self.db.path

    def last(self) -> Position:
        """Position of the last event; the one before the file's first where it has none."""
        return self.db.ask(
            "SELECT coalesce(max(first + events - 1), ?) FROM (SELECT first, events FROM groups "
            "ORDER BY first DESC LIMIT 1)",
            (self.header.first - 1,),
        )

    def read_all(self, after: Position, until: Position) -> Iterator[Record]:
        for piece in self.pieces(after, until):
            time = piece.time
            for position, event in enumerate(piece.events(), piece.first):
                if after < position <= until:
                    yield Record(position=position, event=event, time=time)
            if piece.damage is not None:
                raise piece.damage

    def pieces(self, after: Position, until: Position) -> Iterator[Piece]:
        """Every group that has events beyond `after` up to `until`. Raises LogCorrupt at the first that is missing, and
        behind what stands before a damage."""
        following = max(after + 1, self.header.first)
        if following > until:
            return
        start = self.db.ask("SELECT coalesce(max(first), ?) FROM groups WHERE first <= ?", (following, following))
        while start <= until:
            rows, error = self.db.fetch(_ALL, (start, until))
            for row in rows:
                if row[0] != start:
                    raise LogCorrupt(start, f"the event is missing, the next one stands at {row[0]}")
                piece, damage = piece_of(row)
                yield piece
                if damage is not None:
                    raise damage
                start += piece.count
            if error is not None:
                self.db.unreadable(error, start)
            if not rows:
                raise LogCorrupt(start, f"the event is missing, the last one stands at {until}")

    def groups(self) -> Iterator[tuple[list[Event], int]]:
        """(events, time) of every whole group. Raises LogCorrupt at the first that is missing or damaged."""
        start, last = self.header.first, self.last()
        while start <= last:
            rows, error = self.db.fetch(_ALL, (start, last))
            for row in rows:
                if row[0] != start:
                    raise LogCorrupt(start, f"the event is missing, the next one stands at {row[0]}")
                yield unpack(row), row[2]
                start += row[1]
            if error is not None:
                self.db.unreadable(error, start)
            if not rows:
                raise LogCorrupt(start, f"the event is missing, the last one stands at {last}")

    def expect_places(self) -> None:
        """Raise LogCorrupt unless what stands beside the bodies, and the places of lives, say what the bodies say."""
        names, runs = dict(self.db.raw.execute("SELECT id, rid FROM requests").fetchall()), 0
        first = self.header.first
        for events, time in self.groups():
            unknown = {event.request.request_id for event in events} - names.keys()
            if unknown:
                raise LogCorrupt(first, f"the request {min(unknown)!r} has no number")
            [(plain, body)] = self.db.raw.execute("SELECT plain, body FROM groups WHERE first = ?", (first,)).fetchall()
            # As they were written: an event that has got a field since is encoded otherwise today.
            head = len(list_head(len(events)))
            bodies = Bodies(body, [len(piece) for piece in split_batch(body[head:], len(events))])
            again = pack([part_of(events, bodies)], names, first, time)
            places = msgspec.json.decode(again.places, type=list[Place])
            found = [self._place(place) == (*place[3:5], first, *place[5:]) for place in places]
            if plain != again.plain or not all(found):
                raise LogCorrupt(first, "what stands beside the bodies of its group is not what they say")
            first, runs = first + len(events), runs + len(places)
        stored = self.db.ask("SELECT count(*) FROM places")
        if stored != runs:
            raise LogCorrupt(first, f"expected {runs} places of lives, got {stored}")

    def read_one(self, request: RequestKey, after: Position, until: Position) -> Iterator[Record]:
        rid, last, seq = self._number_of(request), after, -1
        if rid is None:
            return
        while True:
            rows, error = self.db.fetch(_ONE, (rid, request.request_epoch, seq, until, after))
            for number, events, position, first, time, crcs, body in rows:
                for at, event in enumerate(unpack_run(position, events, first, crcs, body), position):
                    if after < at <= until:
                        yield Record(position=at, event=event, time=time)
                seq, last = number, position + events - 1
            if error is not None:
                self.db.unreadable(error, last + 1)
            if len(rows) < CHUNK:
                return

    def find(self, where: Where, until: Position, newest_first: bool) -> Iterator[Record]:
        """Looks through the plain columns first; bodies are decoded of the events that are given back."""
        texts, arguments = _prefilter(where)
        wanted = _predicate(where)
        block = None if where.block is None else struct.pack("<i", where.block.block)
        way = "DESC" if newest_first else "ASC"
        sql = (
            f"SELECT first, events, time, crc, crcs, plain FROM groups WHERE first >= ? AND first <= ? {texts} "
            f"ORDER BY first {way} LIMIT {CHUNK}"
        )
        low = self.db.ask("SELECT coalesce(max(first), ?) FROM groups WHERE first <= ?", (where.after + 1,) * 2)
        high = until
        while low <= high:
            rows, error = self.db.fetch(sql, (low, high, *arguments))
            for first, events, time, crc, crcs, plain in rows:
                if crc != crc_of(first, events, time, crcs, plain):
                    raise LogCorrupt(first, "its group does not have the checksum that it was written with")
                if block is not None or any(map(wanted, plain_of(first, plain))):
                    found = self._some(first, block, where, until, wanted)
                    yield from reversed(found) if newest_first else found
                if newest_first:
                    high = first - 1
                else:
                    low = first + events
            if error is not None:
                self.db.unreadable(error, low)
            if len(rows) < CHUNK:
                return

    def _some(
        self, first: Position, block: bytes | None, where: Where, until: Position, wanted: Callable[[Plain], bool]
    ) -> list[Record]:
        rows, error = self.db.fetch(_ALL.replace(f"LIMIT {CHUNK}", "LIMIT 1"), (first, first))
        if error is not None or not rows:
            self.db.unreadable(error or LookupError("its group is gone"), first)
        return [
            Record(position=position, event=event, time=rows[0][2])
            for position, event in unpack_some(rows[0], wanted, block or b"")
            if where.after < position <= until and may_match(event, where)
        ]

    def following(self, request: RequestKey) -> int:
        """Number of the stream's next event, by this file alone; 0 where it has none."""
        rid = self._number_of(request)
        if rid is None:
            return 0
        sql = "SELECT coalesce(max(seq + events), 0) FROM places WHERE rid = ? AND epoch = ?"
        return self.db.ask(sql, (rid, request.request_epoch))

    def streams(self) -> list[Stream]:
        """Every stream with events in this file, in the order of its first one here."""
        return self._streams(_STREAMS, ())

    def latest(self, limit: int) -> list[Stream]:
        """Streams that began last."""
        return self._streams(_LATEST, (limit,))[::-1]

    def _streams(self, sql: str, arguments: tuple[object, ...]) -> list[Stream]:
        rows, error = self.db.fetch(sql, arguments)
        if error is not None:
            self.db.unreadable(error, self.header.first)
        return [Stream(request=RequestKey(name, epoch), events=n, last=last) for name, epoch, n, last in rows]

    def tally(self) -> list[tuple[str, int, int]]:
        """(event type, events, bytes), by the plain columns."""
        events, sizes, after = Counter[str](), Counter[str](), -1
        while True:
            rows, error = self.db.fetch(_PLAINS, (after,))
            for after, plain in rows:
                for _, _, _, name, _, _, _, size in plain_of(after, plain):
                    events[name] += 1
                    sizes[name] += size
            if error is not None:
                self.db.unreadable(error, after + 1)
            if not rows:
                return [(name, events[name], sizes[name]) for name in events]

    def snapshot(self, until: Position) -> Snapshot | None:
        """Newest whole snapshot at or before a position. One that is damaged costs time and no fact: it is passed."""
        columns = "position, digest, chain, state, crc"
        sql = f"SELECT {columns} FROM snapshots WHERE position <= ? ORDER BY position DESC LIMIT 1"
        while True:
            rows, error = self.db.fetch(sql, (until,))
            if error is not None or not rows:
                return None
            position, digest, chain, body, crc = rows[0]
            if crc == crc_of(position, digest, chain, body):
                state = decode_state(body)
                if state is not None and Digest(chain).value(state) == digest:
                    return Snapshot(position=position, digest=digest, chain=chain, state=state)
            until = position - 1

    def first_time(self) -> int:
        """When its first group was stored, in microseconds since 1970; 0 where it has none."""
        return self.db.ask("SELECT coalesce(min(time), 0) FROM (SELECT time FROM groups ORDER BY first LIMIT 1)")

    def last_time(self) -> int:
        """When its last group was stored, in microseconds since 1970; 0 where it has none."""
        return self.db.ask("SELECT coalesce(max(time), 0) FROM (SELECT time FROM groups ORDER BY first DESC LIMIT 1)")

    def snapshot_at(self) -> Position:
        """Position of the newest snapshot, whole or not; 0 where there is none."""
        return self.db.ask("SELECT coalesce(max(position), 0) FROM snapshots")

    def damage(self) -> tuple[Position | None, str] | None:
        text = self.db.integrity()
        if text is None:
            return None
        row = re.search(r"\brow (\d+)", text)
        return (int(row[1]) if row else None), text

    def close(self) -> None:
        self.db.close()

    def _place(self, place: Place) -> Row | None:
        row: Row | None = self.db.raw.execute(_PLACE, place[:3]).fetchone()
        return row

    def _number_of(self, request: RequestKey) -> int | None:
        rows, error = self.db.fetch("SELECT rid FROM requests WHERE id = ?", (request.request_id,))
        if error is not None:
            self.db.unreadable(error, self.header.first)
        return rows[0][0] if rows else None


def insert_snapshot(db: sqlite3.Connection, snapshot: Snapshot) -> int:
    """Store a snapshot. Returns its bytes; raises the database's own errors."""
    body = encode_state(snapshot.state)
    row = (snapshot.position, snapshot.digest, snapshot.chain, body)
    db.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?, ?)", (*row, crc_of(*row)))
    return len(body)


def _prefilter(where: Where) -> tuple[str, Sequence[object]]:
    """SQL that leaves out groups without such an event; of those that it lets through some have none either."""
    conditions: list[str] = []
    arguments: list[object] = []
    types = where.types
    if where.block is not None:
        types = tuple(name for name in NAMES_BLOCKS if types is None or name in types)
    if types is not None:
        conditions.append(f"({' OR '.join(['instr(plain, ?)'] * len(types)) or '0'})")
        arguments += [f'"{name}"' for name in types]
    if where.operation is not None:
        conditions.append("instr(plain, ?)")
        arguments.append(f",{where.operation},")
    return "".join(f" AND {condition}" for condition in conditions), arguments


def _predicate(where: Where) -> Callable[[Plain], bool]:
    kinds = None if where.types is None else frozenset(where.types)
    if where.block is not None:
        kinds = frozenset(NAMES_BLOCKS) if kinds is None else kinds & NAMES_BLOCKS.keys()
    if kinds is not None and where.operation is None and where.rank is None:
        return lambda entry: entry[3] in kinds  # a million of them are asked

    def wanted(entry: Plain) -> bool:
        _, _, _, name, operation, rank, _, _ = entry
        return (
            (kinds is None or name in kinds)
            and (where.operation is None or operation == where.operation)
            and (where.rank is None or rank == where.rank or name in _TOLD)
        )

    return wanted


def _read_header(db: Database) -> Header:
    try:
        row = db.raw.execute("SELECT schema, rules, created_by, first, crc FROM header").fetchone()
    except FAULTS as error:
        raise LogError(f"ledger {db.path} cannot be opened: {error}") from error
    if row is None or row[4] != crc_of(*row[:4]):
        raise LogError(f"ledger {db.path} is corrupt: its header does not have the checksum that it was written with")
    return Header(schema=row[0], rules=row[1], created_by=row[2], first=row[3])
