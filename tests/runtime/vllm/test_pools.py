"""vLLM's references and the coordinator's ownership: one reference of ours a block, aliases for what is lent twice."""

import logging
import random
from typing import Any

import numpy as np
import pytest
from tests.runtime.vllm.engine import BLOCK, BlockPool, Engine, make_layout
from tests.runtime.vllm.test_engine import COMPACT, LOSSLESS, QUEST

from kvsweep.ledger.errors import DoubleFree, LogError
from kvsweep.ledger.ids import RequestKey, Rows, int32_view
from kvsweep.ledger.messages import OpenTail, Preempt, Release, Reserve, Reserved, SealTail
from kvsweep.runtime.vllm.pools import EnginePools
from kvsweep.transports.pools import CpuPool
from kvsweep.transports.vllm.messages import Ack

KEY = RequestKey("r", 1)


def make(blocks: int = 10, *, aliases: int = 4, headroom: int = 1) -> tuple[BlockPool, EnginePools]:
    engine = BlockPool(blocks)
    cpu = CpuPool(full_blocks=8, total_blocks=8)
    return engine, EnginePools(make_layout(1), engine, cpu, aliases=aliases, headroom=headroom)  # type: ignore[arg-type]


def ask(count: int, cause: Any = None, cpu: int = 0) -> Reserve:
    return Reserve(cause=cause or SealTail(request=KEY, confirmed_tokens=0), device=(count,), cpu_full=cpu, cpu_copy=0)


def ids(reserved: Reserved) -> list[int]:
    assert reserved.device is not None
    return int32_view(reserved.device[0]).tolist()


def lend(pools: EnginePools, blocks: list[Any]) -> Reserved:
    pools.offer(blocks)
    return pools.reserve(ask(len(blocks), OpenTail(request=KEY, until=len(blocks))))


def release(pools: EnginePools, blocks: list[int]) -> None:
    pools.release(Release(device=(np.asarray(blocks, dtype="<i4").tobytes(),), cpu=b""))


def test_a_taken_block_is_ours_until_it_is_released() -> None:
    engine, pools = make()
    taken = ids(pools.reserve(ask(3)))
    assert [engine.blocks[block].ref_cnt for block in taken] == [1, 1, 1]
    assert pools.held == 3
    release(pools, taken)
    assert engine.get_num_free_blocks() == 9
    assert pools.held == 0
    assert sorted(pools.take_poison()) == sorted(taken)
    assert pools.take_poison() == ()


def test_headroom_is_never_taken_and_a_refusal_says_what_is_free() -> None:
    engine, pools = make(headroom=4)
    assert pools.room == 5
    refused = pools.reserve(ask(6))
    assert refused.device is None
    assert refused.free == 5
    assert engine.get_num_free_blocks() == 9


def test_a_lent_block_has_one_reference_more_and_goes_back_only_when_vllm_has_let_go_too() -> None:
    engine, pools = make()
    table = engine.get_new_blocks(2)
    assert ids(lend(pools, table)) == [block.block_id for block in table]
    assert [block.ref_cnt for block in table] == [2, 2]
    release(pools, [table[0].block_id])
    assert table[0].ref_cnt == 1
    assert pools.take_poison() == (), "vLLM still reads it"
    engine.free_blocks(table)
    assert table[0].ref_cnt == 0
    assert table[1].ref_cnt == 1, "ours"


def test_a_block_that_is_lent_again_goes_by_an_alias_that_stands_for_it() -> None:
    engine, pools = make(blocks=10)
    shared = engine.get_new_blocks(1)
    (first,) = ids(lend(pools, shared))
    engine.touch(shared)  # another request of vLLM's hits it
    (second,) = ids(lend(pools, shared))
    assert first == shared[0].block_id
    assert second >= 10
    assert shared[0].ref_cnt == 4
    rows: Rows[Any] = Rows.of({0: [first, second], 1: [second]})
    assert pools.real(rows).as_lists() == {0: [first, first], 1: [first]}
    release(pools, [second])
    release(pools, [first])
    assert shared[0].ref_cnt == 2
    assert ids(lend(pools, shared)) == [first], "free as an id, so the block's own"


def test_without_an_alias_nothing_is_lent() -> None:
    engine, pools = make(aliases=0)
    shared = engine.get_new_blocks(1)
    lend(pools, shared)
    refused = lend(pools, shared)
    assert refused.device is None
    assert shared[0].ref_cnt == 2


def test_a_hashed_block_is_not_poisoned_vllm_may_hit_it() -> None:
    engine, pools = make()
    (block,) = engine.get_new_blocks(1)
    block.block_hash = "prefix"
    lend(pools, [block])
    engine.free_blocks([block])
    release(pools, [block.block_id])
    assert block.ref_cnt == 0
    assert pools.take_poison() == ()


def test_nothing_is_stored_for_a_preemption() -> None:
    _, pools = make()
    assert pools.reserve(ask(0, Preempt(request=KEY), cpu=2)).device is None
    assert pools.cpu.full.free == 8


def test_where_the_cpu_tier_is_full_the_device_blocks_go_back() -> None:
    engine, pools = make()
    refused = pools.reserve(ask(2, cpu=9))
    assert refused.device is None
    assert refused.free == 8
    assert engine.get_num_free_blocks() == 9
    assert pools.held == 0


def test_a_block_that_is_not_ours_is_not_released() -> None:
    _, pools = make()
    with pytest.raises(DoubleFree, match="vLLM's pool: block 5 was released while it is free"):
        release(pools, [5])


def fill(engine: Engine, appends: int = 0) -> None:
    """The ledger takes this many appends more."""
    append, left = engine.half.driver.log.append, iter(range(appends))

    def until_full(*batch: Any, **how: Any) -> Any:
        if next(left, None) is None:
            raise LogError("no space left")
        return append(*batch, **how)

    engine.half.driver.log.append = until_full  # type: ignore[method-assign]


def returned(engine: Engine) -> None:
    """All of vLLM's blocks are vLLM's again, each once."""
    assert engine.half.driver.read_only is not None
    assert engine.half.pools.held == 0
    assert engine.pool.get_num_free_blocks() == engine.blocks - 1
    assert all(block.ref_cnt == 0 for block in engine.pool.blocks)


def test_a_running_request_keeps_its_view_and_what_is_given_back_is_what_nobody_reads() -> None:
    engine = Engine(blocks=60, ranks=1, prefix=False)
    engine.add("r", prompt=8 * BLOCK, output=40)
    while not engine.half.counts.commits:
        engine.step()
    fill(engine)
    for _ in range(4):
        engine.step()
    view = engine.half.driver.state.requests["r"].view
    assert view is not None
    assert engine.half.pools.ours == set(view.physical.ids.tolist())
    reads = engine.reads
    engine.step()
    assert engine.reads > reads
    assert not engine.half.pending()
    engine.run()
    returned(engine)


def test_a_request_that_needs_the_whole_pool_is_served_after_the_ledger_has_failed() -> None:
    engine = Engine(blocks=40, ranks=1, prefix=False, running=8)
    for number in range(6):
        engine.add(f"r{number}", prompt=5 * BLOCK, output=30)
    for _ in range(12):
        engine.step()
    fill(engine)
    engine.add("late", prompt=20 * BLOCK, output=4)
    engine.run(600)
    assert engine.preemptions > 0
    returned(engine)


def test_nothing_goes_back_before_every_rank_has_done_the_step() -> None:
    engine = Engine(blocks=40, ranks=2, prefix=False)
    engine.add("r", prompt=6 * BLOCK, output=30)
    for _ in range(8):
        engine.step()
    fill(engine)
    engine.abort("r")
    free = engine.pool.get_num_free_blocks()
    engine.lost = lambda ack: Ack(steps=tuple(one for one in ack.steps if one[0] == 0))
    for _ in range(5):
        engine.step()
    assert engine.pool.get_num_free_blocks() == free
    assert engine.half.pending(), "an idle engine goes on until they are back"
    engine.lost = lambda ack: ack
    engine.run()
    returned(engine)


def test_the_default_ledger_is_bounded_and_says_once_that_it_is_full(caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine(blocks=40, ranks=1, prefix=False)
    engine.half.driver.log._max_events = 400  # type: ignore[attr-defined]
    for number in range(12):
        engine.add(f"r{number}", prompt=5 * BLOCK, output=30)
    with caplog.at_level(logging.WARNING):
        engine.run(4000)
    returned(engine)
    (record,) = caplog.records
    assert "ledger in memory is full: expected at most 400 events" in record.getMessage()
    assert "ledger in memory is full" in engine.half.summary()["read_only"]


@pytest.mark.parametrize("extra", [LOSSLESS, COMPACT, QUEST], ids=["lossless", "recency", "quest"])
@pytest.mark.parametrize("seed", range(12))
def test_at_any_moment_every_read_is_right_and_every_block_comes_back(seed: int, extra: dict[str, Any]) -> None:
    draw = random.Random(seed)
    faults = {"faults": {"delay": 0.4}} if draw.random() < 0.5 else {}
    engine = Engine(
        blocks=draw.choice([20, 40]),
        ranks=draw.choice([1, 2]),
        chunk=draw.choice([3, 8, 40]),
        prefix=draw.random() < 0.6,
        extra={**extra, **faults},
    )
    fill(engine, draw.randint(1, 150))
    for number in range(80):
        if draw.random() < 0.3 and len(engine.waiting) < 4:
            group = draw.choice(["", "g"])
            engine.add(f"r{number}", prompt=draw.randint(1, 30), output=draw.randint(0, 30), group=group)
        if draw.random() < 0.06 and engine.active:
            engine.abort(draw.choice(engine.active).request_id)
        engine.step()
    engine.run()
    assert engine.reads > 0
    returned(engine)
