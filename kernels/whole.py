"""Whole blocks: a list of token positions that is exactly a list of blocks."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kvsweep.kernels.checks import check_integer
from kvsweep.kernels.csr import Int32
from kvsweep.kernels.errors import KernelArgumentError

_LARGEST_BLOCK = int(np.iinfo(np.int32).max)


def validate_whole_blocks(token_ids: Sequence[int] | npt.NDArray[np.integer], block_size: int) -> Int32:
    """The blocks that these token positions are, in the order given.

    token_ids   token positions, int32[n], int64[n] or a list of ints: whole blocks one after another, each from its
                first token to its last
    block_size  tokens in a block, at least 1
    Returns int32[n / block_size], new. Raises KernelArgumentError for a block size below 1, a count that is no
    multiple of it, a block that starts below 0 or not at a multiple of it, tokens that do not follow each other,
    a block named twice, or a block beyond int32.
    """
    size = check_integer("block_size", block_size, least=1)
    # An empty list has no type of its own.
    tokens = np.asarray(token_ids) if len(token_ids) else np.empty(0, dtype=np.int64)
    if tokens.ndim != 1 or tokens.dtype not in (np.int32, np.int64):
        raise KernelArgumentError(
            "token_ids", "integers with one axis (int32 or int64)", f"dtype {tokens.dtype}, shape {tokens.shape}"
        )
    if tokens.size % size:
        raise KernelArgumentError("token_ids", f"a multiple of {size} tokens", f"{tokens.size} tokens")
    rows = tokens.astype(np.int64).reshape(-1, size)
    starts = rows[:, 0]
    _refuse(starts < 0, starts, "blocks that start at 0 or above")
    _refuse(starts % size != 0, starts, f"blocks that start at a multiple of {size}")
    blocks = starts // size
    # Before the next line, so that start + offset cannot wrap.
    _refuse(blocks > _LARGEST_BLOCK, starts, f"blocks up to {_LARGEST_BLOCK}")
    _refuse((rows != starts[:, None] + np.arange(size)).any(axis=1), starts, f"{size} consecutive tokens a block")
    first = np.zeros(blocks.size, dtype=np.bool_)
    first[np.unique(blocks, return_index=True)[1]] = True
    _refuse(~first, starts, "each block once")
    return blocks.astype(np.int32)


def _refuse(bad: npt.NDArray[np.bool_], starts: npt.NDArray[np.int64], expected: str) -> None:
    places = np.flatnonzero(bad)
    if places.size:
        at = int(places[0])
        raise KernelArgumentError("token_ids", expected, f"token {starts[at]} at the start of block {at} of the list")
