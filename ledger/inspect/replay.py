"""A ledger as a debugger: read it, fold it again, ask why. In a notebook, beside a live writer, or by `kvsweep log`.

Every answer is data: structs that a table, a page or a test draws without asking again.
"""

from collections.abc import Callable, Collection, Iterator
from types import TracebackType
from typing import TYPE_CHECKING

from kvsweep.ledger.errors import LayoutError, SettingsError
from kvsweep.ledger.ids import POOL, RequestKey
from kvsweep.ledger.inspect.as_data import Figures, figures
from kvsweep.ledger.inspect.diff import LedgerDiff, diff
from kvsweep.ledger.inspect.explain import Explanation, explain
from kvsweep.ledger.inspect.lives import Frame, begin, bound, follow, lives_at
from kvsweep.ledger.inspect.stats import Stats, stats
from kvsweep.ledger.inspect.verify import Verification, Verified
from kvsweep.ledger.inspect.why_block import EVENTS_FOLDED, LIVES_FOLDED, BlockLife, expect_in_pool, run_of, why_block
from kvsweep.ledger.state import State
from kvsweep.ledger.store.folding import fold_between
from kvsweep.ledger.store.log import Header, LogStore, Position, Record, Stream
from kvsweep.ledger.store.open import open_log
from kvsweep.ledger.store.query import Block, Where, matches

if TYPE_CHECKING:
    import pyarrow as pa

    from kvsweep.ledger.store.repair import Repaired

Progress = Callable[[Position], None]
"""Told the position now and then."""


class Ledger:
    """A ledger, read only. Safe beside a live writer; what it shows is what was stored when it was asked.

    log  any store: a file's, one in memory, or that of a running driver (`Ledger(driver.log)`), which `close` closes
    """

    def __init__(self, log: LogStore) -> None:
        self._log = log

    @classmethod
    def open(cls, url: str) -> "Ledger":
        """Open the ledger at a store's url. Raises SettingsError or LogError as `open_log` does."""
        return cls(open_log(url, read_only=True))

    @staticmethod
    def repair(url: str, *, progress: Progress | None = None) -> "Repaired":
        """Make a damaged ledger one that can be read and gone on with; what was there is kept under other names.

        Nobody may be writing it. Raises SettingsError or LogError as `store_repair.repair` does.
        """
        from kvsweep.ledger.store.repair import repair

        scheme, colon, path = url.partition(":")
        if scheme != "sqlite" or not (colon and path):
            raise SettingsError("log.url", '"sqlite:PATH"', repr(url))
        return repair(path, progress=progress)

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._log.close()

    @property
    def log(self) -> LogStore:
        """The store, once all that its writer has handed over is stored. Raises LogError where that failed."""
        self._log.flush()
        return self._log

    @property
    def header(self) -> Header:
        return self._log.header

    # ---- what is there

    def streams(self) -> list[Stream]:
        """Every life of every request and the pool's facts, in the order of their first event."""
        return self.log.requests()

    def requests(self) -> list[RequestKey]:
        """Every life of every request, in the order of its first event."""
        return [stream.request for stream in self.streams() if stream.request != POOL]

    def lives(self, request_id: str) -> tuple[RequestKey, ...]:
        """Every life of one whole id. Raises LayoutError where there is none."""
        known = self.requests()
        found = tuple(key for key in known if key.request_id == request_id)
        if not found:
            ids = len({key.request_id for key in known})
            raise LayoutError("request", f"one of the {ids} ids in it", repr(request_id))
        return found

    def last(self) -> Position:
        """Position of the last event; 0 for an empty ledger."""
        return self.log.durable()

    def events(
        self,
        request: RequestKey | None = None,
        *,
        types: Collection[str] | None = None,
        operation: int | None = None,
        rank: int | None = None,
        block: Block | None = None,
        after: Position = 0,
        until: Position | None = None,
        newest_first: bool = False,
    ) -> Iterator[Record]:
        """Records in order: of one life or of all, that meet every condition given.

        types      event types by name
        operation  facts and reports of this operation id
        rank       what this rank said and what it was sent
        block      events that name this device block

        Raises LayoutError for an unknown request, type or block, LogCorrupt where the ledger is damaged.
        """
        if request is not None:
            self._expect_known(request)
        where = Where(
            lives=None if request is None else (request,),
            types=None if types is None else tuple(types),
            operation=operation,
            rank=rank,
            block=block,
            after=after,
            until=until,
        )
        return self.find(where, newest_first=newest_first)

    def find(self, where: Where, *, newest_first: bool = False) -> Iterator[Record]:
        """Records that meet the conditions. Raises as `events` does, but for a request, which may be unknown."""
        where.check()
        layout = None
        if where.block is not None:
            run = run_of(self.log)
            expect_in_pool(run, where.block)
            layout = run.layout
        records = self.log.find(where, newest_first=newest_first)
        return (record for record in records if matches(record.event, where, layout))

    def position_at(self, seconds: float) -> Position:
        """Position of the first event that was stored at or after a time, in seconds since 1970; one more than the
        last where all are older.

        Raises LayoutError for a ledger that does not keep times.
        """
        low, high, wanted = self.log.header.first, self.last() + 1, round(seconds * 1e6)
        while low < high:
            middle = (low + high) // 2
            record = next(self.log.find(Where(after=middle - 1, until=middle)), None)
            if record is None or not record.time:
                raise LayoutError("time", "a ledger file that keeps times (schema 2 or later)", "one that does not")
            if record.time < wanted:
                low = middle + 1
            else:
                high = middle
        return low

    # ---- folding again

    def replay(self, request: RequestKey | None = None, *, until: Position | None = None) -> Iterator[Frame]:
        """Fold from the first event that is kept; a frame an event (of one life, if given), up to position `until`.

        The whole ledger is folded either way, because requests share the pool. Raises LayoutError for an unknown
        request or a position beyond the end, LogCorrupt for an event that is illegal where it stands.
        """
        if request is not None:
            self._expect_known(request)
        return self._frames(request, self._bound(until))

    def state(self, until: Position | None = None, *, lives: Collection[RequestKey] | None = None) -> State:
        """State just after position `until`, or at the end; 0 is the state before the first event.

        lives  fold only these, which costs their own events; other requests are absent then
        """
        end = self._bound(until)
        if lives is not None:
            return lives_at(self.log, lives, at=end)
        state, after = begin(self.log, end)
        return fold_between(self.log, state, after=after, until=end)

    def figures(self, until: Position | None = None, *, lives: Collection[RequestKey] | None = None) -> list[Figures]:
        """What each request is and holds just after a position, in a few numbers."""
        state = self.state(until, lives=lives)
        wanted = [request for request in state.requests.values() if lives is None or request.key in lives]
        return [figures(state, request) for request in wanted]

    def verify(self, *, until: Position | None = None, progress: Progress | None = None) -> Verified:
        """Fold everything up to position `until`; check every recorded digest, and every law at each of them and at
        the end.

        Raises nothing that the ledger's content causes: the first fault stands in the answer. A ledger whose writer
        was killed is checked up to its end. Raises LayoutError for a position beyond the end.
        """
        end, first = self._bound(until), self.log.header.first
        snapshot = self.log.snapshot(first - 1) if first > 1 else None
        return Verification(self.log, end, progress, snapshot).run()

    def check(self, *, until: Position | None = None, progress: Progress | None = None) -> tuple[Verified, State]:
        """As `verify`, but from the newest snapshot on, with the laws at the end alone and without the store's
        structure; with the state that it gives."""
        end = self._bound(until)
        one = Verification(self.log, end, progress, self.log.snapshot(end), often=False)
        return one.run(structure=False), one.state

    # ---- asking

    def explain(self, position: Position) -> Explanation:
        """Why the event at a position was legal, ignored or refused. Raises LayoutError for a position it lacks."""
        return explain(self.log, position)

    def why_block(
        self,
        group: int,
        block: int,
        *,
        until: Position | None = None,
        lives: int = LIVES_FOLDED,
        events: int = EVENTS_FOLDED,
    ) -> BlockLife:
        """The life of one device block: owners, holders of each area, writes. Raises as `block_life.why_block`."""
        return why_block(self.log, Block(group, block), until=until, lives=lives, events=events)

    def diff(self, other: "Ledger", *, every_event: bool = False, progress: Progress | None = None) -> LedgerDiff:
        """The first event in which two ledgers differ, and the states there."""
        return diff(self.log, other.log, every_event=every_event, progress=progress)

    def stats(self) -> Stats:
        """Events and bytes by type, and how operations ended."""
        return stats(self.log)

    def table(self, where: Where | None = None) -> "pa.Table":
        """Events as an Arrow table. Raises SettingsError where pyarrow is not installed."""
        from kvsweep.ledger.inspect.arrow import table_of

        return table_of(self.find(where or Where()))

    # ---- parts

    def _frames(self, request: RequestKey | None, until: Position) -> Iterator[Frame]:
        state, after = begin(self.log, 0)
        for record in self.log.read(after=after):
            if record.position > until:
                return
            following = follow(state, record)
            if request is None or record.event.request == request:
                yield Frame(position=record.position, event=record.event, before=state, after=following)
            state = following

    def _bound(self, until: Position | None) -> Position:
        return bound(self.log, until)

    def _expect_known(self, request: RequestKey) -> None:
        known = [stream.request for stream in self.streams()]
        if request not in known:
            raise LayoutError("request", f"one of the {len(known)} streams of this ledger", str(request))
