"""vLLM's references and the coordinator's ownership: one reference of ours a block, aliases for what is lent twice."""

from typing import Any

import numpy as np
import pytest
from tests.runtime.vllm.engine import BlockPool, make_layout

from kvsweep.ledger.errors import DoubleFree
from kvsweep.ledger.ids import RequestKey, Rows, int32_view
from kvsweep.ledger.messages import OpenTail, Preempt, Release, Reserve, Reserved, SealTail
from kvsweep.runtime.vllm.pools import EnginePools
from kvsweep.transports.pools import CpuPool

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
