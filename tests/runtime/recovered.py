"""Opening a ledger that a process has left, and what has to hold then."""

from collections.abc import Iterable

from msgspec.structs import replace
from tests.runtime.rig import RANKS, frozen, make_settings
from tests.runtime.storms import WORLD

from kvsweep.ledger import laws
from kvsweep.ledger.events import Event
from kvsweep.ledger.fold import apply_all
from kvsweep.ledger.ids import RequestKey
from kvsweep.ledger.messages import Acknowledge, Acknowledged, Cancel, PublishKeepMap, Release
from kvsweep.ledger.state import EMPTY, State
from kvsweep.ledger.store.digest import Digest
from kvsweep.ledger.store.log import LogStore
from kvsweep.runtime.driver import Driver
from kvsweep.runtime.run_config import RunConfig

NEWER = replace(WORLD, ranks=tuple((rank, 1000 + rank) for rank, _ in RANKS))


def folded(events: Iterable[Event]) -> State:
    return apply_all(EMPTY, events)


def recovered(log: LogStore, world: RunConfig = NEWER) -> Driver:
    return Driver.open(make_settings(), world, log=log, clock=lambda: 0.0)


def serve(driver: Driver) -> None:
    """Perform what is due, the producer at its report, until nothing is."""
    while effects := driver.poll():
        for effect in effects:
            assert not isinstance(effect, Cancel), "nobody lives who could be told to stop"
            if isinstance(effect, Release):
                driver.release(effect)
            if isinstance(effect, PublishKeepMap | Acknowledge):
                epoch = driver.state.pool.producer_epoch
                turn = driver.handle(Acknowledged(operation=effect.operation, process_epoch=epoch))
                assert turn.outcome == "accepted", "the producer hears once of what waits for it"


def held_on_device(driver: Driver) -> int:
    return sum(pool.blocks - pool.free for pool in driver.pools.device.groups)


def expect_drained(driver: Driver, where: str) -> None:
    """No lease, fence, quarantine or view; every device block is free; the CPU pool agrees with the relation."""
    state, run = driver.state, driver.state.pool.run
    assert run is not None
    assert laws.check(state) == [], where
    assert driver.pending() == [], where
    for request in state.requests.values():
        assert request.life in ("PREEMPTED", "CLOSED"), where
        held = (request.open_operations(), request.settling, request.views, request.tail, request.fences)
        assert not any(held), where
    assert (state.pool.prefixes, state.pool.lost) == ((), ()), where
    assert held_on_device(driver) == 0, f"{where}: free + resident = pool, and nothing is resident"
    sources = {block for key in state.ownership.held for block in state.ownership.sources(key).tolist()}
    full, copies = driver.pools.cpu.full, driver.pools.cpu.copies
    assert full.blocks - full.free + copies.blocks - copies.free == len(sources), where


def expect_replays(driver: Driver, where: str) -> None:
    """Live digest == replayed digest, over both lives."""
    replayed = Digest()
    events = [record.event for record in driver.log.read()]
    for event in events:
        replayed.update(event)
    assert frozen(folded(events)) == frozen(driver.state), where
    assert replayed.value(driver.state) == driver.digest(), where


def living(driver: Driver) -> list[RequestKey]:
    """Lives that are not closed."""
    return [request.key for request in driver.state.requests.values() if request.life != "CLOSED"]
