"""What a ledger's store promises, whatever keeps the bytes."""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, Protocol, TypeAlias

from msgspec import Struct

from kvsweep.ledger.errors import LayoutError, LogCorrupt, SequenceConflict, UnknownSchema
from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import RequestKey
from kvsweep.ledger.state import State
from kvsweep.ledger.store.codec import RULES, SCHEMA
from kvsweep.ledger.store.query import Where

Position: TypeAlias = int
"""Place of an event in the whole ledger, dense from 1. 0 stands before the first event."""


Level: TypeAlias = Literal["process", "power"]
"""What an acknowledged event survives: the end of this process (SIGKILL), or of the machine too (synced)."""


class QueueBounds(Struct, frozen=True, kw_only=True):
    """How much may wait for a store's thread before what starts work is asked to come back later."""

    bytes: int = 64 * 2**20  # of encoded events
    events: int = 2**18


class Header(Struct, frozen=True, kw_only=True):
    """What a reader must know before the first event."""

    schema: int
    rules: int
    created_by: str  # version that began the ledger
    first: Position = 1  # of the first event that is kept: what came before was dropped, by the retention asked for


class Record(Struct, frozen=True, kw_only=True, gc=False):
    """One event where it stands."""

    position: Position
    event: Event
    time: int = 0  # when its group was stored, in microseconds since 1970; 0 where that is not known


class Piece:
    """Events that are stored together, before anybody reads them.

    first   position of the first
    count   how many there are
    data    their bodies, as one msgpack array
    decode  gives them, or those that can be read and what is wrong with the next
    time    as in Record
    """

    __slots__ = ("_decode", "_decoded", "count", "data", "first", "time")

    def __init__(
        self, first: Position, count: int, data: bytes, decode: Callable[[], "Decoded"], time: int = 0
    ) -> None:
        self.first, self.count, self.data, self.time = first, count, data, time
        self._decode = decode
        self._decoded: Decoded | None = None

    @property
    def last(self) -> Position:
        return self.first + self.count - 1

    def events(self) -> list[Event]:
        """Decoded: all, or those before the one that cannot be read."""
        return self._all()[0]

    @property
    def damage(self) -> LogCorrupt | None:
        """What is wrong with the event behind the last of `events`."""
        return self._all()[1]

    def _all(self) -> "Decoded":
        if self._decoded is None:
            self._decoded = self._decode()
        return self._decoded


Decoded: TypeAlias = tuple[list[Event], LogCorrupt | None]


class Stream(Struct, frozen=True, kw_only=True, gc=False):
    """One life of one request, or the pool's facts."""

    request: RequestKey
    events: int  # of its whole life, those that were dropped included
    last: Position  # of its last event


class Snapshot(Struct, frozen=True, kw_only=True):
    """What the fold gave at a position, so that it need not begin at the beginning."""

    position: Position
    digest: str  # of the whole history up to here
    chain: bytes  # where the digest goes on
    state: State


class Rotation(Struct, frozen=True, kw_only=True):
    """When a ledger goes on in another file, and when old files are removed. Both happen at snapshots only.

    A file goes once all files together have more bytes than `keep_bytes`, or once its youngest event is older than
    `keep_s`; but not while it holds events of a life that has not been closed, unless the files have twice the bytes.
    """

    snapshot_events: int = 20_000  # between snapshots, at the least
    file_bytes: int = 2**30
    file_s: float = 24 * 3600.0
    keep_bytes: int = 16 * 2**30
    keep_s: float = 30 * 24 * 3600.0


Watcher: TypeAlias = Callable[[Position], None]


class Watchers:
    """Called in the order in which they came, by the thread that stored the batch. A watcher raises nothing."""

    def __init__(self) -> None:
        self._watchers: tuple[Watcher, ...] = ()

    def add(self, watcher: Watcher) -> Callable[[], None]:
        """Returns what takes the watcher away again."""
        self._watchers = (*self._watchers, watcher)

        def remove() -> None:
            self._watchers = tuple(one for one in self._watchers if one is not watcher)

        return remove

    def tell(self, position: Position) -> None:
        for watcher in self._watchers:
            watcher(position)


class LogStore(Protocol):
    """Keeps events in order. One writer; any number of readers. Belongs to the thread that opened it."""

    @property
    def header(self) -> Header:
        """What the ledger was written with."""

    @property
    def queues(self) -> bool:
        """Whether `append` returns before the batch is durable."""

    def append(self, batch: Sequence[Event], *, expected: Position | None = None, level: Level = "power") -> Position:
        """Store a batch, all of it or nothing, and return the position of its last event.

        A store that queues hands it to its thread, waits for nothing, and stores batches in their order.

        Checked is each event's (request, epoch, seq): it must be the next of its stream, else SequenceConflict names
        the expected and the found number and nothing is stored. `expected` checks the whole ledger too: the position
        that the writer believes to be the last. An empty batch changes nothing. Raises LogError when an event cannot
        be encoded, when the store is full, closed or read-only, or when a write has failed before.
        """

    def durable(self, level: Level = "process") -> Position:
        """Last position that survives what `level` says. Never goes back; raises LogError for ever once a write failed.

        Of "power" only batches that were appended so, and those before them.
        """

    def full(self) -> tuple[str, int] | None:
        """The bound that the queue has reached and its value; None while there is room, always where nothing queues.

        `append` refuses nothing for room: it is the caller who asks before it starts work.
        """

    def flush(self) -> None:
        """Wait until everything that was appended is durable. Raises LogError when it is not and never will be."""

    def watch(self, watcher: Callable[[Position], None]) -> Callable[[], None]:
        """Call back with the durable position whenever it has moved on; the returned function ends that.

        It is called by the thread that stored the batch, and may neither raise nor call the store.
        """

    def read(self, request: RequestKey | None = None, *, after: Position = 0) -> Iterator[Record]:
        """Records in order, of one stream or of all: those beyond `after` that are stored at the time of the call.

        A stream that does not exist has none. Raises LogCorrupt with the position where what is stored is not what
        was written.
        """

    def pieces(self, *, after: Position = 0) -> Iterator[Piece]:
        """What `read` gives, undecoded; the first may begin before `after + 1`, the last end behind what is stored.

        Raises LogCorrupt as `read` does, but of a body that cannot be read the piece says so.
        """

    def find(self, where: Where, *, newest_first: bool = False) -> Iterator[Record]:
        """Records that meet the conditions, and of a rank or a block maybe some that do not, in order of position.

        Bodies of other records are not decoded. What is stored at the time of the call; raises LogCorrupt as `read`.
        """

    def requests(self) -> list[Stream]:
        """Every stream, in the order of its first event."""

    def files(self) -> list[tuple[str, int]]:
        """(path, bytes) of every file that keeps it, the oldest first; none for a ledger in memory."""

    def tally(self) -> list[tuple[str, int, int]]:
        """(event type, events, bytes of them encoded), by what stands beside the bodies."""

    def snapshot(self, until: Position | None = None) -> Snapshot | None:
        """The newest snapshot, or the newest at or before a position. None: the fold begins at the beginning.

        A ledger whose first events were dropped always has one, just before its first event.
        """

    def snapshot_due(self) -> bool:
        """Whether enough has been appended since the last snapshot for another one."""

    def keep_snapshot(self, snapshot: Snapshot) -> None:
        """Store what the fold gave at the last appended position; a store that queues does it when its turn comes.

        Raises LogError as `append` does, and SequenceConflict for another position.
        """

    def damage(self) -> tuple[Position | None, str] | None:
        """What the store's own check of its structure finds: the position if it knows one, and a sentence."""

    def close(self) -> None:
        """Wait for what is queued, then give the ledger back. Raises nothing: `flush` before it tells what is missing.

        Harmless twice; everything else raises LogError afterwards.
        """


def expect_position(expected: Position | None, found: Position) -> None:
    """Raise SequenceConflict unless `expected` is left out or is the last position."""
    if expected is not None and expected != found:
        raise SequenceConflict("ledger", expected, found)


def expect_after(after: Position) -> None:
    """Raise LayoutError for a negative position."""
    if after < 0:
        raise LayoutError("after", "a position of 0 or more", str(after))


def expect_known(header: Header) -> None:
    """Raise UnknownSchema for a ledger of another version."""
    if header.schema != SCHEMA:
        raise UnknownSchema("schema", header.schema, SCHEMA)
    if header.rules != RULES:
        raise UnknownSchema("rules", header.rules, RULES)
