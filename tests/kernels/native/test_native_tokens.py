"""Native token packing equals the reference byte for byte, refusals included."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvsweep.kernels import BlockShape, Packing

Same = Callable[..., Any]
NATURAL = [(1, 1, 1, "float32"), (2, 4, 3, "float32"), (3, 16, 64, "bfloat16"), (1, 64, 8, "float32")]
PACKED = [(1, 32, 32, "bfloat16"), (2, 32, 64, "bfloat16"), (1, 64, 96, "bfloat16")]


@pytest.mark.parametrize("counts", [[], [0], [1], [5, 0, 33], [64, 63, 65]])
@pytest.mark.parametrize("sizes", [*NATURAL, *PACKED])
@pytest.mark.parametrize("packing", list(Packing))
def test_rows_of_any_size(same: Same, rng: np.random.Generator, sizes: Any, packing: Packing, counts: Any) -> None:
    shape = BlockShape(*sizes)
    if packing is Packing.VNNI and sizes not in PACKED:
        pytest.skip("not a packed shape")
    read = -(-max(counts, default=0) // shape.block_size) + 2
    pool = rng.integers(0, 256, (4, 2 * read, shape.block_bytes), dtype=np.uint8)
    tokens, destination = [], []
    for count in counts:
        blocks = rng.permutation(2 * read)
        places = (blocks[:read, None] * shape.block_size + np.arange(shape.block_size)).reshape(-1)
        tokens.append(rng.permutation(places)[:count])
        destination.append(blocks[read:][: -(-count // shape.block_size)])
    layers = np.sort(rng.permutation(4)[: len(counts)]).astype(np.int32)
    row_ptr = np.cumsum([0, *counts]).astype(np.int32)
    chosen, to = (np.concatenate([np.empty(0), *each]).astype(np.int32) for each in (tokens, destination))
    assert same("pack_tokens", pool, layers, row_ptr, chosen, to, shape, packing) is None


@pytest.mark.parametrize(
    ("tokens", "destination"), [([36], [8]), ([-1], [8]), ([3, 3], [8]), ([0, 1, 2, 3, 4], [8]), ([9], [2]), ([0], [9])]
)
def test_refused_in_the_same_words(same: Same, tokens: list[int], destination: list[int]) -> None:
    pool = np.full((1, 9, 192), 7, dtype=np.uint8)
    lists = [np.array(each, dtype=np.int32) for each in ([0], [0, len(tokens)], tokens, destination)]
    kind, _ = same("pack_tokens", pool, *lists, BlockShape(2, 4, 3, "float32"), Packing.NATURAL)
    assert kind == "KernelArgumentError"


def test_a_shape_that_cannot_be_packed_is_refused_in_the_same_words(same: Same) -> None:
    none = np.empty(0, dtype=np.int32)
    start = np.zeros(1, dtype=np.int32)
    pool = np.zeros((1, 2, 192), dtype=np.uint8)
    kind, _ = same("pack_tokens", pool, none, start, none, none, BlockShape(2, 4, 3, "float32"), Packing.VNNI)
    assert kind == "KernelArgumentError"
