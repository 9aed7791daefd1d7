"""Aborts, what settles after them, preemption, finish and close: old state kept, every reservation returned once."""

import pytest
from msgspec.structs import replace
from tests.ledger.relation import change
from tests.ledger.worlds import PRODUCER, RANKS, A, B, World, frozen, rows

from kvsweep.ledger import events as e
from kvsweep.ledger.errors import Refused
from kvsweep.ledger.fold import apply_all
from kvsweep.ledger.ids import RequestKey, int32_bytes
from kvsweep.ledger.ownership import Holder, Holding

LOGICAL, TO = {0: [2], 1: [2]}, {0: [5], 1: [5]}


def world(row_count: int = 2) -> World:
    w = World(opened=False)
    w.open(row_count=row_count)
    w.resident()
    return w


def owners(w: World) -> object:
    return w.state.ownership.canonical()


# ---- G3: old state kept, reservations returned


@pytest.mark.parametrize("reported", [0, 1, 2])
def test_g3_an_aborted_upload_keeps_the_old_view_and_returns_what_it_reserved(reported: int) -> None:
    w = world()
    before, table = owners(w), w.table()
    op = w.upload(LOGICAL, TO, [5], row=1)
    for rank in range(reported):
        w.transferred(op, rank)
    w.emit(e.UploadAborted, operation=op, reason="deadline")
    assert (w.of().upload.phase, w.table(), w.of().map_revision) == ("IDLE", table, 1)
    for rank in range(reported, 2):
        assert owners(w) != before, "quarantined until the last rank is terminal"
        w.settle(op, rank)
    assert owners(w) == before
    w.lawful()


@pytest.mark.parametrize("reported", [0, 1, 2])
def test_g3_an_aborted_retain_keeps_the_old_view_and_returns_what_it_reserved(reported: int) -> None:
    w = world()
    before, table = owners(w), w.table()
    op = w.retain(
        {0: [1], 1: [0]}, mode="move", moved_from=rows({0: [1], 1: [0]}), moved_to=rows({0: [4], 1: [4]}),
        reserved=w.by_group([4]),
    )  # fmt: skip
    for rank in range(reported):
        w.applied(op, rank)
    w.emit(e.RetainAborted, operation=op, reason="deadline")
    assert (w.of().retain.phase, w.table(), w.of().map_revision) == ("IDLE", table, 1)
    for rank in range(reported, 2):
        assert owners(w) != before
        w.settle(op, rank)
    assert owners(w) == before
    w.lawful()


def test_g3_an_abort_out_of_moved_and_applied_is_quiet_at_once() -> None:
    """All ranks were done: there is nothing to wait for, so nothing that could wait for ever (case B03 b)."""
    w = world()
    before = owners(w)
    op = w.upload(LOGICAL, TO, [5], row=1)
    w.moved(op)
    w.emit(e.UploadAborted, operation=op, reason="preempted")
    assert (w.of().settling, owners(w)) == ((), before)
    op = w.retain({0: [0], 1: [0]})
    w.applied(op, 0)
    w.applied(op, 1)
    w.emit(e.AllRanksApplied, operation=op)
    w.emit(e.RetainAborted, operation=op, reason="preempted")
    assert (w.of().settling, owners(w)) == ((), before)
    w.refuse("does not settle", e.TransferSettled, operation=op, rank=0, process_epoch=10, outcome="completed")


def test_g3_one_rank_done_then_abort_then_the_other_frees_once_after_it() -> None:
    """Case B03 a: the destinations are freed exactly once, after the second rank, and nobody else gets them before."""
    w = world()
    w.open(B, first_source=4)
    op = w.upload(LOGICAL, TO, [5], row=1)
    w.transferred(op, 0)
    w.emit(e.UploadAborted, operation=op, reason="client gone")
    w.plan({0: [0], 1: [0]}, B)
    w.refuse("block 5 of group 0 is owned by a", e.BlocksLeased, B, **w.lease(TO, [5], key=B))
    w.settle(op, 1, "completed")
    w.refuse("does not settle", e.TransferSettled, operation=op, rank=1, process_epoch=11, outcome="completed")
    assert w.owned() == [0, 1]
    w.emit(e.BlocksLeased, B, **w.lease(TO, [5], key=B))
    w.lawful()


def test_an_operation_that_was_never_sent_is_quiet_at_once() -> None:
    w = world()
    before = owners(w)
    fields = w.retain_fields({0: [0], 1: [0]})
    w.emit(e.RetainPlanned, **fields)
    w.emit(e.RetainAborted, operation=fields["operation"], reason="drain deadline")
    assert (w.of().settling, owners(w)) == ((), before)


# ---- what settles


def test_b6_a_settling_operation_holds_its_areas_its_sources_and_its_row() -> None:
    w = world(row_count=3)
    op = w.upload(LOGICAL, TO, [5], row=1)
    w.emit(e.UploadAborted, operation=op, reason="deadline")
    w.settle(op, 0)
    held = {h.kind: holding for h, holding in w.state.ownership.holders(A).items() if h.number == op.operation_id}
    assert held["dst"].areas == rows(TO)
    assert (w.state.ownership.rows(A), w.vacant(0)) == ({0, 1}, [])
    w.settle(op, 1)
    assert (w.state.ownership.rows(A), w.owned()) == ({0}, [0, 1])


def test_i_a_source_is_not_freed_during_a_transfer_even_by_the_end_of_its_request() -> None:
    w = world()
    op = w.upload(LOGICAL, TO, [5], row=1)
    w.emit(e.UploadAborted, operation=op, reason="finish")
    w.emit(e.RequestFinished)
    assert w.sources_held() == [2]
    w.settle(op, 0)
    w.settle(op, 1)
    assert w.sources_held() == []


@pytest.mark.parametrize("outcome", ["completed", "failed", "cancelled", "epoch_ended"])
def test_every_terminal_outcome_of_a_rank_settles_it(outcome: str) -> None:
    w = world()
    op = w.upload(LOGICAL, TO, [5], row=1)
    w.emit(e.UploadAborted, operation=op, reason="deadline")
    w.settle(op, 0, outcome)
    w.settle(op, 1, outcome)
    assert w.of().settling == ()
    closed = w.of().upload.closed
    assert closed is not None
    assert (closed.operation, closed.outcomes) == (op, ((0, outcome), (1, outcome)))


@pytest.mark.parametrize(("rank", "epoch"), [(0, 10), (0, 9), (1, 10), (1, 12), (2, 11), (-1, 11)])
def test_a_rank_settles_once_and_only_in_the_epoch_of_the_plan(rank: int, epoch: int) -> None:
    w = world()
    op = w.upload(LOGICAL, TO, [5], row=1)
    w.transferred(op, 0)
    w.emit(e.UploadAborted, operation=op, reason="deadline")
    w.refuse("is not awaited", e.TransferSettled, operation=op, rank=rank, process_epoch=epoch, outcome="cancelled")


def test_a_retry_runs_while_the_first_attempt_settles_into_other_destinations() -> None:
    w = world(row_count=3)
    op = w.upload(LOGICAL, TO, [5], row=1)
    w.emit(e.UploadAborted, operation=op, reason="deadline")
    operation = w.plan(LOGICAL)
    w.refuse("expected a free row", e.UploadStaged, operation=operation, generation=3, row=1)
    w.refuse("is not vacant or not owned", e.BlocksLeased, **w.lease(TO, row=2))
    w.emit(e.BlocksLeased, **w.lease({0: [4], 1: [4]}, [4], row=2))
    retry = w.opened("upload")
    w.emit(e.TransferStarted, operation=retry, ranks=RANKS)
    w.commit(retry)
    assert len(w.of().settling) == 1
    w.settle(op, 1)
    w.settle(op, 0)
    assert w.table()[1] == {0: [0, 1, 4], 1: [0, 1, 4]}
    w.lawful()


# ---- joint rule 3: preempt and finish turn back first


@pytest.mark.parametrize("fact", [e.RequestPreempted, e.RequestFinished])
def test_g3_a_life_does_not_change_over_an_open_view_changing_operation(fact: type[e.Event]) -> None:
    w = world()
    op = w.upload(LOGICAL, TO, [5], row=1)
    w.refuse("turn back before the life changes: upload is MOVING", fact)
    w.moved(op)
    w.refuse("turn back before the life changes: upload is MOVED", fact)
    w.emit(e.UploadAborted, operation=op, reason="x")
    fields = w.retain_fields({0: [0], 1: [0]})
    op = fields["operation"]
    w.emit(e.RetainPlanned, **fields)
    w.refuse("turn back before the life changes: retain is PLANNED", fact)
    w.emit(e.ReadersDrained, operation=op, row=1, ranks=RANKS)
    w.refuse("turn back before the life changes: retain is APPLYING", fact)
    w.applied(op, 0)
    w.applied(op, 1)
    w.emit(e.AllRanksApplied, operation=op)
    w.refuse("turn back before the life changes: retain is APPLIED", fact)
    w.emit(e.RetainAborted, operation=op, reason="x")
    w.emit(fact)


@pytest.mark.parametrize("fact", [e.RequestPreempted, e.RequestFinished])
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_g3_a_life_does_not_change_inside_a_start_batch(fact: type[e.Event], steps: int) -> None:
    """SELECTED, PLANNED, STAGED and LEASED have no abort: an operation left there would never end."""
    w = world()
    w.select() if steps == 1 else w.plan(LOGICAL)
    if steps == 3:
        w.emit(e.BlocksLeased, **w.lease(TO, [5], row=1))
    w.refuse("its start batch is not complete", fact)


@pytest.mark.parametrize("fact", [e.RequestPreempted, e.RequestFinished])
def test_an_operation_past_its_commit_goes_on_to_its_acknowledgement(fact: type[e.Event]) -> None:
    w = world()
    upload = w.upload(LOGICAL, TO, [5], row=1)
    w.commit(upload, acknowledged=False)
    w.emit(fact)
    w.refuse("UploadAborted is illegal", e.UploadAborted, operation=upload, reason="too late")
    w.emit(e.UploadAcknowledged, operation=upload, process_epoch=PRODUCER)
    w = world()
    retain = w.retain({0: [0], 1: [0]})
    w.switch(retain)
    w.emit(fact)
    w.refuse("RetainAborted is illegal", e.RetainAborted, operation=retain, reason="too late")
    w.retire(1, "retain", [1])
    w.emit(e.RetainAcknowledged, operation=retain, process_epoch=PRODUCER)
    w.retire(2, "preempt" if fact is e.RequestPreempted else "finish", [0])
    assert w.owned() == []
    w.lawful()


# ---- preempt, resume, finish, close, a new life


def test_preemption_keeps_the_view_for_its_readers_and_raises_the_map_revision() -> None:
    w = world()
    w.emit(e.RequestPreempted)
    assert (w.of().current, w.of().view, w.of().map_revision) == (0, None, 2)
    assert w.owned() == [0, 1]
    w.refuse("life is PREEMPTED", e.BlocksSelected, selection_revision=2, digest="d", whole_blocks=8,
             effective_budget_blocks=1)  # fmt: skip
    w.emit(e.RequestResumed)
    assert w.of().view is None, "a resumed request has no view until an upload commits"
    w.retire(1, "preempt", [0, 1])
    w.resident()
    w.lawful()


def test_f4_resume_goes_through_the_same_upload_while_the_old_view_still_drains() -> None:
    w = world()
    w.emit(e.RequestPreempted)
    w.emit(e.RequestResumed)
    op = w.plan({0: [0, 1], 1: [0, 1]})
    w.refuse("expected a free row", e.UploadStaged, operation=op, generation=2, row=0)
    w.refuse("is not vacant", e.BlocksLeased, **w.lease({0: [0, 2], 1: [0, 2]}, [2], row=1))
    w.emit(e.BlocksLeased, **w.lease({0: [2, 3], 1: [2, 3]}, [2, 3], row=1))
    w.emit(e.TransferStarted, operation=op, ranks=RANKS)
    assert op.map_revision == 2
    assert w.commit(op) == 2
    w.retire(1, "preempt", [0, 1])
    w.lawful()


@pytest.mark.parametrize("what", ["view", "tail", "fence", "settling", "ack"])
def test_b6_a_request_closes_only_when_nothing_of_it_is_held(what: str) -> None:
    w = World()
    undo = {"tail": lambda: w.open_fence(w.drop([4]), [0])}
    if what in ("view", "ack"):
        op = w.upload({0: [0], 1: [0]}, {0: [1], 1: [1]}, [1])
        w.commit(op, acknowledged=what == "view")
        if what == "ack":
            undo["ack"] = lambda: w.emit(e.UploadAcknowledged, operation=op, process_epoch=PRODUCER)
        else:
            undo["view"] = lambda: w.retire(1, "finish", [1])
    elif what == "settling":
        op = w.upload({0: [0], 1: [0]}, {0: [1], 1: [1]}, [1])
        w.emit(e.UploadAborted, operation=op, reason="finish")
        w.settle(op, 0)
        undo["settling"] = lambda: w.settle(op, 1)
    else:
        w.tail(4, [0], sealed=False)
    w.emit(e.RequestFinished)
    if what == "fence":
        fence = w.drop([4])
        undo["fence"] = lambda: w.open_fence(fence, [0])
    if what == "ack":
        w.retire(1, "finish", [1])
    held = {
        "view": "a view is held", "tail": "a tail block is held", "fence": "a fence is closed",
        "settling": "an operation settles", "ack": "an operation is open",
    }  # fmt: skip
    w.refuse(f"close only when nothing is held: {held[what]}", e.RequestClosed)
    undo[what]()
    w.emit(e.RequestClosed)
    assert w.state.ownership.holders(A) == {}
    w.lawful()


def test_b6_whatever_else_is_held_keeps_a_request_from_closing() -> None:
    """The relation has the last word, also over what no record of the request explains."""
    w = World()
    w.emit(e.RequestFinished)
    leak = change(w.state.ownership, A, w.layout, put={Holder("dst", 99): Holding(sources=int32_bytes([9]))})
    w.state = replace(w.state, ownership=leak)
    w.refuse("close only when nothing is held: resources are held", e.RequestClosed)


def test_finish_raises_the_map_revision_as_preemption_does() -> None:
    """What was planned before it can never be committed after it."""
    w = world()
    w.emit(e.RequestFinished)
    assert (w.of().map_revision, w.of().current, w.of().source) == (2, 0, b"")


def test_f5_a_new_life_of_the_same_id_has_the_next_epoch_and_nothing_of_the_old_one() -> None:
    w = world()
    w.refuse("the earlier life is not closed", e.RequestOpened, RequestKey("a", 2), pool_generation=1, rows=2, seq=0)
    w.emit(e.RequestFinished)
    w.retire(1, "finish", [0, 1])
    w.emit(e.RequestClosed)
    for what in (e.RequestResumed, e.RequestFinished, e.RequestClosed, e.TailSealed):
        w.refuse("illegal in closed", what, **({"logical": 4} if what is e.TailSealed else {}))
    second = RequestKey("a", 2)
    w.emit(e.RequestOpened, second, pool_generation=1, rows=2)
    assert w.state.request(A) is None
    now = w.of(second)
    assert (now.current, now.map_revision, now.source, now.settling) == (0, 0, b"", ())


def test_a_request_opens_on_the_present_pool_with_at_least_two_rows() -> None:
    w = World(opened=False)
    w.refuse("expected at least 2 table rows, got 1", e.RequestOpened, pool_generation=1, rows=1)
    w.refuse("pool generation is 1, got 2", e.RequestOpened, pool_generation=2, rows=2)


def test_what_is_only_noted_changes_nothing_but_the_sequence() -> None:
    w = world()
    ack = {"operation": w.operation(), "rank": 0, "process_epoch": 1, "outcome": "completed", "rule": "r"}
    for fact, fields in (
        (e.AckIgnored, {**ack, "verdict": "stale"}),
        (e.AckRefused, {**ack, "verdict": "future", "expected": "x", "got": "y"}),
        (e.PlanRefused, {"lane": "upload", "reason": "no_space", "needed": 1, "vacant": 0, "free": 0}),
        (e.CommandRefused, {"command": "Resume", "state": "running", "reason": "x"}),
    ):
        before = w.state
        w.emit(fact, **fields)
        assert w.of().seq == before.requests["a"].seq + 1
        rewound = {"a": replace(w.of(), seq=w.of().seq - 1)}
        assert frozen(replace(w.state, requests=rewound)) == frozen(before)


def test_g3_a_batch_that_fails_at_its_lease_leaves_no_trace_of_its_plan() -> None:
    w = world()
    before = w.state
    batch = [
        w.event(e.BlocksSelected, A, {"selection_revision": 2, "digest": "d", "whole_blocks": 8,
                                      "effective_budget_blocks": 4}),
    ]  # fmt: skip
    planned = {"operation": w.operation(), "kind": "diff", "source_kind": "source_only"}
    batch.append(w.event(e.UploadPlanned, A, {**planned, "logical": rows(LOGICAL), "seq": w.of().seq + 1}))
    staged = w.event(e.UploadStaged, A, {"operation": w.operation(), "generation": 2, "row": 1, "seq": w.of().seq + 2})
    lease = {
        "operation": w.operation(), "source": rows(LOGICAL), "destination": rows(TO), "adopted": rows(w.none),
        "reserved": w.by_group([5]), "seq": w.of().seq + 3,
    }  # fmt: skip
    leased = w.event(e.BlocksLeased, A, lease)
    after = apply_all(before, [*batch, staged, leased])
    assert after.requests["a"].upload.phase == "LEASED"
    kept = frozen(before)
    with pytest.raises(Refused, match="expected a free row"):
        apply_all(before, [*batch, replace(staged, row=0), leased])
    assert frozen(before) == kept
