"""The rank's side: one report an operation, cancel is a promise, the floor forgets, memory is bounded."""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import structs

from kvsweep.ledger.errors import Busy, LayoutError
from kvsweep.ledger.ids import POOL, Operation, Rows
from kvsweep.ledger.messages import Acknowledge, Done, Release
from kvsweep.transports.device import Completion
from kvsweep.transports.rank import RankWorker

RANK, EPOCH = 0, 7


@pytest.fixture
def worker(world: Any) -> RankWorker:
    return RankWorker(world.device, rank=RANK, process_epoch=EPOCH)


def reports(reports: Sequence[Done]) -> list[tuple[int, str]]:
    return [(report.operation.operation_id, report.outcome) for report in reports]


def test_g2_the_report_comes_after_the_copies_and_the_row(world: Any, worker: RankWorker) -> None:
    worker.perform([world.transfer(1, {0: [4, 5, 6]}, {0: [0, 1, 2]}, generation=3)])
    while world.device.queued:
        assert worker.poll() == []
        world.device.advance(1)
    [done] = worker.poll()
    assert done == Done(
        operation=world.operation(1),
        rank=RANK,
        process_epoch=EPOCH,
        outcome="completed",
        h2d_bytes=576,
        unpack_bytes=576,
        table_updates=1,
    )
    assert worker.table(done.operation.request, 0, 3, 0).tolist() == [0, 1, 2]
    assert worker.poll() == []


def test_a_repeated_start_does_no_work_and_repeats_the_report(world: Any, worker: RankWorker) -> None:
    start = world.transfer(1, {0: [4]}, {0: [2]})
    worker.perform([start, start])  # the second one while the first is queued
    assert worker.poll() == []
    world.device.advance()
    [first] = worker.poll()
    copied = world.cpu.traffic.read_bytes
    world.cpu.areas(0)[4] = 0
    worker.perform([start, start])
    world.device.advance()
    assert worker.poll() == [first]
    assert world.cpu.traffic.read_bytes == copied == 192
    assert set(world.device_bytes(0, 2)) != {0}


def test_cancel_before_the_start_is_a_promise_to_refuse_it(world: Any, worker: RankWorker) -> None:
    before = world.device_bytes(0, 2)
    worker.perform([world.cancel(1)])
    assert reports(worker.poll()) == [(1, "cancelled")]
    worker.perform([world.transfer(1, {0: [4]}, {0: [2]})])
    assert world.device.advance() == 0
    assert reports(worker.poll()) == [(1, "cancelled")]
    assert world.device_bytes(0, 2) == before


def test_cancel_of_a_queued_operation_stops_it(world: Any, worker: RankWorker) -> None:
    worker.perform([world.transfer(1, {0: [4]}, {0: [2]}), world.cancel(1)])
    assert world.device.advance() == 0
    assert reports(worker.poll()) == [(1, "cancelled")]


def test_cancel_of_a_started_operation_lets_it_finish_and_say_so(world: Any, worker: RankWorker) -> None:
    worker.perform([world.transfer(1, {0: [4]}, {0: [2]})])
    world.device.advance(1)
    worker.perform([world.cancel(1)])
    assert worker.poll() == []
    world.device.advance()
    assert reports(worker.poll()) == [(1, "completed")]
    worker.perform([world.cancel(1)])
    assert reports(worker.poll()) == [(1, "completed")]


def test_a_command_for_another_process_or_rank_is_not_obeyed(world: Any, worker: RankWorker) -> None:
    other_process = world.transfer(1, {0: [4]}, {0: [2]}, ranks=((RANK, EPOCH - 1),))
    other_rank = world.transfer(2, {0: [4]}, {0: [2]}, ranks=((RANK + 1, EPOCH),))
    worker.perform([other_process, other_rank, world.cancel(3, epoch=EPOCH + 1)])
    assert world.device.advance() == 0
    assert worker.poll() == []
    assert worker.remembered == 0
    assert [(note.operation.operation_id, note.what) for note in worker.notes] == [
        (1, "Transfer refused: for process epoch 6"),
        (3, "Cancel refused: for process epoch 8"),
    ]


def test_effects_of_others_are_passed_over(world: Any, worker: RankWorker) -> None:
    worker.perform([Release(device=(b"", b"", b""), cpu=b""), Acknowledge(operation=world.operation(1), generation=1)])
    assert worker.remembered == 0
    assert worker.poll() == []


def test_below_the_floor_a_rank_forgets_and_refuses(world: Any, worker: RankWorker) -> None:
    before = world.device_bytes(0, 2)
    worker.perform([world.cancel(1), world.cancel(2)])
    assert reports(worker.poll()) == [(1, "cancelled"), (2, "cancelled")]
    worker.perform([world.transfer(5, {0: [4]}, {0: [3]}, floor=2)])
    assert worker.floor == 2
    assert worker.remembered == 2  # 2 and 5
    worker.perform([world.transfer(1, {0: [4]}, {0: [2]}, floor=1), world.cancel(1)])
    assert worker.floor == 2  # a command that was overtaken does not lower it
    world.device.advance()
    assert reports(worker.poll()) == [(5, "completed")]
    assert world.device_bytes(0, 2) == before
    assert [note.what for note in worker.notes] == [
        "Transfer refused: below the floor 2",
        "Cancel refused: below the floor 2",
    ]
    assert worker.probe() == 2  # 1 is gone
    worker.perform([world.cancel(6), world.transfer(7, {0: [4]}, {0: [3]}, floor=7)])
    assert worker.poll() == []  # nobody waits for what lies below the floor


def test_an_operation_that_runs_while_the_floor_passes_it_still_gets_its_report(world: Any, worker: RankWorker) -> None:
    worker.perform([world.transfer(1, {0: [4]}, {0: [2]})])
    worker.perform([world.transfer(2, {0: [5]}, {0: [3]}, row=1, floor=2)])
    world.device.advance()
    assert reports(worker.poll()) == [(1, "completed"), (2, "completed")]
    worker.perform([world.transfer(3, {0: [5]}, {0: [4]}, floor=3)])
    assert worker.remembered == 1


def test_memory_stays_flat_while_the_floor_rises(world: Any, worker: RankWorker) -> None:
    for number in range(1, 200):
        worker.perform([world.transfer(number, {0: [4]}, {0: [number % 8]}, floor=number, generation=number)])
        world.device.advance()
        assert reports(worker.poll()) == [(number, "completed")]
        worker.acknowledge(number)
        assert worker.remembered == 1
    assert worker.probe() == 0


def test_memory_is_bounded_and_a_full_one_performs_nothing(world: Any) -> None:
    worker = RankWorker(world.device, rank=RANK, process_epoch=EPOCH, operations=2)
    worker.perform([world.cancel(1)])
    with pytest.raises(Busy, match="rank memory is full: the limit is 2"):
        worker.perform([world.transfer(2, {0: [4]}, {0: [2]}), world.cancel(3)])
    assert worker.remembered == 1
    assert world.device.queued == 0
    worker.perform([world.cancel(1), world.transfer(2, {0: [4]}, {0: [2]})])  # 1 is known already
    worker.perform([world.transfer(3, {0: [4]}, {0: [3]}, floor=2)])  # 1 is forgotten, so there is room
    assert worker.remembered == 2
    with pytest.raises(LayoutError, match="operations: expected at least 1, got 0"):
        RankWorker(world.device, rank=RANK, process_epoch=EPOCH, operations=0)


def test_a_full_device_queue_performs_nothing(make_world: Any) -> None:
    world = make_world(operations=1)
    worker = RankWorker(world.device, rank=RANK, process_epoch=EPOCH)
    with pytest.raises(Busy, match="device queue is full"):
        worker.perform([world.transfer(1, {0: [4]}, {0: [2]}), world.transfer(2, {0: [5]}, {0: [3]}, row=1)])
    assert worker.remembered == 0
    assert world.device.queued == 0


def test_a_report_is_repeated_on_probe_until_it_is_acknowledged(world: Any, worker: RankWorker) -> None:
    worker.perform([world.cancel(1), world.cancel(2)])
    sent = worker.poll()
    assert worker.poll() == []
    assert worker.probe() == 2
    assert worker.poll() == sent
    worker.acknowledge(1)
    assert worker.probe() == 1
    assert reports(worker.poll()) == [(2, "cancelled")]
    worker.perform([world.cancel(1)])  # acknowledged, yet not forgotten
    assert reports(worker.poll()) == [(1, "cancelled")]
    worker.acknowledge(99)  # unknown: nothing to do


def test_a_start_that_cannot_be_meant_fails_and_the_others_are_performed(world: Any, worker: RankWorker) -> None:
    worker.perform([world.transfer(1, {0: [99]}, {0: [2]}), world.transfer(2, {0: [4]}, {0: [3]}, row=1)])
    world.device.advance()
    assert reports(worker.poll()) == [(1, "failed"), (2, "completed")]
    assert [note.what for note in worker.notes] == ["Transfer failed: source[0]: expected ids in [0, 12), got 99"]


def test_a_failed_copy_is_a_failed_report_with_its_reason_noted(world: Any, worker: RankWorker) -> None:
    world.device.faults.fail.add(1)
    worker.perform([world.transfer(1, {0: [4]}, {0: [2]})])
    world.device.advance()
    assert reports(worker.poll()) == [(1, "failed")]
    assert [note.what for note in worker.notes] == ["failed: InjectedFault: operation 1 was told to fail"]


class TwoWords:
    """A device that says a second thing about an operation, and one about an operation that it was never given."""

    room = 8

    def __init__(self, operation: Operation) -> None:
        self.operation = operation

    def queue(self, work: object) -> None:
        pass

    def cancel(self, operation_id: int) -> bool:
        return True

    def poll(self) -> list[Completion]:
        stranger = structs.replace(self.operation, request=POOL, operation_id=77)
        return [Completion(operation=one, outcome="completed") for one in (self.operation, self.operation, stranger)]


def test_f2_a_report_is_written_once_whatever_the_device_says_later(world: Any) -> None:
    start = world.transfer(1, {0: [4]}, {0: [2]})
    cancelled = RankWorker(TwoWords(start.operation), rank=RANK, process_epoch=EPOCH)  # type: ignore[arg-type]
    cancelled.perform([start, world.cancel(1)])
    assert reports(cancelled.poll()) == [(1, "cancelled")]
    assert cancelled.probe() == 1
    assert reports(cancelled.poll()) == [(1, "cancelled")]
    completed = RankWorker(TwoWords(start.operation), rank=RANK, process_epoch=EPOCH)  # type: ignore[arg-type]
    completed.perform([start])
    assert reports(completed.poll()) == [(1, "completed")]
    assert completed.remembered == 1
    assert {note.what for note in completed.notes} == {"device reports completed for an operation that is not running"}


def test_notes_are_bounded(world: Any, worker: RankWorker) -> None:
    worker.perform([world.cancel(number, epoch=EPOCH + 1) for number in range(300)])
    assert len(worker.notes) == 256
    assert worker.notes[0].operation.operation_id == 44


def test_rows_of_the_messages_are_not_kept_alive_by_the_memory(world: Any, worker: RankWorker) -> None:
    """What a rank remembers of an operation is its report, whose size does not depend on the plan."""
    worker.perform([world.transfer(1, {0: [4]}, {0: [2]})])
    world.device.advance()
    worker.poll()
    assert not any(isinstance(value, Rows) for report in worker._reports.values() for value in structs.astuple(report))
