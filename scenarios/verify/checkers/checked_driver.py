"""All checkers as one, and the production driver with every checker plugged in."""

from collections.abc import Iterable
from typing import Any

from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import RequestKey
from kvsweep.ledger.messages import Acknowledged, Done, Turn
from kvsweep.ledger.store.log import LogStore
from kvsweep.runtime.core.core import Message
from kvsweep.runtime.core.steps import HandedOut
from kvsweep.runtime.driver import Driver
from kvsweep.runtime.run_config import RunConfig
from kvsweep.runtime.settings import Settings
from kvsweep.scenarios.verify.checkers.acks import Acks
from kvsweep.scenarios.verify.checkers.breaks import Break
from kvsweep.scenarios.verify.checkers.conservation import Conservation, WatchedPools
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


class CheckedDriver(Driver):
    """Use it as `Driver`. `checks` has what was found; give it memory with `checks.read_bytes` to check contents."""

    def __init__(self, settings: Settings, log: LogStore, pools: Pools, **options: Any) -> None:
        super().__init__(settings, log, pools, **options)
        self.checks = Checks()
        self.checks.remember(record.event for record in log.read())
        self.pools = WatchedPools(pools, self.checks.conservation)
        self.watch(self.checks.see)

    @classmethod
    def open(cls, settings: Settings, world: RunConfig, **options: Any) -> "CheckedDriver":
        """As `Driver.open`, with the same options."""
        driver = super().open(settings, world, **options)
        if not isinstance(driver, cls):
            raise TypeError(f"expected {cls.__name__}, got {type(driver).__name__}")
        return driver

    def handle(self, message: Message) -> Turn:
        if isinstance(message, Done | Acknowledged) and self.read_only is None:
            self.checks.acks.arrived(message)
            turn = super().handle(message)
            if self.read_only is None:
                self.checks.acks.answered()
            return turn
        return super().handle(message)

    def begin_step(self, requests: Iterable[RequestKey]) -> tuple[int, dict[RequestKey, HandedOut]]:
        number, handed = super().begin_step(requests)
        self.checks.ownership.began(number, handed)
        return number, handed

    def end_step(self, number: int) -> Turn:
        if number in self.core.steps.numbers:
            self.checks.look()
            self.checks.ownership.ended(number)
        return super().end_step(number)
