"""Kinds of published faults that no clause of the contract names: each by the smallest run that would show it."""

from collections.abc import Callable

import numpy as np
import pytest
from tests.runtime.device_rig import DeviceRig
from tests.runtime.rig import RANKS, CoreRig, make_layout
from tests.runtime.shell import FIRST, Shell, fail_fast

from kvsweep.kernels.table import choose_kernels
from kvsweep.ledger import events as e
from kvsweep.ledger.ids import POOL, RequestKey, int32_view
from kvsweep.ledger.messages import (
    Abort,
    EvictPrefix,
    OpenTail,
    ProcessLost,
    PublishPrefix,
    Release,
    SealTail,
    Transfer,
)
from kvsweep.transports.host import HostDevice

MakeRig = Callable[..., CoreRig]
VIEW = {0: [0, 2], 1: [0, 2]}


# ---- one by one and in bulk


def shared(rig: CoreRig) -> RequestKey:
    """Three shared blocks that a request reads as well."""
    key = rig.open(blocks=0)
    rig.clean_tail(key, 3)
    rig.send(PublishPrefix(request=key, keys=tuple((block, f"k{block}") for block in range(3))))
    return key


def without_order(rig: CoreRig) -> tuple[object, ...]:
    freed = [event.freed for event in rig.events if isinstance(event, e.PrefixEvicted)]
    return rig.state.ownership, rig.state.pool.prefixes, rig.pools.device.free, freed


@pytest.mark.parametrize("calls", [(3,), (1, 1, 1), (2, 9), (0, 3)])
def test_b6_what_is_given_up_in_bulk_is_what_is_given_up_one_by_one(make_rig: MakeRig, calls: tuple[int, ...]) -> None:
    rig = make_rig()
    shared(rig)
    for blocks in calls:
        rig.send(EvictPrefix(blocks=blocks))
    other = make_rig()
    shared(other)
    other.send(EvictPrefix(blocks=1))
    other.send(EvictPrefix(blocks=1))
    other.send(EvictPrefix(blocks=1))
    assert without_order(rig) == without_order(other)
    rig.lawful()


def test_g3_what_a_lost_rank_turns_back_in_one_batch_is_what_aborts_turn_back_one_by_one(make_rig: MakeRig) -> None:
    """Three requests in one batch of the pool: each settles and is preempted as it would be by itself."""
    rig = make_rig(device_blocks=32)
    keys = [rig.open(name) for name in "abc"]
    for key in keys:
        rig.upload(key, VIEW)
        rig.started(rig.select(key, {0: [0, 5], 1: [0]}))
    rig.send(ProcessLost(rank=1, process_epoch=dict(RANKS)[1]))
    phases = [(rig.request(key).life, rig.request(key).upload.phase, len(rig.request(key).settling)) for key in keys]
    assert phases == [("PREEMPTED", "IDLE", 1)] * 3
    for key in keys:
        rig.done(rig.request(key).settling[0].operation, 0, "cancelled")
        assert rig.owned(key) == []
    assert rig.free() == 32
    rig.lawful()


# ---- who may still write a freed block


@pytest.mark.anyio
async def test_b6_a_freed_block_is_wiped_before_the_pool_can_give_it_away() -> None:
    """A write that is queued for a block makes it no free block: whatever wipes it has run before it is given away."""
    shell, wiped = Shell(), []

    def wipe(effect: Release) -> None:
        pool = shell.rig.driver.pools.device.groups[0]
        wiped.append((int32_view(effect.device[0]).size, pool.blocks - pool.free))
        shell.rig.poison_released(effect)

    shell.kv._on_release = wipe
    with fail_fast():
        async with shell:
            key = shell.rig.open()
            await shell.upload(key, FIRST)
            assert shell.rig.owned(key) == 3
            shell.kv.finish(key)
            await shell.kv.settled()
    assert [size for size, _ in wiped if size] == [3]
    assert all(given >= size for size, given in wiped), "it is not free while it is wiped"
    assert shell.rig.driver.pools.device.free == (64,)


# ---- what a rank may forget


def test_f2_the_floor_is_the_lowest_operation_that_is_open_or_settles(make_rig: MakeRig) -> None:
    """Below it a rank forgets and refuses: it must not forget what it was cancelled in and has not answered for yet."""
    rig = make_rig()
    key = rig.open()
    first = rig.started(rig.select(key, VIEW))
    rig.send(Abort(operation=first, reason="given up"))
    second = rig.started(rig.select(key, VIEW))
    assert [work.floor for work in rig.effects_of(Transfer)] == [first.operation_id] * 2
    for rank, _ in RANKS:
        rig.done(first, rank, "cancelled")
        rig.done(second, rank)
    rig.acknowledge(second)
    third = rig.started(rig.select(key, {0: [0, 2, 5], 1: [0, 2]}))
    assert rig.last(Transfer).floor == third.operation_id


# ---- windows that do not begin at a block


@pytest.mark.parametrize("block_size", [1, 2, 4, 16])
@pytest.mark.parametrize("window", [1, 2, 7, 8, 9, 16])
def test_g4_a_window_never_needs_more_blocks_than_an_unaligned_start_takes(
    make_rig: MakeRig, block_size: int, window: int
) -> None:
    """Blocks that stand in the sliding group, over every length: those a query can see, and no more than the bound."""
    rig = make_rig(
        make_layout(1, sliding=1, window_tokens=window, block_size=block_size), device_blocks=128, cpu=(128, 128)
    )
    key = rig.open(blocks=0)
    most = -(-(window + block_size - 1) // block_size)
    for tokens in range(1, 4 * max(window, block_size) + 2):
        rig.send(OpenTail(request=key, until=-(-tokens // block_size)))
        turn = rig.send(SealTail(request=key, confirmed_tokens=tokens))
        if turn.operation is not None:
            rig.all_done(turn.operation)
            rig.send(SealTail(request=key, confirmed_tokens=tokens))  # what is stored now may leave its window
        standing = {block.logical for block in rig.request(key).tail if block.physical[1] >= 0}
        seen = {position // block_size for position in range(max(0, tokens - window), tokens)}
        needed = {position // block_size for position in range(max(0, tokens - window + 1), tokens)}
        assert needed <= standing, f"{tokens} tokens: the next query cannot see {needed - standing}"
        assert len(standing) <= most, f"{tokens} tokens: {sorted(standing)} stand, {sorted(seen)} are seen"


# ---- arithmetic at size


@pytest.mark.parametrize("kernels", ["numpy", "native"])
def test_a_block_that_begins_beyond_2_to_the_31_bytes_is_the_right_one(kernels: str) -> None:
    """Offsets are 64 bits wide: block id × block bytes leaves 32 bits here. Only the pages that are touched exist."""
    try:
        table = choose_kernels(kernels)  # type: ignore[arg-type]
    except ValueError as error:
        pytest.skip(str(error))
    block_bytes, blocks = 1 << 16, 40_000
    pool = np.empty((1, blocks, block_bytes), dtype=np.uint8)
    layers, row_ptr = np.zeros(1, dtype=np.int32), np.asarray([0, 2], dtype=np.int32)
    high, low = np.asarray([blocks - 1, 33_000], dtype=np.int32), np.asarray([blocks - 1 - 2**15, 232], dtype=np.int32)
    assert int(high.min()) * block_bytes > 2**31
    pool[0, low] = 1
    staged = np.full((2, block_bytes), 7, dtype=np.uint8)
    staged[1] = 9
    table.scatter_blocks(staged, pool, layers, row_ptr, high)
    out = np.zeros_like(staged)
    table.gather_blocks(pool, layers, row_ptr, high, out)
    assert (out == staged).all()
    assert (pool[0, low] == 1).all()
    to = np.asarray([39_998, 39_997], dtype=np.int32)
    table.move_blocks(pool, layers, row_ptr, high, to)
    assert (pool[0, to] == staged).all()


# ---- what an idle step costs


def test_a_step_without_work_says_nothing_to_anybody() -> None:
    """No event, no effect, no frame: the step loop pays for an open operation only when there is one."""
    rig = DeviceRig(ranks=2)
    keys = [rig.open(f"r{number}", blocks=1) for number in range(32)]
    rig.quiet()
    events = len(rig.events)
    for _ in range(10):
        number, _ = rig.driver.begin_step(keys)
        assert rig.driver.end_step(number).events == ()
        assert rig.driver.poll() == []
    assert len(rig.events) == events
    assert rig.driver.state.request(POOL) is None


# ---- how many copies a plan becomes


@pytest.mark.parametrize(("staging_bytes", "items"), [(1 << 16, 3), (1 << 12, 5), (1 << 11, 9)])
def test_a_plan_becomes_as_many_copies_as_its_staging_needs_and_not_one_a_block(staging_bytes: int, items: int) -> None:
    """64 blocks of 64 bytes over two layers: a copy in and a copy out for each half of the staging, and one row."""
    rig = DeviceRig(make_layout(2, block_size=4), whole=32, staging_bytes=staging_bytes)
    key = rig.open()
    every = np.arange(32, dtype=np.int32)
    rig.select(key, {0: every, 1: every})
    (work,) = [effect for effect in rig.driver.poll() if isinstance(effect, Transfer)]
    device: HostDevice = rig.devices[0]
    assert device.memory.shapes[0].block_bytes == 64
    device.queue(work)
    assert device.queued == items
