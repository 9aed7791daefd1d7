"""The token method's kernel: chosen tokens, one after another in whole blocks."""

from typing import Any

import numpy as np
import pytest

from kvsweep.kernels import BlockShape, Packing, pack_tokens, pack_vnni

SHAPE = BlockShape(2, 4, 3, "float32")


def i32(*values: int) -> Any:
    return np.array(values, dtype=np.int32)


@pytest.mark.parametrize("seed", [1, 2])
def test_token_by_token_written_out(seed: int) -> None:
    """Against four loops over elements, which share nothing with the kernel."""
    pool = np.random.default_rng(seed).standard_normal((3, 9, 2, 2, 4, 3)).astype(np.float32)
    before = pool.copy()
    tokens = [i32(3, 17, 4, 5, 0), i32(), i32(22, 21, 20, 23)]
    pack_tokens(
        pool.view(np.uint8).reshape(3, 9, SHAPE.block_bytes),
        i32(0, 1, 2),
        i32(0, 5, 5, 9),
        np.concatenate(tokens),
        i32(8, 2, 1),
        SHAPE,
        Packing.NATURAL,
    )
    expected = before.copy()
    for layer, blocks in ((0, [8, 2]), (2, [1])):
        expected[layer, blocks] = 0
        for at, token in enumerate(tokens[layer].tolist()):
            for part in range(2):
                for head in range(2):
                    for d in range(3):
                        expected[layer, blocks[at // 4], part, head, at % 4, d] = before[
                            layer, token // 4, part, head, token % 4, d
                        ]
    assert (pool == expected).all()


@pytest.mark.parametrize("seed", [1, 2])
def test_packed_blocks_stay_packed(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = BlockShape(2, 32, 64, "bfloat16")
    natural = rng.integers(0, 256, (1, 6, shape.block_bytes), dtype=np.uint8)
    packed = np.empty_like(natural)
    pack_vnni(natural[0], shape, packed[0])
    tokens = rng.permutation(4 * 32)[:45].astype(np.int32)
    rows = i32(0), i32(0, 45), tokens, i32(5, 4), shape
    pack_tokens(packed, *rows, Packing.VNNI)
    pack_tokens(natural, *rows, Packing.NATURAL)
    expected = np.empty_like(natural[0])
    pack_vnni(natural[0], shape, expected)
    assert (packed[0] == expected).all()


@pytest.mark.parametrize(
    ("tokens", "destination", "message"),
    [
        (i32(36), i32(8), r"tokens: expected ids in \[0, 36\), got 36 in row 0"),
        (i32(-1), i32(8), r"tokens: expected ids in \[0, 36\), got -1 in row 0"),
        (i32(3, 3), i32(8), "tokens: expected each id once in a row, got 3 twice in row 0"),
        (i32(0, 1, 2, 3, 4), i32(8), r"destination: expected shape \(2,\), got shape \(1,\)"),
        (i32(0, 1, 2, 3, 4), i32(8, 8), "destination: expected each id once in a row, got 8 twice in row 0"),
        (i32(0), i32(9), r"destination: expected ids in \[0, 9\), got 9 in row 0"),
        (i32(9, 17), i32(4), "destination: expected blocks that no token is read from, got 4 in row 0"),
    ],
)
def test_refusals_name_the_argument_and_write_nothing(tokens: Any, destination: Any, message: str) -> None:
    pool = np.full((1, 9, SHAPE.block_bytes), 7, dtype=np.uint8)
    with pytest.raises(ValueError, match=message):
        pack_tokens(pool, i32(0), i32(0, tokens.size), tokens, destination, SHAPE, Packing.NATURAL)
    assert (pool == 7).all()
