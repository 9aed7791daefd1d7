"""How a new view is built: shared table, layer tables, byte move, pack; and what each of them may not do."""

import numpy as np
import pytest
from msgspec.structs import replace
from tests.ledger.relation import change
from tests.runtime.rig import Ids, make_layout, rows

from kvsweep.ledger.areas import Areas
from kvsweep.ledger.draft import Groups
from kvsweep.ledger.errors import LayoutError, PoolExhausted
from kvsweep.ledger.ids import Physical, RequestKey, Rows
from kvsweep.ledger.layout import Layout
from kvsweep.ledger.ownership import NOTHING_OWNED, Holder, Holding
from kvsweep.runtime.core.retain_plan import RetainPlan, plan_pack, plan_retain, union_keep

LAYOUT = make_layout(2)
WIDE = make_layout(3)
A = RequestKey("a", 1)


def table_of(ids: Ids) -> Rows[Physical]:
    return rows(ids)


def owning(view: Ids, *others: Ids, layout: Layout = LAYOUT) -> Groups:
    """The request's own blocks: it holds the view, and other holders what stands behind it."""
    parts = [view, *others]
    blocks = sorted({block for part in parts for row in part.values() for block in row})
    relation = change(
        NOTHING_OWNED,
        A,
        layout,
        put={Holder("view", number + 1): Holding(areas=Rows.of(dict(part))) for number, part in enumerate(parts)},
        reserve=(np.asarray(blocks, dtype="<i4").tobytes(),),
    )
    return relation.areas[A]


def plan(view: Ids, keep: Ids, *others: Ids, layer_tables: bool, layout: Layout = LAYOUT) -> RetainPlan:
    kept = table_of({layer: [view[layer][slot] for slot in slots] for layer, slots in keep.items()})
    own = owning(view, *others, layout=layout)
    return plan_retain(kept, rows(keep), own, layout, layer_tables=layer_tables)


SAME: Ids = {0: [4, 5, 6], 1: [4, 5, 6]}


@pytest.mark.parametrize("layer_tables", [True, False])
def test_b1_b2_equal_ordered_keeps_of_equal_rows_share_one_table_and_move_nothing(layer_tables: bool) -> None:
    """The actual slots 0 and 2, not the first two."""
    found = plan(SAME, {0: [0, 2], 1: [0, 2]}, layer_tables=layer_tables)
    assert (found.mode, found.attention, found.moved_from.size) == ("shared", "same", 0)
    assert found.keep.as_lists() == {0: [0, 2], 1: [0, 2]}
    assert found.new_blocks == (0,)


def test_b1_layer_0_keeps_0_2_and_layer_1_keeps_1_2_is_not_shareable() -> None:
    keep: Ids = {0: [0, 2], 1: [1, 2]}
    assert plan(SAME, keep, layer_tables=True).mode == "layer"
    assert plan(SAME, keep, layer_tables=False).mode == "move"


def test_b1_equal_keep_lists_over_different_physical_rows_are_not_shareable() -> None:
    """After a remap by layer, slot 0 of two layers is not the same block."""
    apart: Ids = {0: [4, 6, 7], 1: [5, 6, 7]}
    assert plan(apart, {0: [0, 1], 1: [0, 1]}, layer_tables=True).mode == "layer"
    assert plan(apart, {0: [0, 1], 1: [0, 1]}, layer_tables=False).mode == "move"
    assert plan(apart, {0: [1, 2], 1: [1, 2]}, layer_tables=False).mode == "shared", "the kept slots are the same"


def test_b1_the_order_of_the_slots_counts() -> None:
    crossed: Ids = {0: [4, 5], 1: [5, 4]}
    assert plan(crossed, {0: [0, 1], 1: [0, 1]}, layer_tables=True).mode == "layer"


def test_b1_every_group_must_be_shareable() -> None:
    layers = tuple(replace(layer, group=layer.layer // 2) for layer in make_layout(4).layers)
    layout = replace(LAYOUT, layers=layers)
    nothing = (Areas(), Areas())
    keep = rows({0: [0], 1: [0], 2: [0], 3: [0]})
    alike = table_of({0: [1], 1: [1], 2: [2], 3: [2]})
    assert plan_retain(alike, keep, nothing, layout, layer_tables=True).mode == "shared"
    apart = table_of({0: [1], 1: [1], 2: [2], 3: [3]})
    assert plan_retain(apart, keep, nothing, layout, layer_tables=True).mode == "layer"


def test_b3_a_move_keeps_aligned_slots_by_reference_and_copies_the_others_into_new_blocks() -> None:
    """Slot 0 is block 4 in both layers; slot 1 is 5 and 6: neither has the other layer's area vacant."""
    found = plan(SAME, {0: [0, 1], 1: [0, 2]}, layer_tables=False)
    assert found.mode == "move"
    assert found.moved_from.as_lists() == {0: [5], 1: [6]}
    assert found.moved_to.as_lists() == {0: [-1], 1: [-1]}
    assert found.new_blocks == (1,)
    new = (np.asarray([9], dtype=np.int32),)
    assert found.targets(new, LAYOUT).as_lists() == {0: [9], 1: [9]}


def test_b3_a_slot_stays_in_the_block_of_most_of_its_layers_where_that_is_vacant_in_the_others() -> None:
    view: Ids = {0: [1], 1: [1], 2: [2]}
    found = plan(view, {0: [0], 1: [0], 2: [0]}, layer_tables=False, layout=WIDE)
    assert found.moved_from.as_lists() == {0: [], 1: [], 2: [2]}
    assert found.moved_to.as_lists() == {0: [], 1: [], 2: [1]}
    assert found.new_blocks == (0,)


def test_b3_a_slot_moves_to_an_owned_block_that_is_vacant_in_all_its_layers_before_a_new_one() -> None:
    """Block 3 is owned for layer 2's sake only; layers 0 and 1 have room in it."""
    layout = make_layout(3)
    kept = table_of({0: [4], 1: [5]})
    own = owning({0: [4, 5], 1: [4, 5], 2: [3]}, layout=layout)
    found = plan_retain(kept, rows({0: [0], 1: [0], 2: []}), own, layout, layer_tables=False)
    assert found.moved_to.as_lists() == {0: [3], 1: [3], 2: []}
    assert found.new_blocks == (0,)
    # Block 3 serves one slot; the next one gets a new block.
    kept = table_of({0: [4, 6], 1: [5, 7]})
    own = owning({0: [4, 5, 6, 7], 1: [4, 5, 6, 7], 2: [3]}, layout=layout)
    found = plan_retain(kept, rows({0: [0, 2], 1: [1, 3], 2: []}), own, layout, layer_tables=False)
    assert found.moved_to.as_lists() == {0: [3, -1], 1: [3, -1], 2: []}


def test_b3_a_move_never_writes_an_area_that_a_draining_view_holds() -> None:
    """The slot would stay in block 1 where two of its layers are, but layer 2's area of it is still read."""
    view: Ids = {0: [1, 7], 1: [1, 8], 2: [2, 7]}
    keep: Ids = {0: [0], 1: [0], 2: [0]}
    found = plan(view, keep, layer_tables=False, layout=WIDE)
    assert found.moved_to.as_lists() == {0: [], 1: [], 2: [1]}
    found = plan(view, keep, {2: [1]}, layer_tables=False, layout=WIDE)
    assert found.moved_from.as_lists() == {0: [1], 1: [1], 2: []}
    assert found.moved_to.as_lists() == {0: [2], 1: [2], 2: []}
    found = plan(view, keep, {0: [2], 2: [1]}, layer_tables=False, layout=WIDE)
    assert found.moved_to.as_lists() == {0: [-1], 1: [-1], 2: [-1]}


def test_b3_two_slots_never_take_the_same_area() -> None:
    view: Ids = {0: [1, 2, 3, 4], 1: [2, 1, 4, 3]}
    found = plan(view, {0: [0, 1, 2, 3], 1: [0, 1, 2, 3]}, layer_tables=False)
    for targets in found.moved_to.as_lists().values():
        assert len(set(targets)) == len(targets)
    assert found.new_blocks == (4,), "every area of the four blocks is held"


def test_b5_a_union_keeps_what_any_layer_keeps() -> None:
    assert union_keep(rows({0: [0, 2], 1: [1, 2]}), {0: 3, 1: 3}).as_lists() == {0: [0, 1, 2], 1: [0, 1, 2]}
    with pytest.raises(LayoutError, match=r"keep\[1\]: expected slots that every layer has, below 2, got 2"):
        union_keep(rows({0: [2], 1: [0]}), {0: 3, 1: 2})


def test_b6_pack_gathers_the_view_in_as_many_blocks_as_its_fullest_layer_has() -> None:
    """Blocks 1 (three areas) and 2 (two) stay; 3 and 4 are emptied into their vacant areas."""
    view: Ids = {0: [1, 3], 1: [1, 2], 2: [1, 4]}
    found = plan_pack(table_of(view), owning(view, layout=WIDE), WIDE)
    assert (found.mode, found.new_blocks) == ("pack", (0,))
    assert found.keep.as_lists() == {0: [0, 1], 1: [0, 1], 2: [0, 1]}
    assert found.moved_from.as_lists() == {0: [3], 1: [], 2: [4]}
    assert found.moved_to.as_lists() == {0: [2], 1: [], 2: [2]}


@pytest.mark.parametrize("seed", range(20260916, 20260926))
def test_b6_pack_always_fits_when_nothing_drains(seed: int) -> None:
    rng = np.random.Generator(np.random.PCG64(seed))
    layout = make_layout(4)
    view = {layer: rng.permutation(12)[: rng.integers(7)].tolist() for layer in range(4)}
    found = plan_pack(table_of(view), owning(view, layout=layout), layout)
    after = {}
    for layer, row in view.items():
        swap = dict(zip(found.moved_from.row(layer).tolist(), found.moved_to.row(layer).tolist(), strict=True))
        assert not set(swap.values()) & set(row), f"seed {seed}: in place"
        after[layer] = [swap.get(block, block) for block in row]
        assert len(set(after[layer])) == len(row), f"seed {seed}"
    blocks = {block for row in after.values() for block in row}
    assert len(blocks) == max(len(row) for row in view.values()), f"seed {seed}"


def test_b6_pack_says_no_where_a_draining_view_holds_the_room() -> None:
    view: Ids = {0: [1], 1: [2]}
    plan_pack(table_of(view), owning(view), LAYOUT)
    with pytest.raises(PoolExhausted, match="vacant areas of layer 1: wanted 1 blocks, 0 are free"):
        plan_pack(table_of(view), owning(view, {1: [1]}), LAYOUT)
