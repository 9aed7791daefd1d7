"""One event with what it did: the state before and after."""

from msgspec import Struct

from kvsweep.ledger.event_base import Event
from kvsweep.ledger.state import State
from kvsweep.ledger.store import Position


class Frame(Struct, frozen=True, kw_only=True, gc=False):
    """One event with the state before and after it."""

    position: Position
    event: Event
    before: State
    after: State
