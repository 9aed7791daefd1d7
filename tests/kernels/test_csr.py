"""Ragged rows: D7, no empty row stands in for anything and no row is padded."""

import numpy as np
import pytest

from kvsweep.kernels import Csr


def test_d7_rows_keep_their_own_lengths() -> None:
    rows = Csr.of([[4, 1], [], np.array([7], dtype=np.int32)])
    assert rows.row_ptr.tolist() == [0, 2, 2, 3]
    assert rows.ids.tolist() == [4, 1, 7]
    assert rows.row_ptr.dtype == np.int32
    assert rows.ids.dtype == np.int32
    assert rows.rows == 3
    assert rows.counts.tolist() == [2, 0, 1]
    assert rows.lists() == [[4, 1], [], [7]]


def test_no_rows() -> None:
    rows = Csr.of([])
    assert (rows.rows, rows.row_ptr.tolist(), rows.ids.size) == (0, [0], 0)


@pytest.mark.parametrize("index", [-1, 2])
def test_row_outside_is_an_index_error(index: int) -> None:
    with pytest.raises(IndexError, match=f"row {index} of 2 rows"):
        Csr.of([[1], [2]]).row(index)


def test_of_refuses_an_id_beyond_int32() -> None:
    with pytest.raises(OverflowError):
        Csr.of([[2**31]])
