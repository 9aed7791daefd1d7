"""Folding a ledger again and comparing: every recorded digest, every law at each of them, and the store's own check."""

import bisect
import contextlib
from collections.abc import Callable, Collection
from typing import Final

from msgspec import Struct

from kvsweep.ledger import laws
from kvsweep.ledger.errors import KvsweepError, LogCorrupt
from kvsweep.ledger.events import DigestRecorded
from kvsweep.ledger.ids import POOL
from kvsweep.ledger.state import State
from kvsweep.ledger.store.digest import Digest
from kvsweep.ledger.store.folding import Folding, hash_events
from kvsweep.ledger.store.log import LogStore, Piece, Position, Snapshot
from kvsweep.ledger.store.query import Where

PROGRESS_EVENTS: Final = 1000
"""Events between two words of a verification about how far it is."""


class Verified(Struct, frozen=True, kw_only=True):
    """Outcome of folding a ledger.

    `digest` and `recorded_digest` are those of the last recorded point that was reached, or of the end of the ledger
    when nothing was recorded (`recorded_digest` is then None). `position` and `message` name the first fault.
    """

    ok: bool
    events: int  # up to here all is well
    digest: str
    recorded_digest: str | None
    position: Position | None = None
    message: str = ""
    since: Position = 0  # what stands at or before it was taken from a snapshot, and not folded


class Verification:
    """One pass over a log, remembering how far it came and what was compared last.

    snapshot  where to begin; None folds everything that is kept
    often     check the laws at every recorded digest, and not at the end alone
    """

    def __init__(
        self,
        log: LogStore,
        until: Position,
        progress: Callable[[Position], None] | None = None,
        snapshot: Snapshot | None = None,
        *,
        often: bool = True,
    ) -> None:
        self._log, self._until, self._progress, self._often = log, until, progress, often
        self._folding = Folding() if snapshot is None else Folding(snapshot.state, snapshot.position)
        self._since = self._folding.position
        self._digest = Digest(b"" if snapshot is None else snapshot.chain)
        self._replayed: dict[Position, str] = {self._since: self._digest.value(self.state)}
        self._compared: tuple[str, str] | None = None
        self._unfound = False  # a recorded digest that the index did not show: the structure is to blame first

    @property
    def state(self) -> State:
        """Just after the last event that was folded."""
        return self._folding.state

    @property
    def _position(self) -> Position:
        return self._folding.position

    def run(self, *, structure: bool = True) -> Verified:
        """Fold and compare; `structure` has the store check its own structure too, which reads all of it."""
        fault: tuple[Position | None, str] | None
        try:
            fault = self._fold(self._recorded())
        except LogCorrupt as error:
            fault = (error.position, error.detail)
        except (KvsweepError, LookupError, ValueError) as error:
            # A reducer that meets an event it never expected may fail in other ways than by refusing it.
            fault = (self._position + 1, str(error) if isinstance(error, KvsweepError) else repr(error))
        if structure and (fault is None or self._unfound):
            fault = self._log.damage() or fault
        digest, recorded = self._compared or (self._digest.value(self.state), None)
        position, message = fault or (None, "")
        return Verified(
            ok=fault is None,
            events=self._position,
            digest=digest,
            recorded_digest=recorded,
            position=position,
            message=message,
            since=self._since,
        )

    def _recorded(self) -> set[Position]:
        """Positions whose digest is needed: a digest of every state would cost a hash of the whole state an event."""
        found: set[Position] = set()
        where = Where(lives=(POOL,), types=("DigestRecorded",), after=self._since, until=self._until)
        # Damage ends this pass and is reported by the fold, which comes to the same place.
        with contextlib.suppress(LogCorrupt):
            for record in self._log.find(where):
                if isinstance(record.event, DigestRecorded):
                    found.add(record.event.position)
        return found

    def _fold(self, wanted: Collection[Position]) -> tuple[Position, str] | None:
        stops = sorted(wanted)
        for piece in self._log.pieces(after=self._since):
            end = min(piece.last, self._until)
            while self._position < end:
                at = bisect.bisect_right(stops, self._position)
                fault = self._fold_piece(piece, min(end, stops[at]) if at < len(stops) else end)
                if fault is not None:
                    return fault
                if self._position in wanted:
                    self._replayed[self._position] = self._digest.value(self.state)
            if piece.last >= self._until:
                break
        return self._check_laws()

    def _fold_piece(self, piece: Piece, until: Position) -> tuple[Position, str] | None:
        """Fold up to a position. What is wrong with a digest that was recorded on the way."""
        while self._position < until:
            self._take(piece, until, before_digests=True)
            if self._position == until:
                break
            event = piece.events()[self._position + 1 - piece.first]
            if isinstance(event, DigestRecorded) and event.position >= self._since:
                fault = self._compare(self._position + 1, event)
                if fault is not None:
                    return fault
            self._take(piece, self._position + 1)
        return None

    def _take(self, piece: Piece, until: Position, *, before_digests: bool = False) -> None:
        first = self._position + 1
        try:
            self._folding.take(piece, until=until, before_digests=before_digests)
        finally:
            hash_events(self._digest, piece, first, self._position)
        if self._progress is not None:
            for position in range(first + -first % PROGRESS_EVENTS, self._position + 1, PROGRESS_EVENTS):
                self._progress(position)

    def _compare(self, position: Position, event: DigestRecorded) -> tuple[Position, str] | None:
        replayed = self._replayed.get(event.position)
        if replayed is None:
            self._unfound = True
            return position, f"the digest of position {event.position} is recorded before that position"
        self._compared = (replayed, event.digest)
        if replayed != event.digest:
            return event.position, f"the recorded digest is {event.digest}, replay gives {replayed}"
        return self._check_laws() if self._often else None

    def _check_laws(self) -> tuple[Position, str] | None:
        broken = laws.check(self.state)
        return (self._position, f"broken law: {'; '.join(broken)}") if broken else None
