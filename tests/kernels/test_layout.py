"""Block shapes: sizes and the checks of each packing."""

from typing import Any

import pytest

from kvsweep.kernels import BlockShape, KernelArgumentError, Packing


def test_sizes_count_k_and_v_of_every_head() -> None:
    shape = BlockShape(kv_heads=3, block_size=32, head_dim=64, dtype="bfloat16")
    assert shape.element_bytes == 2
    assert shape.tile_elements == 32 * 64
    assert shape.token_bytes == 2 * 3 * 64 * 2
    assert shape.block_bytes == 24 * 1024
    assert shape.natural_axes == (2, 3, 32, 64)
    assert BlockShape(kv_heads=3, block_size=32, head_dim=64, dtype="float32").block_bytes == 48 * 1024


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv_heads": 0}, "kv_heads: expected an integer of at least 1, got 0"),
        ({"block_size": -16}, "block_size: expected an integer of at least 1, got -16"),
        ({"head_dim": 2.5}, "head_dim: expected an integer of at least 1, got 2.5"),
        ({"block_size": True}, "block_size: expected an integer of at least 1, got True"),
        ({"dtype": "float16"}, 'dtype: expected "float32" or "bfloat16", got \'float16\''),
    ],
)
def test_bad_shape_is_refused(change: dict[str, Any], message: str) -> None:
    fields: dict[str, Any] = {"kv_heads": 2, "block_size": 32, "head_dim": 64, "dtype": "float32"}
    with pytest.raises(KernelArgumentError) as caught:
        BlockShape(**(fields | change))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (BlockShape(2, 32, 64, "float32"), "dtype: expected \"bfloat16\" for VNNI packing, got 'float32'"),
        (BlockShape(2, 16, 64, "bfloat16"), "block_size: expected a multiple of 32 for VNNI packing, got 16"),
        (BlockShape(2, 32, 80, "bfloat16"), "head_dim: expected a multiple of 32 for VNNI packing, got 80"),
    ],
)
def test_vnni_refuses_what_does_not_fill_tiles(shape: BlockShape, message: str) -> None:
    with pytest.raises(KernelArgumentError) as caught:
        shape.check_packing(Packing.VNNI)
    assert str(caught.value) == message
    shape.check_packing(Packing.NATURAL)
