"""A ledger that a process has left is opened again: folded, settled, drained, and gone on with."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from tests.runtime.conftest import Stored
from tests.runtime.recovered import NEWER, expect_drained, expect_replays, recovered, serve
from tests.runtime.rig import PRODUCER, RANKS, Ids, free_sources, make_settings, selection
from tests.runtime.storms import LAYOUT, WHOLE, WORLD, Batches

from kvsweep.ledger import events as e
from kvsweep.ledger.errors import LogCorrupt, LogError
from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import POOL, Operation, RequestKey, int32_bytes, int32_view, no_rows
from kvsweep.ledger.inspect.replay import Ledger
from kvsweep.ledger.messages import (
    Acknowledged,
    Done,
    Finish,
    OpenTail,
    Preempt,
    ProcessLost,
    ProcessStarted,
    PublishKeepMap,
    PublishPrefix,
    RegisterSources,
    Resume,
    SealTail,
    Select,
)
from kvsweep.ledger.store.memory import MemoryLog
from kvsweep.runtime.coordinator import Coordinator
from kvsweep.runtime.driver import Driver
from kvsweep.runtime.run_config import RunConfig
from kvsweep.transports.producer import HostProducer

FIRST: Ids = {0: [0, 2], 1: [1, 2]}
SECOND: Ids = {0: [0, 2, 3], 1: [1, 2, 5]}


# ---- what is found there


def upload(driver: Driver, key: RequestKey, want: Ids) -> Operation:
    request = driver.state.request(key)
    assert request is not None
    wanted = selection(LAYOUT, key, request.selection_revision + 1, want, whole=WHOLE)
    operation = driver.handle(Select(selection=wanted, idempotency_key="")).operation
    assert operation is not None
    return operation


def complete(driver: Driver, operation: Operation) -> None:
    for rank, epoch in driver.state.pool.ranks:
        driver.handle(Done(operation=operation, rank=rank, process_epoch=epoch, outcome="completed"))


def begun(**settings: Any) -> tuple[Driver, RequestKey]:
    """A request with a committed view and a second upload under way."""
    driver = Driver.open(make_settings(**settings), WORLD, log=Batches(), clock=lambda: 0.0)
    key = driver.open_request("a")
    source = int32_bytes(free_sources(driver.pools, WHOLE))
    driver.handle(RegisterSources(request=key, logical=int32_bytes(range(WHOLE)), source=source))
    complete(driver, upload(driver, key, FIRST))
    serve(driver)
    upload(driver, key, SECOND)
    return driver, key


def events_of(driver: Driver) -> list[Event]:
    return [record.event for record in driver.log.read()]


def test_what_was_open_is_aborted_settled_and_preempted_in_one_batch(stored: Stored) -> None:
    """Residency begins empty, and the CPU's blocks are valid where their producer has lived on."""
    driver, key = begun()
    before = events_of(driver)
    again = recovered(stored(before))
    names = [type(event).__name__ for event in events_of(again)[len(before) :]]
    assert names == [
        "CoordinatorRestarted",
        "UploadAborted", "TransferSettled", "RequestPreempted", "RankLost",
        "TransferSettled", "RankLost",
        "RankRestarted", "RankRestarted",
        "BlocksRetired",
    ]  # fmt: skip
    request = again.state.request(key)
    assert request is not None
    assert (request.life, request.current, request.source) == ("PREEMPTED", 0, driver.state.requests["a"].source)
    serve(again)
    expect_drained(again, "recovered")
    again.handle(Resume(request=key))
    complete(again, upload(again, key, FIRST))
    serve(again)
    assert again.residency(key).logical_by_slot_by_layer.as_lists() == FIRST
    expect_replays(again, "gone on with")
    again.log.close()


def test_blocks_of_a_producer_that_ended_as_well_are_named_again() -> None:
    driver, key = begun()
    log = MemoryLog()
    log.append(events_of(driver))
    again = recovered(log, replace(NEWER, producer_epoch=PRODUCER + 1))
    serve(again)
    expect_drained(again, "recovered")
    request = again.state.request(key)
    assert request is not None
    assert (request.source, request.stale) == (b"", driver.state.requests["a"].source)
    held = again.pools.cpu.full.free
    at = np.flatnonzero(int32_view(request.stale) >= 0)
    stale = int32_bytes(int32_view(request.stale)[at])
    again.handle(RegisterSources(request=key, logical=int32_bytes(at), source=stale))
    assert again.pools.cpu.full.free == held, "they were held all the while"


def test_f1_a_keep_map_that_nobody_acknowledged_is_said_again_and_void() -> None:
    """A zero-byte plan waits for the producer's report; the residency whose slots it names is gone."""
    driver, key = begun()
    complete(driver, upload_of(driver))
    serve(driver)
    upload(driver, key, FIRST)
    assert driver.state.requests["a"].upload.phase == "PUBLISHED"
    log = MemoryLog()
    log.append(events_of(driver))
    again = recovered(log)
    (said,) = [effect for effect in again.poll() if isinstance(effect, PublishKeepMap)]
    assert said.keep.as_lists() == {0: [], 1: []}
    report = Acknowledged(operation=said.operation, process_epoch=PRODUCER)
    assert again.handle(report).outcome == "accepted"
    assert again.state.requests["a"].upload.phase == "IDLE"


def test_f1_a_producer_that_restarts_after_a_preemption_hears_of_the_keep_map_too() -> None:
    """The same hole without a crash: the lane waits for a report that only a new process can give."""
    driver, key = begun()
    complete(driver, upload_of(driver))
    serve(driver)
    upload(driver, key, FIRST)
    driver.poll()  # told to a process that ends before it answers
    driver.handle(Preempt(request=key))
    driver.handle(ProcessStarted(process_epoch=PRODUCER + 1))
    serve(driver)
    assert driver.pending() == []


async def test_a_producer_that_lives_on_forgets_what_closed_meanwhile() -> None:
    """Its bounded memory of keep maps would else hold those of lives that ended while nobody could tell it."""
    driver, key = begun()
    producer = HostProducer(LAYOUT, full_blocks=48, total_blocks=56, process_epoch=PRODUCER)
    said = PublishKeepMap(operation=upload_of(driver), selection_revision=1, keep=no_rows(LAYOUT.active_layers))
    producer.perform([said])
    producer.poll()
    driver.begin_step([key])
    driver.handle(Finish(request=key))
    log = MemoryLog()
    log.append(events_of(driver))
    again = recovered(log)
    assert again.state.requests["a"].life == "CLOSED"
    async with Coordinator(again, links={}, producer=producer):
        assert producer.keep_map(key) is None


def upload_of(driver: Driver) -> Operation:
    opened = driver.state.requests["a"].upload.open
    assert opened is not None
    return opened.operation


def test_a_finish_that_waited_for_a_reader_closes() -> None:
    """Steps are in no ledger: those of the earlier life have ended with its ranks."""
    driver, key = begun()
    driver.begin_step([key])
    driver.handle(Finish(request=key))
    assert driver.state.requests["a"].life == "FINISHING"
    log = MemoryLog()
    log.append(events_of(driver))
    again = recovered(log)
    assert again.state.requests["a"].life == "CLOSED"
    serve(again)
    expect_drained(again, "recovered")


def test_a_repeated_call_of_the_earlier_life_gets_its_answer() -> None:
    """F3: the key is in the ledger, and so is that its operation ended without a commit."""
    driver, key = begun()
    request = driver.state.request(key)
    assert request is not None
    wanted = selection(LAYOUT, key, request.selection_revision + 1, FIRST, whole=WHOLE)
    complete(driver, request.upload.open.operation)  # type: ignore[union-attr]
    serve(driver)
    wanted = selection(LAYOUT, key, request.selection_revision + 1, {0: [4], 1: [5]}, whole=WHOLE)
    command = Select(selection=wanted, idempotency_key="once")
    first = driver.handle(command).operation
    log = MemoryLog()
    log.append(events_of(driver))
    answer = recovered(log).handle(command)
    assert (answer.outcome, answer.operation, answer.refusal and answer.refusal.reason) == (
        "repeated", first, "rank 0 ended",
    )  # fmt: skip


def test_what_began_while_every_rank_was_lost_is_preempted_too(stored: Stored) -> None:
    """No step can have read or written it, and the room that it was given comes back."""
    driver, key = begun()
    for rank, epoch in RANKS:
        driver.handle(ProcessLost(rank=rank, process_epoch=epoch))
    driver.handle(Resume(request=key))
    driver.handle(OpenTail(request=key, until=WHOLE + 1))
    again = recovered(stored(events_of(driver)))
    serve(again)
    expect_drained(again, "recovered")
    again.log.close()


def test_a_shared_prefix_is_given_up_with_the_memory_that_held_it(stored: Stored) -> None:
    driver, key = begun()
    driver.handle(OpenTail(request=key, until=WHOLE + 1))
    operation = driver.handle(SealTail(request=key, confirmed_tokens=(WHOLE + 1) * LAYOUT.block_size)).operation
    assert operation is not None
    complete(driver, operation)
    driver.handle(PublishPrefix(request=key, keys=((WHOLE, "a prefix"),)))
    assert driver.state.pool.prefixes
    again = recovered(stored(events_of(driver)))
    serve(again)
    expect_drained(again, "recovered")
    again.log.close()


def test_copy_destinations_of_an_upload_under_way_come_back(stored: Stored) -> None:
    driver, _ = begun(source={"kind": "copy", "allow_copy": True})
    assert driver.pools.cpu.copies.free < driver.pools.cpu.copies.blocks
    again = recovered(stored(events_of(driver)))
    serve(again)
    expect_drained(again, "recovered")
    assert again.pools.cpu.copies.free == again.pools.cpu.copies.blocks
    again.log.close()


def test_j1_the_evidence_of_each_life_is_in_the_ledger() -> None:
    log = Batches()
    Driver.open(make_settings(), WORLD, evidence='{"seed": 7}', log=log)
    again = MemoryLog()
    again.append([record.event for record in log.read()])
    driver = Driver.open(make_settings(), NEWER, evidence='{"seed": 8}', kernels="numpy", log=again)
    facts = [event for event in events_of(driver) if isinstance(event, e.RunConfigured | e.CoordinatorRestarted)]
    assert [fact.evidence for fact in facts] == ['{"seed": 7}', '{"seed": 8}']
    assert facts[1].implementation.kernels == "numpy"


# ---- what cannot go on


@pytest.mark.parametrize(
    ("world", "said"),
    [
        (replace(NEWER, device_blocks=(24, 8)), "device_blocks: expected (24, 24), got (24, 8)"),
        (replace(NEWER, cpu_full_blocks=40), "cpu_full_blocks: expected 48, got 40"),
        (replace(NEWER, cpu_total_blocks=57), "cpu_total_blocks: expected 56, got 57"),
        (replace(NEWER, ranks=((0, 1000),)), "ranks: expected [0, 1], got [0]"),
        (replace(NEWER, ranks=((0, 1000), (1, 11))), "rank 1: expected a process epoch above 11, got 11"),
        (replace(NEWER, producer_epoch=4), "producer: expected process epoch 5 or above, got 4"),
        (
            replace(NEWER, layout=replace(LAYOUT, model_hash="another")),
            "layout.model_hash: expected 'toy', got 'another'",
        ),
        (
            replace(NEWER, cpu_full_blocks=40, producer_epoch=4),
            "cpu_full_blocks: expected 48, got 40; producer: expected process epoch 5 or above, got 4",
        ),
    ],
)
def test_d4_another_world_is_refused_by_every_field_that_differs(world: RunConfig, said: str) -> None:
    log = MemoryLog()
    log.append(events_of(begun()[0]))
    kept = log.durable()
    with pytest.raises(LogError) as caught:
        recovered(log, world)
    assert str(caught.value) == f"the ledger cannot go on with this run: {said}"
    copy = MemoryLog()
    copy.append(events_of(begun()[0]))
    assert copy.durable() == kept


def test_a_ledger_that_ends_inside_a_batch_is_refused() -> None:
    """No store leaves one; a repair that cuts where it likes could."""
    events = events_of(begun()[0])
    at = max(index for index, event in enumerate(events) if isinstance(event, e.BlocksSelected))
    for cut in range(at + 1, len(events)):
        log = MemoryLog()
        log.append(events[:cut])
        with pytest.raises(LogError, match=r"ends inside a batch and has to be repaired first: the upload of a is "):
            recovered(log)


def test_an_event_that_cannot_follow_is_named_by_its_position() -> None:
    log = MemoryLog()
    log.append([*events_of(begun()[0]), e.RankLost(request=POOL, seq=1, rank=7, process_epoch=1, pool_generation=2)])
    with pytest.raises(LogCorrupt, match=rf"position {log.durable()}: .*rank 7 does not live in process epoch 1"):
        recovered(log)


def test_a_second_writer_is_refused_by_the_store(tmp_path: Path) -> None:
    """Two coordinators at once would give the same numbers to different facts."""
    url = f"sqlite:{tmp_path / 'ledger.db'}"
    settings = make_settings(log={"url": url, "writer": "inline"})
    driver = Driver.open(settings, WORLD)
    with pytest.raises(LogError, match="has a writer already"):
        Driver.open(settings, NEWER)
    driver.close()
    again = Driver.open(settings, NEWER)
    again.close()
    with Ledger.open(url) as ledger:
        assert ledger.verify().ok
