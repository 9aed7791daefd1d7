"""The production driver with every checker plugged in: what goes in, what is recorded, what is handed out is told."""

from collections.abc import Iterable
from typing import Any

from kvsweep.ledger.ids import RequestKey
from kvsweep.ledger.messages import Acknowledged, Done, Turn
from kvsweep.ledger.store.log import LogStore
from kvsweep.runtime.core.core import Message
from kvsweep.runtime.core.steps import HandedOut
from kvsweep.runtime.driver import Driver, World
from kvsweep.runtime.settings import Settings
from kvsweep.scenarios.verify.checkers.checks import Checks
from kvsweep.scenarios.verify.checkers.conservation import WatchedPools
from kvsweep.transports.pools import Pools


class CheckedDriver(Driver):
    """Use it as `Driver`. `checks` has what was found; give it memory with `checks.read_bytes` to check contents."""

    def __init__(self, settings: Settings, log: LogStore, pools: Pools, **options: Any) -> None:
        super().__init__(settings, log, pools, **options)
        self.checks = Checks()
        self.checks.remember(record.event for record in log.read())
        self.pools = WatchedPools(pools, self.checks.conservation)
        self.watch(self.checks.see)

    @classmethod
    def open(cls, settings: Settings, world: World, **options: Any) -> "CheckedDriver":
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
