"""Selections through the core: transfers, keep maps, repeated calls, refusals, aborts."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.runtime.rig import RANKS, CoreRig, Ids, frozen, make_layout, selection

from kvsweep.ledger import events as e
from kvsweep.ledger.ids import int32_view
from kvsweep.ledger.messages import (
    Abort,
    Acknowledge,
    Cancel,
    Gather,
    Preempt,
    PublishKeepMap,
    Release,
    Resume,
    Select,
    Transfer,
)
from kvsweep.runtime.metrics import Metrics

MakeRig = Callable[..., CoreRig]

FIRST: Ids = {0: [0, 2, 5], 1: [1, 2, 7]}
SECOND: Ids = {0: [0, 2, 6], 1: [1, 2, 3]}
START = ["BlocksSelected", "UploadPlanned", "UploadStaged", "BlocksLeased", "TransferStarted"]


def metrics(rig: CoreRig) -> Metrics:
    counted = Metrics()
    for event in rig.events:
        counted.apply(event)
    return counted


# ---- A: what a plan costs and names


def test_a1_a_whole_block_selection_is_source_only_and_names_used_ids_and_source_ids_apart(rig: CoreRig) -> None:
    """Nothing else decides it: no flag is set, nothing is gathered, no copy destination is taken."""
    key = rig.open()
    rig.upload(key, FIRST)
    planned, leased = rig.last(e.UploadPlanned), rig.last(e.BlocksLeased)
    assert planned.source_kind == "source_only"
    assert planned.logical.as_lists() == FIRST
    assert leased.source.as_lists() == {0: [7, 5, 2], 1: [6, 5, 0]}
    assert leased.copies == b""
    assert rig.effects_of(Gather) == []
    assert rig.last(Transfer).source_kind == "source_only"


def test_a1_d5_a_selection_that_does_not_name_whole_blocks_is_refused_and_never_gathered(make_rig: MakeRig) -> None:
    rig = make_rig(source={"kind": "copy", "allow_copy": True})
    key = rig.open()
    turn = rig.select(key, {0: [0, 9], 1: [1]})
    assert turn.outcome == "refused"
    assert rig.effects == []
    assert rig.pools.cpu.free == (24, 8)


def test_a2_what_the_cpu_gathered_and_what_the_device_moved_are_two_figures(make_rig: MakeRig) -> None:
    """Each figure comes from its own report; neither is derived from the other."""
    rig = make_rig(source={"kind": "copy", "allow_copy": True})
    key = rig.open()
    operation = rig.started(rig.select(key, FIRST))
    rig.all_done(operation, h2d_bytes=100, unpack_bytes=90, table_updates=2, wait_s=0.5)
    rig.acknowledge(operation, cpu_gather_bytes=77)
    found = metrics(rig)
    assert (found.cpu_gather_bytes, found.cpu_destination_blocks) == (77, 3)
    assert (found.h2d_bytes, found.unpack_bytes, found.resident_moved_bytes) == (200, 180, 0)
    assert (found.table_updates, found.wait_s, found.uploaded_areas) == (4, 1.0, 6)


def test_a3_with_nothing_gathered_the_other_costs_are_still_counted(rig: CoreRig) -> None:
    key = rig.open()
    operation = rig.started(rig.select(key, FIRST))
    rig.all_done(operation, h2d_bytes=100, unpack_bytes=90, table_updates=2)
    rig.acknowledge(operation)
    kept = rig.started(rig.start_retain(key, rig.keep(key, {0: [0, 2], 1: [1, 2]})))
    rig.all_done(kept, resident_moved_bytes=0, table_updates=2)
    found = metrics(rig)
    assert (found.cpu_gather_bytes, found.cpu_destination_blocks) == (0, 0)
    assert (found.h2d_bytes, found.unpack_bytes, found.table_updates) == (200, 180, 8)
    assert found.metadata_bytes > 0


def test_a4_every_layer_has_its_own_sources_and_destinations(make_rig: MakeRig) -> None:
    """A sliding layer between has no row; the copies of layer l are read into areas of layer l."""
    rig = make_rig(make_layout(3, sliding=1))
    key = rig.open()
    want: Ids = {0: [4], 1: [0, 3, 5], 2: []}
    rig.upload(key, want)
    sent = rig.last(Transfer)
    for rows in (sent.source, sent.destination, sent.table):
        assert rows.layers.tolist() == [0, 1, 2]
        assert rows.counts.tolist() == [1, 3, 0]
    assert sent.source.as_lists() == {0: [3], 1: [7, 4, 2], 2: []}
    assert sent.ranks == RANKS


def test_a4_copies_are_per_layer_too(make_rig: MakeRig) -> None:
    """One copy block serves the j-th block of every layer, each in the layer's own area of it."""
    rig = make_rig(source={"kind": "copy", "allow_copy": True})
    key = rig.open()
    rig.started(rig.select(key, {0: [0, 3], 1: [5]}))
    gather, sent = rig.last(Gather), rig.last(Transfer)
    assert gather.source.as_lists() == {0: [7, 4], 1: [2]}
    assert gather.destination.as_lists() == {0: [32, 33], 1: [32]} == sent.source.as_lists()
    assert rig.effects.index(gather) < rig.effects.index(sent), "copied before it is read"


# ---- F1: both branches


def test_f1_bytes_are_staged_leased_transferred_by_all_ranks_committed_and_acknowledged(rig: CoreRig) -> None:
    key = rig.open()
    mark = len(rig.events)
    operation = rig.started(rig.select(key, FIRST))
    assert rig.since(mark) == START, "one batch: nothing waits in between"
    assert rig.request(key).upload.phase == "MOVING"
    rig.done(operation, 1)
    assert rig.request(key).view is None, "one rank is not all ranks"
    assert rig.effects_of(Acknowledge) == []
    rig.done(operation, 0)
    assert rig.since(mark + len(START)) == [
        "RankTransferred",
        "RankTransferred",
        "TransferCompleted",
        "ResidencyCommitted",
    ]
    assert rig.request(key).upload.phase == "COMMITTED"
    assert rig.view(key).generation == rig.last(Acknowledge).generation == 1
    assert rig.view(key).logical.as_lists() == FIRST
    assert rig.request(key).map_revision == 1
    rig.acknowledge(operation)
    assert rig.request(key).upload.phase == "IDLE"
    rig.lawful()


def test_f1_zero_bytes_keep_the_residency_publish_the_keep_map_and_are_acknowledged(rig: CoreRig) -> None:
    key = rig.open()
    rig.upload(key, FIRST)
    view, free, mark = rig.view(key), rig.free(), len(rig.events)
    operation = rig.started(rig.select(key, {0: [2, 5], 1: [7]}))
    assert rig.since(mark) == ["BlocksSelected", "KeepMapPublished"]
    published = rig.last(PublishKeepMap)
    assert published.keep.as_lists() == {0: [1, 2], 1: [2]}
    assert published.selection_revision == 2 == rig.request(key).selection_revision
    request = rig.request(key)
    assert request.view == view
    assert request.map_revision == 1
    assert request.keep_map is not None
    assert (request.keep_map.selection_revision, request.keep_map.map_revision) == (2, 1)
    assert rig.free() == free
    assert rig.effects_of(Transfer)[1:] == []
    assert rig.request(key).upload.phase == "PUBLISHED"
    rig.acknowledge(operation)
    assert rig.request(key).upload.phase == "IDLE"


def test_f1_a_zero_byte_plan_takes_its_turn_in_the_lane(rig: CoreRig) -> None:
    """It waits while a retain is open: its slots would be of a view that is about to be replaced."""
    key = rig.open()
    rig.upload(key, FIRST)
    kept = rig.started(rig.start_retain(key, rig.keep(key, {0: [0, 2], 1: [1, 2]})))
    turn = rig.select(key, {0: [0], 1: [1]})
    assert turn.outcome == "refused"
    assert turn.refusal is not None
    assert "one view-changing operation at a time" in turn.refusal.reason
    assert rig.request(key).retain.open is not None
    assert rig.request(key).retain.open.operation == kept  # type: ignore[union-attr]


def test_f1_preemption_voids_a_published_keep_map(rig: CoreRig) -> None:
    key = rig.open()
    rig.upload(key, FIRST)
    operation = rig.started(rig.select(key, {0: [0], 1: [1]}))
    rig.send(Preempt(request=key))
    assert rig.request(key).keep_map is None
    assert rig.acknowledge(operation).outcome == "accepted", "the lane goes on to its acknowledgement"


def test_f1_an_empty_selection_of_nothing_resident_is_a_zero_byte_plan(rig: CoreRig) -> None:
    key = rig.open()
    operation = rig.started(rig.select(key, {0: [], 1: []}))
    assert rig.request(key).upload.phase == "PUBLISHED"
    rig.acknowledge(operation)
    rig.lawful()


def test_f4_an_upload_after_a_resume_goes_through_the_same_plan_lease_and_acknowledgement(rig: CoreRig) -> None:
    key = rig.open()
    rig.upload(key, FIRST)
    rig.send(Preempt(request=key))
    rig.send(Resume(request=key))
    assert rig.free() == 16
    mark = len(rig.events)
    operation = rig.upload(key, FIRST)
    assert rig.since(mark) == [
        *START, "RankTransferred", "RankTransferred", "TransferCompleted", "ResidencyCommitted", "UploadAcknowledged",
    ]  # fmt: skip
    assert rig.view(key).generation == 2, "generations are never used again"
    assert operation.map_revision == 2
    rig.lawful()


def test_e6_a_full_plan_goes_to_new_destinations_and_replaces_what_was_held(make_rig: MakeRig) -> None:
    rig = make_rig(retain={"layer_tables": False})
    key = rig.open()
    rig.upload(key, {0: [0, 1], 1: [2, 3]})
    old = {(layer, block) for layer, row in rig.view(key).physical.items() for block in row.tolist()}
    operation = rig.started(rig.select(key, {0: [0, 4], 1: [2, 3]}))
    assert rig.last(e.UploadPlanned).kind == "full"
    written = {(layer, b) for layer, row in rig.last(Transfer).destination.items() for b in row.tolist()}
    assert not old & written, "the old residency stays whole until the commit"
    rig.all_done(operation)
    assert rig.view(key).logical.as_lists() == {0: [0, 4], 1: [2, 3]}
    assert len(rig.owned(key)) == 2
    rig.lawful()


# ---- F3: repeated calls


def test_f3_the_same_key_for_the_same_selection_starts_nothing_again(rig: CoreRig) -> None:
    key = rig.open()
    chosen = selection(rig.layout, key, 1, FIRST)
    first = rig.send(Select(selection=chosen, idempotency_key="k"))
    for phase in ("MOVING", "COMMITTED"):
        assert rig.request(key).upload.phase == phase
        state, effects = frozen(rig.state), len(rig.effects)
        again = rig.send(Select(selection=chosen, idempotency_key="k"))
        assert (again.outcome, again.operation, again.events) == ("repeated", first.operation, ())
        assert again.refusal is None
        assert (frozen(rig.state), len(rig.effects)) == (state, effects)
        if phase == "MOVING":
            rig.all_done(rig.started(first))


def test_f3_the_same_key_for_another_selection_is_refused(rig: CoreRig) -> None:
    key = rig.open()
    rig.upload(key, FIRST, idempotency_key="k")
    turn = rig.select(key, SECOND, idempotency_key="k")
    assert turn.outcome == "refused"
    assert turn.refusal is not None
    assert turn.refusal.reason == "idempotency key 'k' was used for something else"
    assert isinstance(turn.events[0], e.CommandRefused)


def test_f3_a_key_of_another_life_or_request_is_another_key(rig: CoreRig) -> None:
    a, b = rig.open("a"), rig.open("b")
    first = rig.select(a, FIRST, idempotency_key="k")
    second = rig.select(b, FIRST, idempotency_key="k")
    assert second.outcome == "accepted"
    assert second.operation != first.operation


def test_f3_a_repeated_call_of_an_aborted_operation_says_so(rig: CoreRig) -> None:
    key = rig.open()
    chosen = selection(rig.layout, key, 1, FIRST)
    operation = rig.started(rig.send(Select(selection=chosen, idempotency_key="k")))
    rig.send(Abort(operation=operation, reason="deadline"))
    again = rig.send(Select(selection=chosen, idempotency_key="k"))
    assert (again.outcome, again.operation) == ("repeated", operation)
    assert again.refusal is not None
    assert (again.refusal.what, again.refusal.reason) == ("Aborted", "deadline")


# ---- refusals that keep everything


def kept_whole(rig: CoreRig, key: Any, turn: Any, reason: str) -> e.PlanRefused:
    assert turn.outcome == "refused"
    (refused,) = turn.events
    assert isinstance(refused, e.PlanRefused)
    assert refused.reason == reason
    assert turn.effects == ()
    return refused


def test_g3_no_space_changes_nothing(make_rig: MakeRig) -> None:
    """Nothing reserved, no operation number taken, no selection noted."""
    rig = make_rig(device_blocks=4)
    key = rig.open()
    rig.upload(key, FIRST)
    before = rig.request(key)
    refused = kept_whole(rig, key, rig.select(key, {0: [0, 2, 5], 1: [0, 3, 4]}), "no_space")
    assert (refused.needed, refused.free, refused.selection_revision) == (3, 1, 2)
    after = rig.request(key)
    assert (after.view, after.upload, after.selection_revision) == (before.view, before.upload, 1)
    assert rig.state.pool.next_operation_id == 2
    assert rig.free() == 1
    rig.lawful()
    rig.upload(key, {0: [0, 2, 5], 1: [1, 2, 4]})


def test_d5_an_empty_copy_pool_refuses_the_plan_and_takes_nothing(make_rig: MakeRig) -> None:
    rig = make_rig(cpu=(32, 34), source={"kind": "copy", "allow_copy": True})
    key = rig.open()
    refused = kept_whole(rig, key, rig.select(key, FIRST), "no_space")
    assert refused.free == 2
    assert (rig.free(), rig.pools.cpu.free) == (16, (24, 2))


def test_e5_d1_a_block_without_a_valid_cpu_block_is_refused(rig: CoreRig) -> None:
    key = rig.open(blocks=4)
    kept_whole(rig, key, rig.select(key, {0: [0, 5], 1: [1]}), "invalid_source")


def test_g3_with_two_rows_a_new_operation_waits_until_the_older_view_has_drained(make_rig: MakeRig) -> None:
    rig = make_rig(retain={"table_rows": 2})
    key = rig.open()
    rig.upload(key, FIRST)
    step = rig.begin_step(key)
    rig.upload(key, SECOND)
    third: Ids = {0: [0, 2, 7], 1: [1, 2, 5]}
    kept_whole(rig, key, rig.select(key, third), "no_row")
    rig.end_step(step)
    rig.upload(key, third)
    rig.lawful()


def test_g3_three_rows_let_a_retry_run_while_the_first_attempt_settles(rig: CoreRig) -> None:
    key = rig.open()
    rig.upload(key, FIRST)
    first = rig.started(rig.select(key, SECOND))
    rig.send(Abort(operation=first, reason="test"))
    retry = rig.started(rig.select(key, SECOND))
    assert retry.operation_id == first.operation_id + 1
    row_of = {opened.operation: opened.row for opened in rig.request(key).settling}
    assert len({row_of[first], rig.last(Transfer).row, rig.view(key).row}) == 3
    taken = [
        {(layer, block) for layer, ids in sent.destination.items() for block in ids.tolist()}
        for sent in rig.effects_of(Transfer)[-2:]
    ]
    assert not taken[0] & taken[1], "quarantined areas are no destination"
    rig.all_done(retry)
    assert [rig.done(first, rank, "cancelled").outcome for rank in (0, 1)] == ["accepted"] * 2
    assert rig.view(key).logical.row(0).tolist() == [0, 2, 5, 6]
    rig.lawful()


# ---- G3: abort


@pytest.mark.parametrize("reported", [(), (0,), (1,)], ids=["none", "rank 0", "rank 1"])
def test_g3_an_abort_keeps_the_old_state_and_gives_back_what_was_reserved_once_every_rank_is_terminal(
    rig: CoreRig, reported: tuple[int, ...]
) -> None:
    key = rig.open()
    rig.upload(key, FIRST)
    before, free = rig.view(key), rig.free()
    operation = rig.started(rig.select(key, {0: [0, 2, 5, 6], 1: [1, 2, 3, 7]}))
    assert rig.free() == free - 1
    for rank in reported:
        rig.done(operation, rank)
    turn = rig.send(Abort(operation=operation, reason="deadline"))
    assert turn.outcome == "accepted"
    request = rig.request(key)
    assert (request.view, request.map_revision, request.upload.phase) == (before, 1, "IDLE")
    assert rig.last(Cancel).ranks == RANKS
    assert rig.free() == free - 1, "time frees nothing"
    waiting = [rank for rank, _ in RANKS if rank not in reported]
    for rank in waiting:
        assert not rig.effects_of(Release), "not every rank is terminal"
        rig.done(operation, rank, "cancelled" if rank == waiting[0] else "completed")
    assert rig.free() == free
    assert rig.request(key).settling == ()
    assert rig.view(key) == before
    rig.lawful()


def test_g3_a_commit_stands_against_an_abort_that_comes_later(rig: CoreRig) -> None:
    key = rig.open()
    operation = rig.started(rig.select(key, FIRST))
    rig.all_done(operation)
    turn = rig.send(Abort(operation=operation, reason="late"))
    assert turn.outcome == "refused"
    assert turn.refusal is not None
    assert turn.refusal.reason == "upload has committed"
    rig.acknowledge(operation)
    assert rig.send(Abort(operation=operation, reason="later still")).outcome == "refused"
    assert rig.view(key).logical.as_lists() == FIRST


def test_g3_leased_copies_and_sources_come_back_after_a_settled_abort(make_rig: MakeRig) -> None:
    rig = make_rig(source={"kind": "copy", "allow_copy": True})
    key = rig.open()
    operation = rig.started(rig.select(key, FIRST))
    assert rig.pools.cpu.free == (24, 5)
    rig.send(Abort(operation=operation, reason="x"))
    rig.done(operation, 0, "cancelled")
    assert rig.pools.cpu.free == (24, 5), "rank 1 may still read them"
    rig.done(operation, 1, "cancelled")
    assert rig.pools.cpu.free == (24, 8)
    assert int32_view(rig.request(key).source).tolist() == [7, 6, 5, 4, 3, 2, 1, 0], "the owner keeps its own"
    rig.lawful()
