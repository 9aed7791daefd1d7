"""A ledger in SQLite files: a statement a group, written ahead, readable by any SQLite tool through view `events`.

What was acknowledged survives the end of the process and, at level "power" and as far as the disk keeps its word, of
the machine. The ledger goes on in another file by size and age, and old files are removed whole.
"""

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from kvsweep.ledger.errors import LogCorrupt, LogError, SequenceConflict
from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import RequestKey
from kvsweep.ledger.store import encoding
from kvsweep.ledger.store.commit import Intake, Names
from kvsweep.ledger.store.database import FAULTS, PAGE_BYTES, Presence, drop_lock, take_lock
from kvsweep.ledger.store.files import UNREAD_COMMIT, LedgerFiles, begin, file_of, files_of
from kvsweep.ledger.store.format import pack
from kvsweep.ledger.store.group import Part
from kvsweep.ledger.store.log import (
    Header,
    Level,
    Piece,
    Position,
    Record,
    Rotation,
    Snapshot,
    Stream,
    Watcher,
    Watchers,
    expect_after,
    expect_position,
)
from kvsweep.ledger.store.query import Where
from kvsweep.ledger.store.read import (
    damage_of,
    find_in,
    following_in,
    latest_in,
    pieces_in,
    read_all,
    read_one,
    snapshot_in,
    streams_in,
    tally_in,
)
from kvsweep.ledger.store.rotation import Pace, retire
from kvsweep.ledger.store.segment import Segment, insert_snapshot
from kvsweep.ledger.store.sequences import STREAMS, Sequences
from kvsweep.ledger.store.wal import has_unread_commit, has_writer

_SYNCHRONOUS: Final[dict[Level, str]] = {"process": "NORMAL", "power": "FULL"}


class SqliteLog:
    """LogStore in the file at `path`, begun (mode 0600) if it does not exist and may be written.

    One writer, held by a lock that ends with its process; readers beside it see whole batches. Raises LogError when
    the file cannot be opened, is no ledger or has a writer already, UnknownSchema when another version wrote it.

    any_thread  whether the thread that opens it may hand it to another; only one at a time may call it
    rotation    when the ledger goes on in another file, and when old ones are removed
    """

    queues: Final = False

    def __init__(
        self, path: str, *, read_only: bool = False, any_thread: bool = False, rotation: Rotation | None = None
    ) -> None:
        self.path = os.path.realpath(path)
        self._read_only = read_only
        self._level: Level = "power"
        self._watchers = Watchers()
        self._failed: LogError | None = None
        self._files: LedgerFiles | None = None
        self.pace = Pace(rotation or Rotation())
        self._lock: int | None = None if read_only else take_lock(self.path)
        try:
            self._files = self._opened(any_thread)
            self.header: Header = self._files.header()
            self._last: Position = self._files.active.last()
            self._synced: Position = 0  # whether what was found is on the disk, nobody knows
            if not read_only:
                self._begin_writing()
        except FAULTS as error:
            self.close()
            raise LogError(f"ledger {self.path} cannot be opened: {error}") from error
        except BaseException:
            self.close()
            raise

    # ---- writing

    def append(self, batch: Sequence[Event], *, expected: Position | None = None, level: Level = "power") -> Position:
        self._expect_open()
        if self._read_only:
            raise LogError(f"ledger {self.path} was opened to be read only")
        self.durable()
        expect_position(expected, self._last)
        if not batch:
            return self._last
        part = encoding.encode_part(batch)
        following = self._sequences.check(batch)
        self.append_parts([part], level=level)
        self._sequences.advance(following)
        return self._last

    def append_parts(self, parts: Sequence[Part], *, level: Level) -> Position:
        """Store events whose numbers the caller has checked, as one group; for the rest as `append`."""
        db = self._expect_open().active.db.raw
        if self._failed is not None:
            raise self._failed
        with self._failing(db):
            if level != self._level:
                db.execute(f"PRAGMA synchronous = {_SYNCHRONOUS[level]}")
                self._level = level
            self._presence.expect()  # a hole that the write itself would hide
            numbers, new = self._names.assign(name for part in parts for name in part.names)
            group = pack(parts, numbers, self._last + 1, time.time_ns() // 1000)
            self._intake.store(group, new)
            self._names.keep(numbers, new)
            self._presence.expect()
        self._last += group.events
        self.pace.added(group.events, len(group.body))
        if level == "power":
            self._synced = self._last
        self._watchers.tell(self._last)
        return self._last

    def keep_snapshot(self, snapshot: Snapshot) -> None:
        files = self._expect_open()
        if self._read_only:
            raise LogError(f"ledger {self.path} was opened to be read only")
        if self._failed is not None:
            raise self._failed
        if snapshot.position != self._last:
            raise SequenceConflict("snapshot", self._last, snapshot.position)
        with self._failing(files.active.db.raw):
            if self.pace.file_due():
                self._next_file(files, snapshot)
                retire(files, snapshot.state, self.pace)
                self.header = files.header()
            else:
                self.pace.kept(insert_snapshot(files.active.db.raw, snapshot))

    def snapshot_due(self) -> bool:
        return not self._read_only and self.pace.snapshot_due()

    def durable(self, level: Level = "process") -> Position:
        files = self._expect_open()
        if self._failed is not None:
            raise self._failed
        if self._read_only:
            files.refresh()
            self._last = max(self._last, files.active.last())
        return self._synced if level == "power" else self._last

    def full(self) -> tuple[str, int] | None:
        return None

    def flush(self) -> None:
        self.durable()

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        return self._watchers.add(watcher)

    # ---- reading

    def following(self, request: RequestKey) -> int:
        """Number that the stream's next event must have, by what is stored."""
        return following_in(self._expect_open(), request)

    def read(self, request: RequestKey | None = None, *, after: Position = 0) -> Iterator[Record]:
        expect_after(after)
        files, until = self._expect_open(), self._stored()
        return read_all(files, after, until) if request is None else read_one(files, request, after, until)

    def pieces(self, *, after: Position = 0) -> Iterator[Piece]:
        expect_after(after)
        return pieces_in(self._expect_open(), after, self._stored())

    def find(self, where: Where, *, newest_first: bool = False) -> Iterator[Record]:
        return find_in(self._expect_open(), where, self._stored(), newest_first)

    def requests(self) -> list[Stream]:
        files, _ = self._expect_open(), self._stored()
        return streams_in(files)

    def files(self) -> list[tuple[str, int]]:
        files, _ = self._expect_open(), self._stored()
        return files.sizes()

    def tally(self) -> list[tuple[str, int, int]]:
        files, _ = self._expect_open(), self._stored()
        return tally_in(files)

    def snapshot(self, until: Position | None = None) -> Snapshot | None:
        files, last = self._expect_open(), self._stored()
        return snapshot_in(files, last if until is None else until)

    def damage(self) -> tuple[Position | None, str] | None:
        files = self._expect_open()
        found = damage_of(files)
        if found is not None or not self._read_only or has_writer(self.path):
            return found
        return (files.active.last() + 1, UNREAD_COMMIT) if has_unread_commit(files.active.path, PAGE_BYTES) else None

    def close(self) -> None:
        if self._files is not None:
            if not self._read_only and self._failed is None:
                self._files.active.db.into_one_file()
            self._files.close()
            self._files = None
        if self._lock is not None:
            drop_lock(self.path, self._lock)
            self._lock = None

    # ---- inside

    def _opened(self, any_thread: bool) -> LedgerFiles:
        if not self._read_only and not files_of(self.path):
            begin(self.path)
        return LedgerFiles(self.path, read_only=self._read_only, any_thread=any_thread)

    def _begin_writing(self) -> None:
        self._write_in(self._expect_open().active)
        self._sequences = self.sequences(self.following)

    def sequences(self, look_up: Callable[[RequestKey], int]) -> Sequences:
        """The numbers that come next, as far as they are stored. `look_up` is asked of the others."""
        known, complete = latest_in(self._expect_open(), STREAMS)
        return Sequences(known, look_up, complete=complete)

    def _write_in(self, segment: Segment) -> None:
        """All that is written from now on goes into this file."""
        self._names, self._intake = Names(segment.db.raw), Intake(segment.db)
        self._presence = Presence(segment.path)
        self._level = "power"
        self.pace.began(
            segment.path, segment.first_time(), self._last - max(segment.snapshot_at(), segment.header.first - 1)
        )

    def _next_file(self, files: LedgerFiles, snapshot: Snapshot) -> None:
        path = file_of(self.path, files.active_number + 1)
        begin(path, first=self._last + 1, snapshot=snapshot)
        files.go_on(path)
        self._write_in(files.active)

    def _stored(self) -> Position:
        """Last position that can be read."""
        if self._read_only:
            return self.durable()
        return self._last

    @contextlib.contextmanager
    def _failing(self, db: sqlite3.Connection) -> Iterator[None]:
        """Whatever goes wrong inside ends the writing: what is in the file is not known before it is opened again."""
        try:
            yield
        except BaseException as error:
            self._failed = LogError(f"ledger {self.path} failed at position {self._last + 1}: {error!r}")
            with contextlib.suppress(sqlite3.Error):
                if db.in_transaction:
                    db.execute("ROLLBACK")
            if isinstance(error, (*FAULTS, LogError, LogCorrupt, OSError)):
                raise self._failed from error
            raise

    def _expect_open(self) -> LedgerFiles:
        if self._files is None:
            raise LogError(f"ledger {self.path} is closed")
        return self._files
