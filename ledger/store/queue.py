"""A store whose file is written by a thread of its own: `append` hands the batch over and waits for nothing.

The thread takes whatever has gathered and stores it as one group, in one statement, so that a serving thread that
computes is not asked for Python's lock row by row. A group that fails ends the writing for good.
"""

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol, TypeAlias

from msgspec import Struct

from kvsweep.ledger.errors import LogError
from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import RequestKey
from kvsweep.ledger.store import encoding
from kvsweep.ledger.store.group import Part
from kvsweep.ledger.store.log import (
    Header,
    Level,
    LogStore,
    Piece,
    Position,
    QueueBounds,
    Record,
    Snapshot,
    Stream,
    Watcher,
    Watchers,
    expect_position,
)
from kvsweep.ledger.store.query import Where
from kvsweep.ledger.store.rotation import Pace
from kvsweep.ledger.store.sequences import Sequences

# A larger backlog is stored in several groups, so that acknowledgements keep coming and no row is huge.
GROUP_EVENTS: Final = 4096
GROUP_BYTES: Final = 2**20


class Backing(LogStore, Protocol):
    """The store behind the queue; after construction only the queue's thread calls it."""

    def append_parts(self, parts: Sequence[Part], *, level: Level) -> Position: ...

    def following(self, request: RequestKey) -> int: ...

    @property
    def pace(self) -> Pace: ...

    def sequences(self, look_up: Callable[[RequestKey], int]) -> Sequences: ...


class _Batch(Struct, frozen=True, gc=False):
    """What one `append` handed over. Nothing that the collector counts: it would run on the serving thread."""

    part: Part
    level: Level


class _End:
    """Ends the thread."""


_Item: TypeAlias = _Batch | Snapshot | threading.Event | _End


class QueuedLog:
    """LogStore over another one that a thread writes. Belongs to the thread that made it.

    reader  opens the stored ledger to be read only; it is opened when something is read for the first time
    bounds  when `full` says so; nothing is refused here
    """

    queues: Final = True

    def __init__(self, backing: Backing, *, reader: Callable[[], LogStore], bounds: QueueBounds) -> None:
        self._backing, self._open_reader, self._bounds = backing, reader, bounds
        self._reader: LogStore | None = None
        self._queue: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._watchers = Watchers()
        self._encode = encoding.encode_part
        self._last = backing.durable()  # handed over
        self._durable: dict[Level, Position] = {"process": self._last, "power": backing.durable("power")}
        # Counted up on one side each, so that no lock is needed: what waits is the difference.
        self._given_bytes = self._stored_bytes = 0
        self._failed: LogError | None = None
        self._closed = False
        self._sequences = backing.sequences(self._look_up)
        self._pace = backing.pace
        self._thread = threading.Thread(target=self._run, name="kvsweep-ledger", daemon=True)
        self._thread.start()

    # ---- the owner's side

    @property
    def header(self) -> Header:
        return self._backing.header

    def append(self, batch: Sequence[Event], *, expected: Position | None = None, level: Level = "power") -> Position:
        if self._closed or self._failed is not None:
            self._expect_writing()
        if expected is not None:
            expect_position(expected, self._last)
        if not batch:
            return self._last
        part = self._encode(batch)
        self._sequences.admit(batch, dense=part.dense)
        self._last += len(batch)
        self._given_bytes += len(part.data)
        self._queue.put(_Batch(part, level))
        return self._last

    def durable(self, level: Level = "process") -> Position:
        if self._closed or self._failed is not None:
            self._expect_writing()
        return self._durable[level]

    def full(self) -> tuple[str, int] | None:
        if self._given_bytes - self._stored_bytes >= self._bounds.bytes:
            return "ledger queue, in bytes,", self._bounds.bytes
        if self._last - self._durable["process"] >= self._bounds.events:
            return "ledger queue, in events,", self._bounds.events
        return None

    def flush(self) -> None:
        self._expect_open()
        self._drain()
        self._expect_writing()

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        return self._watchers.add(watcher)

    def read(self, request: RequestKey | None = None, *, after: Position = 0) -> Iterator[Record]:
        return self._stored().read(request, after=after)

    def pieces(self, *, after: Position = 0) -> Iterator[Piece]:
        return self._stored().pieces(after=after)

    def find(self, where: Where, *, newest_first: bool = False) -> Iterator[Record]:
        return self._stored().find(where, newest_first=newest_first)

    def requests(self) -> list[Stream]:
        return self._stored().requests()

    def files(self) -> list[tuple[str, int]]:
        return self._stored().files()

    def tally(self) -> list[tuple[str, int, int]]:
        return self._stored().tally()

    def snapshot(self, until: Position | None = None) -> Snapshot | None:
        return self._stored().snapshot(until)

    def snapshot_due(self) -> bool:
        return self._pace.snapshot_due()

    def keep_snapshot(self, snapshot: Snapshot) -> None:
        self._expect_writing()
        expect_position(snapshot.position, self._last)
        self._pace.asked()
        self._queue.put(snapshot)

    def damage(self) -> tuple[Position | None, str] | None:
        return self._stored().damage()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._queue.put(_End())
        self._thread.join()
        if self._reader is not None:
            self._reader.close()
        self._backing.close()

    def _stored(self) -> LogStore:
        """A reader of what had been appended when it was called, as far as it could be stored."""
        self._expect_open()
        self._drain()
        if self._reader is None:
            self._reader = self._open_reader()
        return self._reader

    def _look_up(self, request: RequestKey) -> int:
        """The thread waits for the next batch while this asks its store."""
        self._drain()
        return self._backing.following(request)

    def _drain(self) -> None:
        reached = threading.Event()
        self._queue.put(reached)
        reached.wait()

    def _expect_open(self) -> None:
        if self._closed:
            raise LogError("ledger is closed")

    def _expect_writing(self) -> None:
        self._expect_open()
        if self._failed is not None:
            raise self._failed

    # ---- the thread's side

    def _run(self) -> None:
        while True:
            group, mark = self._take()
            if (group or isinstance(mark, Snapshot)) and self._failed is None:
                try:
                    if group:
                        self._store(group)
                    if isinstance(mark, Snapshot):
                        self._backing.keep_snapshot(mark)
                except BaseException as error:  # noqa: BLE001 - whatever ends the writing has to reach the owner
                    wrong = f"ledger's writer ended behind position {self._durable['process']}: {error!r}"
                    self._failed = error if isinstance(error, LogError) else LogError(wrong)
                    # Whoever waits for a position looks again, and meets the failure.
                    with contextlib.suppress(Exception):
                        self._watchers.tell(self._durable["process"])
            if isinstance(mark, threading.Event):
                mark.set()
            elif isinstance(mark, _End):
                return

    def _take(self) -> tuple[list[_Batch], _Item | None]:
        """What has gathered, up to a mark or a group's size; waits for the first."""
        group: list[_Batch] = []
        events = size = 0
        item = self._queue.get()
        while isinstance(item, _Batch):
            group.append(item)
            events += item.part.events
            size += len(item.part.data)
            if events >= GROUP_EVENTS or size >= GROUP_BYTES:
                return group, None
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return group, None
        return group, item

    def _store(self, group: list[_Batch]) -> None:
        level: Level = "power" if any(batch.level == "power" for batch in group) else "process"
        position = self._backing.append_parts([batch.part for batch in group], level=level)
        self._stored_bytes += sum(len(batch.part.data) for batch in group)
        self._durable = {"process": position, "power": position if level == "power" else self._durable["power"]}
        self._watchers.tell(position)
