"""From scores to blocks, against a selection written with nothing but `sorted`."""

import numpy as np
import numpy.typing as npt
import pytest
from tests.runtime.rig import BLOCK, make_layout, rows

from kvsweep.ledger.errors import BudgetError, LayoutError, NonFiniteScore
from kvsweep.ledger.ids import HOLE, RequestKey, int32_view
from kvsweep.ledger.layout import LayerLayout, Layout
from kvsweep.ledger.messages import BlockSelection
from kvsweep.runtime.selection import effective_budget, select_blocks
from kvsweep.runtime.settings import SelectionSettings

A = RequestKey("a", 1)
SEED = 20260916
SCORES = np.asarray([[9, 1, 5, 5, 7, 5, 0, 0], [0, 2, 2, 2, 2, 8, 9, 9]], dtype=np.float32)


def choose(
    scores: npt.NDArray[np.float32], policy: SelectionSettings, layout: Layout | None = None, **fields: object
) -> BlockSelection:
    return select_blocks(
        scores,
        request=A,
        revision=1,
        layout=layout or make_layout(scores.shape[0]),
        policy=policy,
        **fields,  # type: ignore[arg-type]
    )


def policy(**fields: object) -> SelectionSettings:
    return SelectionSettings(**{"budget": 0.5, "sink_blocks": 1, "recent_blocks": 1, **fields})  # type: ignore[arg-type]


def mixed_layout() -> Layout:
    """Active layers 1 and 3: a row of the scores is no layer number."""
    kinds = ["sliding", "full", "sliding", "full"]
    return Layout.of(
        model_hash="m",
        dtype="float32",
        block_size=BLOCK,
        layers=tuple(
            LayerLayout(
                layer=n,
                group=int(kind == "sliding"),
                kind=kind,  # type: ignore[arg-type]
                kv_heads=1,
                head_dim=2,
                window_tokens=8 if kind == "sliding" else 0,
            )
            for n, kind in enumerate(kinds)
        ),
    )


def test_e1_selection_names_blocks_and_every_other_candidate_stands_in_the_tail_by_score() -> None:
    chosen = choose(SCORES, policy())
    assert chosen.logical_blocks_by_layer.as_lists() == {0: [0, 2, 4, 7], 1: [0, 5, 6, 7]}
    assert chosen.ranked_tail_by_layer.as_lists() == {0: [3, 5, 1, 6], 1: [1, 2, 3, 4]}
    assert (chosen.whole_blocks, chosen.effective_budget_blocks, chosen.block_size) == (8, 4, BLOCK)
    assert int32_view(chosen.group_by_layer).tolist() == [0, 0]


def test_e2_ties_go_to_the_lower_block_id() -> None:
    """Blocks 2, 3 and 5 of layer 0 tie for one place; −0.0 and 0.0 tie too."""
    assert choose(SCORES, policy()).logical_blocks_by_layer.row(0).tolist() == [0, 2, 4, 7]
    zeros = np.asarray([[0.0, -0.0, 0.0, -0.0]], dtype=np.float32)
    chosen = choose(zeros, policy(budget=0.75))
    assert chosen.logical_blocks_by_layer.row(0).tolist() == [0, 1, 3]
    assert chosen.ranked_tail_by_layer.row(0).tolist() == [2]


@pytest.mark.parametrize("seed", range(SEED, SEED + 8))
def test_e2_any_scores_give_the_blocks_that_a_plain_sort_gives(seed: int) -> None:
    rng = np.random.Generator(np.random.PCG64(seed))
    whole, sink, recent = int(rng.integers(1, 40)), int(rng.integers(0, 4)), int(rng.integers(0, 4))
    scores = rng.integers(-3, 4, (3, whole)).astype(np.float32)  # many ties, negative ones too
    rule = policy(budget=float(rng.uniform(0.05, 1.0)), sink_blocks=sink, recent_blocks=recent)
    chosen = choose(scores, rule)
    sink = min(sink, whole)
    recent = min(recent, whole - sink)
    budget = max(int(rule.budget * whole), sink + recent)
    for row in range(3):
        ranked = sorted(range(sink, whole - recent), key=lambda block: (-scores[row, block], block))
        best, rest = ranked[: budget - sink - recent], ranked[budget - sink - recent :]
        want = sorted([*range(sink), *best, *range(whole - recent, whole)])
        assert chosen.logical_blocks_by_layer.row(row).tolist() == want, f"seed {seed}"
        assert chosen.ranked_tail_by_layer.row(row).tolist() == rest, f"seed {seed}"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("block", [0, 3, 7], ids=["sink", "selected pool", "recent"])
def test_e2_a_score_that_is_not_finite_is_refused_naming_layer_and_block(value: float, block: int) -> None:
    scores = SCORES.copy()
    scores[1, block] = value
    with pytest.raises(NonFiniteScore, match=f"score of layer 3, block {block}: expected a finite number") as caught:
        choose(scores, policy(), mixed_layout())
    assert (caught.value.layer, caught.value.block) == (3, block)


def test_e2_d7_only_active_layers_have_rows() -> None:
    chosen = choose(SCORES, policy(), mixed_layout())
    assert chosen.logical_blocks_by_layer.layers.tolist() == [1, 3]
    with pytest.raises(LayoutError, match=r"scores: expected float32 of shape \[2, whole blocks\]"):
        choose(SCORES[:1], policy(), mixed_layout())
    with pytest.raises(LayoutError, match="float64"):
        choose(SCORES.astype(np.float64), policy())  # type: ignore[arg-type]


def test_e2_g4_recent_and_sink_blocks_are_chosen_whatever_their_score_and_are_no_candidates() -> None:
    scores = np.asarray([[-9, 1, 2, 3, 4, 5, -9, -9]], dtype=np.float32)
    chosen = choose(scores, policy(recent_blocks=2))
    assert chosen.logical_blocks_by_layer.row(0).tolist() == [0, 5, 6, 7]
    assert set(chosen.ranked_tail_by_layer.row(0).tolist()) == {1, 2, 3, 4}


def test_e7_protected_blocks_above_the_budget_are_recorded_as_the_effective_budget() -> None:
    chosen = choose(SCORES, policy(budget=0.25, sink_blocks=2, recent_blocks=3))
    assert chosen.effective_budget_blocks == 5
    assert chosen.logical_blocks_by_layer.row(1).tolist() == [0, 1, 5, 6, 7]


def test_e7_protected_blocks_above_the_budget_can_be_refused() -> None:
    with pytest.raises(BudgetError, match=r"expected at least 5 blocks \(sink \+ recent\), got 2"):
        choose(SCORES, policy(budget=0.25, sink_blocks=2, recent_blocks=3, on_tight_budget="refuse"))
    assert effective_budget(8, policy(budget=0.25, on_tight_budget="refuse")) == (1, 1, 2)


def test_e7_a_short_sequence_is_never_asked_for_more_blocks_than_it_has() -> None:
    assert effective_budget(2, policy(sink_blocks=1, recent_blocks=4)) == (1, 1, 2)
    assert effective_budget(0, policy()) == (0, 0, 0)
    empty = choose(np.empty((2, 0), dtype=np.float32), policy())
    assert empty.logical_blocks_by_layer.as_lists() == {0: [], 1: []}


def test_e2_hysteresis_lets_a_resident_block_stay_against_a_slightly_better_one() -> None:
    scores = np.asarray([[0, 10, 11, 0, 0, 0, 0, 0]], dtype=np.float32)
    held = rows({0: [1]})
    rule = {"budget": 0.25, "sink_blocks": 0}
    assert choose(scores, policy(**rule)).logical_blocks_by_layer.row(0).tolist() == [2, 7]
    chosen = choose(scores, policy(**rule, incumbent_factor=1.2), incumbents=held)
    assert chosen.logical_blocks_by_layer.row(0).tolist() == [1, 7]
    chosen = choose(scores, policy(**rule, incumbent_factor=1.05), incumbents=held)
    assert chosen.logical_blocks_by_layer.row(0).tolist() == [2, 7]


def test_e2_hysteresis_raises_a_negative_score_too() -> None:
    scores = np.asarray([[-20, -10, -9, -20, -20, -20, -20, -20]], dtype=np.float32)
    rule = policy(budget=0.25, sink_blocks=0, incumbent_factor=1.2)
    assert choose(scores, rule, incumbents=rows({0: [1]})).logical_blocks_by_layer.row(0).tolist() == [1, 7]


def test_e9_holes_and_blocks_beyond_the_sequence_raise_no_score() -> None:
    """−1 must not be taken for the last block."""
    scores = np.asarray([[0, 5, 6, 5.9]], dtype=np.float32)
    rule = policy(budget=0.25, sink_blocks=0, recent_blocks=0, incumbent_factor=2.0)
    chosen = choose(scores, rule, incumbents=rows({0: [HOLE, 9]}))
    assert chosen.logical_blocks_by_layer.row(0).tolist() == [2]


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_e9_an_incumbent_that_is_neither_a_block_nor_a_hole_is_refused(factor: float) -> None:
    """NumPy would take −2 for the last block but one."""
    scores = np.asarray([[0, 5, 6, 5.9]], dtype=np.float32)
    rule = policy(budget=0.25, sink_blocks=0, recent_blocks=0, incumbent_factor=factor)
    with pytest.raises(LayoutError) as error:
        choose(scores, rule, incumbents=rows({0: [HOLE, 1, -2]}))
    assert str(error.value) == "incumbents[0]: expected block ids or HOLE (-1), got -2"


def test_e2_a_score_that_hysteresis_raises_beyond_float32_is_refused_by_name() -> None:
    scores = np.asarray([[0, 0, 3e38, 0]], dtype=np.float32)
    with pytest.raises(NonFiniteScore, match="score of layer 0, block 2"):
        choose(scores, policy(incumbent_factor=2.0), incumbents=rows({0: [2]}))


def test_e2_a_shared_selection_gives_every_layer_the_blocks_with_the_best_sums() -> None:
    chosen = choose(SCORES, policy(shared=True))
    assert chosen.logical_blocks_by_layer.as_lists() == {0: [0, 4, 5, 7], 1: [0, 4, 5, 7]}
    assert chosen.ranked_tail_by_layer.as_lists() == {0: [6, 2, 3, 1], 1: [6, 2, 3, 1]}


def test_e2_a_shared_selection_whose_sum_leaves_float32_is_refused_by_name() -> None:
    scores = np.full((2, 4), 2e38, dtype=np.float32)
    with pytest.raises(NonFiniteScore, match="layer 0, block 0"):
        choose(scores, policy(shared=True))


def test_e2_scores_are_not_changed() -> None:
    scores = SCORES.copy()
    choose(scores, policy(shared=True, incumbent_factor=3.0), incumbents=rows({0: [2], 1: [3]}))
    assert np.array_equal(scores, SCORES)
