"""A hundred seeds that are always the same, and ten that nobody has seen before."""

import random
import sys
from pathlib import Path

import pytest

from kvsweep.scenarios.verify.simulate.sweep import SweepResult, sweep

FIXED = range(20260916, 20260916 + 100)
RARE = {"full plan", "handshake refused", "union under its label", "a rank is lost", "a prefix is shared"}
"""Situations that a hundred seeds may miss; from two thousand on, none may be."""


def expect_passed(found: SweepResult) -> None:
    failure = found.first_failure
    repeat = f"kvsweep simulate --seeds 1 --start {failure.seed}" if failure else ""
    assert not found.failures, f"{failure}; repeat: {repeat}"


def test_a_hundred_fixed_seeds_hold_every_law_and_drain(tmp_path: Path) -> None:
    found = sweep(FIXED, jobs=2, out=tmp_path)
    expect_passed(found)
    assert set(found.missing) <= RARE
    assert found.events > 8_000


def test_ten_fresh_seeds_hold_every_law_and_drain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = random.SystemRandom().randrange(1 << 31)
    with capsys.disabled():
        sys.stdout.write(f"\nfresh seeds: kvsweep simulate --seeds 10 --start {start}\n")
    expect_passed(sweep(range(start, start + 10), out=tmp_path))


@pytest.mark.full
def test_two_thousand_seeds_reach_every_situation(tmp_path: Path) -> None:
    found = sweep(range(1, 2001), jobs=2, out=tmp_path)
    expect_passed(found)
    assert found.missing == ()
