"""An SQLite file as a ledger uses it: how it is opened, asked, locked, and what its errors mean."""

import contextlib
import fcntl
import os
import sqlite3
import urllib.parse
from typing import Any, Final, NoReturn, TypeAlias

from kvsweep.ledger.errors import LogCorrupt, LogError, UnknownSchema
from kvsweep.ledger.store import encoding
from kvsweep.ledger.store.codec import SCHEMA
from kvsweep.ledger.store.encoding import Seen
from kvsweep.ledger.store.log import Position

APPLICATION_ID: Final = 0x6B767377  # "kvsw": how `file` and a reader know the file
PAGE_BYTES: Final = 16384
CHECKPOINT_PAGES: Final = 8000
LOCK_TRIES: Final = 100

Row: TypeAlias = tuple[Any, ...]

# The driver fails to decode the database's own message when that quotes damaged text.
FAULTS: Final = (sqlite3.Error, UnicodeDecodeError)

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


class Database:
    """A connection to the file at `path`. Reads say where what cannot be read stands.

    Raises sqlite3.Error where the file cannot be opened.
    """

    def __init__(self, path: str, *, read_only: bool, any_thread: bool = False) -> None:
        self.path = path
        self.read_only = read_only
        name = f"file:{urllib.parse.quote(path)}?mode={'ro' if read_only else 'rw'}"
        self.raw = sqlite3.connect(name, uri=True, isolation_level=None, check_same_thread=not any_thread)

    def fetch(self, sql: str, arguments: tuple[object, ...] = ()) -> tuple[list[Row], Exception | None]:
        """Rows up to the first that cannot be read, and why it cannot."""
        rows: list[Row] = []
        try:
            for row in self.raw.execute(sql, arguments):
                rows.append(row)  # noqa: PERF402 - those before an error are kept
        except FAULTS as error:
            return rows, error
        return rows, None

    def ask(self, sql: str, arguments: tuple[object, ...] = (), *, at: Position = 1) -> int:
        """The one integer that a statement gives. Raises LogCorrupt at position `at` where it cannot be read."""
        try:
            return self.one(sql, arguments)
        except FAULTS as error:
            self.unreadable(error, at)

    def one(self, sql: str, arguments: tuple[object, ...] = ()) -> int:
        """The one integer that a statement gives, with the database's own errors."""
        value = self.raw.execute(sql, arguments).fetchone()[0]
        if not isinstance(value, int):
            raise sqlite3.DatabaseError(f"expected an integer, got {value!r}")
        return value

    def unreadable(self, error: Exception, position: Position) -> NoReturn:
        """Raise LogError where the file could not be read now, LogCorrupt where it will never be."""
        code = getattr(error, "sqlite_errorcode", None)
        if code is not None and code & 0xFF in _NOT_DAMAGE:
            raise LogError(f"ledger {self.path} cannot be read: {error}") from error
        raise LogCorrupt(position, str(error)) from error

    def write_ahead(self) -> None:
        """Settings of a writer, as they were measured."""
        self.raw.execute("PRAGMA journal_mode = WAL")
        self.raw.execute("PRAGMA synchronous = FULL")
        self.raw.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")

    def into_one_file(self) -> None:
        """Leave one file that can be read from anywhere; beside a reader it stays in its write-ahead form."""
        with contextlib.suppress(sqlite3.Error):
            self.raw.execute("PRAGMA busy_timeout = 0")
            self.raw.execute("PRAGMA journal_mode = DELETE")

    def integrity(self) -> str | None:
        """What the database's own check of its structure finds first; None if nothing."""
        try:
            [text] = self.raw.execute("PRAGMA integrity_check(1)").fetchone()
        except FAULTS as error:
            text = str(error)
        return None if text == "ok" else " ".join(str(text).split())

    def close(self) -> None:
        self.raw.close()


def expect_file(path: str) -> None:
    """Raise LogError for what cannot be a ledger before SQLite looks at it."""
    if os.path.isdir(path):
        raise LogError(f"ledger {path}: expected a file, got a directory")
    if os.path.getsize(path) == 0:
        raise LogError(f"ledger {path} is empty: expected an SQLite file, got 0 bytes")


def expect_schema(db: Database) -> None:
    """Raise LogError for a file that is no ledger, UnknownSchema for one of another version's schema."""
    found = db.one("PRAGMA application_id")
    if found != APPLICATION_ID:
        raise LogError(f"{db.path} is no ledger: expected application id {APPLICATION_ID:#x}, got {found:#x}")
    # Before anything else: the tables of another schema may be others.
    schema = db.one("PRAGMA user_version")
    if schema != SCHEMA:
        raise UnknownSchema("schema", schema, SCHEMA)


def expect_tables(db: Database, expected: dict[str, str]) -> None:
    tables = dict(db.raw.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall())
    if tables != expected:
        wrong = sorted(str(name) for name in {*tables, *expected} if tables.get(name) != expected.get(name))
        raise LogError(
            f"ledger {db.path} is corrupt: expected the tables of schema {SCHEMA}, these differ: {', '.join(wrong)}"
        )


def expect_whole(db: Database) -> None:
    """A file without a write-ahead part has as many bytes as its head says; SQLite would not miss the last ones."""
    db.raw.execute("BEGIN")
    try:
        expected = db.one("PRAGMA page_size") * db.one("PRAGMA page_count")
        found = os.path.getsize(db.path)
        [mode] = db.raw.execute("PRAGMA journal_mode").fetchone()
    finally:
        db.raw.execute("ROLLBACK")
    if mode != "wal" and found != expected:
        raise LogError(f"ledger {db.path} is damaged: expected {expected} bytes, got {found}")


def make_private(path: str) -> None:
    """Make an empty file that only its owner may read or write, in place of one that a killed process left."""
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError as error:
        raise LogError(f"ledger {path.removesuffix('-new')} cannot be created: {error.strerror}") from error


def take_lock(path: str) -> int:
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


def drop_lock(path: str, descriptor: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{path}-lock")
    os.close(descriptor)


class Presence:
    """Notices that a ledger's file, or its write-ahead file, was removed, replaced or shortened under its writer.

    SQLite would go on writing into files that nobody can open any more.
    """

    def __init__(self, path: str) -> None:
        self._look = encoding.look
        self._seen: list[tuple[str, bytes, Seen | None]] = [
            (name, os.fsencode(name), None) for name in (path, f"{path}-wal")
        ]

    def expect(self) -> None:
        """Raise LogError for what happened to a file since the last call."""
        for at, (path, name, before) in enumerate(self._seen):
            found = self._look(name)
            if found is None:
                if before is None:
                    continue  # the write-ahead file comes with the first write
                raise LogError(f"{path} was removed under its writer")
            if before is not None and found != before:
                if found[:2] != before[:2]:
                    raise LogError(f"{path} was replaced under its writer")
                if found[2] < before[2]:
                    raise LogError(f"{path} was shortened under its writer: expected {before[2]} bytes, got {found[2]}")
            self._seen[at] = (path, name, found)
