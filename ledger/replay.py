"""Looking back: read a ledger, fold it again with the reducers that the running coordinator used, and compare."""

import contextlib
from collections.abc import Callable, Collection, Iterator
from types import TracebackType
from typing import Final

from msgspec import Struct

from kvsweep.ledger import laws
from kvsweep.ledger.codec import EVENT_TYPES
from kvsweep.ledger.digest import Digest
from kvsweep.ledger.errors import KvsweepError, LayoutError, LogCorrupt
from kvsweep.ledger.event_base import Event
from kvsweep.ledger.events import DigestRecorded
from kvsweep.ledger.fold import apply
from kvsweep.ledger.ids import POOL, RequestKey
from kvsweep.ledger.state import EMPTY, State
from kvsweep.ledger.store import Header, LogStore, Position, Record, Stream, open_log

PROGRESS_EVENTS: Final = 1000
"""Events between two words of a verification about how far it is."""


class Frame(Struct, frozen=True, kw_only=True, gc=False):
    """One event with the state before and after it."""

    position: Position
    event: Event
    before: State
    after: State


class Verified(Struct, frozen=True, kw_only=True):
    """Outcome of folding a whole ledger.

    `digest` and `recorded_digest` are those of the last recorded point that was reached, or of the end of the ledger
    when nothing was recorded (`recorded_digest` is then None). `position` and `message` name the first fault.
    """

    ok: bool
    events: int  # folded without a fault
    digest: str
    recorded_digest: str | None
    position: Position | None = None
    message: str = ""


class Ledger:
    """A ledger, read only. Safe beside a live writer; what it shows is what was stored when it was asked."""

    def __init__(self, log: LogStore) -> None:
        self._log = log

    @classmethod
    def open(cls, url: str) -> "Ledger":
        """Open the ledger at a store's url. Raises SettingsError or LogError as `open_log` does."""
        return cls(open_log(url, read_only=True))

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._log.close()

    @property
    def header(self) -> Header:
        return self._log.header

    def streams(self) -> list[Stream]:
        """Every life of every request and the pool's facts, in the order of their first event."""
        return self._log.requests()

    def requests(self) -> list[RequestKey]:
        """Every life of every request, in the order of its first event."""
        return [stream.request for stream in self.streams() if stream.request != POOL]

    def last(self) -> Position:
        """Position of the last event; 0 for an empty ledger."""
        return self._log.durable()

    def events(
        self, request: RequestKey | None = None, *, types: Collection[str] | None = None, after: Position = 0
    ) -> Iterator[Record]:
        """Records in order: of one life or of all, of the named event types or of all.

        Raises LayoutError for an unknown request or type, LogCorrupt where the ledger is damaged.
        """
        if request is not None:
            self._expect_known(request)
        for name in types or ():
            if name not in EVENT_TYPES:
                raise LayoutError("types", f"event types ({', '.join(EVENT_TYPES)})", repr(name))
        records = self._log.read(request, after=after)
        if types is None:
            return records
        return (record for record in records if type(record.event).__name__ in types)

    def replay(self, request: RequestKey | None = None, *, until: Position | None = None) -> Iterator[Frame]:
        """Fold from the beginning; a frame an event (of one life, if given), up to and with position `until`.

        The whole ledger is folded either way, because requests share the pool. Raises LayoutError for an unknown
        request or a position beyond the end, and what the fold raises for an event that is illegal where it stands.
        """
        if request is not None:
            self._expect_known(request)
        until = self._bound(until)
        return self._frames(request, until)

    def state(self, until: Position | None = None) -> State:
        """State just after position `until`, or at the end; 0 is the state before the first event."""
        state = EMPTY
        for frame in self.replay(until=until):
            state = frame.after
        return state

    def verify(self, *, until: Position | None = None, progress: Callable[[Position], None] | None = None) -> Verified:
        """Fold everything up to position `until`; check every recorded digest, and every law at each of them and at
        the end.

        Raises nothing that the ledger's content causes: the first fault stands in the answer. A ledger whose writer
        was killed is checked up to its end. `progress` is told the position now and then. Raises LayoutError for a
        position beyond the end.
        """
        return _Verification(self._log, self._bound(until), progress).run()

    def _frames(self, request: RequestKey | None, until: Position) -> Iterator[Frame]:
        state = EMPTY
        for record in self._log.read():
            if record.position > until:
                return
            after = apply(state, record.event)
            if request is None or record.event.request == request:
                yield Frame(position=record.position, event=record.event, before=state, after=after)
            state = after

    def _bound(self, until: Position | None) -> Position:
        last = self.last()
        if until is not None and not 0 <= until <= last:
            raise LayoutError("until", f"a position from 0 to {last}", str(until))
        return last if until is None else until

    def _expect_known(self, request: RequestKey) -> None:
        known = [stream.request for stream in self.streams()]
        if request not in known:
            raise LayoutError("request", f"one of the {len(known)} streams of this ledger", str(request))


class _Verification:
    """One pass over a log, remembering how far it came and what was compared last."""

    def __init__(self, log: LogStore, until: Position, progress: Callable[[Position], None] | None) -> None:
        self._log = log
        self._until = until
        self._progress = progress
        self._state = EMPTY
        self._digest = Digest()
        self._position: Position = 0  # of the last event that was folded
        self._replayed: dict[Position, str] = {0: self._digest.value(EMPTY)}
        self._compared: tuple[str, str] | None = None

    def run(self) -> Verified:
        fault: tuple[Position | None, str] | None
        try:
            fault = self._fold(self._recorded())
        except LogCorrupt as error:
            fault = (error.position, error.detail)
        except (KvsweepError, LookupError, ValueError) as error:
            # A reducer that meets an event it never expected may fail in other ways than by refusing it.
            fault = (self._position + 1, str(error) if isinstance(error, KvsweepError) else repr(error))
        if fault is None:
            fault = self._log.damage()
        digest, recorded = self._compared or (self._digest.value(self._state), None)
        position, message = fault or (None, "")
        return Verified(
            ok=fault is None,
            events=self._position,
            digest=digest,
            recorded_digest=recorded,
            position=position,
            message=message,
        )

    def _recorded(self) -> set[Position]:
        """Positions whose digest is needed: a digest of every state would cost a hash of the whole state an event."""
        found: set[Position] = set()
        # Damage ends this pass and is reported by the fold, which comes to the same place.
        with contextlib.suppress(LogCorrupt):
            for record in self._log.read():
                if record.position > self._until:
                    break
                if isinstance(record.event, DigestRecorded):
                    found.add(record.event.position)
        return found

    def _fold(self, wanted: Collection[Position]) -> tuple[Position, str] | None:
        for record in self._log.read():
            if record.position > self._until:
                break
            if self._progress is not None and record.position % PROGRESS_EVENTS == 0:
                self._progress(record.position)
            event = record.event
            if isinstance(event, DigestRecorded):
                fault = self._compare(record.position, event)
                if fault is not None:
                    return fault
            self._state = apply(self._state, event)
            self._digest.update(event)
            self._position = record.position
            if record.position in wanted:
                self._replayed[record.position] = self._digest.value(self._state)
        return self._check_laws()

    def _compare(self, position: Position, event: DigestRecorded) -> tuple[Position, str] | None:
        replayed = self._replayed.get(event.position)
        if replayed is None:
            return position, f"the digest of position {event.position} is recorded before that position"
        self._compared = (replayed, event.digest)
        if replayed != event.digest:
            return event.position, f"the recorded digest is {event.digest}, replay gives {replayed}"
        return self._check_laws()

    def _check_laws(self) -> tuple[Position, str] | None:
        broken = laws.check(self._state)
        return (self._position, f"broken law: {'; '.join(broken)}") if broken else None
