"""Situations that a world says it reaches, read off what happened: their names are the vocabulary of `sometimes`."""

from collections.abc import Iterator
from typing import Final

from kvsweep.ledger import events as e
from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import Physical, RequestKey, Rows, int32_view
from kvsweep.ledger.messages import Cancel, RankWork, Turn
from kvsweep.ledger.state import OpenOperation, RequestState, State
from kvsweep.scenarios.verify.explore.coordinator_state import CoordinatorState
from kvsweep.scenarios.verify.explore.rank import Rank

LANES: Final = ("upload", "retain", "store")


def of_turn(before: CoordinatorState, turn: Turn, after: CoordinatorState) -> Iterator[str]:
    """Situations that one turn of the core met."""
    state, ended = before.state, before.reads.keys() - after.reads.keys()
    for event in turn.events:
        yield from _of_event(before, state, event)
    if ended:
        if min(after.reads, default=max(ended)) < max(ended):
            yield "steps end out of order"
        if any(isinstance(event, e.BlocksRetired) for event in turn.events):
            yield "the last reader retires a generation"
        if any(isinstance(event, e.FenceOpened) for event in turn.events):
            yield "the last step opens a fence"
    for name, request in after.state.requests.items():
        known = state.requests.get(name)
        if known is not None and known.life == "PREEMPTED" and request.life == "RUNNING" and request.settling:
            yield "resumed while an attempt settles"


def _of_event(before: CoordinatorState, state: State, event: Event) -> Iterator[str]:
    known = state.requests.get(event.request.request_id)
    match event:
        case e.AckIgnored() | e.AckRefused():
            yield f"a report is {event.verdict}"
        case e.PlanRefused():
            yield f"refused: {event.reason}"
        case e.CommandRefused():
            yield "a command is refused"
        case e.RequestPreempted() | e.RequestFinished():
            what = "preempted" if isinstance(event, e.RequestPreempted) else "finished"
            yield from (f"{what} in {where}" for where in _phases(known))
            yield from _under_steps(before, event.request, what)
        case e.RankLost() | e.RankRestarted():
            for request in state.requests.values():
                yield from (f"a rank ends in {where}" for where in _phases(request))
        case e.ProducerRestarted():
            for request in state.requests.values():
                yield from (f"the producer restarts in {where}" for where in _phases(request))
        case e.UploadAborted() | e.RetainAborted() | e.StoreAborted() if known is not None:
            for opened in known.open_operations():
                if opened.operation == event.operation and opened.outcomes:
                    yield "aborted after one rank had completed"
        case e.TransferSettled() if known is not None:
            for opened in known.settling:
                if opened.operation == event.operation and len(opened.outcomes) + 1 == len(opened.ranks):
                    yield "settling ends a quarantine"
        case e.BlocksLeased() if known is not None:
            yield from _leased(before, known, event)
        case e.RetainPlanned() if known is not None:
            yield f"retain by {event.mode}"
            if _targets(event.moved_to) - _new(event.reserved):
                yield "bytes move into a vacant area"
            if known.settling:
                yield "a retry starts while an attempt settles"
        case e.ResidencyCommitted() | e.OwnersCommitted():
            yield from _under_steps(before, event.request, "committed")
            if known is not None and any(one.adopted.size for one in known.open_operations()):
                yield "a tail block becomes a slot"
        case e.KeepMapPublished():
            yield "a keep map is published"
        case e.BlockLost():
            yield "a tail block is lost"
        case e.StoreCompleted():
            yield "a store completes"
        case e.PrefixPublished():
            yield "a prefix is published"
        case e.PrefixAttached():
            yield "a prefix is attached"
        case e.PrefixEvicted():
            yield from _evicted(state, event)
        case e.RequestClosed():
            yield "closed"
        case e.RequestOpened() if event.request.request_epoch > 1:
            yield "a new life of the same id"


def _phases(request: RequestState | None) -> Iterator[str]:
    if request is not None:
        yield from (
            f"{lane} {request.lane(lane).phase}" for lane in ("upload", "retain", "store") if request.lane(lane).open
        )
        if request.settling:
            yield "settling"


def _under_steps(before: CoordinatorState, key: RequestKey, what: str) -> Iterator[str]:
    if before.core.steps.writes(key):
        yield f"{what} under an open step"


def _leased(before: CoordinatorState, known: RequestState, event: e.BlocksLeased) -> Iterator[str]:
    new = _new(event.reserved)
    if _targets(event.destination) - new:
        yield "a vacant area is reused"
        if new:
            yield "vacant areas and a new block in one plan"
        if before.core.steps.writes(known.key):
            yield "a vacant area is reused under an open step"
        if any(view.generation != known.current for view in known.views):
            yield "a vacant area is reused while an older generation is read"
        if known.settling:
            yield "a vacant area is reused while an attempt settles"
        if before.state.ownership.shared:
            yield "a vacant area is reused beside a shared block"
    if known.settling:
        yield "a retry starts while an attempt settles"


def _targets(areas: Rows[Physical]) -> set[int]:
    return set(areas.ids.tolist())


def _new(reserved: tuple[bytes, ...]) -> set[int]:
    return {block for blocks in reserved for block in int32_view(blocks).tolist()}


def _evicted(state: State, event: e.PrefixEvicted) -> Iterator[str]:
    prefix = next(one for one in state.pool.prefixes if one.number == event.number)
    readers = sum(
        any(prefix.physical[0] in ids.tolist() for view in request.views for _, ids in view.physical.items())
        for request in state.requests.values()
    )
    yield "a prefix is evicted"
    if readers == 1:
        yield "a prefix is evicted under a reader"
    elif readers > 1:
        yield "a prefix is evicted under two readers"


def of_forgery(turn: Turn) -> Iterator[str]:
    """What became of a report that no rank sent."""
    yield from (
        f"a forged report is {one.verdict}" for one in turn.events if isinstance(one, e.AckIgnored | e.AckRefused)
    )


def of_delivery(before: Rank, work: RankWork, after: Rank) -> Iterator[str]:
    """Situations of a command that reached a rank, also where it changed nothing."""
    number = work.operation.operation_id
    report = next((one for one in before.said if one.operation.operation_id == number), None)
    notes = list(after.worker.notes)[len(before.worker.notes) :]
    for note in notes:
        if "below the floor" in note.what:
            yield "a command below the floor"
        if "for process epoch" in note.what:
            yield "a command for another process"
    if report is not None and not isinstance(work, Cancel):
        yield "a start comes after its cancel" if report.outcome == "cancelled" else "a start comes again"
    if isinstance(work, Cancel):
        if number in before.device.queued:
            cancelled = number not in after.device.queued
            yield "a cancel stops a queued operation" if cancelled else "a cancel comes too late to stop copies"
        elif report is None and after.said != before.said:
            yield "a cancel comes before its start"


def settling_ids(coordinator: CoordinatorState) -> frozenset[int]:
    found: list[OpenOperation] = [one for request in coordinator.state.requests.values() for one in request.settling]
    return frozenset(one.operation.operation_id for one in found)
