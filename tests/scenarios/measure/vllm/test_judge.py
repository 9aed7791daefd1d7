"""What two runs say about each other: each fault of a run has to be named, and a tie excused."""

import math
import random

import pytest

from kvsweep.scenarios.measure.vllm.job import Ran, Token
from kvsweep.scenarios.measure.vllm.judge import (
    MARGIN,
    Difference,
    compare,
    decode_step,
    deltas,
    median_interval,
    pool_faults,
    summary_faults,
)


def token(name: int, *, logprob: float = -1.0, first: int | None = None, gap: float = 1.0) -> Token:
    best = name if first is None else first
    return Token(id=name, logprob=logprob, first=best, gap=gap, top={best: logprob})


def ran(
    *outputs: list[Token],
    steps: tuple[tuple[int, float], ...] = (),
    free: tuple[int, int] = (9, 9),
    idle: int = 0,
) -> Ran:
    return Ran(
        outputs=list(outputs),
        ended=["length"] * len(outputs),
        preemptions=0,
        free_before=free[0],
        free_after=free[1],
        steps=list(steps),
        seconds=1.0,
        idle_steps=idle,
    )


# ---- tokens


def test_equal_runs_are_compared_at_every_position() -> None:
    stock = ran([token(1), token(2)], [token(3)])
    ours = ran([token(1), token(2, logprob=-1.25)], [token(3)])
    found = compare(stock, ours)
    assert (found.positions, found.equal, found.not_compared) == (3, 3, 0)
    assert (found.wrong, found.excused) == ([], [])
    assert found.largest_logprob_delta == 0.25


def test_a_first_difference_counts_only_above_the_margin_of_stocks_own_best_two() -> None:
    """What comes behind it has another prefix and is not compared, whatever it is."""
    tie = [token(1), token(2, gap=MARGIN), token(3), token(4)]
    clear = [token(1), token(2, gap=MARGIN * 1.01), token(3), token(4)]
    ours = [token(1), token(7), token(8), token(4)]
    found = compare(ran(tie, clear), ran(ours, ours))
    assert found.excused == [Difference(request=0, position=1, stock=2, ours=7, gap=MARGIN)]
    assert found.wrong == [Difference(request=1, position=1, stock=2, ours=7, gap=MARGIN * 1.01)]
    assert (found.positions, found.equal, found.not_compared) == (8, 2, 4)


def test_the_gap_is_that_of_stock_and_not_ours() -> None:
    found = compare(ran([token(2, gap=1.0)]), ran([token(7, gap=0.0)]))
    assert len(found.wrong) == 1


def test_a_logprob_that_is_no_number_does_not_hide() -> None:
    found = compare(ran([token(1), token(2)]), ran([token(1, logprob=math.nan), token(2)]))
    assert math.isnan(found.largest_logprob_delta)


def test_a_request_that_ended_early_is_refused() -> None:
    with pytest.raises(ValueError, match=r"outputs\[1\]: expected 2 tokens, got 1"):
        compare(ran([token(1)], [token(1), token(2)]), ran([token(1)], [token(1)]))
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        compare(ran([token(1)], [token(1)]), ran([token(1)]))


# ---- logprobs of forced tokens


def test_deltas_of_forced_tokens() -> None:
    stock = ran([token(1), token(2), token(3), token(4)])
    ours = ran(
        [token(1), token(2, logprob=-1.5), token(3, logprob=-3.0, first=9), token(4, logprob=-1.1)],
    )
    found = deltas(stock, ours, tolerance=0.4)
    assert found.positions == 4
    assert found.top1_agreement == 0.75
    assert found.mean == pytest.approx((0.0 + 0.5 + 2.0 + 0.1) / 4)
    assert (found.p95, found.largest) == (2.0, 2.0)
    assert (found.beyond, found.tolerance) == (0.5, 0.4)
    # Where ours ranks another token first, stock's is not among its best few and counts as nothing.
    assert found.overlap == pytest.approx((1.0 + math.exp(-0.5) + 0.0 + math.exp(-0.1)) / 4)
    assert (found.skipped, deltas(stock, ours, tolerance=0.4, skip=3).skipped) == (0, 3)
    assert deltas(stock, ours, tolerance=0.4, skip=3).positions == 1


def test_deltas_refuse_what_they_cannot_compare() -> None:
    with pytest.raises(ValueError, match=r"expected the same forced tokens, got 1 and 2"):
        deltas(ran([token(1)]), ran([token(2)]), tolerance=1.0)
    with pytest.raises(ValueError, match=r"logprob of token 1: expected numbers, got -1.0 and nan"):
        deltas(ran([token(1)]), ran([token(1, logprob=math.nan)]), tolerance=1.0)
    with pytest.raises(ValueError, match=r"skip: expected less than the tokens of a request, got 1"):
        deltas(ran([token(1)]), ran([token(1)]), tolerance=1.0, skip=1)


# ---- time


def test_the_decode_step_is_the_median_of_full_steps() -> None:
    steps = ((2, 9.0), (4, 0.1), (4, 0.3), (4, 0.2), (3, 5.0), (0, 7.0))
    assert decode_step(ran(steps=steps), 4) == 0.2
    assert math.isnan(decode_step(ran(steps=steps), 5))


def test_the_interval_holds_the_median_in_about_95_of_100_measurements() -> None:
    draw, inside = random.Random(5), 0
    for number in range(200):
        found = median_interval([draw.gauss(1.0, 0.1) for _ in range(12)], draws=400, seed=number)
        assert found.low <= found.median <= found.high
        inside += found.low <= 1.0 <= found.high
    assert 176 <= inside <= 200
    with pytest.raises(ValueError, match="values: expected at least 5, got 4"):
        median_interval([1.0] * 4)


# ---- what the connector wrote

GOOD = {
    "commits": 7,
    "checksums": {"checked": 3, "wrong": 0},
    "released_blocks": 2,
    "held_blocks": 0,
    "pending": [],
}


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({}, None),
        ({"commits": 4}, "commits: expected at least 5, got 4"),
        ({"checksums": {"checked": 0, "wrong": 0}}, "checksums: expected some, got none"),
        ({"checksums": {"checked": 3, "wrong": 1}}, "checksums: 1 of 3 are wrong"),
        ({"released_blocks": 0}, "released_blocks: expected blocks that went back to vLLM's pool, got 0"),
        ({"held_blocks": 1}, "held_blocks: expected none at the end, got 1"),
        ({"pending": ["rank 1"]}, "pending: expected nothing at the end, got ['rank 1']"),
    ],
)
def test_each_fault_of_a_summary_is_named(changed: dict[str, object], fault: str | None) -> None:
    found = summary_faults(GOOD | changed, released=True, commits=5)
    assert found == ([] if fault is None else [fault])


def test_a_run_without_commits_needs_no_checksums() -> None:
    quiet = GOOD | {"commits": 0, "released_blocks": 0, "checksums": {"checked": 0, "wrong": 0}}
    assert summary_faults(quiet, released=False, commits=0) == []


def test_blocks_that_did_not_come_back_and_an_engine_without_rest() -> None:
    assert pool_faults(ran()) == []
    assert pool_faults(ran(free=(9, 8))) == ["vLLM's pool: 9 blocks were free before, 8 are after"]
    assert pool_faults(ran(idle=201)) == ["the engine took 201 steps to rest after its last request"]
