"""free + held + on the way = pool: what pools give and take back, against the holders that the events name."""

import pytest
from tests.scenarios.verify.checkers.story import LAYOUT, A, Story, ids

from kvsweep.ledger import events as e
from kvsweep.ledger.messages import OpenTail, Release, Reserve, Reserved
from kvsweep.scenarios.verify.checkers.conservation import Conservation, WatchedPools
from kvsweep.scenarios.verify.checkers.ownership import Ownership
from kvsweep.transports.pools import CpuPool, DevicePools, Pools

CAUSE = OpenTail(request=A, until=1)


def answer(*device: int, cpu: tuple[int, ...] = ()) -> Reserved:
    return Reserved(cause=CAUSE, device=(ids(*device),), cpu_full=ids(*cpu), cpu_copy=b"", free=0)


def release(*device: int, cpu: tuple[int, ...] = ()) -> Release:
    return Release(device=(ids(*device),), cpu=ids(*cpu))


def books(story: Story, *given: Reserved) -> tuple[Ownership, Conservation]:
    ownership = Ownership()
    conservation = Conservation(ownership)
    for one in given:
        conservation.gave(one)
    for event in story.events:
        ownership.see(event)
        conservation.see()
    return ownership, conservation


def details(conservation: Conservation) -> list[str]:
    return [one.detail for one in conservation.found]


def tail() -> Story:
    """Block 0 is a tail block of a, which holds CPU blocks 4 to 7."""
    return Story().opened().add(e.TailOpened, logical=4, physical_by_group=ids(0))


def test_what_was_given_and_is_held_is_conserved() -> None:
    _, conservation = books(tail(), answer(0, cpu=(4, 5, 6, 7)))
    assert details(conservation) == []


def test_a_block_held_and_never_given_is_a_break() -> None:
    _, conservation = books(tail(), answer(cpu=(4, 5, 6, 7)))
    assert details(conservation) == ["block 0 of group 0 is held by tail 4 of a and free"]


def test_a_cpu_block_held_and_never_given_is_a_break() -> None:
    _, conservation = books(tail(), answer(0, cpu=(4, 5, 6)))
    assert "CPU block 7 is held by owner 0 of a and free" in details(conservation)


def test_a_block_given_twice_is_a_break() -> None:
    _, conservation = books(Story(), answer(0), answer(0, cpu=(1,)), answer(cpu=(1,)))
    assert details(conservation) == [
        "block 0 of group 0 is given out and was not back",
        "CPU block 1 is given out and was not back",
    ]


def test_b6_a_held_block_that_goes_back_is_a_break() -> None:
    _, conservation = books(tail(), answer(0, cpu=(4, 5, 6, 7)))
    conservation.took_back(release(0, cpu=(4,)))
    assert details(conservation) == [
        "block 0 of group 0 goes back to the pool while held by tail 4 of a",
        "CPU block 4 goes back to the pool while held by owner 0 of a",
    ]


def test_b6_a_block_that_goes_back_twice_is_a_break() -> None:
    _, conservation = books(Story(), answer(3, cpu=(2,)))
    conservation.took_back(release(3, cpu=(2,)))
    conservation.took_back(release(3, cpu=(2,)))
    assert details(conservation) == [
        "block 3 of group 0 goes back to the pool twice",
        "CPU block 2 goes back to the pool twice",
    ]


def test_pools_that_lost_a_block_do_not_balance() -> None:
    _, conservation = books(Story())
    pools = WatchedPools(Pools(DevicePools(LAYOUT, (8,)), CpuPool(full_blocks=12, total_blocks=16)), conservation)
    pools.reserve(Reserve(cause=CAUSE, device=(1,), cpu_full=1, cpu_copy=1))
    assert details(conservation) == []
    conservation.balance(pools)
    assert details(conservation) == [
        "device pool of group 0: 7 free and 0 held of 8",
        "CPU pool: 11 free and 0 held of 12",
        "CPU copy pool: 3 free and 0 held of 4",
    ]


@pytest.mark.parametrize("back", [True, False])
def test_watched_pools_tell_what_they_give_and_take(back: bool) -> None:
    _, conservation = books(Story())
    pools = WatchedPools(Pools(DevicePools(LAYOUT, (8,)), CpuPool(full_blocks=12, total_blocks=16)), conservation)
    given = pools.reserve(Reserve(cause=CAUSE, device=(2,), cpu_full=0, cpu_copy=0))
    assert given.device is not None
    if back:
        pools.release(Release(device=given.device, cpu=b""))
    conservation.balance(pools)
    assert bool(conservation.found) is not back
