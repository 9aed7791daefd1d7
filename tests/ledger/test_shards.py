"""KV heads over tensor-parallel ranks: as even as possible, every head on exactly one rank, one part a rank or none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kvsweep.ledger.errors import LayoutError
from kvsweep.ledger.layout import LayerLayout, Layout


def layout(*heads: int) -> Layout:
    layers = tuple(
        LayerLayout(layer=n, group=n, kind="full", kv_heads=count, head_dim=4) for n, count in enumerate(heads)
    )
    return Layout.of(model_hash="m", dtype="float32", block_size=4, layers=layers)


def split(ranks: int, *heads: int) -> list[list[tuple[int, int]]]:
    """[start, stop) of each rank, a list a layer."""
    one = layout(*heads)
    return [[one.heads_of_rank(layer, rank, ranks) for rank in range(ranks)] for layer in range(len(heads))]


def test_three_heads_over_one_two_and_three_ranks() -> None:
    assert split(1, 3) == [[(0, 3)]]
    assert split(2, 3) == [[(0, 2), (2, 3)]]
    assert split(3, 3) == [[(0, 1), (1, 2), (2, 3)]]


def test_layers_of_different_width_are_split_each_for_itself() -> None:
    assert split(2, 2, 5) == [[(0, 1), (1, 2)], [(0, 3), (3, 5)]]


@given(st.integers(1, 40), st.data())
def test_every_head_is_on_exactly_one_rank_and_ranks_differ_by_one_at_most(heads: int, data: st.DataObject) -> None:
    ranks = data.draw(st.integers(1, heads))
    parts = split(ranks, heads)[0]
    assert [head for start, stop in parts for head in range(start, stop)] == list(range(heads))
    sizes = [stop - start for start, stop in parts]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_d4_a_shard_is_the_same_layout_with_its_heads() -> None:
    whole = layout(3, 5)
    parts = [whole.shard(rank, 2) for rank in range(2)]
    assert [[layer.kv_heads for layer in part.layers] for part in parts] == [[2, 3], [1, 2]]
    for part in parts:
        part.check()
        back = tuple(
            replace(layer, kv_heads=old.kv_heads) for layer, old in zip(part.layers, whole.layers, strict=True)
        )
        assert replace(part, layers=back) == whole
        assert part.layout_hash != whole.layout_hash
    for layer in (0, 1):
        assert sum(part.block_bytes(layer) for part in parts) == whole.block_bytes(layer)
    assert whole.shard(0, 1) == whole
    assert whole.shard(0, 1).layout_hash == whole.layout_hash


@pytest.mark.parametrize(("rank", "ranks"), [(0, 4), (3, 4), (2, 2), (-1, 2), (0, 0), (0, -1), (1, 1)])
def test_a_rank_without_a_head_in_some_layer_is_refused(rank: int, ranks: int) -> None:
    with pytest.raises(LayoutError) as refused:
        layout(3, 5).shard(rank, ranks)
    assert str(refused.value) == f"ranks: expected 1 to 3, a KV head for each, got rank {rank} of {ranks}"
