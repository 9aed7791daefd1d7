"""Frames to ranks: bounded, in order, and one rank that takes nothing costs the others nothing."""

import anyio
import anyio.lowlevel
import pytest
from tests.runtime.shell import fail_fast

from kvsweep.ledger.messages import Heard
from kvsweep.runtime import outbox
from kvsweep.runtime.outbox import SendQueues
from kvsweep.transports.links import InProcessLink, in_process_link
from kvsweep.transports.wire import decode_to_rank


def heard(number: int) -> Heard:
    return Heard(operation_id=number)


async def numbers(end: InProcessLink, count: int) -> list[int]:
    found = []
    for _ in range(count):
        message = decode_to_rank(await end.receive())
        assert isinstance(message, Heard)
        found.append(message.operation_id)
    return found


async def test_f2_frames_of_each_rank_leave_in_order_also_those_posted_before_its_task_runs() -> None:
    notes: list[str] = []
    waiting = SendQueues((0, 1), note=notes.append)
    links = {rank: in_process_link() for rank in (0, 1)}
    with fail_fast():
        async with anyio.create_task_group() as tasks:
            for number in range(3):
                waiting.post(number % 2, heard(number))
            for rank, (ours, _) in links.items():
                tasks.start_soon(waiting.send, rank, ours)
            assert await numbers(links[0][1], 2) == [0, 2]
            assert await numbers(links[1][1], 1) == [1]
            await anyio.lowlevel.checkpoint()
            waiting.post(1, heard(7))
            assert await numbers(links[1][1], 1) == [7]
            for ours, _ in links.values():
                await ours.aclose()
            for rank in links:
                waiting.post(rank, heard(9))
    assert notes == []


async def test_g3_a_rank_behind_by_more_than_the_bound_is_given_up_and_comes_back_over_a_new_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbox, "OUTGOING_FRAMES", 3)
    notes: list[str] = []
    waiting = SendQueues((0, 1), note=notes.append)
    ours, end = in_process_link()
    with fail_fast():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(waiting.send, 0, ours)
            for number in range(6):
                waiting.post(0, heard(number))
                waiting.post(1, heard(number))  # takes nothing
                assert await numbers(end, 1) == [number]
                assert len(waiting) == (number + 1 if number < 3 else 0)
            assert notes == ["rank 1: 3 frames wait for it; given up until it connects again"]
            assert len(waiting) == 0
            waiting.post(5, heard(1))
            assert len(waiting) == 0, "not connected: dropped, its operations end by deadline"
            waiting.connect(1)
            new, other = in_process_link()
            tasks.start_soon(waiting.send, 1, new)
            waiting.post(1, heard(8))
            assert await numbers(other, 1) == [8]
            tasks.cancel_scope.cancel()
