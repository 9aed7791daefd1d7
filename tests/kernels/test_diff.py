"""E3 to E6 and E9: what is uploaded, in what order, and how counts are made equal."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from kvsweep.kernels import HOLE, Csr, DiffPlan, KernelArgumentError, plan_diff

Lists = list[list[int]]


def plan(want: Lists, tail: Lists, held: Lists, *, blocks: int = 128, shared: bool) -> DiffPlan:
    return plan_diff(Csr.of(want), Csr.of(tail), Csr.of(held), sequence_blocks=blocks, shared_table=shared)


def test_e3_e4_ragged_rows_upload_what_is_wanted_and_not_held_in_ascending_order() -> None:
    result = plan([[9, 3, 7], [1], []], [[5], [8], [2]], [[3, HOLE], [1], [4]], shared=False)
    assert result.upload.lists() == [[7, 9], [], []]
    assert result.kind == "diff"
    assert result.new_per_row.tolist() == [2, 0, 0]
    assert result.pad.lists() == [[], [], []]
    assert result.truncated_per_row.tolist() == [0, 0, 0]
    assert result.unfilled_per_row.tolist() == [0, 0, 0]
    assert result.common_new_slots == 0


def test_e3_e5_shared_rows_are_filled_from_the_tail_in_rank_order_and_emitted_ascending() -> None:
    """Row 1 needs two more: rank order takes 30 (20 is held, 1 is wanted) and then 6, not the smaller 5."""
    result = plan([[9, 3, 7], [1, 20]], [[50], [20, 1, 30, 6, 5]], [[], [20]], shared=True)
    assert result.kind == "diff"
    assert result.common_new_slots == 3
    assert result.upload.lists() == [[3, 7, 9], [1, 6, 30]]
    assert result.pad.lists() == [[], [6, 30]]
    assert result.new_per_row.tolist() == [3, 1]
    assert result.truncated_per_row.tolist() == [0, 0]


def test_e6_a_row_that_cannot_be_filled_makes_the_plan_full() -> None:
    """Row 1 lacks two, its tail has one left: both rows upload all they want, held or not."""
    result = plan([[3, 7, 9], [1, 20, 2]], [[50], [20, 30]], [[HOLE], [20, 2]], shared=True)
    assert result.kind == "full"
    assert result.upload.lists() == [[3, 7, 9], [1, 2, 20]]
    assert result.new_per_row.tolist() == [3, 3]
    assert result.pad.lists() == [[], []]
    assert result.common_new_slots == 3
    assert result.truncated_per_row.tolist() == [0, 0]
    assert result.unfilled_per_row.tolist() == [0, 0]


def test_e6_exhausted_tail_with_selections_of_different_sizes_says_what_stays_short() -> None:
    result = plan([[3, 7, 9], [1], [2]], [[], [8], [5, 4]], [[], [], [5]], shared=True)
    assert result.kind == "full"
    assert result.upload.lists() == [[3, 7, 9], [1, 8], [2, 4, 5]], "held no longer keeps 5 from being padding"
    assert result.pad.lists() == [[], [8], [4, 5]]
    assert result.common_new_slots == 3
    assert result.unfilled_per_row.tolist() == [0, 1, 0]
    assert result.truncated_per_row.tolist() == [0, 0, 0]


@pytest.mark.parametrize("shared", [False, True])
def test_e9_largest_id_is_over_want_tail_and_held(shared: bool) -> None:
    """The tail is in score order: its last id, 3, is not its largest, 127."""
    hostile = plan([[2]], [[127, 4, 3]], [[1]], shared=shared)
    assert hostile.largest_id == 127
    assert hostile.upload.lists() == [[2]]
    assert plan([[90]], [[4, 3]], [[1]], shared=shared).largest_id == 90
    assert plan([[2]], [[4, 3]], [[HOLE, 99, HOLE]], shared=shared).largest_id == 99


def test_e9_padding_reaches_the_largest_id_of_the_tail() -> None:
    result = plan([[2], [0, 1]], [[127, 4, 3], []], [[1], []], shared=True)
    assert result.upload.lists() == [[2, 127], [0, 1]]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("rows", [0, 3])
def test_every_row_empty(rows: int, shared: bool) -> None:
    none: Lists = [[] for _ in range(rows)]
    for held in (none, [[HOLE] for _ in range(rows)]):
        result = plan(none, none, held, blocks=0, shared=shared)
        assert (result.kind, result.upload.lists(), result.common_new_slots) == ("diff", none, 0)
        assert result.largest_id == -1


@pytest.mark.parametrize("shared", [False, True])
def test_f1_all_held_is_a_plan_without_uploads(shared: bool) -> None:
    result = plan([[3, 1], [2]], [[], []], [[1, 3], [HOLE, 2]], shared=shared)
    assert (result.kind, result.upload.lists()) == ("diff", [[], []])


@pytest.mark.parametrize(
    ("want", "tail", "held", "message"),
    [
        ([[1], [8]], [[], []], [[], []], "want.ids: expected ids in [0, 8), got 8 in row 1"),
        ([[-1]], [[]], [[]], "want.ids: expected ids in [0, 8), got -1 in row 0"),
        ([[1]], [[9, 0]], [[]], "tail.ids: expected ids in [0, 8), got 9 in row 0"),
        ([[1]], [[-2]], [[]], "tail.ids: expected ids in [0, 8), got -2 in row 0"),
        ([[1]], [[]], [[8]], "held.ids: expected ids in [0, 8), got 8 in row 0"),
        ([[1], []], [[], []], [[HOLE], [0, -2]], "held.ids: expected ids in [0, 8), got -2 in row 1"),
        ([[1, 2, 1]], [[]], [[]], "want.ids: expected each id once in a row, got 1 twice in row 0"),
        ([[1]], [[5, 3, 5]], [[]], "tail.ids: expected each id once in a row, got 5 twice in row 0"),
        (
            [[1], []],
            [[], []],
            [[7], [HOLE, 6, HOLE, 6]],
            "held.ids: expected each id once in a row, got 6 twice in row 1",
        ),
        ([[1]], [[], []], [[]], "tail: expected 1 rows, as many as want, got 2 rows"),
        ([[1]], [[]], [], "held: expected 1 rows, as many as want, got 0 rows"),
    ],
)
@pytest.mark.parametrize("shared", [False, True])
def test_e9_bad_lists_are_refused(want: Lists, tail: Lists, held: Lists, message: str, shared: bool) -> None:
    with pytest.raises(KernelArgumentError) as caught:
        plan(want, tail, held, blocks=8, shared=shared)
    assert str(caught.value) == message


def test_bad_arguments_are_refused() -> None:
    good = Csr.of([[1]])
    with pytest.raises(KernelArgumentError) as caught:
        plan_diff(good, good, good, sequence_blocks=-1, shared_table=False)
    assert str(caught.value) == "sequence_blocks: expected an integer of at least 0, got -1"
    torn = Csr(np.array([0, 2], dtype=np.int32), good.ids)
    with pytest.raises(KernelArgumentError) as caught:
        plan_diff(good, good, torn, sequence_blocks=4, shared_table=False)
    assert str(caught.value) == "held.row_ptr: expected 1 (the size of held.ids) last, got 2"


def test_the_lists_handed_in_are_left_alone() -> None:
    lists = [Csr.of([[9, 3]]), Csr.of([[5, 1]]), Csr.of([[HOLE, 3]])]
    plan_diff(*lists, sequence_blocks=10, shared_table=True)
    assert [each.lists() for each in lists] == [[[9, 3]], [[5, 1]], [[HOLE, 3]]]


@dataclass
class World:
    want: Lists
    tail: Lists
    held: Lists


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Want and tail share no id; held is anything, with holes; tails may be short."""
    world = World([], [], [])
    for _ in range(draw(st.integers(0, 4))):
        order = draw(st.permutations(range(10)))
        cut = draw(st.integers(0, 4))
        world.want.append(order[:cut])
        world.tail.append(order[cut : draw(st.integers(cut, 10))])
        held = draw(st.lists(st.integers(0, 9), unique=True, max_size=6))
        for _ in range(draw(st.integers(0, 2))):
            held.insert(draw(st.integers(0, len(held))), HOLE)
        world.held.append(held)
    return world


@given(worlds())
def test_e3_to_e6_shared_plan_is_the_set_by_set_one(world: World) -> None:
    new = [set(want) - set(held) for want, held in zip(world.want, world.held, strict=True)]
    common = max((len(row) for row in new), default=0)
    spare = [
        [block for block in tail if block not in want and block not in held]
        for want, tail, held in zip(world.want, world.tail, world.held, strict=True)
    ]
    result = plan(world.want, world.tail, world.held, blocks=10, shared=True)
    event(result.kind)
    assert result.truncated_per_row.tolist() == [0] * len(new)
    assert all(row == sorted(set(row)) for row in result.upload.lists())
    if all(len(row) + len(more) >= common for row, more in zip(new, spare, strict=True)):
        pad = [sorted(more[: common - len(row)]) for row, more in zip(new, spare, strict=True)]
        assert (result.kind, result.common_new_slots, result.pad.lists()) == ("diff", common, pad)
        assert result.upload.lists() == [sorted(row | set(more)) for row, more in zip(new, pad, strict=True)]
        assert result.unfilled_per_row.tolist() == [0] * len(new)
    else:
        longest = max(len(row) for row in world.want)
        pad = [sorted(tail[: longest - len(want)]) for want, tail in zip(world.want, world.tail, strict=True)]
        assert (result.kind, result.common_new_slots, result.pad.lists()) == ("full", longest, pad)
        assert result.upload.lists() == [sorted(want + more) for want, more in zip(world.want, pad, strict=True)]
        assert result.unfilled_per_row.tolist() == [longest - len(row) for row in result.upload.lists()]


@given(worlds())
def test_e3_ragged_plan_is_the_set_difference(world: World) -> None:
    result = plan(world.want, world.tail, world.held, blocks=10, shared=False)
    expected = [sorted(set(want) - set(held)) for want, held in zip(world.want, world.held, strict=True)]
    assert result.upload.lists() == expected
    assert result.new_per_row.tolist() == [len(row) for row in expected]
    assert result.pad.ids.size == 0
    ids = [block for lists in (world.want, world.tail, world.held) for row in lists for block in row]
    assert result.largest_id == max(ids, default=-1)
