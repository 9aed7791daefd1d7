"""E2: order by (−score, id), and no order where a score is not finite."""

import numpy as np
import numpy.typing as npt
import pytest

from kvsweep.kernels import KernelArgumentError, NonFiniteInput, rank_blocks, select_top


def order_of(row: list[float]) -> list[int]:
    """Python's sort on (−score, id)."""
    return sorted(range(len(row)), key=lambda index: (-row[index], index))


@pytest.mark.parametrize("seed", range(6))
def test_e2_ranks_by_score_then_id(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 90))
    # Few distinct values, both zeros, the ends of float32 and subnormals: ties everywhere.
    values = np.array([0.0, -0.0, 1.0, -1.0, 3.4e38, -3.4e38, 1e-45, -1e-45], dtype=np.float32)
    scores = rng.choice(values, (7, n))
    expected = [order_of(row.tolist()) for row in scores]
    ranked = rank_blocks(scores)
    assert ranked.tolist() == expected, f"seed {seed}"
    assert ranked.dtype == np.int32
    for k in {0, 1, n // 2, n}:
        top = select_top(scores, k)
        assert top.tolist() == [row[:k] for row in expected], f"seed {seed}, k {k}"
        assert top.dtype == np.int32
        assert top.flags.c_contiguous


def test_e2_both_zeros_tie() -> None:
    assert select_top(np.array([[-0.0, 0.0, -0.0]], dtype=np.float32), 3).tolist() == [[0, 1, 2]]


def test_e3_tail_is_in_score_order_and_not_in_id_order() -> None:
    scores = np.zeros((1, 128), dtype=np.float32)
    scores[0, [2, 127, 4, 3]] = [9, 8, 7, 6]
    assert rank_blocks(scores)[0, 1:4].tolist() == [127, 4, 3]


@pytest.mark.parametrize("rows", [0, 3])
def test_nothing_to_rank(rows: int) -> None:
    assert rank_blocks(np.zeros((rows, 0), dtype=np.float32)).shape == (rows, 0)
    assert select_top(np.zeros((rows, 0), dtype=np.float32), 0).shape == (rows, 0)


@pytest.mark.parametrize(("value", "word"), [(np.nan, "nan"), (np.inf, "inf"), (-np.inf, "-inf")])
def test_e2_not_finite_is_refused_naming_row_and_column(value: float, word: str) -> None:
    scores = np.zeros((3, 8), dtype=np.float32)
    scores[2, 5] = value
    scores[2, 7] = np.nan
    with pytest.raises(NonFiniteInput) as caught:
        select_top(scores, 1)
    assert str(caught.value) == f"scores[2, 5]: expected a finite number, got {word}"
    assert (caught.value.row, caught.value.column) == (2, 5)


@pytest.mark.parametrize(
    ("scores", "k", "message"),
    [
        (np.zeros((2, 4), np.float32), 5, "k: expected an integer in [0, 4], got 5"),
        (np.zeros((2, 4), np.float32), -1, "k: expected an integer in [0, 4], got -1"),
        (np.zeros((2, 4), np.float32), True, "k: expected an integer in [0, 4], got True"),
        (np.zeros((2, 4)), 1, "scores: expected a C-contiguous float32 array with 2 axes, got dtype float64"),
        (np.zeros(4, np.float32), 1, "scores: expected a C-contiguous float32 array with 2 axes, got shape (4,)"),
    ],
)
def test_bad_argument_is_refused_with_its_name(scores: npt.NDArray[np.float32], k: int, message: str) -> None:
    with pytest.raises(KernelArgumentError) as caught:
        select_top(scores, k)
    assert str(caught.value) == message
