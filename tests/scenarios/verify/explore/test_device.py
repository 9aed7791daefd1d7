"""The device of labels obeys the device protocol, late and in pieces."""

from typing import Any

import pytest
from tests.scenarios.verify.explore.small import small

from kvsweep.ledger.errors import LayoutError
from kvsweep.ledger.ids import Operation, RequestKey, Rows
from kvsweep.ledger.messages import MoveBlocks, StoreBlocks, Transfer
from kvsweep.scenarios.verify.explore.device import NOTHING, UNCONFIRMED, LabelDevice, label, say
from kvsweep.scenarios.verify.explore.rank import CopyCpu, Rank, Write
from kvsweep.scenarios.verify.explore.world import Asker, World

KEY = RequestKey("a", 1)
OPERATION = Operation(request=KEY, operation_id=1, pool_generation=1, map_revision=0)


def rows(*ids: list[int]) -> Rows[Any]:
    return Rows.of(dict(enumerate(ids)))


def transfer(source: Rows[Any], destination: Rows[Any]) -> Transfer:
    return Transfer(
        operation=OPERATION, ranks=((0, 10),), generation=3, row=1, source_kind="source_only",
        source=source, destination=destination, table=destination, floor=1,
    )  # fmt: skip


@pytest.fixture
def device() -> LabelDevice:
    return LabelDevice(small())


def test_a_copy_reads_its_sources_when_it_runs(device: LabelDevice) -> None:
    device.queue(transfer(rows([2], [3]), rows([0], [1])))
    device.cpu[2], device.cpu[device.cpu_blocks + 3] = 7, 8
    assert (bytes(device.memory), device.poll()) == (bytes(8), [])
    device.run(1)
    assert (device.memory[0], device.memory[device.blocks + 1]) == (7, 8)
    assert device.table(KEY, 1, 3, 1).tolist() == [1]
    assert [report.outcome for report in device.poll()] == ["completed"]
    assert device.poll() == []


def test_a_row_that_shows_another_generation_is_no_table(device: LabelDevice) -> None:
    device.queue(transfer(rows([2], [3]), rows([0], [1])))
    device.run(1)
    with pytest.raises(LayoutError):
        device.table(KEY, 1, 2, 0)


def test_what_has_begun_is_not_cancelled_and_what_has_not_is() -> None:
    device = LabelDevice(small(by_layer=True))
    device.queue(transfer(rows([2], [3]), rows([0], [1])))
    other = device.fork()
    assert other.cancel(1)
    assert not other.queued
    device.run(1)
    assert not device.cancel(1)
    assert not device.tables
    device.run(1)
    device.run(1)
    assert [report.outcome for report in device.poll()] == ["completed"]


def test_a_failure_keeps_what_was_copied_and_writes_no_row() -> None:
    device = LabelDevice(small(by_layer=True))
    device.cpu[2] = 9
    device.queue(transfer(rows([2], [3]), rows([0], [1])))
    device.run(1)
    device.fail(1)
    assert (device.memory[0], device.tables) == (9, {})
    assert [report.outcome for report in device.poll()] == ["failed"]


def test_moves_and_stores_go_their_way(device: LabelDevice) -> None:
    device.memory[0] = 5
    none = rows([], [])
    device.queue(
        MoveBlocks(
            operation=OPERATION, ranks=((0, 10),), generation=1, row=0, mode="move",
            source=rows([0], []), destination=rows([3], []), table=none, floor=1,
        )
    )  # fmt: skip
    device.run(1)
    device.queue(
        StoreBlocks(operation=OPERATION, ranks=((0, 10),), source=rows([3], []), destination=rows([6], []), floor=1)
    )
    device.run(1)
    assert (device.memory[0], device.memory[3], device.cpu[6]) == (5, 5, 5)
    assert list(device.tables) == [(KEY, 0)]


def test_a_process_that_ends_takes_the_device_memory_and_not_the_producers() -> None:
    rank = Rank(small(), 0).poked([Write("device", 0, 1, 4), Write("cpu", 1, 2, 6)])
    after = rank.restarts()
    assert (after.process_epoch, bytes(after.device.memory)) == (rank.process_epoch + 1, bytes(8))
    assert after.device.cpu[after.device.cpu_blocks + 2] == 6


def test_a_write_over_something_else_is_not_made() -> None:
    rank = Rank(small(), 0).poked([Write("device", 0, 0, 4 | UNCONFIRMED)])
    assert rank.poked([Write("device", 0, 0, 4, over=4 | UNCONFIRMED)]).device.memory[0] == 4
    assert rank.poked([Write("device", 0, 0, 5, over=5 | UNCONFIRMED)]).device.memory[0] == 4 | UNCONFIRMED


def test_a_gather_copies_inside_the_producers_memory() -> None:
    rank = Rank(small(copies=2), 0).poked([Write("cpu", 1, 3, 8), CopyCpu(1, 3, 17)])
    assert rank.device.cpu[rank.device.cpu_blocks + 17] == 8


def test_every_text_has_a_label_of_its_own() -> None:
    askers = tuple(Asker(name=name, calls=()) for name in "abc")
    world = World(name="x", title="x", askers=askers, sometimes=(), states=0)
    keys = [RequestKey(name, epoch) for name in "abc" for epoch in (1, 2)]
    labels = [label(world, key, logical) for key in keys for logical in range(8)]
    assert len({*labels, NOTHING}) == len(labels) + 1
    assert max(labels) < UNCONFIRMED
    assert say(labels[0] | UNCONFIRMED) == "block 0 of text 1, unconfirmed"
    assert say(NOTHING) == "nothing"


def test_requests_share_the_text_that_the_world_says_they_share() -> None:
    askers = tuple(Asker(name=name, calls=()) for name in "ab")
    world = World(name="x", title="x", askers=askers, sometimes=(), states=0, shared_text=1)
    first, second = RequestKey("a", 1), RequestKey("b", 1)
    assert label(world, first, 0) == label(world, second, 0)
    assert label(world, first, 1) != label(world, second, 1)
