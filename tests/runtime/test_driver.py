"""Core, log and pools together: what is adopted is in the log, effects wait for it, and a failed append stops all."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.runtime.rig import PRODUCER, RANKS, Ids, free_sources, frozen, make_layout, make_settings, rows, selection

from kvsweep.ledger import events as e
from kvsweep.ledger import fold
from kvsweep.ledger.errors import BrokenLaw, LogError, Refused
from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import POOL, RequestKey, int32_bytes, int32_view
from kvsweep.ledger.messages import (
    Acknowledged,
    Done,
    OpenTail,
    Preempt,
    PublishKeepMap,
    RegisterSources,
    Release,
    Resume,
    Retain,
    Select,
    Turn,
)
from kvsweep.ledger.ownership import NOTHING_OWNED
from kvsweep.ledger.state import EMPTY, State
from kvsweep.ledger.store.digest import Digest
from kvsweep.ledger.store.log import Level, Position
from kvsweep.ledger.store.memory import MemoryLog
from kvsweep.runtime.core.core import Core
from kvsweep.runtime.core.upload_plan import keep_slots
from kvsweep.runtime.driver import Driver
from kvsweep.runtime.run_config import RunConfig

LAYOUT = make_layout(2)
WORLD = RunConfig(
    layout=LAYOUT, ranks=RANKS, producer_epoch=PRODUCER, device_blocks=(16,), cpu_full_blocks=32, cpu_total_blocks=40
)
FIRST: Ids = {0: [0, 2], 1: [1, 2]}
SECOND: Ids = {0: [0, 2, 6], 1: [1, 2, 3]}


class Ticks:
    """A clock that advances by one second a look."""

    def __init__(self, start: float = 0.0) -> None:
        self.now = start

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def start(*, log: MemoryLog | None = None, clock: Any = None, **settings: Any) -> Driver:
    return Driver.open(make_settings(**settings), WORLD, log=log, clock=clock or (lambda: 0.0))


def opened(driver: Driver, name: str = "a") -> RequestKey:
    key = driver.open_request(name)
    given = free_sources(driver.pools, 8)
    driver.handle(RegisterSources(request=key, logical=int32_bytes(range(8)), source=int32_bytes(given)))
    return key


def select(driver: Driver, key: RequestKey, want: Ids, **fields: Any) -> Turn:
    request = driver.state.request(key)
    assert request is not None
    chosen = selection(LAYOUT, key, request.selection_revision + 1, want, **fields)
    return driver.handle(Select(selection=chosen, idempotency_key=""))


def upload(driver: Driver, key: RequestKey, want: Ids) -> None:
    operation = select(driver, key, want).operation
    assert operation is not None
    for rank, epoch in RANKS:
        driver.handle(Done(operation=operation, rank=rank, process_epoch=epoch, outcome="completed"))
    driver.handle(Acknowledged(operation=operation, process_epoch=PRODUCER))


def events_of(driver: Driver) -> list[Event]:
    return [record.event for record in driver.log.read()]


# ---- opening


def test_j1_a_ledger_begins_with_the_configuration_of_the_run() -> None:
    driver = Driver.open(make_settings(), WORLD, evidence='{"seed": 7}')
    (first,) = events_of(driver)
    assert isinstance(first, e.RunConfigured)
    assert (first.evidence, first.layout, first.ranks) == ('{"seed": 7}', LAYOUT, RANKS)
    assert (first.device_blocks, first.cpu_full_blocks, first.cpu_total_blocks) == ((16,), 32, 40)


def test_d5_copying_without_copy_destinations_fails_at_start() -> None:
    settings = make_settings(source={"kind": "copy", "allow_copy": True})
    with pytest.raises(LogError, match=r"expected N > K, got N = K"):
        Driver.open(settings, replace(WORLD, cpu_total_blocks=32))


# ---- the log comes first


class Watching(MemoryLog):
    """Says what the driver's state was when a batch was appended."""

    def __init__(self) -> None:
        super().__init__()
        self.driver: Driver | None = None
        self.seen: list[bytes] = []

    def append(self, batch: Sequence[Event], *, expected: Position | None = None, level: Level = "power") -> Position:
        if self.driver is not None:
            self.seen.append(frozen(self.driver.state))
        return super().append(batch, expected=expected, level=level)


def test_g3_events_are_appended_before_their_state_is_adopted() -> None:
    log = Watching()
    driver = start(log=log)
    log.driver = driver
    key = driver.open_request("a")
    before = frozen(driver.state)
    driver.handle(Preempt(request=key))
    assert log.seen[-1] == before
    assert frozen(driver.state) != before


def test_j1_the_fold_of_the_log_is_the_state() -> None:
    driver = start(log=(log := MemoryLog()))
    key = opened(driver)
    upload(driver, key, FIRST)
    step, _ = driver.begin_step([key])
    upload(driver, key, SECOND)
    driver.end_step(step)
    with pytest.raises(Refused):
        select(driver, key, {0: [9], 1: [0]})
    folded = fold.apply_all(EMPTY, [record.event for record in log.read()])
    assert frozen(folded) == frozen(driver.state)


class Failing(MemoryLog):
    broken = False

    def append(self, batch: Sequence[Event], *, expected: Position | None = None, level: Level = "power") -> Position:
        if self.broken:
            raise LogError("disk full")
        return super().append(batch, expected=expected, level=level)


def test_g3_a_failed_append_changes_nothing_and_makes_the_driver_read_only() -> None:
    log = Failing()
    driver = start(log=log)
    key = opened(driver)
    upload(driver, key, FIRST)
    driver.poll()
    step, _ = driver.begin_step([key])
    upload(driver, key, SECOND)
    driver.poll()
    before = frozen(driver.state)
    log.broken = True
    with pytest.raises(LogError, match="disk full"):
        select(driver, key, {0: [0, 7], 1: [1]})
    log.broken = False
    with pytest.raises(LogError, match="read-only since an append failed: disk full"):
        driver.handle(Preempt(request=key))
    driver.end_step(step)
    assert frozen(driver.state) == before
    assert driver.poll() == [], "no effect of a batch that is in no log"
    assert driver.residency(key).logical_by_slot_by_layer.as_lists() == {0: [0, 2, 6], 1: [1, 2, 3]}
    driver.close()


# ---- answers


def test_g3_an_illegal_command_raises_and_is_recorded_and_gives_back_what_was_reserved() -> None:
    driver = start()
    key = opened(driver)
    upload(driver, key, FIRST)
    driver.poll()
    driver.handle(Preempt(request=key))
    for effect in driver.poll():
        assert isinstance(effect, Release)
        driver.release(effect)
    free = driver.pools.device.free
    with pytest.raises(Refused, match="TailOpened is illegal in preempted/idle/idle/idle") as caught:
        driver.handle(OpenTail(request=key, until=11))
    assert "RequestResumed" in caught.value.legal
    assert isinstance(events_of(driver)[-1], e.CommandRefused)
    for effect in driver.poll():
        assert isinstance(effect, Release)
        driver.release(effect)
    assert driver.pools.device.free == free
    driver.check_laws()


def test_g3_a_plan_that_cannot_be_made_now_is_returned_not_raised() -> None:
    driver = start()
    key = opened(driver)
    driver.pools.device.reserve(0, 15)
    turn = select(driver, key, FIRST)
    assert turn.outcome == "refused"
    assert turn.refusal is not None
    assert turn.refusal.what == "no_space"


def test_f2_a_peers_mistake_raises_nothing() -> None:
    driver = start()
    key = opened(driver)
    operation = select(driver, key, FIRST).operation
    assert operation is not None
    turn = driver.handle(Done(operation=operation, rank=0, process_epoch=99, outcome="completed"))
    assert turn.outcome == "refused"
    turn = driver.handle(Done(operation=operation, rank=9, process_epoch=10, outcome="completed"))
    assert turn.outcome == "refused"
    assert turn.refusal is not None
    assert "expected one of ranks [0, 1], got rank 9" in turn.refusal.reason


def test_d1_the_residency_names_generation_revision_slots_and_what_is_pending() -> None:
    driver = start()
    key = opened(driver)
    upload(driver, key, {0: [0, 2, 5], 1: [1]})
    operation = select(driver, key, {0: [0, 2, 5, 7], 1: [1]}).operation
    found = driver.residency(key)
    assert (found.request_epoch, found.pool_generation, found.map_revision, found.view_generation) == (1, 1, 1, 1)
    assert found.logical_by_slot_by_layer.as_lists() == {0: [0, 2, 5], 1: [1]}
    assert int32_view(found.valid_blocks_by_layer).tolist() == [3, 1]
    assert (found.pending_upload, found.pending_retain) == (operation, None)
    with pytest.raises(Refused, match="no such request"):
        driver.residency(RequestKey("a", 2))


def test_a2_planning_time_is_measured_and_stands_outside_the_digest() -> None:
    digests = []
    for clock in (Ticks(), Ticks(1000.0), lambda: 5.0):
        driver = start(clock=clock)
        key = opened(driver)
        upload(driver, key, FIRST)
        digests.append((driver.digest(), driver.metrics.plan_s))
    assert [seconds for _, seconds in digests] == [1.0, 1.0, 0.0]
    assert len({digest for digest, _ in digests}) == 1


def test_j1_another_history_has_another_digest() -> None:
    digests = set()
    for want in (FIRST, SECOND, {0: [0, 2], 1: [1, 3]}):
        driver = start()
        upload(driver, opened(driver), want)
        digests.add(driver.digest())
    assert len(digests) == 3


def test_j1_digests_are_recorded_while_it_runs_and_at_the_end() -> None:
    log = MemoryLog()
    settings = make_settings(log={"url": "memory:", "digest_every": 5})
    driver = Driver.open(settings, WORLD, log=log, clock=lambda: 0.0)
    key = opened(driver)
    for _ in range(3):
        upload(driver, key, FIRST)
        upload(driver, key, SECOND)
    kept = events_of(driver)
    recorded = [event for event in kept if isinstance(event, e.DigestRecorded)]
    assert len(recorded) > 3
    assert {event.request for event in recorded} == {POOL}
    # Each names a position before its own, and what a replay up to there gives.
    positions = [event.position for event in recorded]
    assert positions == sorted({*positions})
    for event in recorded:
        assert event.position <= kept.index(event) < event.position + 10
        assert event.digest == replayed_to(kept, event.position)
    final, seen = driver.digest(), list[Event]()
    driver.watch(seen.append)
    driver.close()
    (closing,) = seen
    assert isinstance(closing, e.DigestRecorded)
    assert closing.digest == final == driver.final_digest
    with pytest.raises(LogError, match="closed"):
        log.durable()


def replayed_to(events: Sequence[Event], position: Position) -> str:
    """Digest after the event at the position."""
    digest, state = Digest(), EMPTY
    for past in events[:position]:
        digest.update(past)
        state = fold.apply(state, past)
    return digest.value(state)


def test_j1_a_digest_of_many_requests_is_worked_out_over_the_turns_that_follow_its_position() -> None:
    """No turn hashes them all. What happens meanwhile is no part of it."""
    world = replace(WORLD, cpu_full_blocks=400, cpu_total_blocks=408)
    driver = Driver.open(make_settings(log={"url": "memory:", "digest_every": 90}), world, clock=lambda: 0.0)
    keys = [opened(driver, f"r{number}") for number in range(40)]
    for key in (*keys, *keys):
        driver.handle(Preempt(request=key))
        driver.handle(Resume(request=key))
    kept = events_of(driver)
    recorded = [event for event in kept if isinstance(event, e.DigestRecorded)]
    assert len(recorded) >= 2
    for event in recorded:
        assert 10 < kept.index(event) - event.position < 90, "turns later, and before the next one is due"
        assert event.digest == replayed_to(kept, event.position)


def test_b6_watchers_see_every_event_in_order_after_it_was_appended() -> None:
    driver = start()
    seen: list[tuple[Event, int]] = []
    driver.watch(lambda event: seen.append((event, driver.log.durable())))
    upload(driver, opened(driver), FIRST)
    assert [event for event, _ in seen] == events_of(driver)[1:]
    assert all(durable > number for number, (_, durable) in enumerate(seen, start=1))


def test_b6_a_broken_law_is_named() -> None:
    driver = start()
    upload(driver, opened(driver), FIRST)
    driver.check_laws()
    state: State = driver.state
    driver.core = Core(driver.settings, state=replace(state, ownership=NOTHING_OWNED))
    with pytest.raises(BrokenLaw, match="law 'a view holds what its table names' is broken: a: view 1"):
        driver.check_laws()


def test_f1_a_keep_map_and_a_retain_leave_as_effects_with_their_ids() -> None:
    driver = start()
    key = opened(driver)
    upload(driver, key, SECOND)
    driver.poll()
    operation = select(driver, key, FIRST).operation
    assert operation is not None
    (published,) = driver.poll()
    assert isinstance(published, PublishKeepMap)
    assert published.keep.as_lists() == {0: [0, 1], 1: [0, 1]}
    assert driver.metrics.metadata_bytes > 0
    driver.handle(Acknowledged(operation=operation, process_epoch=PRODUCER))
    request = driver.state.request(key)
    assert request is not None
    turn = driver.handle(
        Retain(
            request=key,
            keep=keep_slots(request, rows(FIRST)),
            adopt=rows({0: [], 1: []}),
            map_revision=request.map_revision,
            selection_revision=2,
            idempotency_key="",
        )
    )
    assert turn.holds_blocks
    assert [msgspec.structs.asdict(effect)["operation"] for effect in driver.poll()] == [turn.operation]
