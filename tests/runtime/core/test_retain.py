"""Retains through the core: ways to build the new view, checks before it, retirement after it, aborts at each stage."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.runtime.rig import RANKS, CoreRig, Ids, frozen, make_layout, rows

from kvsweep.ledger import events as e
from kvsweep.ledger.ids import RequestKey, int32_view
from kvsweep.ledger.messages import Abort, Acknowledge, Cancel, Finish, MoveBlocks, Preempt, Resume, Turn
from kvsweep.runtime.metrics import Metrics

MakeRig = Callable[..., CoreRig]
VIEW: Ids = {0: [0, 2, 5], 1: [0, 2, 5]}
MOVE: dict[str, Any] = {"retain": {"layer_tables": False}}


@pytest.fixture
def key(rig: CoreRig) -> RequestKey:
    found = rig.open()
    rig.upload(found, VIEW)
    return found


def reason(turn: Turn) -> str:
    assert turn.outcome == "refused"
    assert turn.refusal is not None
    return turn.refusal.reason


# ---- B: which way


@pytest.mark.parametrize("layer_tables", [True, False])
def test_b1_b2_equal_keeps_rewrite_the_shared_table_by_the_actual_slots(make_rig: MakeRig, layer_tables: bool) -> None:
    """Slots 0 and 2 in resident order, whole blocks: not the first two of a prefix."""
    rig = make_rig(retain={"layer_tables": layer_tables})
    key = rig.open()
    rig.upload(key, VIEW)
    old = rig.view(key).physical.as_lists()
    rig.retain(key, {0: [0, 5], 1: [0, 5]})
    assert rig.last(e.RetainPlanned).mode == "shared"
    assert rig.view(key).logical.as_lists() == {0: [0, 5], 1: [0, 5]}
    assert rig.view(key).physical.as_lists() == {layer: [row[0], row[2]] for layer, row in old.items()}
    assert rig.last(MoveBlocks).source.size == 0
    rig.lawful()


def test_b1_layer_0_keeps_0_2_and_layer_1_keeps_1_2_gets_a_table_a_layer(rig: CoreRig, key: RequestKey) -> None:
    rig.retain(key, {0: [0, 5], 1: [2, 5]})
    assert rig.last(e.RetainPlanned).mode == "layer"
    assert rig.view(key).physical.as_lists() == {0: [0, 2], 1: [1, 2]}
    assert rig.last(MoveBlocks).source.size == 0


def test_b1_after_a_remap_by_layer_equal_keeps_are_not_shareable_any_more(rig: CoreRig, key: RequestKey) -> None:
    rig.retain(key, {0: [0, 5], 1: [2, 5]})
    rig.retain(key, {0: [0], 1: [2]})
    planned = rig.last(e.RetainPlanned)
    assert planned.keep.as_lists() == {0: [0], 1: [0]}, "equal keep lists"
    assert planned.mode == "layer", "over different physical rows"


def test_b3_without_layer_tables_unequal_keeps_move_bytes_out_of_place(make_rig: MakeRig) -> None:
    rig = make_rig(**MOVE)
    key = rig.open()
    rig.upload(key, VIEW)
    old = {(layer, block) for layer, row in rig.view(key).physical.items() for block in row.tolist()}
    operation = rig.started(rig.start_retain(key, rig.keep(key, {0: [0, 5], 1: [2, 5]})))
    moved = rig.last(MoveBlocks)
    assert moved.mode == "move"
    assert moved.source.as_lists() == {0: [0], 1: [1]}
    written = {(layer, block) for layer, row in moved.destination.items() for block in row.tolist()}
    assert not written & old
    assert moved.table.as_lists() == {0: [3, 2], 1: [3, 2]}, "one table serves both layers"
    rig.all_done(operation, resident_moved_bytes=64)
    assert rig.view(key).logical.as_lists() == {0: [0, 5], 1: [2, 5]}
    rig.lawful()


def test_b4_what_a_layer_reads_and_who_may_free_it_are_apart(rig: CoreRig, key: RequestKey) -> None:
    """Layer 0 no longer reads block 1, layer 1 does: the block stays owned, its area of layer 0 is vacant."""
    rig.retain(key, {0: [0, 5], 1: [2, 5]})
    assert rig.owned(key) == [0, 1, 2]
    blocks, held = rig.state.ownership.occupancy(key, 0, rig.layout)
    vacant = {(layer, int(block)) for layer in (0, 1) for block in blocks[~held[layer]]}
    assert vacant == {(0, 1), (1, 0)}


def test_b5_a_union_is_labelled_as_another_attention(make_rig: MakeRig) -> None:
    rig = make_rig(retain={"layer_tables": False, "union": True})
    key = rig.open()
    rig.upload(key, VIEW)
    rig.retain(key, {0: [0], 1: [2]})
    planned = rig.last(e.RetainPlanned)
    assert (planned.mode, planned.attention) == ("shared", "union")
    assert rig.view(key).logical.as_lists() == {0: [0, 2], 1: [0, 2]}


def test_b5_without_the_setting_or_where_all_layers_keep_alike_the_attention_is_the_same(make_rig: MakeRig) -> None:
    for settings in ({"union": True, "layer_tables": False}, {"layer_tables": False}):
        rig = make_rig(retain=settings)
        key = rig.open()
        rig.upload(key, VIEW)
        rig.retain(key, {0: [0, 2], 1: [0, 2]})
        assert rig.last(e.RetainPlanned).attention == "same"
        rig.lawful()


def test_b5_a_union_needs_one_table_to_begin_with(make_rig: MakeRig) -> None:
    rig = make_rig(device_blocks=32, retain={"layer_tables": False, "union": True})
    key = rig.open()
    rig.upload(key, VIEW)
    rig.clean_tail(key, 9)
    rig.retain(key, {0: [2], 1: [0]}, adopt={0: [8], 1: []})  # unequal rows: slots of one are no slots of the other
    assert rig.last(e.RetainPlanned).attention == "same"


# ---- B6, B7: what goes back


def test_b6_a_block_goes_back_when_no_layer_refers_to_it(rig: CoreRig, key: RequestKey) -> None:
    rig.retain(key, {0: [0, 5], 1: [2, 5]})
    assert rig.free() == 13, "block 0 and block 1 lost one layer each"
    rig.retain(key, {0: [5], 1: [2, 5]})
    assert rig.owned(key) == [1, 2]
    assert int32_view(rig.last(e.BlocksRetired).freed[0]).tolist() == [0]
    assert rig.free() == 14
    rig.lawful()


def test_b6_retired_is_owned_before_less_referenced_after_and_a_reader_delays_it(rig: CoreRig, key: RequestKey) -> None:
    step = rig.begin_step(key)
    operation = rig.started(rig.start_retain(key, rig.keep(key, {0: [0], 1: [0]})))
    rig.all_done(operation)
    assert rig.request(key).retain.phase == "COMMITTED", "G2: a step that began before is no sign that it ended"
    later = rig.begin_step(key)
    rig.end_step(later)
    assert rig.free() == 13
    assert rig.effects_of(Acknowledge)[1:] == []
    rig.end_step(step)
    assert rig.request(key).retain.phase == "RETIRED"
    assert rig.free() == 15
    rig.acknowledge(operation)
    assert rig.request(key).retain.phase == "IDLE"
    rig.lawful()


def test_b6_steps_end_in_any_order_and_the_last_reader_of_a_generation_counts(rig: CoreRig, key: RequestKey) -> None:
    """A watermark would retire at the end of the newer step."""
    old, new = rig.begin_step(key), rig.begin_step(key)
    operation = rig.started(rig.start_retain(key, rig.keep(key, {0: [0], 1: [0]})))
    rig.all_done(operation)
    rig.end_step(new)
    assert rig.free() == 13
    rig.end_step(old)
    assert rig.free() == 15


def test_b6_a_reader_of_a_newer_generation_does_not_hold_an_older_one(rig: CoreRig, key: RequestKey) -> None:
    old = rig.begin_step(key)
    rig.upload(key, {0: [0, 2, 5, 7], 1: [0, 2, 5]})
    rig.begin_step(key)
    assert [view.generation for view in rig.request(key).views] == [1, 2]
    rig.end_step(old)
    assert [view.generation for view in rig.request(key).views] == [2]


def test_b6_a_step_begun_between_the_apply_and_the_commit_reads_the_old_view(rig: CoreRig, key: RequestKey) -> None:
    """It is handed the generation that is about to be replaced, so that one waits for it."""
    operation = rig.started(rig.start_retain(key, rig.keep(key, {0: [0], 1: [0]})))
    rig.done(operation, 0)
    number, handed = rig.core.begin_step([key])
    assert handed[key].generation == 1
    rig.done(operation, 1)
    assert rig.request(key).current == 2
    assert rig.free() == 13
    rig.end_step(number)
    assert rig.free() == 15


def test_b7_a_remap_may_move_nothing_and_free_nothing_and_a_move_may_move_and_free(make_rig: MakeRig) -> None:
    figures = {}
    for name, settings in (("layer", {}), ("move", MOVE)):
        rig = make_rig(**settings)
        key = rig.open()
        rig.upload(key, VIEW)
        counted = Metrics()
        mark = len(rig.events)
        operation = rig.started(rig.start_retain(key, rig.keep(key, {0: [0, 5], 1: [2, 5]})))
        moved = 32 * rig.last(MoveBlocks).source.size
        rig.all_done(operation, resident_moved_bytes=moved)
        for event in rig.events[mark:]:
            counted.apply(event)
        figures[name] = (counted.resident_moved_bytes, counted.physical_blocks_released)
    assert figures == {"layer": (0, 0), "move": (2 * 2 * 32, 2)}


def test_b6_pack_needs_no_free_block_and_brings_the_owned_blocks_to_the_largest_layer_count(make_rig: MakeRig) -> None:
    rig = make_rig(device_blocks=3)
    key = rig.open()
    rig.upload(key, VIEW)
    rig.retain(key, {0: [0, 5], 1: [2]})
    assert (rig.free(), len(rig.owned(key))) == (0, 3)
    rig.pack(key)
    planned = rig.last(e.RetainPlanned)
    assert planned.mode == "pack"
    assert not any(planned.reserved)
    assert len(rig.owned(key)) == 2
    assert rig.view(key).logical.as_lists() == {0: [0, 5], 1: [2]}
    assert rig.free() == 1
    rig.lawful()


def test_b6_pack_is_refused_where_a_settling_attempt_holds_the_room(make_rig: MakeRig) -> None:
    """A named refusal that changes nothing; possible again when the attempt has settled."""
    rig = make_rig(device_blocks=3)
    key = rig.open()
    rig.upload(key, VIEW)
    rig.retain(key, {0: [5], 1: [0, 2]})
    aborted = rig.started(rig.select(key, {0: [5, 6, 7], 1: [0, 2]}))
    rig.send(Abort(operation=aborted, reason="x"))
    before = rig.request(key)
    turn = rig.start_retain(key, rig.keep(key, rig.view(key).logical.as_lists()), pack=True)
    (refused,) = turn.events
    assert isinstance(refused, e.PlanRefused)
    assert (refused.lane, refused.reason, refused.needed, refused.vacant) == ("retain", "no_space", 1, 0)
    after = rig.request(key)
    assert (after.views, after.retain, after.settling) == (before.views, before.retain, before.settling)
    for rank, _ in RANKS:
        rig.done(aborted, rank, "cancelled")
    rig.pack(key)
    assert len(rig.owned(key)) == 2
    rig.lawful()


def test_b6_pack_keeps_everything_and_adopts_nothing(rig: CoreRig, key: RequestKey) -> None:
    turn = rig.start_retain(key, rig.keep(key, {0: [0], 1: [0, 2, 5]}), pack=True)
    assert reason(turn) == "pack: expected every slot of the current view and nothing adopted"


# ---- G1: checks before anything is sent


@pytest.mark.parametrize(
    ("keep", "expected"),
    [
        ({0: [0, 3], 1: [0]}, "keep[0]: expected ascending slots in [0, 3), got [0, 3]"),
        ({0: [-1], 1: [0]}, "keep[0]: expected ascending slots in [0, 3), got [-1]"),
        ({0: [0], 1: [2, 1]}, "keep[1]: expected ascending slots in [0, 3), got [2, 1]"),
        ({0: [0], 1: [1, 1]}, "keep[1]: expected ascending slots in [0, 3), got [1, 1]"),
        ({0: [0]}, "keep: expected a row for each active layer [0, 1], got [0]"),
        ({0: [0], 1: [0], 2: [0]}, "keep: expected a row for each active layer [0, 1], got [0, 1, 2]"),
    ],
)
def test_g1_slot_bounds_of_every_keep_row_are_checked(rig: CoreRig, key: RequestKey, keep: Ids, expected: str) -> None:
    before = rig.request(key)
    turn = rig.start_retain(key, rows(keep))
    assert reason(turn) == expected
    assert isinstance(turn.events[0], e.CommandRefused)
    after = rig.request(key)
    assert (after.views, after.retain, after.upload) == (before.views, before.retain, before.upload)


@pytest.mark.parametrize("layer", [2, 99])
def test_g1_d7_adopting_into_a_layer_that_is_not_active_is_refused(layer: int) -> None:
    rig = CoreRig(make_layout(2, sliding=1))
    key = rig.open()
    rig.upload(key, VIEW)
    turn = rig.start_retain(key, rows({0: [0], 1: [0]}), adopt={0: [], 1: [], layer: [8]})
    assert reason(turn) == f"adopt: expected rows of active layers [0, 1], got layers [{layer}]"


def test_g1_g4_adopting_what_is_not_a_clean_tail_block_is_refused(rig: CoreRig, key: RequestKey) -> None:
    turn = rig.start_retain(key, rows({0: [0], 1: [0]}), adopt={0: [8], 1: []})
    assert reason(turn) == "adopt[0]: expected clean tail blocks [], got [8]"


def test_g1_a_retain_needs_a_running_request_and_a_free_lane(rig: CoreRig, key: RequestKey) -> None:
    keep = rig.keep(key, {0: [0], 1: [0]})
    upload = rig.started(rig.select(key, {0: [0, 7], 1: [0]}))
    assert "one view-changing operation at a time" in reason(rig.start_retain(key, keep))
    rig.all_done(upload)
    assert "one view-changing operation at a time" in reason(rig.start_retain(key, keep)), "not acknowledged yet"
    rig.acknowledge(upload)
    rig.send(Preempt(request=key))
    assert rig.start_retain(key, rows({0: [], 1: []})).outcome == "refused"
    rig.send(Resume(request=key))
    assert "expected ascending slots in [0, 0)" in reason(rig.start_retain(key, keep)), "the view has gone"
    rig.lawful()


def test_g1_all_ranks_apply_before_the_commit_and_the_acknowledgement_comes_after_the_retirement(
    rig: CoreRig, key: RequestKey
) -> None:
    mark = len(rig.events)
    operation = rig.started(rig.start_retain(key, rig.keep(key, {0: [0], 1: [0]})))
    assert rig.since(mark) == ["RetainPlanned", "ReadersDrained"]
    assert rig.last(MoveBlocks).ranks == RANKS
    rig.done(operation, 0)
    assert rig.request(key).current == 1
    rig.done(operation, 1)
    assert rig.since(mark + 2) == [
        "TablesApplied", "TablesApplied", "AllRanksApplied", "OwnersCommitted", "BlocksRetired",
    ]  # fmt: skip
    assert rig.last(Acknowledge).operation == operation
    rig.acknowledge(operation)
    assert rig.since(mark + 7) == ["RetainAcknowledged"]


def test_f3_a_repeated_retain_is_not_applied_twice(rig: CoreRig, key: RequestKey) -> None:
    keep = rig.keep(key, {0: [0, 2], 1: [0, 2]})
    first = rig.start_retain(key, keep, idempotency_key="r")
    again = rig.start_retain(key, keep, idempotency_key="r")
    assert (again.outcome, again.operation) == ("repeated", first.operation)
    used = "idempotency key 'r' was used for something else"
    assert reason(rig.start_retain(key, keep, idempotency_key="r", revision=7)) == used
    assert reason(rig.start_retain(key, rows({0: [0], 1: [0]}), idempotency_key="r")) == used, "other slots"
    assert reason(rig.start_retain(key, keep, idempotency_key="r", pack=True)) == used
    rig.all_done(rig.started(first))
    again = rig.start_retain(key, keep, idempotency_key="r", map_revision=1)
    assert (again.outcome, again.operation) == ("repeated", first.operation)
    assert reason(rig.start_retain(key, keep, idempotency_key="r")) == used, "slots of another view"


# ---- G3: abort at each stage


@pytest.mark.parametrize("settings", [{}, MOVE], ids=["layer", "move"])
@pytest.mark.parametrize("reported", [(), (0,), (1,)], ids=["sent", "rank 0 applied", "rank 1 applied"])
@pytest.mark.parametrize("how", ["abort", "preempt", "finish", "failure"])
def test_g3_turning_back_keeps_the_old_view_and_returns_what_was_reserved(
    make_rig: MakeRig, settings: dict[str, Any], reported: tuple[int, ...], how: str
) -> None:
    rig = make_rig(**settings)
    key = rig.open()
    rig.upload(key, VIEW)
    before, free = rig.view(key), rig.free()
    operation = rig.started(rig.start_retain(key, rig.keep(key, {0: [0, 5], 1: [2, 5]})))
    for rank in reported:
        rig.done(operation, rank)
    waiting = [rank for rank, _ in RANKS if rank not in reported]
    if how == "abort":
        rig.send(Abort(operation=operation, reason="x"))
    elif how == "failure":
        rig.done(operation, waiting.pop(0), "failed")
    else:
        rig.send(Preempt(request=key) if how == "preempt" else Finish(request=key))
    request = rig.request(key)
    assert request.retain.phase == "IDLE"
    assert rig.last(Cancel).operation == operation
    stays = how in ("abort", "failure")
    assert (request.view == before) == stays
    for rank in waiting:
        assert [opened.operation for opened in rig.request(key).settling] == [operation]
        rig.done(operation, rank, "cancelled")
    assert rig.request(key).settling == ()
    assert rig.free() == (free if stays else 16)
    assert rig.request(key).life == {"preempt": "PREEMPTED", "finish": "CLOSED"}.get(how, "RUNNING")
    rig.lawful()


def test_g3_a_committed_retain_goes_on_to_its_acknowledgement_whatever_the_life_does(
    rig: CoreRig, key: RequestKey
) -> None:
    step = rig.begin_step(key)
    operation = rig.started(rig.start_retain(key, rig.keep(key, {0: [0], 1: [0]})))
    rig.all_done(operation)
    rig.send(Finish(request=key))
    assert rig.request(key).retain.phase == "COMMITTED"
    rig.end_step(step)
    assert rig.request(key).life == "FINISHING"
    assert rig.free() == 16
    rig.acknowledge(operation)
    assert rig.request(key).life == "CLOSED"
    rig.lawful()


def test_g1_a_refused_retain_leaves_the_state_as_it_was_but_for_its_record(rig: CoreRig, key: RequestKey) -> None:
    before = rig.state
    rig.start_retain(key, rows({0: [9], 1: [0]}))
    (name,) = rig.since(len(rig.events) - 1)
    assert name == "CommandRefused"
    after = rig.request(key)
    assert frozen(before) != frozen(rig.state), "the record has a number of its own"
    assert after.seq == before.requests["a"].seq + 1
    assert rig.state.ownership == before.ownership
