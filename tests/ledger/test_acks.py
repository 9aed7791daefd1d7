"""The decision table for acknowledgements (F2): every row, its order, and that no verdict changes state by itself."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from tests.ledger.worlds import RANKS, A, World, frozen, rows

from kvsweep.ledger import events as e
from kvsweep.ledger.acks import TABLE, Ack, judge
from kvsweep.ledger.ids import POOL, Operation, RequestKey

LOGICAL, TO = {0: [2], 1: [2]}, {0: [5], 1: [5]}


def moving(row_count: int = 3) -> tuple[World, Operation]:
    w = World(opened=False)
    w.open(row_count=row_count)
    return w, w.upload(LOGICAL, TO, [5])


def acked(operation: Operation, rank: int = 0, outcome: str = "completed", epoch: int | None = None) -> Ack:
    return Ack(
        operation=operation, rank=rank, outcome=outcome,
        process_epoch=dict(RANKS).get(rank, 0) if epoch is None else epoch,
    )  # fmt: skip


def settling() -> tuple[World, Operation]:
    w, op = moving()
    w.transferred(op, 0)
    w.emit(e.UploadAborted, operation=op, reason="deadline")
    return w, op


def closed() -> tuple[World, Operation]:
    w, op = moving()
    w.commit(op)
    return w, op


def published() -> tuple[World, Operation]:
    w = World()
    w.resident()
    w.select()
    op = w.operation()
    w.emit(e.KeepMapPublished, operation=op, selection_revision=2, keep=rows(w.none))
    return w, op


def second_life() -> tuple[World, Operation]:
    w, op = closed()
    w.emit(e.RequestFinished)
    w.retire(1, "finish", [5])
    w.emit(e.RequestClosed)
    w.open(RequestKey("a", 2), blocks=0)
    return w, op


def dead() -> tuple[World, Operation]:
    """Rank 1's process has ended and not come back; the operation settles, rank 0 is silent."""
    w, op = moving()
    w.emit(e.RankLost, POOL, rank=1, process_epoch=11, pool_generation=2)
    w.emit(e.UploadAborted, operation=op, reason="rank 1 is lost")
    w.settle(op, 1, "epoch_ended")
    return w, op


def restarted() -> tuple[World, Operation]:
    w, op = moving()
    w.emit(e.RankRestarted, POOL, rank=1, process_epoch=12, pool_generation=2)
    return w, op


Build = Callable[[], tuple[World, Operation]]
OLD, FUTURE, REPEATED, GONE, DIFFERS, OLD_PROCESS, OTHER_PROCESS, SAME, OTHER, SETTLES, ABORTS = (
    row[0] for row in TABLE
)
APPLIED = "operation open, outcome completed"

CASES: list[tuple[str, str, Build, Callable[[Operation], Ack]]] = [
    # 1: an old life, or a closed one
    (OLD, "stale", second_life, acked),
    (OLD, "stale", second_life, lambda op: acked(replace(op, operation_id=99))),  # before "future"
    # 2: not given out yet
    (FUTURE, "future", moving, lambda op: acked(replace(op, operation_id=op.operation_id + 1))),
    (FUTURE, "future", moving, lambda op: acked(replace(op, request=RequestKey("a", 2)))),
    (FUTURE, "future", moving, lambda op: acked(replace(op, request=RequestKey("unknown", 1)))),
    (FUTURE, "future", moving, lambda op: acked(op, epoch=11)),
    (FUTURE, "future", closed, lambda op: acked(op, epoch=11)),  # before "duplicate"
    # 3: repeated after the end
    (REPEATED, "duplicate", closed, acked),
    (REPEATED, "duplicate", closed, lambda op: acked(op, 1)),
    # 4: neither open nor settling
    (GONE, "stale", closed, lambda op: acked(op, outcome="failed")),
    (GONE, "stale", closed, lambda op: acked(op, rank=2)),
    (GONE, "stale", closed, lambda op: acked(replace(op, map_revision=7))),
    (GONE, "stale", closed, lambda op: acked(op, outcome="no such word")),
    (GONE, "stale", moving, lambda op: acked(replace(op, operation_id=0))),
    (GONE, "stale", moving, lambda op: acked(replace(op, request=RequestKey("unknown", 0)))),
    # 5: differs from the operation it names
    (DIFFERS, "conflict", moving, lambda op: acked(replace(op, pool_generation=2))),
    (DIFFERS, "conflict", moving, lambda op: acked(replace(op, map_revision=1))),
    (DIFFERS, "conflict", moving, lambda op: acked(op, rank=2)),
    (DIFFERS, "conflict", moving, lambda op: acked(op, rank=-1)),
    (DIFFERS, "conflict", moving, lambda op: acked(op, outcome="Completed")),
    (DIFFERS, "conflict", settling, lambda op: acked(op, 1, "epoch_ended")),  # no process says that of itself
    (DIFFERS, "conflict", published, acked),  # nothing was sent to a rank
    (DIFFERS, "conflict", restarted, lambda op: acked(replace(op, map_revision=1), 1)),  # before "process epoch is old"
    # 6: an old process
    (OLD_PROCESS, "stale", moving, lambda op: acked(op, epoch=9)),
    (OLD_PROCESS, "stale", restarted, lambda op: acked(op, 1)),
    (OLD_PROCESS, "stale", dead, lambda op: acked(op, 1)),  # before "recorded with another outcome"
    # 7: a process that the plan does not name
    (OTHER_PROCESS, "conflict", restarted, lambda op: acked(op, 1, epoch=12)),
    # 8, 9: recorded already
    (SAME, "duplicate", settling, acked),
    (OTHER, "conflict", settling, lambda op: acked(op, outcome="failed")),
    # 10: settles
    (SETTLES, "settles", settling, lambda op: acked(op, 1)),
    (SETTLES, "settles", settling, lambda op: acked(op, 1, "failed")),
    (SETTLES, "settles", settling, lambda op: acked(op, 1, "cancelled")),
    (SETTLES, "settles", dead, acked),
    # 11 and the last word
    (ABORTS, "aborts", moving, lambda op: acked(op, outcome="failed")),
    (ABORTS, "aborts", moving, lambda op: acked(op, outcome="cancelled")),
    (APPLIED, "applied", moving, acked),
    (APPLIED, "applied", moving, lambda op: acked(op, 1)),
    (APPLIED, "applied", restarted, acked),  # rank 0 is of the plan's process still
]


@pytest.mark.parametrize(("rule", "kind", "build", "ack"), CASES)
def test_f2_each_row_decides_and_none_changes_state(
    rule: str, kind: str, build: Build, ack: Callable[[Operation], Ack]
) -> None:
    w, op = build()
    before = frozen(w.state)
    verdict = judge(w.state, ack(op))
    assert (verdict.kind, verdict.rule) == (kind, rule)
    assert frozen(w.state) == before
    if kind in ("future", "conflict"):
        assert verdict.expected != verdict.got
        assert verdict.expected


def test_f2_every_row_of_the_table_is_reached() -> None:
    assert {case[0] for case in CASES} == {row[0] for row in TABLE} | {APPLIED}
    assert {(case[0], case[1]) for case in CASES} == {(row[0], row[1]) for row in TABLE} | {(APPLIED, "applied")}


def test_f2_a_repeated_completion_of_an_open_operation_is_a_no_op() -> None:
    w, op = moving()
    w.transferred(op, 0)
    assert judge(w.state, acked(op)).kind == "duplicate"
    assert judge(w.state, acked(op, outcome="failed")).kind == "conflict"
    w.transferred(op, 1)
    w.emit(e.TransferCompleted, operation=op)
    w.emit(e.ResidencyCommitted, operation=op, generation=1)
    assert [judge(w.state, acked(op, rank)).kind for rank in (0, 1)] == ["duplicate", "duplicate"]


def test_f2_no_rank_answers_for_what_was_never_sent() -> None:
    """A published keep map waits for the producer alone, whichever rank speaks."""
    w, op = published()
    for rank in (0, 1, 2):
        verdict = judge(w.state, acked(op, rank))
        assert (verdict.kind, verdict.expected) == ("conflict", "an operation that was sent")


def test_f2_only_the_last_operation_of_a_lane_is_remembered_and_older_ones_are_stale() -> None:
    w, first = closed()
    second = w.upload({0: [3], 1: [3]}, {0: [4], 1: [4]}, [4], row=1)
    assert judge(w.state, acked(first)).kind == "duplicate"
    w.commit(second)
    assert (judge(w.state, acked(first)).kind, judge(w.state, acked(second)).kind) == ("stale", "duplicate")


def test_f2_lanes_remember_apart() -> None:
    w, upload = closed()
    retain = w.retain({0: [0], 1: [0]})
    w.applied(retain, 0)
    assert judge(w.state, acked(upload)).kind == "duplicate"
    assert judge(w.state, acked(retain)).kind == "duplicate"
    assert judge(w.state, acked(retain, 1)).kind == "applied"


def test_f2_an_ack_of_the_first_attempt_never_counts_for_the_retry() -> None:
    w, first = moving()
    w.emit(e.UploadAborted, operation=first, reason="deadline")
    retry = w.upload(LOGICAL, {0: [4], 1: [4]}, [4], row=1)
    assert judge(w.state, acked(first)).kind == "settles"
    assert judge(w.state, acked(retry)).kind == "applied"
    w.settle(first, 0, "completed")
    assert judge(w.state, acked(first)).kind == "duplicate"
    assert judge(w.state, acked(retry)).kind == "applied"


def test_f2_identity_is_by_number_so_a_field_that_differs_is_a_conflict_not_another_operation() -> None:
    w, op = moving()
    for field in ("pool_generation", "map_revision"):
        verdict = judge(w.state, acked(replace(op, **{field: 5})))
        assert (verdict.kind, verdict.expected, verdict.got) == (
            "conflict", f"{field} {getattr(op, field)}", f"{field} 5"
        )  # fmt: skip


def test_f2_a_late_ack_of_a_finished_request_is_stale_and_its_record_needs_no_living_request() -> None:
    w, op = closed()
    w.emit(e.RequestFinished)
    w.retire(1, "finish", [5])
    w.emit(e.RequestClosed)
    ack = acked(op)
    verdict = judge(w.state, ack)
    assert (verdict.kind, verdict.rule) == ("stale", OLD)
    w.emit(
        e.AckIgnored, operation=op, rank=0, process_epoch=10, outcome="completed", verdict="stale", rule=verdict.rule
    )
    assert w.of().life == "CLOSED"


def test_f5_the_verdict_is_by_the_whole_id() -> None:
    w, op = moving()
    for name in ("", "A", "a ", "a/1", "@pool"):
        assert judge(w.state, acked(replace(op, request=RequestKey(name, 1)))).kind == "future"
    assert judge(w.state, acked(replace(op, request=A))).kind == "applied"
