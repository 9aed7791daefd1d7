"""A ledger in one SQLite file: a transaction a batch, written ahead, readable by any SQLite tool through view `events`.

What was acknowledged survives the end of the process and, at level "power" and as far as the disk keeps its word, of
the machine. Every row carries a CRC-32 over its plain columns and its body, because a database notices a broken page
and not a changed byte.
"""

import contextlib
import fcntl
import importlib.metadata
import os
import re
import sqlite3
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NoReturn

from kvsweep.ledger.codec import RULES, SCHEMA, encode_batch
from kvsweep.ledger.errors import LogCorrupt, LogError, UnknownSchema
from kvsweep.ledger.event_base import Event
from kvsweep.ledger.ids import RequestKey
from kvsweep.ledger.query import Where
from kvsweep.ledger.store import Header, Level, Position, Record, Stream, expect_after, expect_known, expect_position
from kvsweep.ledger.store_commit import Names, commit
from kvsweep.ledger.store_fence import Fence
from kvsweep.ledger.store_find import CHUNK, find
from kvsweep.ledger.store_format import APPLICATION_ID, COLUMNS, TABLES, Row, crc_of, record_of
from kvsweep.ledger.store_wal import has_log, has_unread_commit, has_writer
from kvsweep.ledger.store_watch import Watcher, Watchers

PAGE_BYTES: Final = 16384
CHECKPOINT_PAGES: Final = 8000
LOCK_TRIES: Final = 100
UNREAD_COMMIT: Final = "a committed batch in the write-ahead file cannot be read"

_COLUMNS: Final = f"SELECT {COLUMNS} FROM log LEFT JOIN requests USING (rid)"
_ALL: Final = f"{_COLUMNS} WHERE position > ? AND position <= ? ORDER BY position LIMIT {CHUNK}"
_ONE: Final = f"{_COLUMNS} WHERE log.rid = ? AND epoch = ? AND seq >= ? AND position <= ? ORDER BY seq LIMIT {CHUNK}"
_SYNCHRONOUS: Final[dict[Level, str]] = {"process": "NORMAL", "power": "FULL"}
_NOT_DAMAGE: Final = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_NOMEM,
    }
)

# The driver fails to decode the database's own message when that quotes damaged text.
_FAULTS: Final = (sqlite3.Error, UnicodeDecodeError)


class SqliteLog:
    """LogStore in the file at `path`, begun (mode 0600) if it does not exist and may be written.

    One writer, held by a lock that ends with its process; readers beside it see whole batches. Raises LogError when
    the file cannot be opened, is no ledger or has a writer already, UnknownSchema when a newer version wrote it.

    any_thread  whether the thread that opens it may hand it to another; only one at a time may call it
    """

    queues: Final = False

    def __init__(self, path: str, *, read_only: bool = False, any_thread: bool = False) -> None:
        self.path = os.path.realpath(path)
        self._read_only = read_only
        self._any_thread = any_thread
        self._level: Level = "power"
        self._watchers = Watchers()
        self._failed: LogError | None = None
        self._db: sqlite3.Connection | None = None
        self._lock: int | None = None if read_only else _take_lock(self.path)
        try:
            self._db = self._connect()
            self.header = _read_header(self._db, self.path)
            expect_known(self.header)
            self._last: Position = _one(self._db, "SELECT coalesce(max(position), 0) FROM log")
            self._synced: Position = 0  # whether what was found is on the disk, nobody knows
            if not self._read_only:
                self._names = Names(self._db)
                self._fence = Fence(self.requests(), self.following)
        except _FAULTS as error:
            self.close()
            raise LogError(f"ledger {self.path} cannot be opened: {error}") from error
        except BaseException:
            self.close()
            raise

    def append(self, batch: Sequence[Event], *, expected: Position | None = None, level: Level = "power") -> Position:
        self._expect_open()
        if self._read_only:
            raise LogError(f"ledger {self.path} was opened to be read only")
        self.durable()
        expect_position(expected, self._last)
        bodies = encode_batch(batch)
        following = self._fence.check(batch)
        self.append_encoded(batch, bodies, level=level)
        self._fence.advance(following)
        return self._last

    def append_encoded(self, batch: Sequence[Event], bodies: Sequence[bytes], *, level: Level) -> Position:
        """Store events whose encoding and numbers the caller has checked; for the rest as `append`."""
        db = self._expect_open()
        if self._failed is not None:
            raise self._failed
        if not batch:
            return self._last
        try:
            if level != self._level:
                db.execute(f"PRAGMA synchronous = {_SYNCHRONOUS[level]}")
                self._level = level
            commit(db, self._names, batch, bodies, self._last)
        except BaseException as error:
            # Whether the batch is in the file is not known any more: only opening it again tells.
            self._failed = LogError(f"ledger {self.path} failed at position {self._last + 1}: {error!r}")
            if db.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    db.execute("ROLLBACK")
            if isinstance(error, _FAULTS):
                raise self._failed from error
            raise
        self._last += len(batch)
        if level == "power":
            self._synced = self._last
        self._watchers.tell(self._last)
        return self._last

    def durable(self, level: Level = "process") -> Position:
        db = self._expect_open()
        if self._failed is not None:
            raise self._failed
        if self._read_only:
            self._last = max(self._last, self._ask(db, "SELECT coalesce(max(position), 0) FROM log"))
        return self._synced if level == "power" else self._last

    def full(self) -> tuple[str, int] | None:
        return None

    def flush(self) -> None:
        self.durable()

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        return self._watchers.add(watcher)

    def following(self, request: RequestKey) -> int:
        """Number that the stream's next event must have, by what is stored."""
        sql = "SELECT coalesce(max(seq) + 1, 0) FROM log JOIN requests USING (rid) WHERE id = ? AND epoch = ?"
        return self._ask(self._expect_open(), sql, (request.request_id, request.request_epoch))

    def read(self, request: RequestKey | None = None, *, after: Position = 0) -> Iterator[Record]:
        expect_after(after)
        db = self._expect_open()
        until = self._last
        if self._read_only:
            until = self._ask(db, "SELECT coalesce(max(position), 0) FROM log")
        if request is None:
            return self._read_all(after, until)
        try:
            rid = db.execute("SELECT rid FROM requests WHERE id = ?", (request.request_id,)).fetchone()
        except _FAULTS as error:
            self._unreadable(error, 1)
        return iter(()) if rid is None else self._read_one(request, rid[0], after, until)

    def find(self, where: Where, *, newest_first: bool = False) -> Iterator[Record]:
        return find(self._fetch, self._unreadable, where, self.durable(), newest_first)

    def requests(self) -> list[Stream]:
        db = self._expect_open()
        try:
            rows = db.execute(
                "SELECT id, epoch, count(*), max(position) FROM log JOIN requests USING (rid) "
                "GROUP BY rid, epoch ORDER BY min(position)"
            ).fetchall()
        except _FAULTS as error:
            self._unreadable(error, 1)
        return [Stream(request=RequestKey(name, epoch), events=n, last=last) for name, epoch, n, last in rows]

    def damage(self) -> tuple[Position | None, str] | None:
        db = self._expect_open()
        try:
            [text] = db.execute("PRAGMA integrity_check(1)").fetchone()
        except _FAULTS as error:
            text = str(error)
        if text == "ok":
            if self._read_only and not has_writer(self.path) and has_unread_commit(self.path, PAGE_BYTES):
                return self._ask(db, "SELECT coalesce(max(position), 0) FROM log") + 1, UNREAD_COMMIT
            return None
        row = re.search(r"\brow (\d+)", text)
        return (int(row[1]) if row else None), " ".join(text.split())

    def close(self) -> None:
        if self._db is not None:
            if not self._read_only and self._failed is None:
                # Leaves one file that can be read from anywhere; beside a reader it stays in its write-ahead form.
                with contextlib.suppress(sqlite3.Error):
                    self._db.execute("PRAGMA busy_timeout = 0")
                    self._db.execute("PRAGMA journal_mode = DELETE")
            self._db.close()
            self._db = None
        if self._lock is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{self.path}-lock")
            os.close(self._lock)
            self._lock = None

    # ---- opening

    def _connect(self) -> sqlite3.Connection:
        if not os.path.exists(self.path):
            if self._read_only:
                raise LogError(f"ledger {self.path} does not exist")
            _begin(self.path)
        elif os.path.isdir(self.path):
            raise LogError(f"ledger {self.path}: expected a file, got a directory")
        elif os.path.getsize(self.path) == 0:
            raise LogError(f"ledger {self.path} is empty: expected an SQLite file, got 0 bytes")
        if not self._read_only and has_log(self.path):
            # Writable, it would be shortened to what can be read, and the rest would be gone.
            with contextlib.closing(_open(self.path, "ro")) as reader:
                last = _one(reader, "SELECT coalesce(max(position), 0) FROM log")
                if has_unread_commit(self.path, PAGE_BYTES):
                    raise LogCorrupt(last + 1, UNREAD_COMMIT)
        db = _open(self.path, "ro" if self._read_only else "rw", any_thread=self._any_thread)
        try:
            _expect_ledger(db, self.path)
            _expect_whole(db, self.path)
            if not self._read_only:
                db.execute("PRAGMA journal_mode = WAL")
                db.execute("PRAGMA synchronous = FULL")
                db.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        except BaseException:
            db.close()
            raise
        return db

    def _expect_open(self) -> sqlite3.Connection:
        if self._db is None:
            raise LogError(f"ledger {self.path} is closed")
        return self._db

    # ---- reading

    def _read_all(self, after: Position, until: Position) -> Iterator[Record]:
        last = after
        while last < until:
            rows, error = self._fetch(_ALL, (last, until))
            for row in rows:
                last += 1
                if row[0] != last:
                    raise LogCorrupt(last, f"the event is missing, the next one stands at {row[0]}")
                yield record_of(row)
            if error is not None:
                self._unreadable(error, last + 1)
            if not rows:
                raise LogCorrupt(last + 1, f"the event is missing, the last one stands at {until}")

    def _read_one(self, request: RequestKey, rid: int, after: Position, until: Position) -> Iterator[Record]:
        db = self._expect_open()
        sql = "SELECT count(*) FROM log WHERE rid = ? AND epoch = ? AND position <= ?"
        seq: int = self._ask(db, sql, (rid, request.request_epoch, after))
        last = after
        while True:
            rows, error = self._fetch(_ONE, (rid, request.request_epoch, seq, until))
            for row in rows:
                if row[1:4] != (request.request_id, request.request_epoch, seq):
                    raise LogCorrupt(row[0], f"expected event {seq} of {request}, got {row[3]} of {row[1]!r}, {row[2]}")
                seq, last = seq + 1, row[0]
                yield record_of(row)
            if error is not None:
                self._unreadable(error, last + 1)
            if len(rows) < CHUNK:
                return

    def _fetch(self, sql: str, arguments: tuple[object, ...]) -> tuple[list[Row], Exception | None]:
        """Rows up to the first that cannot be read, and why it cannot."""
        rows: list[Row] = []
        try:
            for row in self._expect_open().execute(sql, arguments):
                rows.append(row)  # noqa: PERF402 - those before an error are kept
        except _FAULTS as error:
            return rows, error
        return rows, None

    def _ask(self, db: sqlite3.Connection, sql: str, arguments: tuple[object, ...] = ()) -> int:
        try:
            return _one(db, sql, arguments)
        except _FAULTS as error:
            self._unreadable(error, 1)

    def _unreadable(self, error: Exception, position: Position) -> NoReturn:
        code = getattr(error, "sqlite_errorcode", None)
        if code is not None and code & 0xFF in _NOT_DAMAGE:
            raise LogError(f"ledger {self.path} cannot be read: {error}") from error
        raise LogCorrupt(position, str(error)) from error


def _open(path: str, mode: str, *, any_thread: bool = False) -> sqlite3.Connection:
    name = f"file:{urllib.parse.quote(path)}?mode={mode}"
    return sqlite3.connect(name, uri=True, isolation_level=None, check_same_thread=not any_thread)


def _one(db: sqlite3.Connection, sql: str, arguments: tuple[object, ...] = ()) -> int:
    value = db.execute(sql, arguments).fetchone()[0]
    if not isinstance(value, int):
        raise sqlite3.DatabaseError(f"expected an integer, got {value!r}")
    return value


def _begin(path: str) -> None:
    """Make a new ledger beside the place and move it there: killed in between, it is not half a ledger."""
    try:
        created_by = importlib.metadata.version("kvsweep")
    except importlib.metadata.PackageNotFoundError:
        created_by = "unknown"
    new = f"{path}-new"
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new)
        os.close(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError as error:
        raise LogError(f"ledger {path} cannot be created: {error.strerror}") from error
    with contextlib.closing(sqlite3.connect(new, isolation_level=None)) as db:
        db.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        db.execute("BEGIN IMMEDIATE")
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {SCHEMA}")
        for statement in TABLES.values():
            db.execute(statement)
        header = (SCHEMA, RULES, created_by)
        db.execute("INSERT INTO header VALUES (1, ?, ?, ?, ?)", (*header, crc_of(*header)))
        db.execute("COMMIT")
    os.rename(new, path)


def _expect_ledger(db: sqlite3.Connection, path: str) -> None:
    found = _one(db, "PRAGMA application_id")
    if found != APPLICATION_ID:
        raise LogError(f"{path} is no ledger: expected application id {APPLICATION_ID:#x}, got {found:#x}")
    # Before anything else: the tables of a newer schema may be others.
    schema = _one(db, "PRAGMA user_version")
    if schema > SCHEMA:
        raise UnknownSchema("schema", schema, SCHEMA)
    tables = dict(db.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall())
    if tables != TABLES:
        wrong = sorted(str(name) for name in {*tables, *TABLES} if tables.get(name) != TABLES.get(name))
        raise LogError(
            f"ledger {path} is corrupt: expected the tables of schema {SCHEMA}, these differ: {', '.join(wrong)}"
        )


def _expect_whole(db: sqlite3.Connection, path: str) -> None:
    """A file without a write-ahead part has as many bytes as its head says; SQLite would not miss the last ones."""
    db.execute("BEGIN")
    try:
        expected = _one(db, "PRAGMA page_size") * _one(db, "PRAGMA page_count")
        found = os.path.getsize(path)
        [mode] = db.execute("PRAGMA journal_mode").fetchone()
    finally:
        db.execute("ROLLBACK")
    if mode != "wal" and found != expected:
        raise LogError(f"ledger {path} is damaged: expected {expected} bytes, got {found}")


def _read_header(db: sqlite3.Connection, path: str) -> Header:
    row = db.execute("SELECT schema, rules, created_by, crc FROM header").fetchone()
    if row is None or row[3] != crc_of(*row[:3]):
        raise LogError(f"ledger {path} is corrupt: its header does not have the checksum that it was written with")
    return Header(schema=row[0], rules=row[1], created_by=row[2])


def _take_lock(path: str) -> int:
    """Descriptor of the lock file beside the ledger, held until it is closed or the process ends."""
    lock = f"{path}-lock"
    for _ in range(LOCK_TRIES):
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise LogError(f"ledger {path} cannot be written: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise LogError(f"ledger {path} has a writer already: expected one, got a second") from error
        # A writer that closed in between has removed the file: then this lock guards nothing.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), os.stat(lock)):
                return descriptor
        os.close(descriptor)
    raise LogError(f"ledger {path} cannot be locked: its lock file was replaced {LOCK_TRIES} times")
