"""The layout both sides agree on (D4): every field is checked, and the hash names every field."""

import re
from typing import Any

import pytest
from msgspec.structs import fields, replace

from kvsweep.ledger.errors import LayoutError
from kvsweep.ledger.layout import LayerLayout, Layout

FULL = LayerLayout(layer=0, group=0, kind="full", kv_heads=2, head_dim=8)
SLIDING = LayerLayout(layer=1, group=1, kind="sliding", kv_heads=1, head_dim=4, window_tokens=32)
LAST = replace(FULL, layer=2)
GOOD = Layout.of(model_hash="m", dtype="float32", block_size=16, layers=(FULL, SLIDING, LAST))


def test_d7_only_full_attention_layers_are_active() -> None:
    assert GOOD.active_layers == (0, 2)
    assert GOOD.groups == 2
    assert [GOOD.group_layers(group) for group in (0, 1)] == [(0, 2), (1,)]
    assert [GOOD.group_kind(group) for group in (0, 1)] == ["full", "sliding"]
    assert [GOOD.window_tokens(group) for group in (0, 1)] == [0, 32]


def test_a2_block_bytes_are_k_and_v_of_every_head() -> None:
    assert GOOD.block_bytes(0) == 2 * 2 * 16 * 8 * 4
    assert replace(GOOD, dtype="bfloat16").block_bytes(1) == 2 * 1 * 16 * 4 * 2


def layers(*changes: tuple[int, dict[str, Any]]) -> dict[str, Any]:
    made = list(GOOD.layers)
    for at, change in changes:
        made[at] = replace(made[at], **change)
    return {"layers": tuple(made)}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"dtype": "float16"}, "dtype: expected one of ['bfloat16', 'float32'], got 'float16'"),
        ({"block_size": 0}, "block_size: expected at least 1 token, got 0"),
        ({"block_size": -16}, "block_size: expected at least 1 token, got -16"),
        ({"packing": "amx"}, "packing: expected natural or vnni, got 'amx'"),
        ({"layers": ()}, "layers: expected at least one layer, got none"),
        (layers((1, {"layer": 2})), "layers[1].layer: expected 1 (in order, none left out), got 2"),
        (layers((2, {"kv_heads": 0})), "layers[2]: expected kv_heads and head_dim of at least 1, got 0, 8"),
        (layers((2, {"head_dim": -1})), "layers[2]: expected kv_heads and head_dim of at least 1, got 2, -1"),
        (layers((1, {"kind": "chunked"})), "layers[1].kind: expected full or sliding, got 'chunked'"),
        (layers((1, {"group": -1})), "layers[1].group: expected a group from 0, got -1"),
        (layers((1, {"group": 2})), "layers: expected groups numbered 0 to 2 without a gap, got no group 1"),
        (layers((2, {"kv_heads": 4})), "group 0: expected layers of one kind, window and block shape, got several"),
        (layers((1, {"group": 0})), "group 0: expected layers of one kind, window and block shape, got several"),
        ({"layers": (replace(SLIDING, layer=0, group=0),)},
         "layers: expected at least one full-attention layer, got none"),
    ],
)  # fmt: skip
def test_d4_a_layout_that_cannot_be_meant_is_refused_naming_the_field(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(LayoutError, match=f"^{re.escape(sentence)}$"):
        replace(GOOD, **change).check()


@pytest.mark.parametrize(("kind", "window"), [("full", 32), ("full", -1), ("sliding", 0), ("sliding", -4)])
def test_a_window_belongs_to_a_sliding_layer(kind: str, window: int) -> None:
    change = layers((1, {"kind": kind, "window_tokens": window}))
    with pytest.raises(LayoutError, match=rf"^layers\[1\].window_tokens: .* got {window} for {kind}$"):
        replace(GOOD, **change).check()


@pytest.mark.parametrize("change", [{"dtype": "float32"}, {"block_size": 16}, {"head_dim": 48}])
def test_vnni_packing_needs_whole_tiles(change: dict[str, Any]) -> None:
    layer = replace(FULL, head_dim=change.get("head_dim", 64))
    tiled = {"dtype": "bfloat16", "block_size": 32, "packing": "vnni", **change}
    tiled.pop("head_dim", None)
    with pytest.raises(LayoutError, match="packing: expected bfloat16, block_size"):
        Layout.of(model_hash="m", layers=(layer,), **tiled)
    Layout.of(model_hash="m", dtype="bfloat16", block_size=32, layers=(replace(FULL, head_dim=64),), packing="vnni")


def test_d4_the_layout_hash_tells_any_two_layouts_apart() -> None:
    vnni = {"dtype": "bfloat16", "block_size": 32, "packing": "vnni"}
    other: dict[str, Any] = {
        "model_hash": "n", "dtype": "bfloat16", "block_size": 32, "packing": "vnni", "layers": (FULL,)
    }  # fmt: skip
    assert set(other) == {field.name for field in fields(GOOD)}
    made = [GOOD, *(replace(GOOD, **{name: value}) for name, value in other.items()), replace(GOOD, **vnni)]
    for name, value in (("group", 2), ("kind", "full"), ("kv_heads", 3), ("head_dim", 5), ("window_tokens", 33)):
        made.append(replace(GOOD, **layers((1, {name: value}))))
    assert len({layout.layout_hash for layout in made}) == len(made)
    assert GOOD.layout_hash == replace(GOOD).layout_hash
