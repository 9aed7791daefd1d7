"""The upload lane: F1 bullet by bullet, its identity checks, and what a commit or an abort leaves behind."""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.ledger.worlds import PRODUCER, A, B, K, N, World, ids_of, rows

from kvsweep.ledger import events as e
from kvsweep.ledger.errors import SequenceConflict
from kvsweep.ledger.ids import HOLE, POOL, RequestKey, int32_bytes
from kvsweep.ledger.state import COMMANDS_KEPT, residency

BOTH = {0: [0, 1], 1: [1, 2]}
TO = {0: [3, 4], 1: [3, 4]}


def moving(**lease: Any) -> World:
    world = World()
    world.upload(BOTH, TO, [3, 4], **lease)
    return world


# ---- F1, bytes > 0: select, plan, stage, allocate and lease, transfer, all ranks, commit, ACK


def test_f1_select_then_plan() -> None:
    """A plan follows a selection; without one it is refused."""
    w = World()
    fields = {
        "operation": w.operation(), "kind": "diff", "source_kind": "source_only", "logical": rows(BOTH)
    }  # fmt: skip
    w.refuse("UploadPlanned is illegal in running/idle/idle/idle", e.UploadPlanned, **fields)
    w.select()
    w.emit(e.UploadPlanned, **fields)
    assert w.of().upload.phase == "PLANNED"


def test_f1_start_leases_sources_and_reserves_destinations_and_a_row() -> None:
    w = moving()
    number = w.opened("upload").operation_id
    holders = {(h.kind, h.number): held for h, held in w.state.ownership.holders(A).items()}
    assert holders["dst", number].areas == rows(TO)
    assert holders["dst", number].rows == (0,)
    assert ids_of(holders["src", number].sources) == [0, 1, 2]
    assert w.owned() == [3, 4]
    w.lawful()


def test_f1_a_stage_is_not_residency() -> None:
    """g + 1 is staged from the plan on; the residency that everybody reads is g until the commit."""
    w = World()
    w.resident()
    before = residency(w.state, w.of())
    op = w.upload({0: [2], 1: [2]}, {0: [5], 1: [5]}, [5], row=1)
    w.moved(op)
    staged = residency(w.state, w.of())
    assert (staged.map_revision, staged.view_generation) == (before.map_revision, before.view_generation)
    assert staged.physical_by_slot_by_layer == before.physical_by_slot_by_layer
    assert (before.pending_upload, staged.pending_upload) == (None, op)


def test_f1_no_commit_before_all_ranks_completed() -> None:
    w = moving()
    op = w.opened("upload")
    w.refuse(r"ranks \[0, 1\] have not completed", e.TransferCompleted, operation=op)
    w.transferred(op, 1)
    w.refuse(r"ranks \[0\] have not completed", e.TransferCompleted, operation=op)
    w.refuse("ResidencyCommitted is illegal in running/moving", e.ResidencyCommitted, operation=op, generation=1)


def test_f1_one_rank_twice_is_not_all_ranks() -> None:
    """Completions are a set of distinct ranks, never a count."""
    w = moving()
    op = w.opened("upload")
    w.transferred(op, 0)
    report = {"operation": op, "process_epoch": 10, "h2d_bytes": 0, "unpack_bytes": 0, "table_updates": 0}
    w.refuse("rank 0 has already reported", e.RankTransferred, **report, rank=0)
    w.refuse("expected one of", e.RankTransferred, **report, rank=2)
    w.refuse("expected one of", e.RankTransferred, **report, rank=1)  # epoch 10 is rank 0's


def test_f1_commit_makes_the_next_residency_and_releases_the_lease() -> None:
    w = moving()
    generation = w.commit(w.opened("upload"), acknowledged=False)
    assert generation == 1
    assert w.of().upload.phase == "COMMITTED"
    assert (w.of().map_revision, w.of().current) == (1, 1)
    assert w.table() == (BOTH, TO)
    assert {h.kind for h in w.state.ownership.holders(A)} == {"owner", "view"}
    w.lawful()


def test_f1_ack_ends_the_operation_and_names_the_living_producer() -> None:
    w = moving()
    op = w.opened("upload")
    w.commit(op, acknowledged=False)
    w.refuse("expected producer epoch 5, got 4", e.UploadAcknowledged, operation=op, process_epoch=PRODUCER - 1)
    w.refuse("the open operation is", e.UploadAcknowledged, operation=w.operation(), process_epoch=PRODUCER)
    w.emit(e.UploadAcknowledged, operation=op, process_epoch=PRODUCER)
    assert w.of().upload.phase == "IDLE"
    assert w.of().upload.open is None
    assert w.of().upload.closed is not None
    assert w.of().upload.closed.outcomes == ((0, "completed"), (1, "completed"))


# ---- F1, bytes = 0: residency stays, keep revision r is published, metadata ACK


def published(w: World, keep: dict[int, list[int]]) -> None:
    w.select()
    w.emit(e.KeepMapPublished, operation=w.operation(), selection_revision=w.of().selection_revision, keep=rows(keep))


def test_f1_zero_bytes_leave_residency_and_ownership_and_publish_keep_revision_r() -> None:
    w = World()
    w.resident()
    before, owners = residency(w.state, w.of()), w.state.ownership.canonical()
    published(w, {0: [0, 1], 1: [1]})
    now = residency(w.state, w.of())
    assert replace(now, pending_upload=None) == before
    assert w.state.ownership.canonical() == owners
    keep = w.of().keep_map
    assert keep is not None
    assert (keep.selection_revision, keep.map_revision) == (2, 1)
    assert keep.keep.as_lists() == {0: [0, 1], 1: [1]}


def test_f1_zero_bytes_still_update_selection_state_and_end_with_a_metadata_ack() -> None:
    w = World()
    w.resident()
    published(w, {0: [0], 1: [0]})
    assert (w.of().upload.phase, w.of().selection_revision) == ("PUBLISHED", 2)
    op = w.opened("upload")
    w.refuse("TransferStarted is illegal", e.TransferStarted, operation=op, ranks=w.state.pool.ranks)
    w.emit(e.UploadAcknowledged, operation=op, process_epoch=PRODUCER)
    assert w.of().upload.phase == "IDLE"
    assert w.of().keep_map is not None, "the keep map outlives its acknowledgement"


def test_f1_a_keep_map_names_slots_that_exist_of_this_selection() -> None:
    w = World()
    w.resident()
    w.select()
    good = {"operation": w.operation(), "selection_revision": 2, "keep": rows({0: [0], 1: [1]})}
    for keep in ({0: [2]}, {0: [1, 0]}, {1: [0, 0]}, {0: [-1]}, {2: [0]}):
        w.refuse("expected ascending slots", e.KeepMapPublished, **{**good, "keep": rows(keep)})
    w.refuse("expected selection 2, got 1", e.KeepMapPublished, **{**good, "selection_revision": 1})
    w.emit(e.KeepMapPublished, **good)


@pytest.mark.parametrize("how", ["preempt", "upload", "retain", "finish"])
def test_f1_a_keep_map_ends_with_the_residency_it_names_slots_of(how: str) -> None:
    w = World()
    w.resident()
    published(w, {0: [0], 1: [0]})
    w.emit(e.UploadAcknowledged, operation=w.opened("upload"), process_epoch=PRODUCER)
    if how == "upload":
        w.commit(w.upload({0: [2], 1: [2]}, {0: [5], 1: [5]}, [5], row=1))
    elif how == "retain":
        w.switch(w.retain({0: [0], 1: [0]}))
    else:
        w.emit(e.RequestPreempted if how == "preempt" else e.RequestFinished)
    assert w.of().keep_map is None


# ---- F2: identity of the operation


@pytest.mark.parametrize(
    "wrong",
    [
        {"operation_id": 2}, {"operation_id": 0}, {"pool_generation": 2}, {"map_revision": 1}, {"map_revision": -1},
        {"request": B}, {"request": RequestKey("a", 2)},
    ],
)  # fmt: skip
def test_f2_a_new_operation_has_exactly_the_next_identity(wrong: dict[str, Any]) -> None:
    w = World()
    w.select()
    w.refuse(
        "expected a new operation", e.UploadPlanned, operation=replace(w.operation(), **wrong),
        kind="diff", source_kind="source_only", logical=rows(BOTH),
    )  # fmt: skip


def test_f2_operation_ids_come_from_one_counter_over_requests_and_are_never_reused() -> None:
    w = World()
    w.open(B, first_source=4)
    first = w.upload(BOTH, TO, [3, 4])
    second = w.upload({0: [0], 1: [0]}, {0: [0], 1: [0]}, [0], key=B)
    w.emit(e.UploadAborted, operation=first, reason="deadline")
    third = w.upload(BOTH, {0: [1, 2], 1: [1, 2]}, [1, 2], row=1)
    assert [first.operation_id, second.operation_id, third.operation_id] == [1, 2, 3]


def test_f2_commit_only_on_the_view_planned_on() -> None:
    """A rank's memory was lost after the plan: same request, same map revision, another pool generation."""
    w = moving()
    op = w.opened("upload")
    w.moved(op)
    w.emit(e.RankRestarted, POOL, rank=1, process_epoch=12, pool_generation=2)
    w.refuse("commit only on the view planned on", e.ResidencyCommitted, operation=op, generation=1)


def test_f2_an_event_of_another_operation_of_the_lane_is_refused() -> None:
    w = moving()
    op = replace(w.opened("upload"), operation_id=9)
    for fact, fields in (
        (e.RankTransferred, {"rank": 0, "process_epoch": 10, "h2d_bytes": 0, "unpack_bytes": 0, "table_updates": 0}),
        (e.UploadAborted, {"reason": "x"}),
        (e.TransferCompleted, {}),
    ):
        w.refuse("the open operation is", fact, operation=op, **fields)


# ---- generations


def test_generations_are_never_reused_not_even_after_an_abort() -> None:
    w = moving()
    op = w.opened("upload")
    w.emit(e.UploadAborted, operation=op, reason="deadline")
    fields = {"operation": w.plan(BOTH), "row": 1}
    w.refuse("expected generation 2, got 1", e.UploadStaged, **fields, generation=1)
    w.refuse("expected generation 2, got 3", e.UploadStaged, **fields, generation=3)
    w.emit(e.UploadStaged, **fields, generation=2)
    assert w.of().upload.phase == "STAGED"


def test_a_commit_names_the_generation_of_its_plan() -> None:
    w = moving()
    op = w.opened("upload")
    w.moved(op)
    w.refuse("expected generation 1, got 2", e.ResidencyCommitted, operation=op, generation=2)


# ---- what a plan may name


@pytest.mark.parametrize(
    ("logical", "match"),
    [
        ({0: [0]}, "a row for each active layer"),
        ({0: [0], 1: [0], 2: [0]}, "a row for each active layer"),
        ({0: [1, 0], 1: []}, "layer 0: expected ascending ids"),
        ({0: [1, 1], 1: []}, "layer 0: expected ascending ids"),
        ({0: [], 1: [-1]}, "layer 1: expected ascending ids"),
        ({0: [], 1: [8]}, "layer 1: expected ascending ids"),
    ],
)
def test_e4_a_plan_is_ascending_inside_the_sequence_and_over_active_layers(
    logical: dict[int, list[int]], match: str
) -> None:
    w = World()
    w.select()
    w.refuse(
        match, e.UploadPlanned, operation=w.operation(), kind="diff", source_kind="source_only",
        logical=rows(logical),
    )  # fmt: skip


def test_e3_a_diff_plan_never_uploads_what_is_held_and_e6_a_full_plan_may() -> None:
    w = World()
    w.resident()
    w.select()
    fields = {"operation": w.operation(), "source_kind": "source_only", "logical": rows(BOTH)}
    w.refuse("layer 0: a block that is already resident", e.UploadPlanned, **fields, kind="diff")
    w.emit(e.UploadPlanned, **fields, kind="full")
    w.emit(e.BlocksLeased, **w.lease(TO, [3, 4], row=1))
    op = w.opened("upload")
    w.emit(e.TransferStarted, operation=op, ranks=w.state.pool.ranks)
    w.commit(op)
    assert w.table() == (BOTH, TO), "a full plan's view is the upload alone"


def test_a_diff_view_is_what_was_held_then_what_was_uploaded() -> None:
    w = World()
    w.resident(blocks=(0, 1))
    w.commit(w.upload({0: [3], 1: [2, 3]}, {0: [5], 1: [4, 5]}, [4, 5], row=1))
    assert w.table() == ({0: [0, 1, 3], 1: [0, 1, 2, 3]}, {0: [0, 1, 5], 1: [0, 1, 4, 5]})
    assert w.vacant(0) == [4]
    w.lawful()


def test_e6_selection_revisions_rise_and_the_budget_fits_the_sequence() -> None:
    w = World()
    w.resident()
    w.refuse(
        "selection revision 1 is not above 1", e.BlocksSelected, selection_revision=1, digest="d", whole_blocks=8,
        effective_budget_blocks=4,
    )  # fmt: skip
    for budget in (-1, 9):
        w.refuse(
            "is not within 8 whole blocks", e.BlocksSelected, selection_revision=2, digest="d", whole_blocks=8,
            effective_budget_blocks=budget,
        )  # fmt: skip


# ---- what a lease may name


def planned() -> World:
    w = World()
    w.plan(BOTH)
    return w


def test_a4_rows_of_a_lease_are_the_rows_of_its_plan() -> None:
    """One layer's ids are never applied to another: counts per layer must match, not only their sum."""
    w = planned()
    w.refuse("destination rows do not match", e.BlocksLeased, **w.lease({0: [3], 1: [3, 4, 5]}, [3, 4, 5]))
    w.refuse("source rows do not match", e.BlocksLeased, **w.lease(TO, [3, 4], source=rows({0: [0], 1: [1, 1, 2]})))
    w.refuse("destination rows do not match", e.BlocksLeased, **w.lease({0: [3, 4]}, [3, 4]))


def test_a1_a_source_is_the_requests_own_valid_block_of_that_logical_block() -> None:
    w = planned()
    w.refuse("a source is not", e.BlocksLeased, **w.lease(TO, [3, 4], source=rows({0: [1, 0], 1: [1, 2]})))
    w.refuse("a source is not", e.BlocksLeased, **w.lease(TO, [3, 4], source=rows({0: [0, 1], 1: [1, 9]})))
    w.emit(e.BlocksLeased, **w.lease(TO, [3, 4]))


def test_a1_a_block_without_a_cpu_block_is_no_source() -> None:
    w = World()
    w.plan({0: [5], 1: [5]})
    w.refuse("logical block 5 has no CPU block", e.BlocksLeased, **w.lease({0: [3], 1: [3]}, [3]))
    w = World()
    w.register([6], [6])
    w.plan({0: [5], 1: [6]})
    assert w.of().source_of(5) == HOLE
    w.refuse("a source is not", e.BlocksLeased, **w.lease({0: [3], 1: [3]}, [3]))


def test_a1_a_copied_plan_reads_only_its_own_copies() -> None:
    w = planned()
    fields = w.lease(TO, [3, 4], source=rows({0: [K, K + 1], 1: [K + 1, K + 2]}))
    for bad in ([K - 1, K, K + 1, K + 2], [K, K + 1, K + 2, N], [K, K, K + 1, K + 2]):
        w.refuse("copy destinations are not distinct", e.BlocksLeased, **fields, copies=int32_bytes(bad))
    w.refuse("not one of its copies", e.BlocksLeased, **fields, copies=int32_bytes([K, K + 1]))
    w.emit(e.BlocksLeased, **fields, copies=int32_bytes([K, K + 1, K + 2]))
    assert w.sources_held() == [0, 1, 2, 3, K, K + 1, K + 2]


def test_i_a_copy_destination_in_use_is_not_written_again_while_a_transfer_reads_it() -> None:
    """Neither by another request, nor by a retry while the first attempt settles."""
    w = World()
    w.open(B, first_source=4)
    copy = {"source": rows({0: [K], 1: [K]}), "copies": int32_bytes([K])}
    op = w.upload({0: [0], 1: [0]}, {0: [0], 1: [0]}, [0], **copy)
    w.plan({0: [0], 1: [0]}, B)
    w.refuse("CPU block 12 is held", e.BlocksLeased, B, **w.lease({0: [1], 1: [1]}, [1], key=B, **copy))
    w.emit(e.UploadAborted, operation=op, reason="deadline")
    w.plan({0: [0], 1: [0]})
    w.refuse("CPU block 12 is held", e.BlocksLeased, **w.lease({0: [1], 1: [1]}, [1], row=1, **copy))
    w.settle(op, 0)
    w.settle(op, 1)
    w.emit(e.BlocksLeased, **w.lease({0: [1], 1: [1]}, [1], row=1, **copy))
    w.lawful()


def test_the_transfer_names_every_rank_with_its_process_epoch() -> None:
    w = planned()
    w.emit(e.BlocksLeased, **w.lease(TO, [3, 4]))
    op = w.opened("upload")
    for ranks in ((), ((0, 10),), ((0, 10), (1, 12)), ((1, 11), (0, 10))):
        w.refuse("expected every rank with its process epoch", e.TransferStarted, operation=op, ranks=ranks)


def test_f5_an_event_of_another_life_is_not_taken() -> None:
    w = moving()
    for key in (RequestKey("a", 2), RequestKey("a", 0), RequestKey("a/1", 1), RequestKey("", 1)):
        w.refuse("expected sequence a life of", e.RequestPreempted, key, error=SequenceConflict)


# ---- F3: idempotency keys


def test_f3_a_key_is_remembered_with_what_was_asked_and_its_operation_and_the_memory_is_bounded() -> None:
    w = World()
    asked = []
    for number in range(COMMANDS_KEPT + 2):
        w.select(idempotency_key=f"k{number}", digest=f"d{number}")
        op = w.operation()
        revision = w.of().selection_revision
        w.emit(e.KeepMapPublished, operation=op, selection_revision=revision, keep=rows(w.none))
        w.emit(e.UploadAcknowledged, operation=op, process_epoch=PRODUCER)
        asked.append((f"k{number}", f"d{number}", op))
    assert [(key, known.what, known.operation) for key, known in w.of().commands.items()] == asked[2:]


def test_f3_a_call_without_a_key_is_not_remembered() -> None:
    w = moving()
    assert w.of().commands == {}
    w.commit(w.opened("upload"))
    w.retain({0: [0], 1: [0]}, idempotency_key="again", digest="d")
    assert {key: known.what for key, known in w.of().commands.items()} == {"again": "d"}
