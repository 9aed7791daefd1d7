"""All checkers as one, fed in the right order."""

from collections.abc import Iterable

from kvsweep.ledger.events import Event
from kvsweep.scenarios.verify.checkers.acks import Acks
from kvsweep.scenarios.verify.checkers.breaks import Break
from kvsweep.scenarios.verify.checkers.conservation import Conservation
from kvsweep.scenarios.verify.checkers.content import Contents, Memory, Truth
from kvsweep.scenarios.verify.checkers.ownership import Ownership
from kvsweep.transports.pools import Pools


class Checks:
    """Ownership, acknowledgements, conservation, and bytes once there is a memory to look at."""

    def __init__(self) -> None:
        self.ownership = Ownership()
        self.acks = Acks()
        self.conservation = Conservation(self.ownership)
        self.contents: Contents | None = None

    def read_bytes(self, memory: Memory, truth: Truth) -> None:
        """From now on `look` reads for every open step and current view."""
        self.contents = Contents(self.ownership, memory, truth)

    def remember(self, history: Iterable[Event]) -> None:
        """Events of an earlier process: what arrived then, what its pools gave and what its steps read is not known."""
        for event in history:
            self.ownership.see(event)
            self.acks.remember(event)
        self.conservation.begin()

    def see(self, event: Event) -> None:
        """The next event of the ledger."""
        self.ownership.see(event)
        self.acks.see(event)
        self.conservation.see()

    def look(self) -> None:
        """Read the bytes now; nothing happens without a memory."""
        if self.contents is not None:
            self.contents.look()

    def at_rest(self, pools: Pools | None = None) -> None:
        """The run is over and nothing is on the way: everything has drained, and the pools balance."""
        self.look()
        self.ownership.at_rest()
        if pools is not None:
            self.conservation.balance(pools)

    @property
    def broken(self) -> list[Break]:
        """Everything found, by position."""
        contents = self.contents.found if self.contents is not None else []
        found = [*self.ownership.found, *self.acks.found, *self.conservation.found, *contents]
        return sorted(found, key=lambda one: one.position)
