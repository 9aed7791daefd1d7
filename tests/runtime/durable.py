"""Drivers and shells over logs that a test holds back or breaks."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from tests.ledger.store.gate import Gate, Queued
from tests.runtime.rig import PRODUCER, RANKS, Ids, free_sources, make_layout, make_settings, selection

from kvsweep.ledger.errors import LogError
from kvsweep.ledger.ids import RequestKey, int32_bytes
from kvsweep.ledger.messages import (
    Acknowledged,
    BlockSelection,
    Done,
    Effect,
    RegisterSources,
    Select,
    Turn,
)
from kvsweep.ledger.store.log import LogStore, QueueBounds
from kvsweep.runtime.driver import Driver
from kvsweep.runtime.run_config import RunConfig
from kvsweep.scenarios.demo.stack import Stack

LAYOUT = make_layout(2)
WORLD = RunConfig(
    layout=LAYOUT, ranks=RANKS, producer_epoch=PRODUCER, device_blocks=(16,), cpu_full_blocks=32, cpu_total_blocks=40
)
ONE_RANK = replace(WORLD, ranks=RANKS[:1])
FIRST: Ids = {0: [0, 2], 1: [1, 2]}
SECOND: Ids = {0: [0, 2, 6], 1: [1, 2, 3]}


def start(store: LogStore, world: RunConfig = WORLD, **tables: Any) -> Driver:
    return Driver.open(make_settings(**tables), world, log=store)


def chosen(driver: Driver, key: RequestKey, want: Ids) -> BlockSelection:
    request = driver.state.request(key)
    assert request is not None
    return selection(LAYOUT, key, request.selection_revision + 1, want)


def opened(driver: Driver, name: str = "a") -> RequestKey:
    key = driver.open_request(name)
    source = int32_bytes(free_sources(driver.pools, 8))
    driver.handle(RegisterSources(request=key, logical=int32_bytes(range(8)), source=source))
    return key


def select(driver: Driver, key: RequestKey, want: Ids) -> Turn:
    return driver.handle(Select(selection=chosen(driver, key, want), idempotency_key=""))


def finish_upload(driver: Driver, turn: Turn) -> None:
    assert turn.operation is not None
    for rank, epoch in driver.state.pool.ranks:
        driver.handle(Done(operation=turn.operation, rank=rank, process_epoch=epoch, outcome="completed"))
    driver.handle(Acknowledged(operation=turn.operation, process_epoch=PRODUCER))


def names(effects: Sequence[Effect]) -> list[str]:
    return [type(effect).__name__ for effect in effects]


def begun(queued: Queued, world: RunConfig = WORLD) -> Driver:
    """A driver whose configuration is stored, and nothing after it until the test lets it through."""
    queued.gate.let_one()
    driver = start(queued.log, world)
    queued.log.flush()
    return driver


class Shell:
    """A stack with one real rank, whose log a test can hold back or break."""

    def __init__(self, path: Path) -> None:
        self.queued = Queued(path, QueueBounds(events=40))
        self.gate: Gate = self.queued.gate
        self.driver = begun(self.queued, ONE_RANK)
        self.stack = Stack(self.driver)
        self.kv = self.stack.kv
        self.key = opened(self.driver)

    async def upload(self, want: Ids) -> None:
        await self.kv.upload(chosen(self.driver, self.key, want), idempotency_key=str(want))

    def stored(self) -> None:
        self.queued.log.flush()

    def break_it(self) -> None:
        """The next group fails; nothing that waits has been stored."""
        self.gate.fault = LogError("the disk is full")
        self.gate.let_all()
