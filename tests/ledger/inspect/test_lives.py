"""A few lives folded alone are in the states that the whole ledger gives them: the oracle is the fold of everything."""

import functools
from typing import Any

import pytest
from tests.ledger.walks import Step, Walk
from tests.ledger.worlds import TWO_LAYERS, WITH_SLIDING

from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import POOL, RequestKey
from kvsweep.ledger.inspect.lives import OPENS_OPERATION, Frame, fold_lives, with_sharers
from kvsweep.ledger.inspect.replay import Ledger
from kvsweep.ledger.state import RequestState
from kvsweep.ledger.store.memory import MemoryLog

SEED, BATCHES = 20260916, 700


class Apart(Walk):
    """Requests that share nothing."""

    def share(self, request: RequestState) -> list[Step]:
        return []

    def attach(self, request: RequestState) -> list[Step]:
        return []


@functools.cache
def walked(kind: type[Walk], seed: int) -> MemoryLog:
    """A ledger of what a random walk took, begun with its configuration."""
    walk = kind(seed, WITH_SLIDING if seed % 2 else TWO_LAYERS, spoil=0.0)
    assert walk.state.pool.run is not None
    events: list[Event] = [walk.state.pool.run]
    for _ in range(BATCHES):
        batch = walk.batch()
        if walk.take(batch) == "taken":
            events += batch
    log = MemoryLog()
    log.append(events)
    return log


def of_life(frame: Frame, life: RequestKey) -> Any:
    """What an excerpt promises of one life and of the pool, before and after."""
    return [
        (
            state.request(life),
            state.ownership.held.get(life),
            state.ownership.own.get(life),
            (state.pool.ranks, state.pool.lost, state.pool.pool_generation, state.pool.producer_epoch, state.pool.seq),
        )
        for state in (frame.before, frame.after)
    ]


@pytest.mark.parametrize("kind", [Apart, Walk])
@pytest.mark.parametrize("seed", [SEED, SEED + 1, SEED + 2])
def test_f5_a_life_folded_alone_is_in_the_states_of_the_whole(kind: type[Walk], seed: int) -> None:
    log = walked(kind, seed)
    ledger = Ledger(log)
    whole = {frame.position: frame for frame in ledger.replay()}
    lives, alone = ledger.requests(), 0
    assert len(lives) > 4, f"seed {seed}"
    for life in lives:
        frames = list(fold_lives(log, (life,), until=ledger.last()))
        own = [frame for frame in frames if frame.event.request == life]
        assert [frame.position for frame in own] == [record.position for record in log.read(life)], f"seed {seed}"
        for frame in frames[: frames.index(own[-1]) + 1]:  # a closed life is forgotten when the next one begins
            assert of_life(frame, life) == of_life(whole[frame.position], life), f"seed {seed}, at {frame.position}"
        for frame in own:
            if isinstance(frame.event, OPENS_OPERATION):
                counters = [state.pool.next_operation_id for state in (frame.before, frame.after)]
                expected = whole[frame.position]
                assert counters == [state.pool.next_operation_id for state in (expected.before, expected.after)]
        alone += {frame.event.request for frame in frames} <= {life, POOL}
    assert alone == len(lives) if kind is Apart else alone < len(lives)


def test_b6_lives_that_share_a_prefix_are_taken_together() -> None:
    log = walked(Walk, SEED)
    lives = Ledger(log).requests()
    sharing = {
        record.event.request
        for record in log.read()
        if type(record.event).__name__ in ("PrefixPublished", "PrefixAttached")
    }
    assert 1 < len(sharing) < len(lives)
    last = log.durable()
    for life in lives:
        assert set(with_sharers(log, (life,), until=last)) == ({life} | sharing if life in sharing else {life})


def test_a_prefix_of_requests_that_are_absent_is_passed_over() -> None:
    log = walked(Walk, SEED)
    pool = list(fold_lives(log, (), until=log.durable()))
    assert [frame.event.seq for frame in pool] == list(range(len(pool)))
    assert any(type(frame.event).__name__ == "PrefixEvicted" for frame in pool)
    assert all(not frame.after.requests for frame in pool)
