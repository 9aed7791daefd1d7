"""Free lists: all or nothing, lowest first, no block twice."""

from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsweep.ledger.errors import DoubleFree, LayoutError
from kvsweep.ledger.layout import LayerLayout, Layout
from kvsweep.ledger.messages import OpenRequest, Release, Reserve
from kvsweep.transports import pools as pools_of
from kvsweep.transports.pools import CpuPool, DevicePools, FreeList, Pools

CAUSE = OpenRequest(request_id="a-b-c")


def i32(*values: int) -> npt.NDArray[np.int32]:
    return np.array(values, dtype=np.int32)


def two_groups() -> Layout:
    layers = tuple(LayerLayout(layer=n, group=n, kind="full", kv_heads=1, head_dim=2) for n in range(2))
    return Layout.of(model_hash="two", dtype="float32", block_size=2, layers=layers)


def pools() -> Pools:
    return Pools(DevicePools(two_groups(), (4, 6)), CpuPool(full_blocks=5, total_blocks=8))


def ids(data: bytes) -> list[int]:
    return np.frombuffer(data, dtype="<i4").tolist()


def test_a_list_gives_the_lowest_ids_and_all_or_nothing() -> None:
    pool = FreeList("pool", 5, first=10)
    first = pool.reserve(2)
    assert first is not None
    assert first.tolist() == [10, 11]
    assert first.dtype == np.int32
    assert pool.reserve(4) is None
    assert pool.free == 3
    pool.release(i32(10))
    again = pool.reserve(2)
    assert again is not None
    assert again.tolist() == [10, 12]
    none = pool.reserve(0)
    assert none is not None
    assert none.size == 0


@pytest.mark.parametrize(
    ("back", "error", "message"),
    [
        ([11, 13], DoubleFree, "pool: block 13 was released while it is free"),
        ([11, 12, 11], DoubleFree, "pool: block 11 was released while it is free"),
        ([11, 15], LayoutError, "pool: expected ids in [10, 15), got 15"),
        ([9], LayoutError, "pool: expected ids in [10, 15), got 9"),
    ],
)
def test_b6_a_release_that_is_wrong_changes_nothing(back: list[int], error: type[Exception], message: str) -> None:
    pool = FreeList("pool", 5, first=10)
    pool.reserve(3)
    with pytest.raises(error) as caught:
        pool.release(i32(*back))
    assert str(caught.value) == message
    assert pool.free == 2
    pool.release(i32(10, 11, 12))
    assert pool.free == 5


def test_a_count_below_nothing_is_refused() -> None:
    with pytest.raises(LayoutError, match="count: expected 0 or more blocks, got -1"):
        FreeList("pool", 5).reserve(-1)
    with pytest.raises(LayoutError, match="blocks: expected 0 or more ids"):
        FreeList("pool", -1)


@pytest.mark.parametrize("window", [1, pools_of.WINDOW])
@given(steps=st.lists(st.tuples(st.booleans(), st.integers(0, 6), st.integers(0, 2**16)), max_size=40))
def test_a_list_is_a_set_that_gives_its_smallest(window: int, steps: list[tuple[bool, int, int]]) -> None:
    with mock.patch.object(pools_of, "WINDOW", window):
        give_and_take(steps)


def give_and_take(steps: list[tuple[bool, int, int]]) -> None:
    pool, free = FreeList("pool", 9, first=3), set(range(3, 12))
    for give, count, pick in steps:
        if give:
            got = pool.reserve(count)
            expected = sorted(free)[:count] if count <= len(free) else None
            assert (None if got is None else got.tolist()) == expected
            free -= set(expected or ())
        else:
            held = sorted(set(range(3, 12)) - free)
            back = [block for n, block in enumerate(held) if pick >> n & 1]
            pool.release(np.array(back, dtype=np.int32))
            free |= set(back)
        assert pool.free == len(free)


def test_a_reservation_takes_from_every_pool_or_from_none() -> None:
    both = pools()
    given_ = both.reserve(Reserve(cause=CAUSE, device=(2, 3), cpu_full=1, cpu_copy=2))
    assert given_.device is not None
    assert [ids(group) for group in given_.device] == [[0, 1], [0, 1, 2]]
    assert (ids(given_.cpu_full), ids(given_.cpu_copy)) == ([0], [5, 6])
    assert given_.cause == CAUSE
    assert (both.device.free, both.cpu.free) == ((2, 3), (4, 1))
    for ask, free in (((3, 0, 0, 0), 2), ((0, 4, 0, 0), 3), ((1, 1, 5, 0), 4), ((1, 1, 1, 2), 1)):
        answer = both.reserve(Reserve(cause=CAUSE, device=ask[:2], cpu_full=ask[2], cpu_copy=ask[3]))
        assert (answer.device, answer.cpu_full, answer.cpu_copy, answer.free) == (None, b"", b"", free)
        assert (both.device.free, both.cpu.free) == ((2, 3), (4, 1))


def test_a_claim_names_the_cpu_blocks_and_takes_all_or_nothing() -> None:
    """The producer has chosen these blocks itself: they leave the free list, or nothing leaves any pool."""
    both = pools()
    took = both.reserve(Reserve(cause=CAUSE, device=(0, 0), cpu_full=0, cpu_copy=0, claim=i32(3, 1).tobytes()))
    assert took.device == (b"", b"")
    assert both.cpu.free == (3, 3)
    for claim in ((0, 3), (0, 5), (-1,), (0, 0)):  # taken, a copy destination, no id, twice
        ask = Reserve(cause=CAUSE, device=(1, 0), cpu_full=1, cpu_copy=0, claim=i32(*claim).tobytes())
        answer = both.reserve(ask)
        assert (answer.device, answer.cpu_full, answer.free) == (None, b"", 3), claim
        assert (both.device.free, both.cpu.free) == ((4, 6), (3, 3)), claim
    rest = both.reserve(Reserve(cause=CAUSE, device=(1, 0), cpu_full=1, cpu_copy=0, claim=i32(0).tobytes()))
    assert ids(rest.cpu_full) == [2], "what was claimed is not handed out too"
    both.release(Release(device=(i32(0).tobytes(), b""), cpu=i32(0, 1, 2, 3).tobytes()))
    assert (both.device.free, both.cpu.free) == ((4, 6), (5, 3))


def test_a_claim_that_leaves_too_little_for_the_same_ask_takes_nothing() -> None:
    both = pools()
    answer = both.reserve(Reserve(cause=CAUSE, device=(1, 0), cpu_full=4, cpu_copy=0, claim=i32(0, 1).tobytes()))
    assert answer.device is None
    assert (both.device.free, both.cpu.free) == ((4, 6), (5, 3))


def test_b6_a_release_over_pools_gives_back_all_or_nothing() -> None:
    both = pools()
    both.reserve(Reserve(cause=CAUSE, device=(2, 3), cpu_full=2, cpu_copy=2))
    for device, cpu, name in (
        (((0,), (3,)), (0,), "device pool of group 1: block 3"),
        (((0,), (1,)), (0, 7), "CPU copy pool: block 7"),
        (((0,), (1,)), (3, 5), "CPU pool: block 3"),
        (((0,), (1,)), (0, 5, 5), "CPU copy pool: block 5"),
        (((0, 0), ()), (), "device pool of group 0: block 0"),
    ):
        with pytest.raises(DoubleFree, match=name):
            both.release(Release(device=tuple(i32(*group).tobytes() for group in device), cpu=i32(*cpu).tobytes()))
        assert (both.device.free, both.cpu.free) == ((2, 3), (3, 1))
    both.release(Release(device=(i32(1, 0).tobytes(), i32(2).tobytes()), cpu=i32(5, 0).tobytes()))
    assert (both.device.free, both.cpu.free) == ((4, 4), (4, 2))


def test_asks_that_do_not_fit_the_pools_are_refused() -> None:
    both = pools()
    with pytest.raises(LayoutError, match="device: expected a count for each of 2 groups"):
        both.reserve(Reserve(cause=CAUSE, device=(1,), cpu_full=0, cpu_copy=0))
    with pytest.raises(LayoutError, match="CPU copy pool: expected 0 or more blocks, got -1"):
        both.reserve(Reserve(cause=CAUSE, device=(1, 1), cpu_full=0, cpu_copy=-1))
    assert both.device.free == (4, 6)
    with pytest.raises(LayoutError, match="device: expected ids for each of 2 groups, got 1"):
        both.release(Release(device=(b"",), cpu=b""))
    with pytest.raises(LayoutError, match="total_blocks: expected N ≥ K ≥ 1, got N 3, K 4"):
        CpuPool(full_blocks=4, total_blocks=3)
    with pytest.raises(LayoutError, match="blocks: expected at least 1 block for each of 2 groups"):
        DevicePools(two_groups(), (4, 0))


def test_a1_without_copy_destinations_the_copy_pool_gives_nothing() -> None:
    source_only = CpuPool(full_blocks=4, total_blocks=4)
    assert source_only.free == (4, 0)
    assert source_only.copies.reserve(1) is None
