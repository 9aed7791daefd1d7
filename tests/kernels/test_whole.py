"""E8: token positions that are exactly whole blocks."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsweep.kernels import KernelArgumentError, validate_whole_blocks


def tokens_of(blocks: list[int], size: int) -> list[int]:
    return [block * size + offset for block in blocks for offset in range(size)]


@pytest.mark.parametrize("size", [1, 2, 32, 64])
def test_e8_returns_the_blocks_in_the_order_given(size: int) -> None:
    blocks = [5, 0, 127, 6]
    for dtype in (np.int32, np.int64):
        result = validate_whole_blocks(np.array(tokens_of(blocks, size), dtype=dtype), size)
        assert result.tolist() == blocks
        assert result.dtype == np.int32
    assert validate_whole_blocks(tokens_of(blocks, size), size).tolist() == blocks


def test_e8_no_tokens_are_no_blocks() -> None:
    assert validate_whole_blocks([], 16).tolist() == []
    assert validate_whole_blocks(np.zeros(0, dtype=np.int32), 16).tolist() == []


@pytest.mark.parametrize("size", [2, 32, 64])
def test_e8_a_partial_sequence_is_refused_and_a_whole_one_is_not(size: int) -> None:
    for count in (size - 1, size + 1):
        with pytest.raises(KernelArgumentError) as caught:
            validate_whole_blocks(np.arange(count), size)
        assert str(caught.value) == f"token_ids: expected a multiple of {size} tokens, got {count} tokens"
    assert validate_whole_blocks(np.arange(size), size).tolist() == [0]


@pytest.mark.parametrize(
    ("tokens", "size", "message"),
    [
        ([0], 0, "block_size: expected an integer of at least 1, got 0"),
        ([0], -4, "block_size: expected an integer of at least 1, got -4"),
        (
            [0, 1, -2, -1],
            2,
            "token_ids: expected blocks that start at 0 or above, got token -2 at the start of block 1 of the list",
        ),
        (
            [1, 2],
            2,
            "token_ids: expected blocks that start at a multiple of 2, got token 1 at the start of block 0 of the list",
        ),
        (
            [4, 5, 0, 2],
            2,
            "token_ids: expected 2 consecutive tokens a block, got token 0 at the start of block 1 of the list",
        ),
        ([4, 5, 4, 5], 2, "token_ids: expected each block once, got token 4 at the start of block 1 of the list"),
        (
            [2**32, 2**32 + 1],
            2,
            "token_ids: expected blocks up to 2147483647, got token 4294967296 at the start of block 0 of the list",
        ),
        (
            [0.0, 1.0],
            2,
            "token_ids: expected integers with one axis (int32 or int64), got dtype float64, shape (2,)",
        ),
        (
            np.zeros((1, 2), dtype=np.int64),
            2,
            "token_ids: expected integers with one axis (int32 or int64), got dtype int64, shape (1, 2)",
        ),
    ],
)
def test_e8_what_is_not_whole_blocks_is_refused(
    tokens: list[int] | npt.NDArray[np.int64], size: int, message: str
) -> None:
    with pytest.raises(KernelArgumentError) as caught:
        validate_whole_blocks(tokens, size)
    assert str(caught.value) == message


@given(st.lists(st.integers(-3, 12), max_size=8), st.integers(1, 4))
def test_e8_accepts_exactly_what_expanding_blocks_gives(tokens: list[int], size: int) -> None:
    guess = [token // size for token in tokens[::size]]
    legal = tokens == tokens_of(guess, size) and len(set(guess)) == len(guess) and min(guess, default=0) >= 0
    if legal:
        assert validate_whole_blocks(tokens, size).tolist() == guess
    else:
        with pytest.raises(KernelArgumentError):
            validate_whole_blocks(tokens, size)
