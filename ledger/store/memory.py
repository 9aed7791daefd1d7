"""A ledger in memory: for tests and for runs that nobody looks back on. Bounded, and gone with its process."""

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from kvsweep.ledger.errors import LogError, SequenceConflict
from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import RequestKey
from kvsweep.ledger.store.codec import RULES, SCHEMA, Bodies, decode, encode_batch
from kvsweep.ledger.store.log import (
    Header,
    Level,
    Piece,
    Position,
    Record,
    Snapshot,
    Stream,
    Watcher,
    Watchers,
    expect_after,
    expect_position,
)
from kvsweep.ledger.store.query import Where, may_match

MAX_EVENTS: Final = 1_000_000
PIECE: Final = 256  # events


class MemoryLog:
    """LogStore in memory. Keeps the encoded bodies, so that what is read is what any other store would give back.

    Raises LogError when a batch would pass `max_events`: a log may not forget its oldest events.
    """

    queues: Final = False

    def __init__(self, *, max_events: int = MAX_EVENTS) -> None:
        if max_events < 1:
            raise LogError(f"max_events: expected at least 1, got {max_events}")
        self.header = Header(schema=SCHEMA, rules=RULES, created_by="memory")
        self._max_events = max_events
        self._bodies: list[bytes] = []
        self._streams: dict[RequestKey, list[Position]] = {}
        self._watchers = Watchers()
        self._closed = False

    def append(self, batch: Sequence[Event], *, expected: Position | None = None, level: Level = "power") -> Position:
        self._expect_open()
        expect_position(expected, len(self._bodies))
        if len(self._bodies) + len(batch) > self._max_events:
            raise LogError(
                f"ledger in memory is full: expected at most {self._max_events} events, "
                f"got {len(self._bodies) + len(batch)}"
            )
        bodies = encode_batch(batch)
        positions: dict[RequestKey, list[Position]] = {}
        for index, event in enumerate(batch):
            new = positions.setdefault(event.request, [])
            following = len(self._streams.get(event.request, ())) + len(new)
            if event.seq != following:
                raise SequenceConflict(event.request, following, event.seq)
            new.append(len(self._bodies) + index + 1)
        self._bodies.extend(bodies)
        for request, new in positions.items():
            self._streams.setdefault(request, []).extend(new)
        if batch:
            self._watchers.tell(len(self._bodies))
        return len(self._bodies)

    def durable(self, level: Level = "process") -> Position:
        self._expect_open()
        return len(self._bodies)

    def full(self) -> tuple[str, int] | None:
        return None

    def flush(self) -> None:
        self._expect_open()

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        return self._watchers.add(watcher)

    def read(self, request: RequestKey | None = None, *, after: Position = 0) -> Iterator[Record]:
        self._expect_open()
        expect_after(after)
        positions: Sequence[Position] = (
            range(after + 1, len(self._bodies) + 1)
            if request is None
            else [position for position in self._streams.get(request, ()) if position > after]
        )
        return (Record(position=position, event=decode(self._bodies[position - 1])) for position in positions)

    def pieces(self, *, after: Position = 0) -> Iterator[Piece]:
        self._expect_open()
        expect_after(after)
        firsts = range(after + 1, len(self._bodies) + 1, PIECE)
        return (self._piece(first, self._bodies[first - 1 : first - 1 + PIECE]) for first in firsts)

    def _piece(self, first: Position, bodies: list[bytes]) -> Piece:
        return Piece(first, len(bodies), Bodies.of(bodies).data, lambda: ([decode(body) for body in bodies], None))

    def find(self, where: Where, *, newest_first: bool = False) -> Iterator[Record]:
        self._expect_open()
        last = len(self._bodies) if where.until is None else min(where.until, len(self._bodies))
        positions: Sequence[Position] = range(where.after + 1, last + 1)
        if where.lives is not None:
            streams = [self._streams.get(life, ()) for life in where.lives]
            positions = [at for at in heapq.merge(*streams) if where.after < at <= last]
        found = (
            Record(position=at, event=decode(self._bodies[at - 1]))
            for at in (reversed(positions) if newest_first else positions)
        )
        return (record for record in found if may_match(record.event, where))

    def files(self) -> list[tuple[str, int]]:
        self._expect_open()
        return []

    def tally(self) -> list[tuple[str, int, int]]:
        self._expect_open()
        events, sizes = Counter[str](), Counter[str]()
        for body in self._bodies:
            name = type(decode(body)).__name__
            events[name] += 1
            sizes[name] += len(body)
        return [(name, events[name], sizes[name]) for name in events]

    def requests(self) -> list[Stream]:
        self._expect_open()
        return [
            Stream(request=request, events=len(positions), last=positions[-1])
            for request, positions in self._streams.items()
        ]

    def snapshot(self, until: Position | None = None) -> Snapshot | None:
        self._expect_open()
        return None

    def snapshot_due(self) -> bool:
        return False

    def keep_snapshot(self, snapshot: Snapshot) -> None:
        self._expect_open()
        raise LogError("a ledger in memory keeps no snapshots: nobody opens it again")

    def damage(self) -> tuple[Position | None, str] | None:
        self._expect_open()
        return None

    def close(self) -> None:
        self._closed = True

    def _expect_open(self) -> None:
        if self._closed:
            raise LogError("ledger in memory is closed")
