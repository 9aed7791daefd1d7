"""E3 to E6 and E9 in native code: the same plans, the same refusals."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvsweep.kernels import HOLE, Csr

Same = Callable[..., Any]
Lists = list[list[int]]


def plan(same: Same, want: Lists, tail: Lists, held: Lists, *, blocks: Any = 128, shared: bool) -> Any:
    arguments = Csr.of(want), Csr.of(tail), Csr.of(held)
    return same("plan_diff", *arguments, sequence_blocks=blocks, shared_table=shared)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("blocks", [1, 2, 16, 32, 63, 64, 65, 127, 1000, 32768])
def test_e3_to_e6_random_rows_equal_the_reference(
    same: Same, rng: np.random.Generator, blocks: int, shared: bool
) -> None:
    """Sizes, holes and how much of the tail there is are drawn a row; both kinds of plan occur."""
    kinds = set()
    for _ in range(30):
        want, tail, held = [], [], []
        for _ in range(int(rng.integers(0, 6))):
            order = rng.permutation(blocks)
            chosen = int(rng.integers(0, min(blocks, 700) + 1))
            left = int(rng.integers(0, (blocks - chosen) // rng.choice([1, 50]) + 1))
            row = rng.permutation(order[:chosen]) if rng.random() < 0.5 else np.sort(order[:chosen])
            resident = rng.permutation(blocks)[: int(rng.integers(0, min(blocks, 700) + 1))]
            want.append(row)
            tail.append(order[chosen : chosen + left])
            held.append(np.where(rng.random(resident.size) < 0.1, HOLE, resident))
        result = plan(same, want, tail, held, blocks=blocks, shared=shared)  # type: ignore[arg-type]
        kinds.add(result["kind"])
    assert kinds == ({"diff", "full"} if shared and blocks > 16 else {"diff"}) or blocks <= 16


@pytest.mark.parametrize("shared", [False, True])
def test_e9_hostile_tails_and_ids_at_both_ends(same: Same, shared: bool) -> None:
    """The largest id may stand in any list and in any place of it."""
    cases: list[tuple[Lists, Lists, Lists]] = [
        ([[2]], [[127, 4, 3]], [[1]]),
        ([[127, 0]], [[4, 3]], [[1]]),
        ([[2]], [[4, 3]], [[HOLE, 127, HOLE, 0]]),
        ([[2], [0, 1]], [[127, 4, 3], []], [[1], []]),
        ([[], []], [[127], []], [[HOLE], [HOLE, HOLE]]),
        ([[0, 63, 64, 127], [1]], [[], [127, 64, 63, 0]], [[], [2]]),
        ([[]], [[]], [[]]),
        ([], [], []),
    ]
    for want, tail, held in cases:
        plan(same, want, tail, held, shared=shared)


@pytest.mark.parametrize(
    ("want", "tail", "held", "blocks"),
    [
        ([[128]], [[]], [[]], 128),
        ([[-1]], [[]], [[]], 128),
        ([[1]], [[128]], [[]], 128),
        ([[1]], [[-1]], [[]], 128),
        ([[1]], [[]], [[128]], 128),
        ([[1]], [[]], [[-2]], 128),
        ([[1]], [[2**31 - 1]], [[-(2**31)]], 128),
        ([[1], [5, 6, 5]], [[], []], [[], []], 128),
        ([[1]], [[7, 7]], [[]], 128),
        ([[1]], [[]], [[HOLE, 9, HOLE, 9]], 128),
        ([[1]], [[], []], [[]], 128),
        ([[1]], [[]], [], 128),
        ([[0]], [[]], [[]], 0),
        ([[0]], [[]], [[]], -1),
        ([[0]], [[]], [[]], True),
        ([[0]], [[]], [[]], 2.0),
    ],
)
@pytest.mark.parametrize("shared", [False, True])
def test_what_the_reference_refuses_is_refused_in_the_same_words(
    same: Same, want: Lists, tail: Lists, held: Lists, blocks: Any, shared: bool
) -> None:
    kind, _ = plan(same, want, tail, held, blocks=blocks, shared=shared)
    assert kind == "KernelArgumentError"
    accepted = plan(same, [[0, 3]], [[5]], [[3]], shared=shared)
    assert accepted["kind"] == "diff", "a refusal leaves the scratch of the next call clean"


def test_a_sequence_beyond_int32_is_a_sequence(same: Same) -> None:
    assert plan(same, [[0, 3]], [[5]], [[3]], blocks=2**40, shared=False)["kind"] == "diff"
    assert plan(same, [[0, 3]], [[5]], [[3]], blocks=np.int64(9), shared=False)["kind"] == "diff"


def test_broken_row_pointers_are_refused(same: Same) -> None:
    good = Csr.of([[1], [2]])
    for pointers in ([0, 2, 1], [1, 1, 2], [0, 1, 3], [0, 1, 1], [0, -1, 2], []):
        bad = Csr(np.array(pointers, dtype=np.int32), good.ids)
        for at in range(3):
            lists = [good, good, good]
            lists[at] = bad
            kind, _ = same("plan_diff", *lists, sequence_blocks=8, shared_table=True)
            assert kind == "KernelArgumentError"
