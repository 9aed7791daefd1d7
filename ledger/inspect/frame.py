"""One event with what it did: the state before and after."""

from msgspec import Struct

from kvsweep.ledger.errors import KvsweepError, LogCorrupt
from kvsweep.ledger.events import Event
from kvsweep.ledger.fold import apply
from kvsweep.ledger.state import State
from kvsweep.ledger.store.log import Position, Record


class Frame(Struct, frozen=True, kw_only=True, gc=False):
    """One event with the state before and after it."""

    position: Position
    event: Event
    before: State
    after: State


def follow(state: State, record: Record) -> State:
    """State after a stored event. Raises LogCorrupt with its position for one that is illegal where it stands."""
    try:
        return apply(state, record.event)
    except KvsweepError as error:
        raise LogCorrupt(record.position, str(error)) from error
    except (LookupError, ValueError) as error:  # a reducer that meets what it never expected
        raise LogCorrupt(record.position, repr(error)) from error
