"""The retain lane: G1 step by step, the ways to build a view (B1-B4), and when blocks come back (B6, B7)."""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.ledger.worlds import LAYER_0, LAYER_1, PRODUCER, RANKS, A, B, World, layout_of, rows

from kvsweep.ledger import events as e
from kvsweep.ledger.ids import POOL

ALL = {0: [0, 1], 1: [0, 1]}


def resident() -> World:
    """Logical blocks 0 and 1 of both layers in slots 0 and 1, physical blocks 0 and 1, row 0."""
    w = World()
    w.resident()
    return w


# ---- G1: what a plan is checked against


@pytest.mark.parametrize(
    "wrong", [{"operation_id": 1}, {"pool_generation": 2}, {"map_revision": 0}, {"map_revision": 2}, {"request": B}]
)
def test_g1_a_plan_names_the_present_epoch_pool_generation_and_map_revision(wrong: dict[str, Any]) -> None:
    w = resident()
    fields = w.retain_fields({0: [0], 1: [0]})
    w.refuse("expected a new operation", e.RetainPlanned, **{**fields, "operation": replace(w.operation(), **wrong)})


@pytest.mark.parametrize(
    "keep", [{0: [2], 1: []}, {0: [], 1: [2]}, {0: [1, 0], 1: []}, {0: [0, 0], 1: []}, {0: [], 1: [-1]}]
)
def test_g1_slots_are_in_bounds_and_in_resident_order_for_every_keep_row(keep: dict[int, list[int]]) -> None:
    w = resident()
    w.refuse(r"expected ascending slots in \[0, 2\)", e.RetainPlanned, **w.retain_fields(keep))


@pytest.mark.parametrize("keep", [{0: [0]}, {1: [0]}, {}, {0: [0], 1: [0], 2: [0]}])
def test_g1_every_active_layer_has_a_keep_row(keep: dict[int, list[int]]) -> None:
    w = resident()
    w.refuse("a row for each active layer", e.RetainPlanned, **w.retain_fields(keep))


def test_g1_the_row_to_be_written_has_no_other_holder() -> None:
    w = resident()
    for row in (0, 2, -1):
        w.refuse("expected a free row below 2", e.RetainPlanned, **w.retain_fields(ALL, row=row))


def test_g1_tables_are_applied_only_after_the_readers_of_that_row_drained() -> None:
    w = resident()
    fields = w.retain_fields({0: [0], 1: [0]})
    op = fields["operation"]
    w.emit(e.RetainPlanned, **fields)
    report = {"operation": op, "rank": 0, "process_epoch": 10, "resident_moved_bytes": 0, "table_updates": 1}
    w.refuse("TablesApplied is illegal in running/idle/planned", e.TablesApplied, **report)
    w.refuse("expected row 1, got 0", e.ReadersDrained, operation=op, row=0, ranks=RANKS)
    w.refuse("expected every rank", e.ReadersDrained, operation=op, row=1, ranks=RANKS[:1])
    w.emit(e.ReadersDrained, operation=op, row=1, ranks=RANKS)
    w.emit(e.TablesApplied, **report)
    w.refuse("rank 0 has already reported", e.TablesApplied, **report)


def test_g1_commit_only_after_all_ranks_applied_and_acknowledge_only_after_retire() -> None:
    w = resident()
    op = w.retain({0: [0], 1: [0]})
    w.applied(op, 0)
    w.refuse(r"ranks \[1\] have not completed", e.AllRanksApplied, operation=op)
    w.refuse("OwnersCommitted is illegal in running/idle/applying", e.OwnersCommitted, operation=op, generation=2)
    w.applied(op, 1)
    w.emit(e.AllRanksApplied, operation=op)
    w.refuse("BlocksRetired is illegal", e.BlocksRetired, generation=1, cause="retain", freed=w.by_group([1]))
    w.refuse("expected generation 2, got 1", e.OwnersCommitted, operation=op, generation=1)
    w.emit(e.OwnersCommitted, operation=op, generation=2)
    w.refuse("RetainAcknowledged is illegal in running/idle/committed", e.RetainAcknowledged, operation=op,
             process_epoch=PRODUCER)  # fmt: skip
    w.retire(1, "retain", [1])
    w.refuse("expected producer epoch 5, got 6", e.RetainAcknowledged, operation=op, process_epoch=6)
    w.emit(e.RetainAcknowledged, operation=op, process_epoch=PRODUCER)
    assert w.of().retain.phase == "IDLE"
    assert w.table() == ({0: [0], 1: [0]}, {0: [0], 1: [0]})


def test_g1_no_retain_while_an_upload_is_under_way_and_the_other_way_round() -> None:
    w = resident()
    op = w.upload({0: [2], 1: [2]}, {0: [5], 1: [5]}, [5], row=1)
    w.refuse("one view-changing operation at a time: the other", e.RetainPlanned, **w.retain_fields(ALL))
    w.commit(op)
    w.retire(1, "upload")
    w.retain(ALL, row=0)
    w.refuse("one view-changing operation at a time: the other", e.BlocksSelected, selection_revision=9, digest="d",
             whole_blocks=8, effective_budget_blocks=4)  # fmt: skip


def test_g2_another_step_or_selection_is_no_proof_of_completion() -> None:
    """Nothing but each distinct rank's own report completes the operation."""
    w = resident()
    op = w.retain({0: [0], 1: [0]})
    w.open(B, first_source=4)
    w.upload({0: [0], 1: [0]}, {0: [2], 1: [2]}, [2], key=B)
    w.refuse("have not completed", e.AllRanksApplied, operation=op)


def test_g1_commit_is_refused_once_a_ranks_memory_was_lost() -> None:
    w = resident()
    op = w.retain({0: [0], 1: [0]})
    w.applied(op, 0)
    w.applied(op, 1)
    w.emit(e.AllRanksApplied, operation=op)
    w.emit(e.RankLost, POOL, rank=1, process_epoch=11, pool_generation=2)
    w.refuse("commit only on the view planned on", e.OwnersCommitted, operation=op, generation=2)


# ---- B1-B4: the three outcomes and pack


def test_b1_counter_example_unequal_keep_slots_are_not_shareable() -> None:
    """Layer 0 keeps slots [0, 2], layer 1 keeps [1, 2]."""
    w = World()
    w.resident(blocks=(0, 1, 2))
    keep = {0: [0, 2], 1: [1, 2]}
    w.refuse("a shared remap needs the same ordered physical row", e.RetainPlanned,
             **w.retain_fields(keep, mode="shared"))  # fmt: skip
    w.retained(keep, freed=[])
    assert w.table()[1] == {0: [0, 2], 1: [1, 2]}


def test_b1_equal_slots_after_a_per_layer_remap_are_not_shareable() -> None:
    """Slot 0 of the two layers is another block by then."""
    w = World()
    w.resident(blocks=(0, 1, 2))
    w.retained({0: [0, 2], 1: [1, 2]}, freed=[])
    same = {0: [0], 1: [0]}
    w.refuse("a shared remap needs", e.RetainPlanned, **w.retain_fields(same, row=0, mode="shared"))


def test_b1_the_order_counts_not_the_set() -> None:
    w = World()
    w.commit(w.upload({0: [0, 1], 1: [0, 1]}, {0: [0, 1], 1: [1, 0]}, [0, 1]))
    w.refuse("a shared remap needs", e.RetainPlanned, **w.retain_fields(ALL, mode="shared"))


def test_b1_each_group_has_its_own_shared_row() -> None:
    """Two full groups: their block ids are of two pools, and mean nothing to each other."""
    w = World(layout_of(LAYER_0, LAYER_1, replace(LAYER_0, layer=2, group=1), replace(LAYER_0, layer=3, group=1)))
    ids = {layer: [0, 1] for layer in range(4)}
    to = {0: [0, 1], 1: [0, 1], 2: [4, 5], 3: [4, 5]}
    reserved = (w.by_group([0, 1])[0], w.by_group([4, 5], 1)[1])
    op = w.plan(ids)
    w.emit(e.BlocksLeased, **{**w.lease(to), "reserved": reserved})
    w.emit(e.TransferStarted, operation=op, ranks=RANKS)
    w.commit(op)
    keep = {0: [0], 1: [0], 2: [1], 3: [1]}
    unequal = {**keep, 3: [0]}
    w.refuse("a shared remap needs", e.RetainPlanned, **w.retain_fields(unequal, mode="shared"))
    w.emit(e.RetainPlanned, **w.retain_fields(keep, mode="shared"))


def test_b2_a_shared_remap_takes_the_actual_slots_not_a_shorter_prefix() -> None:
    w = World()
    w.resident(blocks=(3, 1, 4))
    w.retained({0: [0, 2], 1: [0, 2]}, freed=[1], mode="shared")
    assert w.table() == ({0: [0, 2], 1: [0, 2]}, {0: [3, 4], 1: [3, 4]})


@pytest.mark.parametrize("mode", ["shared", "layer"])
def test_b7_a_remap_moves_no_bytes(mode: str) -> None:
    w = World()
    w.resident(blocks=(0, 1))
    move = {"moved_from": rows({0: [0], 1: [0]}), "moved_to": rows({0: [5], 1: [5]}), "reserved": w.by_group([5])}
    w.refuse("a remap moves no bytes", e.RetainPlanned, **w.retain_fields(ALL, mode=mode, **move))


def test_b3_a_move_substitutes_its_targets_in_the_new_view_only() -> None:
    w = resident()
    w.retained(
        {0: [1], 1: [0]}, freed=[0, 1], mode="move", moved_from=rows({0: [1], 1: [0]}),
        moved_to=rows({0: [4], 1: [4]}), reserved=w.by_group([4]),
    )  # fmt: skip
    assert w.table() == ({0: [1], 1: [0]}, {0: [4], 1: [4]})
    assert w.owned() == [4]
    w.lawful()


def test_g3_a_move_is_never_in_place() -> None:
    """Nothing that anybody may still read is written: the target is no area of a view, whichever slot it was."""
    w = resident()
    for target in (0, 1):
        move = {"moved_from": rows({0: [1], 1: []}), "moved_to": rows({0: [target], 1: []})}
        w.refuse("is not vacant or not owned", e.RetainPlanned, **w.retain_fields(ALL, mode="move", **move))


@pytest.mark.parametrize(
    ("moved_from", "moved_to", "match"),
    [
        ({0: [5], 1: []}, {0: [4], 1: []}, "is not a slot of the new table"),
        ({0: [1], 1: []}, {0: [4], 1: []}, "is not a slot of the new table"),  # dropped slot
        ({0: [0, 0], 1: []}, {0: [4, 5], 1: []}, "moved twice"),
        ({0: [0], 1: []}, {0: [], 1: [4]}, "moved_from and moved_to rows differ"),
        ({0: [0], 7: [0]}, {0: [4], 7: [4]}, "layer 7"),
    ],
)
def test_b3_a_move_names_slots_of_the_new_view(
    moved_from: dict[int, list[int]], moved_to: dict[int, list[int]], match: str
) -> None:
    w = resident()
    blocks = sorted({block for ids in moved_to.values() for block in ids})
    w.refuse(
        match, e.RetainPlanned,
        **w.retain_fields(
            {0: [0], 1: [0]}, mode="move", moved_from=rows(moved_from), moved_to=rows(moved_to),
            reserved=w.by_group(blocks),
        ),
    )  # fmt: skip


def test_b6_pack_gathers_areas_into_fewer_blocks_without_a_free_one() -> None:
    w = World()
    w.resident(blocks=(0, 1))
    w.retained({0: [0], 1: [1]}, freed=[])
    assert (w.owned(), w.vacant(0), w.vacant(1)) == ([0, 1], [1], [0])
    move = {"moved_from": rows({0: [], 1: [1]}), "moved_to": rows({0: [], 1: [0]})}
    w.retained({0: [0], 1: [0]}, freed=[1], row=0, mode="pack", **move)
    assert w.table() == ({0: [0], 1: [1]}, {0: [0], 1: [0]})
    assert w.owned() == [0]
    w.lawful()


# ---- B6, B7: what comes back and when


def test_b6_retired_is_owned_before_less_referenced_after_and_the_list_is_checked() -> None:
    w = World()
    w.resident(blocks=(0, 1, 2))
    op = w.retain({0: [0, 1], 1: [0]})
    w.switch(op)
    assert w.owned() == [0, 1, 2], "nothing comes back before the old view has no reader"
    for wrong in ([], [1], [1, 2], [0, 2]):
        w.refuse("said to be freed", e.BlocksRetired, generation=1, cause="retain", freed=w.by_group(wrong))
    w.retire(1, "retain", [2])
    assert (w.owned(), w.vacant(1)) == ([0, 1], [1])


def test_b7_a_remap_may_release_no_block_at_all() -> None:
    w = resident()
    w.retained({0: [0], 1: [1]}, freed=[])
    assert w.owned() == [0, 1]
    w.lawful()


def test_b7_bytes_moved_and_blocks_released_are_independent() -> None:
    """Zero bytes moved, one block released."""
    w = resident()
    w.retained({0: [1], 1: [1]}, freed=[0], mode="shared")
    assert w.owned() == [1]


def test_fence_rule_only_a_replaced_view_is_retired_and_only_once() -> None:
    w = resident()
    w.refuse("is not a replaced view; current is 1", e.BlocksRetired, generation=1, cause="upload",
             freed=w.by_group([0, 1]))  # fmt: skip
    w.commit(w.upload({0: [2], 1: [2]}, {0: [5], 1: [5]}, [5], row=1))
    w.retire(1, "upload")
    w.refuse("is not a replaced view", e.BlocksRetired, generation=1, cause="upload", freed=w.by_group())
    w.refuse("is not a replaced view", e.BlocksRetired, generation=3, cause="upload", freed=w.by_group())
    assert w.state.ownership.rows(A) == {1}


@pytest.mark.parametrize(("kind", "cause"), [(e.RequestPreempted, "preempt"), (e.RequestFinished, "finish")])
def test_fence_rule_a_view_is_retired_with_what_took_its_place_whatever_came_after(
    kind: type[e.Event], cause: str
) -> None:
    w = resident()
    w.emit(kind)
    if kind is e.RequestPreempted:
        w.emit(e.RequestResumed)
        w.commit(w.upload({0: [2], 1: [2]}, {0: [5], 1: [5]}, [5], row=1))
    for wrong in {"upload", "preempt", "finish"} - {cause}:
        w.refuse(f"expected cause {cause}, got {wrong}", e.BlocksRetired,
                 generation=1, cause=wrong, freed=w.by_group([0, 1]))  # fmt: skip
    w.retire(1, cause, [0, 1])
    w.lawful()


def test_fence_rule_views_drain_in_any_order() -> None:
    w = World(opened=False)
    w.open(row_count=3)
    w.resident()
    w.commit(w.upload({0: [2], 1: [2]}, {0: [2], 1: [2]}, [2], row=1))
    w.commit(w.upload({0: [3], 1: [3]}, {0: [3], 1: [3]}, [3], row=2))
    w.retire(2, "upload")
    assert [view.generation for view in w.of().views] == [1, 3]
    w.retire(1, "upload")
    w.lawful()


def test_a_view_that_the_retain_lane_replaced_is_retired_by_that_lane() -> None:
    """Under any other cause the lane would wait for ever for a view that is gone."""
    w = resident()
    w.switch(w.retain({0: [0], 1: [0]}))
    for cause in ("upload", "preempt", "finish"):
        w.refuse("the retain lane replaced this generation", e.BlocksRetired, generation=1, cause=cause,
                 freed=w.by_group([1]))  # fmt: skip
    w.refuse("the retain lane did not replace", e.BlocksRetired, generation=0, cause="retain", freed=w.by_group())
    w.retire(1, "retain", [1])


def test_a_retain_replaces_the_current_view_not_the_attempt_before_it() -> None:
    w = World(opened=False)
    w.open(row_count=3)
    w.resident()
    aborted = w.retain({0: [1], 1: [1]})
    w.emit(e.RetainAborted, operation=aborted, reason="deadline")
    w.switch(w.retain({0: [0], 1: [0]}, row=2))
    w.refuse("the retain lane did not replace", e.BlocksRetired, generation=2, cause="retain", freed=w.by_group())
    w.retire(1, "retain", [1])
    assert w.of().current == 3


def test_the_retain_lane_retires_only_what_it_replaced() -> None:
    w = World(opened=False)
    w.open(row_count=3)
    w.resident()
    w.commit(w.upload({0: [2], 1: [2]}, {0: [5], 1: [5]}, [5], row=1))
    w.switch(w.retain({0: [0], 1: [0]}, row=2))
    w.refuse("the retain lane did not replace", e.BlocksRetired, generation=1, cause="retain", freed=w.by_group())
    w.retire(1, "upload")
    w.retire(2, "retain", [1, 5])


def test_a_first_retain_replaced_nothing() -> None:
    """Without a view there is only what the tail gives; generation 0 stands for no view."""
    w = World()
    w.clean_tail(4, [5], 4)
    op = w.retain(w.none, row=0, adopted=rows({0: [4], 1: [4]}))
    w.switch(op)
    w.refuse("generation 0 is no view", e.BlocksRetired, generation=0, cause="retain", freed=w.by_group([5]))
    w.refuse("the retain lane replaced", e.BlocksRetired, generation=0, cause="upload", freed=w.by_group())
    w.retire(0, "retain")
    w.emit(e.RetainAcknowledged, operation=op, process_epoch=PRODUCER)
    assert w.table() == ({0: [4], 1: [4]}, {0: [5], 1: [5]})


def test_generation_zero_is_retired_by_nothing_but_a_retain_that_replaced_nothing() -> None:
    w = World()
    for cause in ("upload", "retain", "preempt", "finish"):
        w.refuse("generation 0 is no view|BlocksRetired is illegal", e.BlocksRetired, generation=0, cause=cause,
                 freed=w.by_group())  # fmt: skip


# ---- row rule


def test_row_rule_with_two_rows_a_new_operation_waits_until_the_older_view_drained() -> None:
    w = resident()
    w.commit(w.upload({0: [2], 1: [2]}, {0: [5], 1: [5]}, [5], row=1))
    for row in (0, 1):
        w.refuse(r"held: \[0, 1\]", e.RetainPlanned, **w.retain_fields(ALL, row=row))
    w.retire(1, "upload")
    w.retain({0: [0], 1: [0]}, row=0)


def test_row_rule_an_attempt_that_settles_holds_its_row_and_a_third_row_allows_the_retry() -> None:
    w = World(opened=False)
    w.open(row_count=3)
    w.resident()
    op = w.retain({0: [0], 1: [0]}, row=1)
    w.emit(e.RetainAborted, operation=op, reason="deadline")
    w.refuse(r"held: \[0, 1\]", e.RetainPlanned, **w.retain_fields(ALL, row=1))
    retry = w.retain({0: [0], 1: [0]}, row=2)
    assert (retry.operation_id, w.of().next_generation) == (op.operation_id + 1, 4)
    w.lawful()
