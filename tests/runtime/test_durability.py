"""What leaves waits for the log, and what starts work is refused while the log is behind by its bound."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import anyio
import anyio.lowlevel
import pytest
from tests.ledger.store.gate import Queued
from tests.runtime.durable import (
    FIRST,
    SECOND,
    WORLD,
    Shell,
    begun,
    chosen,
    finish_upload,
    names,
    opened,
    select,
    start,
)
from tests.runtime.rig import RANKS, frozen, make_settings

from kvsweep.ledger.errors import Busy, LogError, SettingsError
from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import int32_bytes
from kvsweep.ledger.messages import (
    STARTS_WORK,
    Abort,
    Acknowledge,
    Cancel,
    Command,
    Done,
    Effect,
    EvictPrefix,
    Finish,
    Gather,
    MoveBlocks,
    OpenRequest,
    OpenTail,
    PackTokens,
    Preempt,
    ProcessStarted,
    PublishKeepMap,
    Release,
    Resume,
    Select,
    StoreBlocks,
    Transfer,
)
from kvsweep.ledger.store.log import Level, Position, QueueBounds
from kvsweep.ledger.store.memory import MemoryLog
from kvsweep.runtime.clock import TurnClock
from kvsweep.runtime.driver import Driver
from kvsweep.runtime.outbox import Outbox


@pytest.fixture
def queued(tmp_path: Path) -> Iterator[Queued]:
    made = Queued(tmp_path / "ledger.db", QueueBounds(events=40))
    yield made
    made.gate.let_all()
    made.log.close()


# ---- needs


class Levels(MemoryLog):
    """A disk that a test moves on; remembers what each batch was to survive."""

    def __init__(self) -> None:
        super().__init__()
        self.reached: dict[Level, Position] = {"process": 0, "power": 0}
        self.asked: list[Level] = []

    def append(self, batch: Sequence[Event], *, expected: Position | None = None, level: Level = "power") -> Position:
        self.asked.append(level)
        return super().append(batch, expected=expected, level=level)

    def durable(self, level: Level = "process") -> Position:
        return self.reached[level]

    def reach(self, *levels: Level) -> None:
        self.reached |= dict.fromkeys(levels, super().durable())


def test_g3_copies_leave_at_once_and_an_ack_and_a_free_wait_for_their_batch() -> None:
    log = Levels()
    driver = start(log)
    turn = select(driver, opened(driver), FIRST)
    (sent,) = driver.poll()
    assert isinstance(sent, Transfer), "copies into leased blocks need nothing"
    for rank, epoch in RANKS:
        driver.handle(Done(operation=sent.operation, rank=rank, process_epoch=epoch, outcome="completed"))
    assert driver.poll() == []
    log.reach("process")
    assert names(driver.poll()) == ["Acknowledge"]
    finish_upload(driver, turn)
    again = select(driver, turn.operation.request, SECOND).operation if turn.operation else None
    assert again is not None
    driver.handle(Abort(operation=again, reason="x"))
    assert names(driver.poll()) == ["Transfer", "Cancel"]
    for rank, epoch in RANKS:
        driver.handle(Done(operation=again, rank=rank, process_epoch=epoch, outcome="cancelled"))
    free = driver.pools.device.free
    assert driver.poll() == []
    log.reach("power")
    assert driver.poll() == [], "synced is not asked here"
    log.reach("process")
    (release,) = driver.poll()
    assert isinstance(release, Release)
    assert driver.pools.device.free == free, "the shell gives the blocks back"
    driver.release(release)
    assert driver.pools.device.free[0] > free[0]
    assert driver.idle
    assert set(log.asked) == {"process"}


def test_g3_with_ack_power_what_waits_at_all_waits_for_the_disk() -> None:
    log = Levels()
    driver = start(log, log={"url": "memory:", "ack": "power"})
    turn = select(driver, opened(driver), FIRST)
    assert names(driver.poll()) == ["Transfer"]
    finish_upload(driver, turn)
    log.reach("process")
    assert driver.poll() == []
    log.reach("power")
    assert names(driver.poll()) == ["Acknowledge"]
    assert set(log.asked) == {"power"}


def effects_of_each_kind() -> dict[str, str]:
    kinds = [kind for kind in get_args(Effect) if kind.__name__ != "Reserve"]
    return {kind.__name__: kind.__struct_defaults__[-1] for kind in kinds}


def test_g3_a_free_and_an_ack_need_the_process_and_copies_need_nothing() -> None:
    assert effects_of_each_kind() == {
        **{kind.__name__: "nothing" for kind in (Gather, PackTokens, Transfer, MoveBlocks, StoreBlocks, Cancel)},
        **{kind.__name__: "process" for kind in (Release, PublishKeepMap, Acknowledge)},
    }


def release(number: int, needs: Any = "process") -> Release:
    return Release(device=(), cpu=int32_bytes([number]), needs=needs)


def test_effects_of_one_need_leave_in_order_and_those_that_need_less_may_pass() -> None:
    outbox = Outbox("process")
    outbox.put(3, [release(0), release(1, "nothing"), release(2, "power"), release(3)])
    outbox.put(5, [release(4), release(5, "nothing")])

    def take(process: int, power: int) -> list[int]:
        return [effect.cpu[0] for effect in outbox.take(process=process, power=power) if isinstance(effect, Release)]

    assert take(2, 0) == [1, 5]
    assert take(4, 2) == [0, 3]
    outbox.put(6, [release(6, "nothing")])
    assert take(5, 3) == [2, 4, 6], "those that are ready together, in the order in which they came"
    assert not outbox
    assert outbox.level([release(0), release(1, "power")]) == "power"
    assert outbox.level([release(0)]) == outbox.level([]) == "process"
    assert Outbox("power").level([]) == "power"


# ---- behind a thread


def test_g3_nothing_that_waits_leaves_before_the_thread_has_stored_its_cause(queued: Queued) -> None:
    driver = begun(queued)
    turn = select(driver, opened(driver), FIRST)
    assert names(driver.poll()) == ["Transfer"]
    finish_upload(driver, turn)
    assert driver.poll() == []
    queued.gate.let_all()
    queued.log.flush()
    assert names(driver.poll()) == ["Acknowledge"]
    driver.close()


def test_closing_the_driver_waits_for_the_queue_and_says_what_could_not_be_stored(queued: Queued) -> None:
    driver = begun(queued)
    queued.gate.wait()
    driver.open_request("a")
    queued.gate.wait()
    queued.gate.fault = LogError("the disk is full")
    queued.gate.let_all()
    with pytest.raises(LogError, match="the disk is full"):
        driver.close()
    with pytest.raises(LogError, match="closed"):
        queued.log.durable()


def test_a_clock_that_counts_turns_needs_a_store_without_a_thread(tmp_path: Path) -> None:
    settings = make_settings(log={"url": f"sqlite:{tmp_path / 'ledger.db'}"})
    with pytest.raises(SettingsError, match=r"\$\.log\.writer: expected inline with a clock that counts turns"):
        Driver.open(settings, WORLD, deadlines=TurnClock())
    inline = make_settings(log={"url": f"sqlite:{tmp_path / 'ledger.db'}", "writer": "inline"})
    Driver.open(inline, WORLD, deadlines=TurnClock()).close()


def test_what_starts_work_meets_busy_and_what_ends_it_does_not(queued: Queued) -> None:
    driver = begun(queued)
    key, other = opened(driver), opened(driver, "b")
    turn = select(driver, key, FIRST)
    assert turn.operation is not None
    step, _ = driver.begin_step([key])
    for number in range(40):
        driver.open_request(f"filler {number}")
    before = frozen(driver.state)
    for command in (
        Select(selection=chosen(driver, other, FIRST), idempotency_key=""),
        OpenTail(request=other, until=9),
    ):
        with pytest.raises(Busy, match="ledger queue, in events, is full: the limit is 40") as busy:
            driver.handle(command)
        assert busy.value.retry == "same_key"
    assert frozen(driver.state) == before
    finish_upload(driver, turn)
    driver.end_step(step)
    driver.open_request("c")
    driver.handle(Preempt(request=other))
    driver.handle(Resume(request=other))
    driver.handle(EvictPrefix(blocks=1))
    driver.handle(Finish(request=other))
    driver.handle(ProcessStarted(rank=1, process_epoch=99))
    queued.gate.let_all()
    queued.log.flush()
    select(driver, opened(driver, "d"), FIRST)  # there is room again
    driver.close()


def test_every_command_either_starts_work_or_is_never_refused_for_room() -> None:
    never = {OpenRequest, Abort, Preempt, Resume, Finish, EvictPrefix}
    assert set(STARTS_WORK) | never == set(get_args(Command))
    assert not set(STARTS_WORK) & never


# ---- the shell around it, on every event loop


async def test_g3_the_log_thread_wakes_the_shell_whatever_the_loop(shell: Shell) -> None:
    """Nothing else happens here: the acknowledgement leaves because the disk has said that its cause is stored."""
    with anyio.fail_after(30):
        async with shell.stack, anyio.create_task_group() as tasks:
            tasks.start_soon(shell.upload, FIRST)
            await shell.kv.until(lambda: shell.driver.residency(shell.key).view_generation == 1)
            await anyio.wait_all_tasks_blocked()
            assert not shell.driver.idle, "its effects wait for the log"
            assert shell.driver.residency(shell.key).pending_upload is not None
            shell.gate.let_all()
    assert shell.driver.residency(shell.key).pending_upload is None
    shell.driver.close()


async def test_what_waits_waits_for_room_too(shell: Shell) -> None:
    with anyio.fail_after(30):
        async with shell.stack, anyio.create_task_group() as tasks:
            for number in range(40):
                shell.kv.open_request(f"filler {number}")
            tasks.start_soon(shell.upload, FIRST)
            await anyio.wait_all_tasks_blocked()
            assert shell.driver.residency(shell.key).pending_upload is None, "not begun"
            shell.gate.let_all()
            await shell.kv.until(lambda: shell.driver.residency(shell.key).view_generation == 1)
    shell.driver.close()
