"""What retention asks of tables, on the NumPy kernels: equal rows, and blocks that nobody reads any more."""

import numpy as np
import pytest

from kvsweep.kernels.csr import Csr, Int32
from kvsweep.kernels.errors import KernelArgumentError
from kvsweep.kernels.retain import retired_blocks, row_classes


def ids(*blocks: int) -> Int32:
    return np.asarray(blocks, dtype=np.int32)


@pytest.mark.parametrize(
    ("owned", "referenced", "retired"),
    [
        (ids(4, 1, 4, 9), ids(9), [1, 4]),  # named twice, retired once
        (ids(3, 2), ids(), [2, 3]),
        (ids(), ids(3), []),
        (ids(5), ids(5, 5, 7), []),
    ],
)
def test_b6_retired_is_owned_before_less_referenced_after_each_block_once(
    owned: Int32, referenced: Int32, retired: list[int]
) -> None:
    found = retired_blocks(owned, referenced, blocks=10)
    assert (found.tolist(), found.dtype) == (retired, np.int32)


def test_b6_a_block_outside_the_pool_is_refused() -> None:
    with pytest.raises(KernelArgumentError, match=r"owned: expected blocks in \[0, 4\), got 4 at index 1"):
        retired_blocks(ids(1, 4), ids(), blocks=4)


def test_b1_rows_are_equal_by_their_order_too() -> None:
    rows = Csr.of([ids(0, 2), ids(1, 2), ids(0, 2), ids(2, 0), ids()])
    assert row_classes(rows).tolist() == [0, 1, 0, 3, 4]
