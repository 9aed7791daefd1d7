"""A ledger that cannot be written any more: nothing is compacted, and vLLM has every block back that nobody reads."""

import logging
import random
from typing import Any

import pytest
from tests.runtime.vllm.engine import BLOCK, Engine
from tests.runtime.vllm.test_engine import COMPACT, LOSSLESS, QUEST

from kvsweep.ledger.errors import LogError
from kvsweep.transports.vllm.messages import Ack


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
