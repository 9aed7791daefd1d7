"""Links: a bound that makes senders wait, the delivery that the name says and no worse, an end that is heard."""

from collections import Counter

import anyio
import anyio.lowlevel
import pytest

from kvsweep.ledger.errors import LayoutError
from kvsweep.transports.links import Chaos, Delivery, InProcessLink, in_process_link

SEEDS = range(6)
FRAMES = [bytes([number]) for number in range(100)]


async def turns(count: int) -> None:
    for _ in range(count):
        await anyio.lowlevel.checkpoint()


async def everything(sender: InProcessLink, receiver: InProcessLink, frames: list[bytes] = FRAMES) -> list[bytes]:
    """Send all, close, and receive until the end."""
    got: list[bytes] = []

    async def send() -> None:
        for frame in frames:
            await sender.send(frame)
        await sender.aclose()

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            while True:
                try:
                    got.append(await receiver.receive())
                except anyio.EndOfStream:
                    return got


@pytest.mark.parametrize(
    ("chaos", "delivery"),
    [
        (Chaos(seed=1), Delivery.ORDERED),
        (Chaos(seed=1, duplicate=0.1), Delivery.UNORDERED_DUPLICATING),
        (Chaos(seed=1, delay=1), Delivery.UNORDERED_DUPLICATING),
        (Chaos(seed=1, lose=0.1), Delivery.LOSSY),
        (Chaos(seed=1, lose=0.1, duplicate=0.1, delay=3), Delivery.LOSSY),
    ],
)
def test_what_may_happen_stands_in_the_name_at_both_ends(chaos: Chaos, delivery: Delivery) -> None:
    assert [end.delivery for end in in_process_link(chaos=chaos)] == [delivery, delivery]


async def test_a_plain_link_delivers_each_frame_once_in_order_both_ways() -> None:
    for turn in (0, 1):
        ends = in_process_link(capacity=7)
        assert await everything(ends[turn], ends[1 - turn]) == FRAMES


async def test_the_bound_is_reached_and_the_sender_waits_for_room() -> None:
    near, far = in_process_link(capacity=3)
    sent: list[int] = []

    async def send() -> None:
        for number in range(6):
            await near.send(bytes([number]))
            sent.append(number)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            await turns(50)
            assert sent == [0, 1, 2], "the bound holds the fourth back"
            assert await far.receive() == b"\0"
            await turns(50)
            assert sent == [0, 1, 2, 3], "one out, one in"
            for number in range(1, 6):
                assert await far.receive() == bytes([number])
    assert sent == list(range(6))


async def test_each_direction_has_its_own_bound() -> None:
    near, far = in_process_link(capacity=1)
    with anyio.fail_after(5):
        await near.send(b"down")
        await far.send(b"up")
        assert (await near.receive(), await far.receive()) == (b"up", b"down")


async def test_a_duplicate_stands_above_the_bound_once_and_no_further() -> None:
    near, _ = in_process_link(capacity=2, chaos=Chaos(seed=1, duplicate=1.0))
    sent: list[int] = []

    async def send() -> None:
        for number in range(5):
            await near.send(bytes([number]))
            sent.append(number)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            await turns(50)
            assert sent == [0], "two copies fill the two places"
            tasks.cancel_scope.cancel()


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_duplicating_link_loses_nothing_and_doubles_some(seed: int) -> None:
    got = Counter(await everything(*in_process_link(chaos=Chaos(seed=seed, duplicate=0.3))))
    assert set(got) == set(FRAMES)
    assert set(got.values()) == {1, 2}
    assert 10 < sum(count == 2 for count in got.values()) < 60


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_delaying_link_reorders_and_loses_nothing(seed: int) -> None:
    got = await everything(*in_process_link(chaos=Chaos(seed=seed, delay=5)))
    assert sorted(got) == FRAMES
    assert got != FRAMES


async def test_a_frame_is_late_by_some_turns_and_no_later_than_its_link_says() -> None:
    async def late(delay: int, seed: int) -> int:
        """Turns of another task while one frame is under way."""
        near, far = in_process_link(chaos=Chaos(seed=seed, delay=delay))
        seen = 0

        async def count() -> None:
            nonlocal seen
            while True:
                seen += 1
                await anyio.lowlevel.checkpoint()

        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                await near.send(b"x")
                tasks.start_soon(count)
                await far.receive()
                tasks.cancel_scope.cancel()
        return seen

    assert await late(0, 1) <= 3
    found = [await late(40, seed) for seed in range(12)]
    assert max(found) > 15
    assert max(found) <= 43
    assert len(set(found)) > 4


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_losing_link_loses_some_invents_none_and_lets_the_first_frame_through(seed: int) -> None:
    got = await everything(*in_process_link(chaos=Chaos(seed=seed, lose=0.3)))
    assert len(got) == len(set(got))
    assert set(got) < set(FRAMES)
    assert 40 < len(got) < 90
    assert FRAMES[0] in got
    for chance in (1.0, 0.99):
        assert await everything(*in_process_link(chaos=Chaos(seed=seed, lose=chance)), FRAMES[:1]) == FRAMES[:1]


@pytest.mark.parametrize("seed", SEEDS)
async def test_all_at_once_is_still_a_subset_at_most_twice(seed: int) -> None:
    got = Counter(await everything(*in_process_link(chaos=Chaos(seed=seed, lose=0.2, duplicate=0.2, delay=4))))
    assert set(got) < set(FRAMES)
    assert max(got.values()) == 2


async def test_a_seed_repeats_the_run_and_the_two_ways_differ() -> None:
    """One task sends and then receives, so that no scheduler has a say: the rest is the link's own draws."""

    async def run(seed: int, way: int) -> list[bytes]:
        ends = in_process_link(chaos=Chaos(seed=seed, lose=0.2, duplicate=0.2, delay=4))
        for frame in FRAMES:
            await ends[way].send(frame)
        await ends[way].aclose()
        return await everything(ends[way], ends[1 - way], [])

    down = [await run(11, 0) for _ in range(2)]
    up = [await run(11, 1) for _ in range(2)]
    other = await run(12, 0)
    assert down[0] == down[1]
    assert up[0] == up[1]
    assert len({tuple(run) for run in (down[0], up[0], other)}) == 3


async def test_what_is_on_the_way_is_heard_before_the_end() -> None:
    near, far = in_process_link()
    for frame in FRAMES[:3]:
        await near.send(frame)
    await near.aclose()
    with anyio.fail_after(5):
        assert [await far.receive() for _ in range(3)] == FRAMES[:3]
        for _ in range(2):
            with pytest.raises(anyio.EndOfStream):
                await far.receive()


async def test_the_end_wakes_a_waiting_receiver_at_either_side() -> None:
    for closer in (0, 1):
        ends = in_process_link()
        ended: list[int] = []

        async def wait(at: int, link: InProcessLink, ended: list[int] = ended) -> None:
            with pytest.raises(anyio.EndOfStream):
                await link.receive()
            ended.append(at)

        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                for at, end in enumerate(ends):
                    tasks.start_soon(wait, at, end)
                await turns(5)
                assert ended == []
                await ends[closer].aclose()
        assert sorted(ended) == [0, 1]


async def test_a_closed_link_takes_no_frame_also_from_a_sender_that_waited_for_room() -> None:
    near, far = in_process_link(capacity=1)
    broken: list[bool] = []

    async def send() -> None:
        with pytest.raises(anyio.BrokenResourceError):
            await near.send(b"second")
        broken.append(True)

    with anyio.fail_after(5):
        await near.send(b"first")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            await turns(5)
            await far.aclose()
    assert broken == [True]
    for end in (near, far):
        with pytest.raises(anyio.BrokenResourceError):
            await end.send(b"third")


async def test_a_receiver_that_is_cancelled_takes_no_frame_with_it() -> None:
    for chaos in (None, Chaos(seed=1, delay=3)):
        near, far = in_process_link(chaos=chaos)
        for _ in range(20):
            with anyio.CancelScope() as scope:
                scope.cancel()
                await far.receive()
        await near.send(b"kept")
        for _ in range(20):
            with anyio.CancelScope() as scope:
                scope.cancel()
                await far.receive()
        with anyio.fail_after(5):
            assert await far.receive() == b"kept"


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_link_without_room_is_refused(capacity: int) -> None:
    with pytest.raises(LayoutError, match=f"capacity: expected at least 1 frame, got {capacity}"):
        in_process_link(capacity=capacity)
