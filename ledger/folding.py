"""Folding what a ledger has stored: in compiled code where that was built, from bodies that nobody decodes.

What the compiled fold does not take, for whatever reason, goes to the reference, which takes it or says why it is
illegal: there is one place where that is written. So the states and the errors are those of the reference.
"""

from typing import TYPE_CHECKING, Final

from kvsweep.ledger import compiled
from kvsweep.ledger.errors import KvsweepError, LogCorrupt, LogError
from kvsweep.ledger.events import DigestRecorded, Event
from kvsweep.ledger.fold import apply
from kvsweep.ledger.state import EMPTY, State
from kvsweep.ledger.store.digest import Digest
from kvsweep.ledger.store.group import NAMED
from kvsweep.ledger.store.log import LogStore, Piece, Position
from kvsweep.ledger.store.snapshot import Rereader, state_bytes

if TYPE_CHECKING:
    from kvsweep.ledger._fold import Machine

WORTH: Final = 64
"""Events that pay for handing the state over to the compiled fold and back."""

MOST_ALONE: Final = 4096
"""Events that the reference folds at most before the compiled fold is asked again."""

DIGEST_TAG: Final = NAMED[DigestRecorded][0]


class Folding:
    """A state into which stored events are folded, in order.

    state     to begin with
    position  where it stands; of the last event that was folded, later on
    """

    def __init__(self, state: State = EMPTY, position: Position = 0) -> None:
        self.position = position
        self._state: State | None = state  # None: only the machine knows it
        self._machine: Machine | None = None  # None: only the reference knows it
        self._reader = Rereader()
        # The reference folds `_left` events before the machine is asked again, twice as many each time it has to.
        self._left, self._alone = 0, 1

    @property
    def state(self) -> State:
        if self._state is None and self._machine is not None:
            self._state = self._reader.state_of(self._machine.state_bytes())
        if self._state is None:
            raise LookupError("neither form of the fold has the state")
        return self._state

    def take(self, piece: Piece, *, until: Position | None = None, before_digests: bool = False) -> None:
        """Fold what `piece` has beyond `position`, up to position `until`; a piece that is not needed changes nothing.

        before_digests  stop before a DigestRecorded

        Raises what the reference raises, and LogCorrupt for a body that cannot be read; `position` is then that of the
        last event before it.
        """
        last = piece.last if until is None else min(until, piece.last)
        while self.position < last:
            self._feed(piece, last, before_digests)
            if self.position < last and not self._reduce(piece, last, before_digests):
                return

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

    def _feed(self, piece: Piece, last: Position, before_digests: bool) -> None:
        if self._machine is None and self._left == 0 and compiled.fold is not None:
            self._machine = compiled.fold.machine_of(state_bytes(self.state))
        if self._machine is None:
            return
        start = self.position + 1 - piece.first
        end = self._machine.feed(piece.data, start, last + 1 - piece.first, DIGEST_TAG if before_digests else -1)
        if end > start:
            self._state = None
            self.position += end - start
        if end - start >= WORTH:
            self._alone = 1

    def _reduce(self, piece: Piece, last: Position, before_digests: bool) -> bool:
        """Fold some events by the reference. False: it has come to a DigestRecorded before which to stop."""
        event = self._next(piece, before_digests)
        if event is not None and self._left == 0:
            self._left, self._alone = self._alone, min(2 * self._alone, MOST_ALONE)
        while event is not None:
            self._state, self._machine = apply(self.state, event), None
            self.position += 1
            self._left -= 1
            if self._left == 0 or self.position == last:
                return True
            event = self._next(piece, before_digests)
        return False

    def _next(self, piece: Piece, before_digests: bool) -> Event | None:
        events, index = piece.events(), self.position + 1 - piece.first
        if index >= len(events):
            raise piece.damage or LogCorrupt(self.position + 1, "the event is missing in its group")
        return None if before_digests and isinstance(events[index], DigestRecorded) else events[index]


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
