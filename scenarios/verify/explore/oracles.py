"""The checkers that share no code with the core, carried along one history of every coordinator that is found."""

import pickle
from collections.abc import Iterable, Mapping

from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import RequestKey
from kvsweep.ledger.messages import Acknowledged, Done
from kvsweep.runtime.core.core import Message
from kvsweep.runtime.core.steps import HandedOut
from kvsweep.scenarios.verify.checkers.acks import Acks
from kvsweep.scenarios.verify.checkers.ownership import Ownership


class Oracles:
    """Ownership and acknowledgements, recounted from events. Kept as bytes between two turns: `books`."""

    def __init__(self, books: bytes = b"") -> None:
        self.ownership: Ownership
        self.acks: Acks
        self.ownership, self.acks = pickle.loads(books) if books else (Ownership(), Acks())

    def books(self) -> bytes:
        return pickle.dumps((self.ownership, self.acks), pickle.HIGHEST_PROTOCOL)

    def hears(self, message: Message) -> None:
        """A message is on its way in."""
        if isinstance(message, Done | Acknowledged):
            self.acks.arrived(message)

    def sees(self, events: Iterable[Event]) -> None:
        """The events of the turn that took it."""
        for event in events:
            self.ownership.see(event)
            self.acks.see(event)
        self.acks.answered()

    def begins(self, step: int, handed: Mapping[RequestKey, HandedOut]) -> None:
        self.ownership.began(step, handed)

    def ends(self, step: int) -> None:
        self.ownership.ended(step)

    def rests(self) -> None:
        """Nothing is under way any more."""
        self.ownership.at_rest()

    def complaints(self) -> tuple[str, ...]:
        return tuple(f"{one.law}: {one.detail}" for one in (*self.ownership.found, *self.acks.found))
