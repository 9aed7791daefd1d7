"""A failed append stops what is recorded and what leaves; what is resident is still handed out."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tests.ledger.store.gate import Queued
from tests.runtime.durable import FIRST, SECOND, Shell, finish_upload, opened, select, start
from tests.runtime.rig import PRODUCER, RANKS, Ids, frozen

from kvsweep.ledger import events as e
from kvsweep.ledger.errors import LogError, NotSettled
from kvsweep.ledger.events import Event
from kvsweep.ledger.messages import (
    Acknowledged,
    Done,
    Finish,
    OpenRequest,
    Preempt,
    ProcessStarted,
)
from kvsweep.ledger.store.log import Level, LogStore, Position, QueueBounds
from kvsweep.ledger.store.memory import MemoryLog


class Failing(MemoryLog):
    fault: BaseException | None = None

    def append(self, batch: Sequence[Event], *, expected: Position | None = None, level: Level = "power") -> Position:
        if self.fault is not None:
            raise self.fault
        return super().append(batch, expected=expected, level=level)


def fail_within_append(path: Path) -> tuple[LogStore, Any]:
    log = Failing()

    def fail() -> None:
        log.fault = LogError("the disk is full")

    return log, fail


def fail_in_the_thread(path: Path) -> tuple[LogStore, Any]:
    queued = Queued(path, QueueBounds())
    queued.gate.let_all()

    def fail() -> None:
        queued.gate.fault = LogError("the disk is full")

    return queued.log, fail


FAULTS = pytest.mark.parametrize("make", [fail_within_append, fail_in_the_thread])


@FAULTS
def test_g3_a_failed_append_stops_effects_and_commands_and_leaves_what_is_resident(make: Any, tmp_path: Path) -> None:
    log, fail = make(tmp_path / "ledger.db")
    driver = start(log)
    key = opened(driver)
    finish_upload(driver, select(driver, key, FIRST))
    log.flush()
    driver.poll()
    step, _ = driver.begin_step([key])
    turn = select(driver, key, SECOND)
    log.flush()
    fail()
    assert driver.pending()[0].startswith("a: upload operation")
    if log.queues:  # handed over, and then it fails
        driver.open_request("b")
        with pytest.raises(LogError, match=r"^the disk is full$"):
            log.flush()
    else:
        with pytest.raises(LogError, match=r"^read-only since an append failed: the disk is full$"):
            driver.open_request("b")
    before = frozen(driver.state)
    for command in (Preempt(request=key), Finish(request=key), OpenRequest(request_id="b")):
        with pytest.raises(LogError, match=r"^read-only since an append failed: the disk is full$"):
            driver.handle(command)
    assert turn.operation is not None
    for report in (
        Done(operation=turn.operation, rank=0, process_epoch=RANKS[0][1], outcome="completed"),
        Acknowledged(operation=turn.operation, process_epoch=PRODUCER),
        ProcessStarted(rank=0, process_epoch=99),
    ):
        answer = driver.handle(report)
        assert (answer.outcome, answer.events) == ("refused", ())
        assert answer.refusal is not None
        assert answer.refusal.reason == "read-only since an append failed: the disk is full"
    assert driver.poll() == [], "not even what needs nothing"
    driver.end_step(step)
    assert driver.core.steps.numbers == frozenset()
    _, handed = driver.begin_step([key])
    assert handed[key].generation == 1
    assert driver.residency(key).logical_by_slot_by_layer.as_lists() == FIRST
    assert driver.pending()[0] == "read-only since an append failed: the disk is full"
    assert driver.next_deadline() is None
    assert driver.expire() == []
    assert frozen(driver.state) == before
    driver.close()


def test_a_conflict_with_another_writer_is_a_failed_append() -> None:
    log = MemoryLog()
    driver = start(log)
    key = driver.open_request("a")
    log.append([e.RequestPreempted(request=key, seq=1)])
    with pytest.raises(LogError, match=r"read-only since an append failed: .*expected sequence 2, found 1"):
        driver.handle(Preempt(request=key))


# ---- the shell around it, on every event loop


async def not_settled(serve: Callable[[], Awaitable[None]]) -> NotSettled:
    """What leaving raised, and nothing but that; the stack's task group has wrapped it."""
    with anyio.fail_after(30), pytest.raises(ExceptionGroup) as left:
        await serve()
    (error,) = left.value.exceptions
    assert isinstance(error, NotSettled)
    return error


async def test_g3_when_an_append_fails_who_waits_is_told_and_steps_go_on(shell: Shell) -> None:
    told: list[str] = []
    kv, key = shell.kv, shell.key

    async def told_why(want: Ids) -> None:
        try:
            await shell.upload(want)
        except LogError as error:
            told.append(str(error))

    async def settled() -> None:
        try:
            await kv.settled()
        except LogError as error:
            told.append(str(error))

    reason = "read-only since an append failed: the disk is full"

    async def serve() -> None:
        async with shell.stack:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(told_why, FIRST)
                await kv.until(lambda: shell.driver.residency(key).view_generation == 1)
                step, handed = kv.begin_step([key])
                tasks.start_soon(settled)
                await anyio.wait_all_tasks_blocked()
                assert told == []
                shell.break_it()
            assert told == [reason, reason]
            kv.end_step(step)
            for _ in range(3):  # the task group is whole, and what is resident is handed out
                step, again = kv.begin_step([key])
                assert again == handed
                kv.end_step(step)
                await anyio.lowlevel.checkpoint()
            assert kv.residency(key).logical_by_slot_by_layer.as_lists() == FIRST
            with pytest.raises(LogError, match=reason):
                await shell.upload(SECOND)
            with pytest.raises(LogError, match=reason):
                kv.finish(key)
            (rank,) = shell.driver.state.pool.ranks
            report = kv.handle(ProcessStarted(rank=rank[0], process_epoch=rank[1] + 1))
            assert report.outcome == "refused"
            assert shell.driver.state.pool.ranks == (rank,)

    assert (await not_settled(serve)).pending[0] == reason
    shell.driver.close()


async def test_g3_a_caller_who_leaves_a_read_only_shell_gets_away(shell: Shell) -> None:
    """Cancelling aborts the operation, which cannot be recorded: that hides no cancellation."""

    async def serve() -> None:
        async with shell.stack:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(shell.upload, FIRST)
                await shell.kv.until(lambda: shell.driver.residency(shell.key).pending_upload is not None)
                shell.gate.fault = LogError("the disk is full")
                shell.gate.let_all()
                with pytest.raises(LogError):
                    shell.stored()
                tasks.cancel_scope.cancel()
            assert shell.driver.read_only is not None

    await not_settled(serve)


@pytest.mark.parametrize("fault", [OSError("no such device"), MemoryError(), KeyboardInterrupt()])
def test_g3_whatever_an_append_raises_nothing_follows_what_may_not_be_stored(fault: BaseException) -> None:
    log = Failing()
    driver = start(log)
    key = opened(driver)
    step, _ = driver.begin_step([key])
    before = frozen(driver.state)
    log.fault = fault
    with pytest.raises(type(fault)):
        select(driver, key, FIRST)
    log.fault = None
    assert str(driver.read_only) == f"read-only since an append failed: {str(fault) or type(fault).__name__}"
    with pytest.raises(LogError, match=r"^read-only since an append failed"):
        select(driver, key, SECOND)
    driver.end_step(step)
    assert frozen(driver.state) == before
