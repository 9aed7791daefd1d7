"""Reports: what a rank or the producer says becomes a fact only after the decision table has judged it."""

from typing import Literal

from kvsweep.ledger import events as e
from kvsweep.ledger.acks import Ack, Verdict, judge
from kvsweep.ledger.draft import Draft
from kvsweep.ledger.events import LaneName, Measured
from kvsweep.ledger.fold import emit, emit_in
from kvsweep.ledger.ids import POOL, Operation, RequestKey
from kvsweep.ledger.messages import Acknowledged, Done
from kvsweep.ledger.state import RequestState
from kvsweep.runtime.core.follow import abort

ReportOutcome = Literal["accepted", "repeated", "ignored", "refused"]


def stream_of(draft: Draft, key: RequestKey) -> RequestKey:
    """Stream in which a report about this request is recorded: its latest life, or the pool's."""
    known = draft.latest(key.request_id)
    return known.key if known is not None else POOL


def done(draft: Draft, report: Done) -> tuple[ReportOutcome, Verdict]:
    """Judge a rank's terminal word and record it."""
    ack = Ack(operation=report.operation, rank=report.rank, process_epoch=report.process_epoch, outcome=report.outcome)
    verdict = judge(draft, ack)
    if verdict.kind in ("duplicate", "stale", "future", "conflict"):
        return _record(draft, ack, verdict), verdict
    request = draft.mine(report.operation.request)
    if verdict.kind == "applied":
        _apply(draft, request, report)
        return "accepted", verdict
    if verdict.kind == "aborts":
        abort(draft, request, _lane_of(request, report.operation), f"rank {report.rank} {report.outcome}")
    emit(
        draft,
        e.TransferSettled,
        request,
        operation=report.operation,
        rank=report.rank,
        process_epoch=report.process_epoch,
        outcome=report.outcome,
    )
    return "accepted", verdict


def _lane_of(request: RequestState, operation: Operation) -> LaneName:
    """The lane in which the operation is open."""
    names: tuple[LaneName, ...] = ("upload", "retain", "store")
    for name in names:
        opened = request.lane(name).open
        if opened is not None and opened.operation == operation:
            return name
    raise LookupError(f"{operation} is not open")


def _apply(draft: Draft, request: RequestState, report: Done) -> None:
    same = {
        "operation": report.operation,
        "rank": report.rank,
        "process_epoch": report.process_epoch,
        "measured": Measured(wait_s=report.wait_s),
    }
    lane = _lane_of(request, report.operation)
    if lane == "upload":
        emit(
            draft,
            e.RankTransferred,
            request,
            h2d_bytes=report.h2d_bytes,
            unpack_bytes=report.unpack_bytes,
            table_updates=report.table_updates,
            **same,
        )
    elif lane == "retain":
        emit(
            draft,
            e.TablesApplied,
            request,
            resident_moved_bytes=report.resident_moved_bytes,
            table_updates=report.table_updates,
            **same,
        )
    else:
        emit(draft, e.RankStored, request, d2h_bytes=report.d2h_bytes, **same)


def _record(draft: Draft, ack: Ack, verdict: Verdict) -> ReportOutcome:
    """Each outcome is itself recorded; none changes what the ACK speaks of."""
    same = {
        "operation": ack.operation,
        "rank": ack.rank,
        "process_epoch": ack.process_epoch,
        "outcome": ack.outcome,
        "verdict": verdict.kind,
        "rule": verdict.rule,
    }
    stream = stream_of(draft, ack.operation.request)
    if verdict.kind in ("duplicate", "stale"):
        emit_in(draft, e.AckIgnored, stream, **same)
        return "repeated" if verdict.kind == "duplicate" else "ignored"
    emit_in(draft, e.AckRefused, stream, expected=verdict.expected, got=verdict.got, **same)
    return "refused"


def acknowledged(draft: Draft, report: Acknowledged) -> ReportOutcome:
    """The producer's word: closes the lane that waits for it; anything else is recorded and changes nothing."""
    request = draft.known(report.operation.request)
    current = report.process_epoch == draft.pool.producer_epoch
    if request is not None and current:
        for lane, phases, kind in (
            (request.upload, ("PUBLISHED", "COMMITTED"), e.UploadAcknowledged),
            (request.retain, ("RETIRED",), e.RetainAcknowledged),
        ):
            if lane.open is not None and lane.open.operation == report.operation and lane.phase in phases:
                fields = {"cpu_gather_bytes": report.cpu_gather_bytes} if kind is e.UploadAcknowledged else {}
                mine, epoch = draft.own(request), report.process_epoch
                emit(draft, kind, mine, operation=report.operation, process_epoch=epoch, **fields)
                return "accepted"
    ack = Ack(operation=report.operation, rank=PRODUCER, process_epoch=report.process_epoch, outcome="acknowledged")
    return _record(draft, ack, _unawaited(draft, request, report))


def _unawaited(draft: Draft, request: RequestState | None, report: Acknowledged) -> Verdict:
    """Repeated, old, or from a future that was not given out, as for a rank's word."""
    key, pool = report.operation.request, draft.pool
    latest = draft.latest(key.request_id)
    epoch = latest.key.request_epoch if latest else pool.epoch_floor
    for name, got, last in (
        ("operation id", report.operation.operation_id, pool.next_operation_id - 1),
        ("request epoch", key.request_epoch, epoch),
        ("process epoch of the producer", report.process_epoch, pool.producer_epoch),
    ):
        if got > last:
            return Verdict(kind="future", rule=f"{name} not given out yet", expected=f"up to {last}", got=str(got))
    closed = [lane.closed.operation for lane in (request.upload, request.retain) if lane.closed] if request else []
    if report.operation in closed:
        return Verdict(kind="duplicate", rule="the lane's last closed operation")
    return Verdict(kind="stale", rule="no lane waits for this producer acknowledgement")


PRODUCER = -1
"""Stands for the producer where a verdict names a rank."""
