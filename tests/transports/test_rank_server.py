"""One rank behind a link: reports until they are heard, whatever frames do on the way; nothing but the end ends it."""

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest

from kvsweep.ledger.errors import LayoutError
from kvsweep.ledger.ids import Operation, RequestKey, Rows
from kvsweep.ledger.layout import LayerLayout, Layout
from kvsweep.ledger.messages import Cancel, Done, Forget, FromRank, Heard, ProcessStarted, ToRank, Transfer
from kvsweep.transports.blocks import BlockMemory
from kvsweep.transports.host import HostDevice
from kvsweep.transports.links import Chaos, in_process_link
from kvsweep.transports.rank import RankWorker
from kvsweep.transports.rank_server import PROBE_TURNS, serve_rank
from kvsweep.transports.wire import decode_from_rank, encode

RANK, EPOCH, BLOCK_BYTES = 0, 7, 2 * 2 * 4 * 3 * 4
REQUEST = RequestKey("a-b-c", 1)
LAYOUT = Layout.of(
    model_hash="one", dtype="float32", block_size=4,
    layers=(LayerLayout(layer=0, group=0, kind="full", kv_heads=2, head_dim=3),),
)  # fmt: skip


def operation(number: int) -> Operation:
    return Operation(request=REQUEST, operation_id=number, pool_generation=1, map_revision=0)


def transfer(number: int, block: int = 0, epoch: int = EPOCH, row: int = 0) -> Transfer:
    areas = Rows[Any].of({0: [block]})
    return Transfer(
        operation=operation(number), ranks=((RANK, epoch),), generation=number, row=row, source_kind="source_only",
        source=areas, destination=areas, table=areas, floor=0,
    )  # fmt: skip


def cancel(number: int) -> Cancel:
    return Cancel(operation=operation(number), ranks=((RANK, EPOCH),))


class Rank:
    """The coordinator's end of the link, and the process behind the other one."""

    def __init__(self, chaos: Chaos | None = None, *, epoch: int = EPOCH, operations: int = 4096) -> None:
        self.cpu = BlockMemory.of_cpu(LAYOUT, 8)
        rng = np.random.default_rng(20260916)
        for group in self.cpu.groups:
            group[...] = rng.integers(0, 255, group.shape, dtype=np.uint8)
        self.device = HostDevice(LAYOUT, device_blocks=(8,), cpu=self.cpu, seed=1, staging_bytes=4 * BLOCK_BYTES)
        self.worker = RankWorker(self.device, rank=RANK, process_epoch=epoch, operations=operations)
        self.link, self.end = in_process_link(chaos=chaos)
        self.heard: list[FromRank] = []
        self.process = anyio.CancelScope()
        self.ended = False

    async def serve(self) -> None:
        with self.process:
            await serve_rank(self.worker, self.device, self.end)
            self.ended = True

    async def listen(self) -> None:
        while True:
            try:
                self.heard.append(decode_from_rank(await self.link.receive()))
            except anyio.EndOfStream:
                return

    async def send(self, *messages: ToRank) -> None:
        for message in messages:
            await self.link.send(encode(message))

    def reports(self) -> Counter[tuple[int, str]]:
        return Counter((w.operation.operation_id, w.outcome) for w in self.heard if isinstance(w, Done))

    def copied(self) -> int:
        return self.cpu.traffic.read_bytes // BLOCK_BYTES

    def same(self, block: int) -> bool:
        at = np.array([block], dtype=np.int32)
        return self.device.read(0, at).tobytes() == self.cpu.peek(0, at).tobytes()


@asynccontextmanager
async def serving(rank: Rank) -> AsyncIterator[Rank]:
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(rank.serve)
            tasks.start_soon(rank.listen)
            yield rank
            await rank.link.aclose()
    assert rank.ended or rank.process.cancel_called


async def turns(count: int) -> None:
    for _ in range(count):
        await anyio.lowlevel.checkpoint()


async def soon(condition: Callable[[], bool]) -> None:
    for _ in range(20_000):
        if condition():
            return
        await anyio.lowlevel.checkpoint()
    raise AssertionError("it did not come about")


# ---- reports


async def test_it_announces_its_process_first_and_says_one_report_after_the_copies() -> None:
    async with serving(Rank()) as rank:
        await rank.send(transfer(1, 3))
        await soon(lambda: bool(rank.reports()))
        assert rank.heard[0] == ProcessStarted(rank=RANK, process_epoch=EPOCH)
        assert rank.same(3)
        assert rank.worker.table(REQUEST, 0, 1, 0).tolist() == [3]
        await turns(3 * PROBE_TURNS)
        assert rank.reports() == {(1, "completed"): 1}, "a link that loses nothing is not asked twice"
        assert rank.worker.unheard, "although nobody said that it was heard"


async def test_g2_no_report_while_the_copy_is_held_back_and_the_report_when_it_is_let_go() -> None:
    async with serving(Rank()) as rank:
        rank.device.faults.hold.add(1)
        await rank.send(transfer(1, 3))
        await soon(lambda: rank.device.queued > 0)
        await turns(300)
        assert (rank.reports(), rank.copied()) == ({}, 0)
        rank.device.faults.hold.clear()
        await soon(lambda: bool(rank.reports()))
        assert rank.same(3)


@pytest.mark.parametrize("seed", range(4))
async def test_on_a_lossy_link_a_report_is_repeated_until_it_is_heard_and_the_work_is_done_once(seed: int) -> None:
    async with serving(Rank(Chaos(seed=seed, lose=0.6))) as rank:
        for _ in range(40):  # the start may be lost as well: its sender repeats it
            await rank.send(transfer(1, 3))
        await soon(lambda: rank.reports()[1, "completed"] >= 1)
        await soon(lambda: rank.worker.unheard)
        await turns(100)  # answers to the repeated starts
        said = rank.reports()[1, "completed"]
        await soon(lambda: rank.reports()[1, "completed"] >= said + 3)  # nobody asks, and still it repeats
        while rank.worker.unheard:
            await rank.send(Heard(operation_id=1))
            await turns(5)
        await turns(50)
        said = rank.reports()[1, "completed"]
        await turns(20 * PROBE_TURNS)
        assert rank.reports() == {(1, "completed"): said}, "heard: it is silent"
        assert rank.copied() == 1
        assert rank.same(3)


async def test_heard_reports_are_not_repeated_and_the_others_are() -> None:
    async with serving(Rank(Chaos(seed=3, lose=1e-9))) as rank:  # lossy by name; nothing is lost
        await rank.send(transfer(1, 3), transfer(2, 4, row=1))
        await soon(lambda: len(rank.reports()) == 2)
        await rank.send(Heard(operation_id=1), Heard(operation_id=99))
        await soon(lambda: rank.reports()[2, "completed"] >= 4)
        assert rank.reports()[1, "completed"] <= 2
        assert rank.worker.unheard


@pytest.mark.parametrize("seed", range(4))
async def test_late_doubled_and_reordered_frames_do_the_work_once_and_every_report_agrees(seed: int) -> None:
    async with serving(Rank(Chaos(seed=seed, duplicate=0.4, delay=6))) as rank:
        await rank.send(*(transfer(number, number % 8, row=number) for number in range(1, 9)))
        await soon(lambda: len(rank.reports()) == 8)
        await turns(200)
        assert set(rank.reports()) == {(number, "completed") for number in range(1, 9)}
        assert rank.copied() == 8
        for report in rank.heard:
            if isinstance(report, Done):
                assert (report.h2d_bytes, report.table_updates) == (BLOCK_BYTES, 1)


# ---- frames that cannot be


@pytest.mark.parametrize(
    "bad",
    [
        b"", b"\xc1", b"\0" * 40, encode(transfer(1))[:-1], encode(transfer(1)) + b"x",
        encode(ProcessStarted(rank=0, process_epoch=1)),
    ],
)  # fmt: skip
async def test_a_bad_frame_is_noted_and_the_next_one_is_performed(bad: bytes) -> None:
    async with serving(Rank()) as rank:
        await rank.link.send(bad)
        await rank.send(transfer(1, 3))
        await rank.link.send(bad)
        await rank.send(transfer(2, 4, row=1))
        await soon(lambda: len(rank.reports()) == 2)
        assert rank.reports() == {(1, "completed"): 1, (2, "completed"): 1}
        assert [note.operation for note in rank.worker.notes] == [None, None]
        assert all(f"frame of {len(bad)} bytes: " in note.what for note in rank.worker.notes)


async def test_a_command_that_makes_no_sense_fails_alone() -> None:
    async with serving(Rank()) as rank:
        await rank.send(transfer(1, 99), transfer(2, 4))
        await soon(lambda: len(rank.reports()) == 2)
        assert rank.reports() == {(1, "failed"): 1, (2, "completed"): 1}


async def test_a_command_without_room_is_noted_and_the_rank_goes_on() -> None:
    async with serving(Rank(operations=1)) as rank:
        rank.device.faults.hold.add(1)
        await rank.send(transfer(1, 3), transfer(2, 4, row=1), cancel(3))
        await soon(lambda: len(rank.worker.notes) == 2)
        assert [note.what for note in rank.worker.notes] == [
            "Transfer 2 refused: rank memory is full: the limit is 1",
            "Cancel 3 refused: rank memory is full: the limit is 1",
        ]
        rank.device.faults.hold.clear()
        await soon(lambda: rank.reports() == {(1, "completed"): 1})


# ---- ends


async def test_a_killed_process_does_nothing_more_and_the_next_one_refuses_its_commands() -> None:
    async with serving(Rank()) as rank:
        rank.device.faults.hold.add(1)
        await rank.send(transfer(1, 3))
        await soon(lambda: rank.device.queued > 0)
        rank.process.cancel()
        await turns(5)  # a turn that is under way may still end
        rank.device.faults.hold.clear()
        await rank.send(transfer(2, 4, row=1))
        await turns(3 * PROBE_TURNS)
        assert (rank.reports(), rank.copied(), rank.ended) == ({}, 0, False)
    async with serving(Rank(epoch=EPOCH + 1)) as again:
        await again.send(transfer(1, 3), cancel(1))
        await soon(lambda: len(again.worker.notes) == 2)
        await turns(3 * PROBE_TURNS)
        assert again.heard == [ProcessStarted(rank=RANK, process_epoch=EPOCH + 1)]
        assert all(f"for process epoch {EPOCH}" in note.what for note in again.worker.notes)
        assert again.copied() == 0


async def test_the_end_of_the_link_ends_it_also_while_it_works_or_repeats() -> None:
    for chaos, hold in ((None, False), (None, True), (Chaos(seed=1, lose=1e-9), False)):
        async with serving(Rank(chaos)) as rank:
            if hold:
                rank.device.faults.hold.add(1)
            await rank.send(transfer(1, 3))
            await soon(lambda rank=rank: rank.device.queued > 0 or bool(rank.reports()))
        assert rank.ended


async def test_a_link_that_is_closed_already_ends_it_at_once() -> None:
    rank = Rank()
    await rank.link.aclose()
    with anyio.fail_after(5):
        await rank.serve()
    assert rank.ended


async def test_a_closed_life_is_forgotten_when_nothing_of_it_is_queued() -> None:
    async with serving(Rank()) as rank:
        await rank.send(transfer(1, 3))
        await soon(lambda: bool(rank.reports()))
        rank.device.faults.hold.add(2)
        await rank.send(transfer(2, 4, row=1), Forget(request=REQUEST))
        await soon(lambda: rank.device.queued > 0)
        await turns(20)
        assert rank.worker.table(REQUEST, 0, 1, 0).tolist() == [3], "not while an operation is queued"
        rank.device.faults.hold.clear()
        await soon(lambda: len(rank.reports()) == 2)
        await rank.send(Heard(operation_id=2))  # it tries again with the next message
        await turns(20)
        with pytest.raises(LayoutError):
            rank.worker.table(REQUEST, 0, 1, 0)
