"""Ranking blocks by score: best first, and the lower id first where scores tie."""

import numpy as np
import numpy.typing as npt

from kvsweep.kernels.checks import check_array, check_integer
from kvsweep.kernels.csr import Int32
from kvsweep.kernels.errors import NonFiniteInput

Float32 = npt.NDArray[np.float32]


def rank_blocks(scores: Float32) -> Int32:
    """All ids of each row, ordered by (−score, id); −0.0 ties with +0.0.

    scores  float32[rows, n], C-contiguous, finite
    Returns int32[rows, n]. The first k of a row are its selection and the others its ranked tail.
    Raises NonFiniteInput naming row and column of the first NaN or infinity, KernelArgumentError for another array.
    """
    check_array("scores", scores, np.float32, 2)
    bad = np.argwhere(~np.isfinite(scores))
    if bad.size:
        row, column = (int(index) for index in bad[0])
        raise NonFiniteInput("scores", row, column, float(scores[row, column]))
    # Negation is exact and a stable sort leaves ties in id order; both zeros compare equal.
    return np.argsort(-scores, axis=1, kind="stable").astype(np.int32)


def select_top(scores: Float32, k: int) -> Int32:
    """The k best ids of each row, ordered by (−score, id).

    scores  float32[rows, n], C-contiguous, finite
    k       in [0, n]
    Returns int32[rows, k], C-contiguous. Raises as rank_blocks does, and KernelArgumentError for k outside [0, n].
    """
    check_array("scores", scores, np.float32, 2)
    count = check_integer("k", k, least=0, most=scores.shape[1])
    return np.ascontiguousarray(rank_blocks(scores)[:, :count])


def select_ascending(scores: Float32, k: int) -> Int32:
    """The same k ids of each row as select_top chooses, in ascending id order: the selection without its ranking.

    Arguments, result and errors as select_top.
    """
    return np.sort(select_top(scores, k), axis=1)
