"""What a selection has to upload: the shared-table stage, the ragged stage, and what may serve as padding."""

import numpy as np
import pytest
from tests.runtime.rig import CoreRig, Ids, make_layout, rows, selection

from kvsweep.ledger.errors import Refused
from kvsweep.ledger.ids import RequestKey, int32_bytes
from kvsweep.ledger.messages import BlockSelection, RegisterSources
from kvsweep.runtime.core.upload_plan import (
    BlockDiffPlan,
    adoptable,
    check_selection,
    clean_tail,
    keep_slots,
    plan_upload,
    sources_of,
)

NONE: Ids = {0: [], 1: []}


def resident(rig: CoreRig, held: Ids, *, blocks: int = 8) -> RequestKey:
    key = rig.open(blocks=blocks)
    if any(held.values()):
        rig.upload(key, held, whole=blocks)
    return key


def plan(
    rig: CoreRig, key: RequestKey, want: Ids, *, tail: Ids = NONE, whole: int = 8, shared_table: bool
) -> BlockDiffPlan:
    chosen = selection(rig.layout, key, 9, want, tail=tail, whole=whole)
    return plan_upload(rig.request(key), chosen, rig.layout, shared_table=shared_table)


def test_e3_the_ragged_stage_uploads_exactly_what_is_wanted_and_not_held(rig: CoreRig) -> None:
    """No padding, nothing truncated: each layer has its own count."""
    key = resident(rig, {0: [0, 1], 1: [2, 3]})
    found = plan(rig, key, {0: [1, 4, 7], 1: [2, 3]}, tail={0: [5], 1: [6]}, shared_table=False)
    assert (found.kind, found.common_new_slots, found.pad.size) == ("diff", 0, 0)
    assert found.upload.as_lists() == {0: [4, 7], 1: []}
    assert found.new_blocks_per_layer.tolist() == [2, 0]


def test_e3_the_shared_stage_fills_every_layer_up_to_the_largest_difference_from_its_tail(rig: CoreRig) -> None:
    key = resident(rig, {0: [0, 1], 1: [2, 3]})
    found = plan(rig, key, {0: [1, 4, 7], 1: [2, 6]}, tail={0: [5], 1: [7, 1]}, shared_table=True)
    assert (found.kind, found.common_new_slots) == ("diff", 2)
    assert found.upload.as_lists() == {0: [4, 7], 1: [6, 7]}
    assert found.pad.as_lists() == {0: [], 1: [7]}
    assert found.new_blocks_per_layer.tolist() == [2, 1]


def test_e4_the_upload_is_in_ascending_order_though_the_tail_is_in_score_order(rig: CoreRig) -> None:
    key = resident(rig, NONE)
    found = plan(rig, key, {0: [1, 2, 6], 1: [5]}, tail={0: [], 1: [7, 0, 3]}, shared_table=True)
    assert found.upload.as_lists() == {0: [1, 2, 6], 1: [0, 5, 7]}
    assert found.pad.as_lists() == {0: [], 1: [0, 7]}


def test_e5_padding_is_neither_wanted_nor_held_and_each_block_once(rig: CoreRig) -> None:
    key = resident(rig, {0: [0, 1], 1: [2, 3]})
    tail: Ids = {0: [], 1: [2, 3, 0, 1]}
    found = plan(rig, key, {0: [4, 5], 1: [6]}, tail=tail, shared_table=True)
    assert found.pad.as_lists() == {0: [], 1: [0]}, "2 and 3 come first by score, and are held"


def test_e5_padding_uses_only_kv_that_exists(rig: CoreRig) -> None:
    """Blocks 6 and 7 are not on the CPU: no candidates, whatever their score."""
    key = resident(rig, NONE, blocks=6)
    found = plan(rig, key, {0: [0, 1], 1: [2]}, tail={0: [], 1: [7, 6, 5]}, shared_table=True)
    assert found.pad.as_lists() == {0: [], 1: [5]}


def test_e6_a_layer_that_cannot_be_filled_makes_the_plan_full(rig: CoreRig) -> None:
    """Layer 1 wants nothing new and has no tail: the common count is not lowered, held is ignored."""
    key = resident(rig, {0: [0, 1], 1: [2, 3]})
    found = plan(rig, key, {0: [0, 4], 1: [2, 3]}, shared_table=True)
    assert found.kind == "full"
    assert found.upload.as_lists() == {0: [0, 4], 1: [2, 3]}
    assert found.common_new_slots == 2


def test_e9_the_largest_id_is_taken_over_want_tail_and_held() -> None:
    """want [2], tail [127, 4, 3], held [1]: the tail's last element, 3, is not its maximum."""
    rig = CoreRig(cpu=(300, 300), device_blocks=8)
    key = resident(rig, {0: [1], 1: [1]}, blocks=128)
    want: Ids = {0: [2], 1: [2, 3]}
    tail: Ids = {0: [127, 4, 3], 1: [127, 4]}
    found = plan(rig, key, want, tail=tail, whole=128, shared_table=True)
    assert found.upload.as_lists() == {0: [2, 127], 1: [2, 3]}
    assert found.pad.as_lists() == {0: [127], 1: []}


def test_e9_a_held_block_may_have_the_largest_id() -> None:
    rig = CoreRig(cpu=(300, 300), device_blocks=8)
    key = resident(rig, {0: [127], 1: [100]}, blocks=128)
    found = plan(rig, key, {0: [2], 1: [100]}, tail={0: [], 1: [5]}, whole=128, shared_table=True)
    assert found.upload.as_lists() == {0: [2], 1: [5]}


@pytest.mark.parametrize("seed", range(20260916, 20260924))
def test_e3_e5_any_shared_plan_gives_equal_counts_of_wanted_and_padding_blocks(seed: int) -> None:
    rng = np.random.Generator(np.random.PCG64(seed))
    rig = CoreRig(make_layout(3), cpu=(40, 40), device_blocks=64)
    key = rig.open(blocks=20)

    def draw(count: int) -> list[int]:
        return sorted(rng.permutation(20)[:count].tolist())

    held = {layer: draw(6) for layer in range(3)}
    rig.upload(key, held, whole=20)
    want = {layer: draw(int(rng.integers(3, 9))) for layer in range(3)}
    tail = {layer: rng.permutation([b for b in range(20) if b not in want[layer]]).tolist() for layer in range(3)}
    found = plan(rig, key, want, tail=tail, whole=20, shared_table=True)
    new = {layer: sorted(set(want[layer]) - set(held[layer])) for layer in range(3)}
    common = max(len(ids) for ids in new.values())
    assert found.kind == "diff", f"seed {seed}"
    for layer in range(3):
        spare = [b for b in tail[layer] if b not in held[layer]][: common - len(new[layer])]
        assert found.upload.row(layer).tolist() == sorted([*new[layer], *spare]), f"seed {seed}"
        assert found.pad.row(layer).tolist() == sorted(spare), f"seed {seed}"


# ---- adoption


def test_g4_only_clean_tail_blocks_can_be_adopted(rig: CoreRig) -> None:
    key = resident(rig, {0: [0], 1: [1]})
    rig.clean_tail(key, 10)
    assert clean_tail(rig.request(key), rig.layout, 0).tolist() == [8, 9]
    want: Ids = {0: [0, 8, 9], 1: [1, 9]}
    apart = adoptable(rig.request(key), rows(want), rig.layout, shared_table=False)
    assert apart.as_lists() == {0: [8, 9], 1: [9]}
    shared = adoptable(rig.request(key), rows(want), rig.layout, shared_table=True)
    assert shared.as_lists() == {0: [9], 1: [9]}, "one table can adopt only what every layer wants"
    found = plan(rig, key, want, whole=10, shared_table=False)
    assert found.upload.as_lists() == {0: [], 1: []}, "what stands on the device is not fetched"
    assert found.adopted.as_lists() == {0: [8, 9], 1: [9]}


def test_e6_a_full_plan_adopts_nothing_and_uploads_the_whole_selection(rig: CoreRig) -> None:
    key = resident(rig, {0: [0, 1], 1: [0, 1]})
    rig.clean_tail(key, 9)
    found = plan(rig, key, {0: [0, 3, 8], 1: [0, 1, 8]}, whole=9, shared_table=True)
    assert found.kind == "full"
    assert found.upload.as_lists() == {0: [0, 3, 8], 1: [0, 1, 8]}
    assert found.adopted.size == 0


# ---- sources and slots


def test_a1_a4_sources_are_the_requests_own_cpu_blocks_row_for_row(rig: CoreRig) -> None:
    key = resident(rig, NONE)
    request = rig.request(key)
    found = sources_of(request, rows({0: [0, 7], 1: [3]}))
    assert found is not None
    assert found.as_lists() == {0: [request.source_of(0), request.source_of(7)], 1: [request.source_of(3)]}
    assert found.as_lists() == {0: [7, 0], 1: [4]}, "block b lies in CPU block 7 − b here"
    assert sources_of(request, rows({0: [8], 1: []})) is None
    assert sources_of(request, rows({0: [], 1: []})) is not None


def test_d1_e5_a_gap_in_what_the_cpu_holds_is_neither_a_source_nor_padding(rig: CoreRig) -> None:
    key = rig.open(blocks=0)
    rig.send(RegisterSources(request=key, logical=int32_bytes([0, 2]), source=int32_bytes([5, 6])))
    request = rig.request(key)
    assert sources_of(request, rows({0: [1], 1: []})) is None
    found = plan(rig, key, {0: [0], 1: []}, tail={0: [], 1: [1, 2]}, whole=3, shared_table=True)
    assert found.pad.as_lists() == {0: [], 1: [2]}


def test_g1_keep_slots_are_in_resident_order(rig: CoreRig) -> None:
    """Block 1 was uploaded last, so its slot is the last one."""
    key = resident(rig, {0: [2, 5], 1: [0]})
    assert rig.keep(key, {0: [1, 5], 1: [0]}).as_lists() == {0: [1], 1: [0]}
    rig.upload(key, {0: [1, 5], 1: [0]})
    assert rig.view(key).logical.as_lists() == {0: [2, 5, 1], 1: [0]}
    assert rig.keep(key, {0: [1, 5], 1: [0]}).as_lists() == {0: [1, 2], 1: [0]}
    assert keep_slots(rig.request(rig.open("b")), rows(NONE)).as_lists() == {0: [], 1: []}


# ---- A1, E8: what does not name whole blocks is refused


def refusal(rig: CoreRig, key: RequestKey, chosen: BlockSelection) -> str:
    with pytest.raises(Refused) as caught:
        check_selection(rig.request(key), chosen, rig.layout)
    return caught.value.reason


@pytest.mark.parametrize(
    ("want", "tail", "fields", "reason"),
    [
        ({0: [0], 1: [0]}, NONE, {"block_size": 8}, "block_size: expected 4 tokens, got 8"),
        ({0: [0], 1: [8]}, NONE, {}, r"logical_blocks_by_layer[1]: expected blocks in [0, 8), got [8]"),
        ({0: [-1], 1: [0]}, NONE, {}, r"logical_blocks_by_layer[0]: expected blocks in [0, 8), got [-1]"),
        ({0: [3, 1], 1: [0]}, NONE, {}, r"logical_blocks_by_layer[0]: expected ascending blocks, got [3, 1]"),
        ({0: [1, 1], 1: [0]}, NONE, {}, r"logical_blocks_by_layer[0]: a block is named twice in [1, 1]"),
        ({0: [0], 1: [0]}, {0: [5, 5], 1: []}, {}, r"ranked_tail_by_layer[0]: a block is named twice in [5, 5]"),
        ({0: [0], 1: [0]}, {0: [], 1: [9]}, {}, r"ranked_tail_by_layer[1]: expected blocks in [0, 8), got [9]"),
        ({0: [0, 2], 1: [0]}, {0: [2], 1: []}, {}, r"ranked_tail_by_layer[0]: a selected block stands in the tail too"),
        ({0: [0]}, {0: []}, {}, "group_by_layer: expected [0, 0], got [0]"),
        ({0: [0], 1: [0]}, {0: []}, {}, "ranked_tail_by_layer: expected a row for each active layer [0, 1], got [0]"),
    ],
)
def test_a1_e8_a_selection_that_does_not_name_whole_blocks_once_is_refused(
    rig: CoreRig, want: Ids, tail: Ids, fields: dict[str, int], reason: str
) -> None:
    key = rig.open()
    assert refusal(rig, key, selection(rig.layout, key, 1, want, tail=tail, **fields)) == reason


def test_e9_a_resident_block_outside_the_sequence_is_refused_by_name(rig: CoreRig) -> None:
    """A sequence does not shrink below what is resident: the selection was made for another one."""
    key = resident(rig, {0: [0, 6], 1: [1]})
    chosen = selection(rig.layout, key, 2, {0: [0], 1: [1]}, whole=5)
    assert refusal(rig, key, chosen) == "whole_blocks: expected above 6, the largest resident block, got 5"


def test_f2_a_selection_revision_is_used_once(rig: CoreRig) -> None:
    key = resident(rig, {0: [0], 1: [1]})
    chosen = selection(rig.layout, key, 1, {0: [0], 1: [1]})
    assert refusal(rig, key, chosen) == "selection_revision: expected above 1, got 1"
