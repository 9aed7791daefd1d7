"""What goes wrong on the host device, and what is refused at its door."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kvsweep.ledger.errors import LayoutError
from kvsweep.ledger.layout import Layout
from kvsweep.transports.blocks import BlockMemory
from kvsweep.transports.host import STREAMS, HostDevice


def i32(*values: int) -> npt.NDArray[np.int32]:
    return np.array(values, dtype=np.int32)


# ---- failures and cancel


def test_a_failed_copy_fails_its_operation_and_no_other(world: Any) -> None:
    world.device.faults.fail.add(1)
    world.device.queue(world.transfer(1, {0: [4]}, {0: [2]}))
    world.device.queue(world.transfer(2, {0: [5]}, {0: [3]}, row=1))
    world.device.advance()
    done = {one.operation.operation_id: one for one in world.device.poll()}
    assert (done[1].outcome, done[2].outcome) == ("failed", "completed")
    assert world.device_bytes(0, 3) == world.cpu_bytes(0, 5)
    assert [(one.operation_id, why) for one, why in world.device.failures] == [
        (1, "InjectedFault: operation 1 was told to fail")
    ]
    with pytest.raises(LayoutError, match="nothing"):
        world.device.table(done[1].operation.request, 0, 1, 0)


def test_a_copy_that_fails_half_way_has_moved_what_came_before(world: Any) -> None:
    """Chunks of two blocks: the first is staged and unpacked, the second is not; no table row is written."""
    before = world.device_bytes(0, 4)
    world.device.faults.fail_after[1] = 2
    world.device.queue(world.transfer(1, {0: [4, 5, 6]}, {0: [2, 3, 4]}))
    while world.device.queued:
        world.device.advance(1)
    (done,) = world.device.poll()
    assert (done.outcome, done.reason) == ("failed", "InjectedFault: operation 1 was told to fail")
    assert done.h2d_bytes > 0
    assert done.table_updates == 0
    assert world.device_bytes(0, 4) == before
    assert world.device.tables.shown(done.operation.request, 0) is None


def test_a_row_shows_what_stands_there_whatever_generation_is_asked_for(world: Any) -> None:
    world.device.queue(world.transfer(1, {0: [4]}, {0: [2]}))
    world.device.advance()
    (done,) = world.device.poll()
    generation, table = world.device.tables.shown(done.operation.request, 0)
    assert (generation, table.row(0).tolist()) == (1, [2])


def test_an_error_inside_a_kernel_is_a_failed_completion_with_the_bytes_that_did_move(world: Any) -> None:
    world.device.memory.groups[2].flags.writeable = False
    world.device.queue(world.transfer(1, {0: [4], 3: [5]}, {0: [2], 3: [2]}))
    world.device.queue(world.move(2, {0: [5]}, {0: [6]}, row=1))
    world.device.advance()
    done = {one.operation.operation_id: one for one in world.device.poll()}
    assert (done[1].outcome, done[2].outcome) == ("failed", "completed")
    assert "read-only" in done[1].reason
    assert (done[1].unpack_bytes, done[1].table_updates) == (192, 0)


def test_d8_a_failed_operation_gives_back_its_own_staging_and_nobody_elses(world: Any) -> None:
    """Operation 1 has unpacked its first chunk, whose slot operation 2 then took; then operation 1 fails."""
    device = world.device
    device.queue(world.transfer(1, {0: [0, 1, 2]}, {0: [0, 1, 2]}))  # chunks of 2 and 1 blocks: both slots
    device.queue(world.transfer(2, {2: [5, 6]}, {2: [0, 1]}, row=1))
    device.queue(world.transfer(3, {2: [7, 8, 9, 10]}, {2: [2, 3, 4, 5]}, row=2))
    device.faults.hold.add(2)
    while device.memory.traffic.written_bytes < 2 * 192:  # the first chunk of 1 is unpacked
        assert device.advance(1) == 1
    while world.cpu.traffic.read_bytes < 3 * 192:  # the second chunk of 1 is staged
        assert device.advance(1) == 1
    device.faults.hold.clear()
    device.faults.hold.update({1, 3})
    assert device.advance() == 1  # operation 2 is staged in the slot that 1 used first
    device.faults.hold.clear()
    device.faults.fail.add(1)
    device.faults.hold.add(2)
    assert device.advance(1) == 1  # the second unpack of 1 fails
    device.advance()  # the slot that 1 gave back takes one chunk of 3; the other slot belongs to 2
    device.faults.hold.clear()
    device.advance()
    done = {one.operation.operation_id: one.outcome for one in device.poll()}
    assert done == {1: "failed", 2: "completed", 3: "completed"}
    assert [world.device_bytes(2, block) for block in range(6)] == [world.cpu_bytes(2, 5 + n) for n in range(6)]


def test_cancel_of_a_queued_operation_stops_it_and_nothing_of_it_runs(world: Any) -> None:
    before = world.device_bytes(0, 2)
    world.device.queue(world.transfer(1, {0: [4]}, {0: [2]}))
    world.device.queue(world.transfer(2, {0: [5]}, {0: [3]}, row=1))
    assert world.device.cancel(1) is True
    world.device.advance()
    assert [done.operation.operation_id for done in world.device.poll()] == [2]
    assert world.device_bytes(0, 2) == before
    assert world.device.cancel(1) is False  # unknown by now


def test_cancel_of_a_started_operation_lets_it_finish_and_say_so(world: Any) -> None:
    world.device.queue(world.transfer(1, {0: [4]}, {0: [2]}))
    world.device.advance(1)
    assert world.device.cancel(1) is False
    world.device.advance()
    [done] = world.device.poll()
    assert done.outcome == "completed"


def test_early_reuse_of_a_freed_block_is_seen_as_wrong_bytes(world: Any) -> None:
    """A block is freed and poisoned while a queued move still wants to read it."""
    right = world.device_bytes(0, 1)
    world.device.queue(world.move(1, {0: [1]}, {0: [2]}))
    world.device.poison(0, i32(1))
    world.device.advance()
    assert world.device_bytes(0, 2) != right
    assert np.isnan(world.device.typed(0)[2]).all()
    assert np.isnan(world.device.typed(2)[1]).all()  # every layer of the group


# ---- bad input


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (
            lambda w: w.transfer(1, {1: [0]}, {1: [0]}),
            "source: expected rows of layers among [0, 2, 3, 4], got layers [1]",
        ),
        (
            lambda w: w.transfer(1, {0: [0, 1]}, {0: [0]}),
            "destination: expected ids per layer as in source {0: 2}, got {0: 1}",
        ),
        (lambda w: w.transfer(1, {0: [12]}, {0: [0]}), "source[0]: expected ids in [0, 12), got 12"),
        (lambda w: w.transfer(1, {0: [-1]}, {0: [0]}), "source[0]: expected ids in [0, 12), got -1"),
        (lambda w: w.transfer(1, {0: [11]}, {0: [8]}), "destination[0]: expected ids in [0, 8), got 8"),
        (lambda w: w.transfer(1, {2: [1, 2]}, {2: [5, 5]}), "destination[2]: expected each id once, got 5 again"),
        (lambda w: w.transfer(1, {0: [1]}, {0: [1]}, table={0: [9]}), "table[0]: expected ids in [0, 8), got 9"),
        (lambda w: w.transfer(1, {0: [1]}, {0: [1]}, row=-1), "row: expected 0 or more, got -1"),
        (lambda w: w.move(1, {0: [8]}, {0: [1]}), "source[0]: expected ids in [0, 8), got 8"),
        (
            lambda w: w.move(1, {0: [1, 2, 3]}, {0: [4, 5, 1]}),
            "destination[0]: expected no source of its layer, got 1",
        ),
        (
            lambda w: w.store(1, {0: [1]}, {0: [1]}),
            "source: expected rows of exactly the layers [0, 1, 2, 3, 4], got layers [0]",
        ),
    ],
)
def test_d7_work_that_does_not_fit_is_refused_at_the_door(world: Any, work: Any, message: str) -> None:
    with pytest.raises(LayoutError) as caught:
        world.device.queue(work(world))
    assert str(caught.value) == message
    assert world.device.queued == 0
    assert world.device.advance() == 0


def test_an_operation_is_not_queued_twice(world: Any) -> None:
    world.device.queue(world.transfer(1, {0: [4]}, {0: [2]}))
    with pytest.raises(LayoutError, match="operation_id: expected an operation that is not queued, got 1"):
        world.device.queue(world.transfer(1, {0: [4]}, {0: [2]}))


def test_a_slot_must_hold_a_block_of_every_group(world: Any) -> None:
    for wrong, text in ((383, "at least 384"), (0, "at least 384")):
        with pytest.raises(LayoutError, match=f"staging_bytes: expected {text}"):
            HostDevice(
                world.layout, device_blocks=(4, 4, 4), cpu=world.cpu, seed=1, staging_bytes=wrong, staging_slots=2
            )


def test_the_cpu_memory_must_have_the_devices_layout(world: Any) -> None:
    other = Layout.of(model_hash="other", dtype="float32", block_size=4, layers=world.layout.layers)
    with pytest.raises(LayoutError, match="cpu: expected memory of the device's layout"):
        HostDevice(other, device_blocks=(4, 4, 4), cpu=world.cpu, seed=1)
    with pytest.raises(LayoutError, match="blocks: expected at least 1 block for each of 3 groups"):
        HostDevice(world.layout, device_blocks=(4, 4), cpu=BlockMemory.of_cpu(world.layout, 4), seed=1)


def test_streams_are_the_four_that_the_documentation_names() -> None:
    assert STREAMS == ("h2d", "unpack", "move", "d2h")
