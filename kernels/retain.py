"""What retention asks of tables: which rows are equal, and which blocks nobody reads any more."""

import numpy as np

from kvsweep.kernels.checks import check_array, check_integer, check_row_ptr
from kvsweep.kernels.csr import Csr, Int32
from kvsweep.kernels.errors import KernelArgumentError


def row_classes(rows: Csr) -> Int32:
    """Which rows are equal: for each row, the index of the first row with the same ids in the same order.

    rows  ragged ids, any int32
    Returns int32[rows], new. One table serves all rows exactly where the result is 0 everywhere.
    Raises KernelArgumentError for arrays that are not ragged rows.
    """
    check_row_ptr("row_ptr", rows.row_ptr, "ids", rows.ids)
    first: dict[bytes, int] = {}
    return np.array([first.setdefault(rows.row(row).tobytes(), row) for row in range(rows.rows)], dtype=np.int32)


def retired_blocks(owned: Int32, referenced: Int32, *, blocks: int) -> Int32:
    """The owned blocks that nothing refers to after a commit: a set difference, whatever the order of the inputs.

    owned       int32[n], blocks in [0, blocks); a block may be named more than once
    referenced  int32[m], blocks in [0, blocks); owned or not, more than once or not
    blocks      size of the pool
    Returns int32[r], ascending, each once, new. Raises KernelArgumentError for an array of another kind or a block
    outside the pool.
    """
    limit = check_integer("blocks", blocks, least=0)
    for argument, ids in (("owned", owned), ("referenced", referenced)):
        check_array(argument, ids, np.int32, 1)
        outside = np.flatnonzero((ids < 0) | (ids >= limit))
        if outside.size:
            at = int(outside[0])
            raise KernelArgumentError(argument, f"blocks in [0, {limit})", f"{ids[at]} at index {at}")
    return np.setdiff1d(owned, referenced).astype(np.int32)
