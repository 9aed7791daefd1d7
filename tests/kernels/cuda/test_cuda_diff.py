"""The diff planner as a kernel: the planner's own tests, and random rows against the reference."""

import numpy as np
import pytest
from tests.kernels import test_diff
from tests.kernels.cuda.cases import plain_plan, plan, random_diff

# Collected here a second time, over the kernel.
from tests.kernels.test_diff import (  # noqa: F401
    test_bad_arguments_are_refused,
    test_e3_e4_ragged_rows_upload_what_is_wanted_and_not_held_in_ascending_order,
    test_e3_e5_shared_rows_are_filled_from_the_tail_in_rank_order_and_emitted_ascending,
    test_e6_a_row_that_cannot_be_filled_makes_the_plan_full,
    test_e6_exhausted_tail_with_selections_of_different_sizes_says_what_stays_short,
    test_e9_bad_lists_are_refused,
    test_e9_largest_id_is_over_want_tail_and_held,
    test_e9_padding_reaches_the_largest_id_of_the_tail,
    test_every_row_empty,
    test_f1_all_held_is_a_plan_without_uploads,
    test_the_lists_handed_in_are_left_alone,
)

from kvsweep.kernels import Csr
from kvsweep.kernels.cuda.kernels import CudaKernels


@pytest.fixture(autouse=True)
def planner(monkeypatch: pytest.MonkeyPatch, cuda: CudaKernels) -> None:
    """The imported tests plan with the kernel."""
    monkeypatch.setattr(test_diff, "plan_diff", cuda.plan_diff)


@pytest.mark.parametrize("shared", [False, True])
def test_e3_to_e6_random_rows_plan_as_the_reference(cuda: CudaKernels, shared: bool) -> None:
    """More rows than thread blocks, tails and words of more than one tile of threads, short tails among them."""
    kinds = set()
    for seed, tail in enumerate((300, 40, 4)):
        rng = np.random.default_rng([20260916, seed])
        case = random_diff(rng, rows=10, sequence=9000, want=40, tail=tail, held=60)
        expected = plain_plan(plan(None, case, shared=shared))
        assert plain_plan(plan(cuda, case, shared=shared)) == expected, f"seed {seed}"
        kinds.add(expected["kind"])
    assert kinds == ({"diff", "full"} if shared else {"diff"})


def test_e9_one_row_of_extreme_ids(cuda: CudaKernels) -> None:
    """The first and the last bit of a word, and an id far above the others."""
    ids = [0, 31, 32, 63, 64, 1 << 20]
    found = cuda.plan_diff(
        Csr.of([ids]), Csr.of([[]]), Csr.of([[31, -1]]), sequence_blocks=(1 << 20) + 1, shared_table=False
    )
    assert found.upload.lists() == [[0, 32, 63, 64, 1 << 20]]
    assert found.largest_id == 1 << 20
