"""Folding what a ledger has stored, piece by piece, up to any position."""

from typing import Final

from kvsweep.ledger.errors import KvsweepError, LogCorrupt, LogError
from kvsweep.ledger.events import DigestRecorded, Event
from kvsweep.ledger.fold import fold_all
from kvsweep.ledger.standing import Standing
from kvsweep.ledger.state import EMPTY, State
from kvsweep.ledger.store.digest import Digest
from kvsweep.ledger.store.log import LogStore, Piece, Position

TOGETHER: Final = 512
"""Events that are folded in one draft: what several of them change is copied once."""


class Folding:
    """A state into which stored events are folded, in order.

    state     to begin with
    position  where it stands; of the last event that was folded, later on
    """

    def __init__(self, state: State = EMPTY, position: Position = 0) -> None:
        self.position = position
        self._standing = Standing(state)

    @property
    def state(self) -> State:
        return self._standing.state

    def take(self, piece: Piece, *, until: Position | None = None, before_digests: bool = False) -> None:
        """Fold what `piece` has beyond `position`, up to position `until`; a piece that is not needed changes nothing.

        before_digests  stop before a DigestRecorded

        Raises Refused or SequenceConflict for an event that is illegal, and LogCorrupt for a body that cannot be read;
        `position` is then that of the last event before it.
        """
        last = piece.last if until is None else min(until, piece.last)
        while self.position < last:
            events = self._next(piece, last, before_digests)
            if not events:
                return
            for _ in fold_all(self._standing, events):
                self.position += 1

    def _next(self, piece: Piece, last: Position, before_digests: bool) -> list[Event]:
        start = self.position + 1 - piece.first
        events = list(piece.events()[start : min(last + 1 - piece.first, start + TOGETHER)])
        if not events:
            raise piece.damage or LogCorrupt(self.position + 1, "the event is missing in its group")
        if before_digests:
            for at, event in enumerate(events):
                if type(event) is DigestRecorded:
                    return events[:at]
        return events

    def follow(self, piece: Piece, *, until: Position | None = None) -> None:
        """As `take`. Raises LogCorrupt with its position for an event that is illegal where it stands."""
        try:
            self.take(piece, until=until)
        except LogCorrupt:
            raise
        except KvsweepError as error:
            raise LogCorrupt(self.position + 1, str(error)) from error
        except (LookupError, ValueError) as error:  # a reducer that meets what it never expected
            raise LogCorrupt(self.position + 1, repr(error)) from error


def fold_between(log: LogStore, state: State, *, after: Position, until: Position) -> State:
    """State just after position `until`, from that at `after`. Raises LogCorrupt for a ledger that does not hold."""
    folding = Folding(state, after)
    for piece in log.pieces(after=after):
        if folding.position >= until:
            break
        folding.follow(piece, until=until)
    return folding.state


def hash_events(digest: Digest, piece: Piece, first: Position, last: Position) -> None:
    """Add the events of a piece from one position to another to a running digest."""
    start, stop = max(0, first - piece.first), last + 1 - piece.first
    try:
        digest.update_bodies(piece.data, start, stop)
    except LogError:  # a body further on is damaged: nothing was added
        digest.update_all(piece.events()[start:stop])
