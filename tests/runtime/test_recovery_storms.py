"""A run is cut after every batch of a storm; whatever was under way, opening the ledger again settles it."""

import pytest
from msgspec.structs import replace
from tests.runtime.conftest import Stored
from tests.runtime.recovered import NEWER, expect_drained, expect_replays, folded, living, recovered, serve
from tests.runtime.rig import RANKS, frozen
from tests.runtime.storms import WORLD, Storm

from kvsweep.ledger import events as e
from kvsweep.ledger.events import Event
from kvsweep.ledger.fold import apply_all
from kvsweep.ledger.messages import (
    Done,
    Finish,
)
from kvsweep.ledger.state import EMPTY, State
from kvsweep.runtime.driver import Driver

SEED = 20260916
TURNS = 120


def prefixes(batches: list[tuple[Event, ...]]) -> list[list[Event]]:
    """What a crash can leave: everything up to the end of each batch."""
    events: list[Event] = []
    return [list(events) for batch in batches for _ in [events.extend(batch)]]


def unnumbered(state: State) -> bytes:
    """The state without the numbers of the next events: what a fact that is only noted leaves as it was."""
    requests = {name: replace(request, seq=0) for name, request in state.requests.items()}
    return frozen(replace(state, pool=replace(state.pool, seq=0), requests=requests))


# ---- at every moment of a storm


def expect_late_reports_ignored(driver: Driver, events: list[Event], where: str) -> None:
    """Whatever ranks of the earlier life had still to say is recorded as old, and changes nothing (F2)."""
    before, mark = unnumbered(driver.state), driver.log.durable()
    reports = 0
    for event in events:
        if isinstance(event, e.TransferStarted | e.ReadersDrained | e.StoreStarted):
            for rank, epoch in event.ranks:
                report = Done(operation=event.operation, rank=rank, process_epoch=epoch, outcome="completed")
                assert driver.handle(report).outcome in ("ignored", "repeated"), f"{where}: {report}"
                reports += 1
    noted = [record.event for record in driver.log.read(after=mark)]
    assert [type(event) for event in noted if not isinstance(event, e.DigestRecorded)] == [e.AckIgnored] * reports, (
        where
    )
    assert unnumbered(driver.state) == before, where


def crash_after_every_batch(stored: Stored, seed: int, turns: int) -> None:
    """F2, G3, B6: the laws hold, all drains, old reports are known as old, and both lives replay to the live digest."""
    for cut, events in enumerate(prefixes(Storm(seed).run(turns).log.batches)):
        where = f"Storm({seed}).run({turns}), cut after batch {cut}"
        known = folded(events).pool
        # A producer of its own process lives on; one in the coordinator's process begins anew.
        world = WORLD.newer_than(known)
        driver = recovered(stored(events), world if cut % 2 else replace(world, producer_epoch=known.producer_epoch))
        assert driver.state.pool.pool_generation > known.pool_generation, where
        serve(driver)
        expect_drained(driver, where)
        expect_late_reports_ignored(driver, events, where)
        for key in living(driver):
            driver.handle(Finish(request=key))
        serve(driver)
        assert living(driver) == [], where
        assert driver.pools.cpu.free == (WORLD.cpu_full_blocks, WORLD.cpu_total_blocks - WORLD.cpu_full_blocks), where
        expect_replays(driver, where)
        driver.log.close()


def test_f2_a_crash_after_any_batch_of_a_storm_recovers(stored: Stored) -> None:
    crash_after_every_batch(stored, SEED, 100)


@pytest.mark.full
@pytest.mark.parametrize("number", range(10))
def test_f2_a_crash_after_any_batch_of_many_storms_recovers(stored: Stored, number: int) -> None:
    crash_after_every_batch(stored, SEED + number, 200)


def test_storms_are_cut_in_every_state_that_waits() -> None:
    """What the cuts above meet, over a few seeds."""
    met: set[str] = set()
    for seed in range(SEED, SEED + 6):
        state = EMPTY
        for batch in Storm(seed).run(200).log.batches:
            state = apply_all(state, batch)
            met.update("a lost rank" for _ in state.pool.lost)
            met.update("a shared prefix" for _ in state.pool.prefixes)
            for request in state.requests.values():
                lanes = {"upload": request.upload, "retain": request.retain, "store": request.store}
                met.update(f"{name} {lane.phase}" for name, lane in lanes.items() if lane.open)
                met.update(f"tail {block.phase}" for block in request.tail)
                met.update("settling" for _ in request.settling)
                met.update("fence" for _ in request.fences)
                met.update("replaced view" for view in request.views if view.generation != request.current)
                met.add(request.life)
    assert met >= {
        "RUNNING", "PREEMPTED", "FINISHING", "CLOSED", "settling", "fence", "replaced view", "a lost rank",
        "a shared prefix", "upload MOVING", "upload COMMITTED", "upload PUBLISHED", "retain APPLYING",
        "retain COMMITTED", "retain RETIRED", "store MOVING", "tail open", "tail dirty", "tail clean",
    }  # fmt: skip


def test_a_crash_within_a_recovery_recovers(stored: Stored) -> None:
    """The batch is whole or not there; what follows it finds nothing that is left to do."""
    events = [event for batch in Storm(SEED).run(TURNS).log.batches for event in batch]
    first = recovered(stored(events))
    between = [record.event for record in first.log.read()]
    first.log.close()
    assert isinstance(between[len(events)], e.CoordinatorRestarted)
    second = recovered(stored(between), NEWER.newer_than(first.state.pool))
    added = [type(record.event) for record in second.log.read(after=len(between))]
    ends = [e.RankLost] * len(RANKS) + [e.RankRestarted] * len(RANKS)
    assert added == [e.CoordinatorRestarted, *ends, e.ProducerRestarted]
    serve(second)
    expect_drained(second, "recovered twice")
    expect_replays(second, "recovered twice")
    second.log.close()
