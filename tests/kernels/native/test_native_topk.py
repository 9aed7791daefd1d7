"""E2 in native code: order (−score, id), one zero, nothing that is not finite."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

Same = Callable[..., Any]
LENGTHS = [0, 1, 2, 15, 16, 17, 31, 33, 64, 1000, 4095, 4096, 5003, 32768]


def scores_of(rng: np.random.Generator, kind: str, rows: int, n: int) -> np.ndarray:
    values: dict[str, Callable[[], Any]] = {
        "normal": lambda: rng.standard_normal((rows, n)),
        "ties": lambda: rng.integers(-2, 3, (rows, n)) * -1.0,
        "constant": lambda: np.full((rows, n), -0.0),
        "zeros": lambda: np.where(rng.random((rows, n)) < 0.5, -0.0, 0.0),
        "tiny": lambda: rng.standard_normal((rows, n)) * 1e-41,
        "wide": lambda: rng.standard_normal((rows, n)) * 10.0 ** rng.integers(-30, 30, (rows, n)),
        "rising": lambda: np.broadcast_to(np.arange(n), (rows, n)),
        # One good score in each 32: a sample that takes every 32nd score sees only those, or none of them.
        "periodic": lambda: np.where(np.arange(n) % 32 == rng.integers(0, 2), 100.0, rng.random((rows, n))),
        # Scores that differ in their last bits only beside one far away: the leading digits tell hardly any apart.
        "needle": lambda: np.where(np.arange(n) == n // 3, 3e38, 1.0 + rng.random((rows, n)) * 1e-3),
        "clustered": lambda: np.where(np.arange(n) < n // 50, 1000.0, 0.0) + rng.random((rows, n)),
    }
    return np.ascontiguousarray(values[kind](), dtype=np.float32)


KINDS = ["normal", "ties", "constant", "zeros", "tiny", "wide", "rising", "periodic", "needle", "clustered"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", LENGTHS)
def test_e2_selection_equals_the_reference(same: Same, rng: np.random.Generator, n: int, kind: str) -> None:
    scores = scores_of(rng, kind, 3 if n < 20000 else 1, n)
    same("rank_blocks", scores)
    for k in sorted({0, min(1, n), n // 100, n // 16, n // 2, max(n - 1, 0), n}):
        same("select_top", scores, k)
        same("select_ascending", scores, k)


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [(0, 0), (1, 4999), (1, 4998), (2, 17), (0, 4160)])
def test_e2_what_is_not_finite_is_refused_naming_row_and_column(
    same: Same, rng: np.random.Generator, place: tuple[int, int], bad: float
) -> None:
    scores = rng.standard_normal((3, 5000)).astype(np.float32)
    scores[place] = bad
    for kernel, arguments in (
        ("rank_blocks", ()),
        ("select_top", (7,)),
        ("select_top", (0,)),
        ("select_ascending", (9,)),
    ):
        kind, message = same(kernel, scores, *arguments)
        assert kind == "NonFiniteInput"
        assert f"scores[{place[0]}, {place[1]}]" in message


def test_no_rows(same: Same) -> None:
    same("rank_blocks", np.empty((0, 7), dtype=np.float32))
    same("select_top", np.empty((0, 7), dtype=np.float32), 3)


@pytest.mark.parametrize("k", [-1, 6, 2**40, True, 2.0, None])
def test_k_outside_the_row_is_refused_in_the_same_words(same: Same, k: Any) -> None:
    for kernel in ("select_top", "select_ascending"):
        kind, _ = same(kernel, np.zeros((2, 5), dtype=np.float32), k)
        assert kind == "KernelArgumentError"


@pytest.mark.parametrize(
    "scores",
    [np.zeros((2, 5)), np.zeros(5, dtype=np.float32), np.zeros((2, 10), dtype=np.float32)[:, ::2], [[1.0]], None],
)
def test_another_array_is_refused_in_the_same_words(same: Same, scores: Any) -> None:
    for kernel, arguments in (("rank_blocks", ()), ("select_top", (1,))):
        kind, _ = same(kernel, scores, *arguments)
        assert kind == "KernelArgumentError"


def test_two_threads_rank_as_one_does(rng: np.random.Generator) -> None:
    from kvsweep.kernels import reference
    from kvsweep.kernels.compiled import NativeKernels

    scores = rng.standard_normal((37, 9000)).astype(np.float32)
    assert (NativeKernels(threads=2).select_top(scores, 700) == reference.select_top(scores, 700)).all()
    scores[30, 8999] = np.nan
    with pytest.raises(ValueError, match=r"scores\[30, 8999\]"):
        NativeKernels(threads=2).select_top(scores, 700)
