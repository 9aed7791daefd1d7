"""The prompts of the checks: the lengths and beginnings that were asked for, the same in every run."""

import pytest

from kvsweep.scenarios.measure.vllm.kit import prompts

TEXT = list(range(1000))


def test_lengths_are_spread_over_the_range_and_the_same_again() -> None:
    given = prompts(TEXT, count=16, shortest=40, longest=400)
    lengths = sorted(map(len, given))
    assert (lengths[0], lengths[-1], len(set(lengths))) == (40, 400, 16)
    assert given == prompts(TEXT, count=16, shortest=40, longest=400)
    assert given != prompts(TEXT, count=16, shortest=40, longest=400, seed=1)
    assert all(one == list(range(one[0], one[0] + len(one))) for one in given)


def test_each_group_has_one_beginning() -> None:
    given = prompts(TEXT, count=8, shortest=80, longest=200, shared=64, groups=4)
    beginnings = [tuple(one[:64]) for one in given]
    assert beginnings[:4] == beginnings[4:]
    assert len(set(beginnings)) == 4
    assert len({tuple(one) for one in given}) == 8


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected 0 < 5 <= 2000 <= 1000"):
        prompts(TEXT, count=2, shortest=5, longest=2000)
    with pytest.raises(ValueError, match=r"shared: expected less than the shortest prompt of 5 tokens, got 5"):
        prompts(TEXT, count=2, shortest=5, longest=9, shared=5)
