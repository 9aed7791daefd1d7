"""The files of one ledger: the oldest has the ledger's own path, later ones a number behind it, `ledger.db.2`.

Only the last is written. Files are never renamed once they are in place, so a reader that has one open keeps it whole.
"""

import contextlib
import importlib.metadata
import os
import re
import sqlite3
from collections.abc import Iterator
from typing import Final

from kvsweep.ledger.errors import LogCorrupt, LogError
from kvsweep.ledger.store.codec import RULES, SCHEMA
from kvsweep.ledger.store.database import (
    APPLICATION_ID,
    FAULTS,
    PAGE_BYTES,
    Database,
    expect_file,
    expect_schema,
    expect_whole,
    make_private,
)
from kvsweep.ledger.store.format import TABLES, crc_of
from kvsweep.ledger.store.log import Header, Position, Snapshot, expect_known
from kvsweep.ledger.store.segment import Segment, insert_snapshot
from kvsweep.ledger.store.wal import has_log, has_unread_commit

OPEN_FILES: Final = 8  # that are not written any more and stay open for the next question
UNREAD_COMMIT: Final = "a committed batch in the write-ahead file cannot be read"


def file_of(path: str, number: int) -> str:
    return path if number == 1 else f"{path}.{number}"


def files_of(path: str) -> list[int]:
    """Numbers of the ledger's files that are there, ascending."""
    folder, name = os.path.split(path)
    pattern = re.compile(rf"{re.escape(name)}(?:\.([2-9]|[1-9]\d+))?")
    try:
        found = [pattern.fullmatch(entry) for entry in os.listdir(folder or ".")]
    except OSError:
        return []
    return sorted(int(match[1] or 1) for match in found if match)


class LedgerFiles:
    """Files of a ledger, opened when they are needed. Raises LogError where one cannot be.

    read_only  whether the last one is to be written too
    """

    def __init__(self, path: str, *, read_only: bool, any_thread: bool) -> None:
        self.path, self._read_only, self._any_thread = path, read_only, any_thread
        self.numbers = files_of(path)
        self._open: dict[int, Segment] = {}  # of those that are not written; the latest asked for stand at the end
        self._uses: dict[int, int] = {}
        if not self.numbers:
            if read_only:
                raise LogError(f"ledger {path} does not exist")
            raise FileNotFoundError(path)
        if not read_only:
            self._tidy()
        self.active: Segment = self._opened(self.numbers[-1], read_only=read_only)

    @property
    def active_number(self) -> int:
        return self.numbers[-1]

    def refresh(self) -> None:
        """Follow the writer into files that it has begun, and forget those that it has removed."""
        if not os.path.exists(file_of(self.path, self.numbers[-1] + 1)):
            return
        known = self.numbers[-1]
        self.numbers = files_of(self.path) or self.numbers
        if self.numbers[-1] != known:
            self._open[known] = self.active
            self.active = self._opened(self.numbers[-1], read_only=True)
        self._close_unused()

    @contextlib.contextmanager
    def using(self, number: int) -> Iterator[Segment]:
        """The file with this number, open as long as it is used."""
        if number == self.numbers[-1]:
            yield self.active
            return
        found = self._open.pop(number, None) or self._opened(number, read_only=True)
        self._open[number] = found
        self._uses[number] = self._uses.get(number, 0) + 1
        try:
            yield found
        finally:
            self._uses[number] -= 1
            self._close_unused()

    def segments(self, *, newest_first: bool = False) -> Iterator[Segment]:
        """Every file, the oldest first or the newest; each may be used until the next is asked for."""
        for number in self.numbers[:: -1 if newest_first else 1]:
            with self.using(number) as segment:
                yield segment

    def header(self) -> Header:
        """Of the whole ledger: the oldest file's, which knows the first event that is kept."""
        with self.using(self.numbers[0]) as oldest:
            return oldest.header

    def size(self) -> int:
        """Bytes of all files."""
        return sum(os.path.getsize(file_of(self.path, number)) for number in self.numbers)

    def sizes(self) -> list[tuple[str, int]]:
        """(path, bytes) of every file, what stands in its write-ahead part included."""
        found = []
        for number in self.numbers:
            path, size = file_of(self.path, number), 0
            for name in (path, f"{path}-wal"):
                with contextlib.suppress(FileNotFoundError):
                    size += os.path.getsize(name)
            found.append((path, size))
        return found

    def go_on(self, path: str) -> None:
        """Write the next file, which stands at `path`, from now on; what was written so far is only read."""
        self.active.db.into_one_file()
        self.active.close()
        self.numbers = [*self.numbers, self.numbers[-1] + 1]
        self.active = open_segment(path, read_only=False, any_thread=self._any_thread)

    def _tidy(self) -> None:
        """Leave one file of each that is not written any more: beside a reader that was not possible at once."""
        for number in self.numbers[:-1]:
            path = file_of(self.path, number)
            if os.path.exists(f"{path}-wal"):
                with contextlib.closing(open_segment(path, read_only=False)) as segment:
                    segment.db.into_one_file()

    def drop_oldest(self) -> None:
        """Remove the oldest file. Whoever has it open keeps it."""
        number, *self.numbers = self.numbers
        self._close_unused()
        path = file_of(self.path, number)
        for name in (path, f"{path}-wal", f"{path}-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)

    def close(self) -> None:
        for segment in self._open.values():
            segment.close()
        self._open.clear()
        self.active.close()

    def _close_unused(self) -> None:
        """Close what is no file of the ledger any more, and the oldest beyond the bound, but none that is in use."""
        unused = [number for number in self._open if not self._uses.get(number)]
        gone = [number for number in unused if number not in self.numbers]
        many = [number for number in unused if number in self.numbers][: max(0, len(self._open) - OPEN_FILES)]
        for number in (*gone, *many):
            self._open.pop(number).close()
            self._uses.pop(number, None)

    def _opened(self, number: int, *, read_only: bool) -> Segment:
        return open_segment(file_of(self.path, number), read_only=read_only, any_thread=self._any_thread)


def open_segment(path: str, *, read_only: bool, any_thread: bool = False, whole: bool = True) -> Segment:
    """Open one file. Raises LogError for what is no ledger's file or is damaged, UnknownSchema for another version's.

    whole  False: one that was shortened is opened too, for what can be read of it
    """
    try:
        expect_file(path)
        if not read_only and has_log(path):
            _expect_readable_log(path)
        db = Database(path, read_only=read_only, any_thread=any_thread)
        try:
            expect_schema(db)
            segment = Segment(db)
            if whole:
                expect_whole(db)
            expect_known(segment.header)
            if not read_only:
                db.write_ahead()
        except BaseException:
            db.close()
            raise
    except FAULTS as error:
        raise LogError(f"ledger {path} cannot be opened: {error}") from error
    except FileNotFoundError as error:
        raise LogError(f"ledger {path} does not exist") from error
    except OSError as error:
        raise LogError(f"ledger {path} cannot be read: {error.strerror}") from error
    return segment


def _expect_readable_log(path: str) -> None:
    """Writable, a write-ahead file would be shortened to what can be read, and the rest would be gone."""
    with contextlib.closing(open_segment(path, read_only=True)) as reader:
        last = reader.last()
        if has_unread_commit(path, PAGE_BYTES):
            raise LogCorrupt(last + 1, UNREAD_COMMIT)


def begin(path: str, *, first: Position = 1, snapshot: Snapshot | None = None) -> None:
    """Make a new file beside the place and move it there: killed in between, it is not half a ledger."""
    new = f"{path}-new"
    make_private(new)
    with contextlib.closing(sqlite3.connect(new, isolation_level=None)) as db:
        db.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        db.execute("BEGIN IMMEDIATE")
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {SCHEMA}")
        for statement in TABLES.values():
            db.execute(statement)
        header = (SCHEMA, RULES, _version(), first)
        db.execute("INSERT INTO header VALUES (1, ?, ?, ?, ?, ?)", (*header, crc_of(*header)))
        if snapshot is not None:
            insert_snapshot(db, snapshot)
        db.execute("COMMIT")
    os.rename(new, path)
    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _version() -> str:
    try:
        return importlib.metadata.version("kvsweep")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
