"""The one door: `apply` checks key, table, joint rules and identities, then reduces.

A refused event changes nothing.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

from msgspec.structs import replace

from kvsweep.ledger import events as e
from kvsweep.ledger import joint, phases
from kvsweep.ledger.errors import Refused, SequenceConflict
from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import POOL
from kvsweep.ledger.reducers import life, pool, prefix, retain, settle, tail, upload
from kvsweep.ledger.state import RequestState, State

Reducer = Callable[[State, RequestState, Any], State]

REDUCE: Final[dict[type[Event], Reducer]] = {
    e.RequestOpened: life.opened,
    e.RequestPreempted: life.preempted,
    e.RequestResumed: life.resumed,
    e.RequestFinished: life.finished,
    e.RequestClosed: life.closed,
    e.BlocksRetired: life.retired,
    e.BlocksSelected: upload.selected,
    e.UploadPlanned: upload.planned,
    e.BlocksLeased: upload.leased,
    e.TransferStarted: upload.started,
    e.RankTransferred: upload.transferred,
    e.TransferCompleted: upload.completed,
    e.ResidencyCommitted: upload.committed,
    e.KeepMapPublished: upload.published,
    e.UploadAcknowledged: upload.acknowledged,
    e.UploadAborted: settle.upload_aborted,
    e.RetainPlanned: retain.planned,
    e.ReadersDrained: retain.drained,
    e.TablesApplied: retain.applied,
    e.AllRanksApplied: retain.all_applied,
    e.OwnersCommitted: retain.committed,
    e.RetainAcknowledged: retain.acknowledged,
    e.RetainAborted: settle.retain_aborted,
    e.TailOpened: tail.opened,
    e.TailSealed: tail.sealed,
    e.StoreStarted: tail.store_started,
    e.RankStored: tail.stored,
    e.StoreCompleted: tail.store_completed,
    e.StoreAborted: settle.store_aborted,
    e.BlockLost: tail.lost,
    e.TailDropped: tail.dropped,
    e.FenceOpened: tail.fence_opened,
    e.SourcesRegistered: tail.registered,
    e.TransferSettled: settle.settled,
    e.PrefixPublished: prefix.published,
    e.PrefixAttached: prefix.attached,
    e.AckIgnored: settle.noted,
    e.AckRefused: settle.noted,
    e.PlanRefused: settle.noted,
    e.CommandRefused: settle.noted,
}

REDUCE_POOL: Final[dict[type[Event], Callable[[State, Any], Any]]] = {
    e.RunConfigured: pool.configured,
    e.RankLost: pool.rank_lost,
    e.RankRestarted: pool.rank_restarted,
    e.ProducerRestarted: pool.producer_restarted,
    e.PrefixEvicted: prefix.evicted,
    e.AckIgnored: pool.noted,
    e.AckRefused: pool.noted,
    e.CommandRefused: pool.noted,
    e.DigestRecorded: pool.noted,
    e.HandshakeAgreed: pool.noted,
    e.HandshakeRefused: pool.noted,
    e.CoordinatorRestarted: pool.noted,
}

LIVING: Final = frozenset({"RUNNING", "PREEMPTED", "FINISHING"})
NOT_OF_THE_LIVING: Final = frozenset({e.RequestOpened, e.AckIgnored, e.AckRefused, e.CommandRefused})
"""Facts that a request may have beside those of a life that is under way."""

MACHINES: Final[dict[type[Event], tuple[tuple[str, phases.Table], ...]]] = {
    kind: tuple(
        (machine, table) for machine, table in phases.TABLES.items() if kind.__name__ in phases.ALPHABET[machine]
    )
    for kind in REDUCE
}
"""Machines that each event moves, with their tables."""


def apply(state: State, event: Event) -> State:
    """State after the event. Raises SequenceConflict or Refused; `state` is never changed."""
    if event.request == POOL:
        return _apply_pool(state, event)
    if state.pool.run is None:
        raise Refused(event.request, type(event).__name__, "an unconfigured pool", ("RunConfigured",))
    request = _expect_key(state, event)
    request = _expect_phase(state, request, event)
    return REDUCE[type(event)](state, request, event)


def apply_all(state: State, events: Iterable[Event]) -> State:
    """Fold a whole batch; the first illegal event raises and nothing of the batch is kept."""
    for event in events:
        state = apply(state, event)
    return state


def _apply_pool(state: State, event: Event) -> State:
    reducer = REDUCE_POOL.get(type(event))
    if reducer is None:
        raise Refused(
            event.request, type(event).__name__, "the pool stream", tuple(kind.__name__ for kind in REDUCE_POOL)
        )
    if event.seq != state.pool.seq:
        raise SequenceConflict(event.request, state.pool.seq, event.seq)
    if state.pool.run is None and not isinstance(event, e.RunConfigured):
        raise Refused(event.request, type(event).__name__, "an unconfigured pool", ("RunConfigured",))
    result = reducer(state, event)
    after = result if isinstance(result, State) else replace(state, pool=result)
    return replace(after, pool=replace(after.pool, seq=event.seq + 1))


def _expect_key(state: State, event: Event) -> RequestState:
    """The event's stream and number: a known life and its next seq, or the first event of a new life."""
    known = state.requests.get(event.request.request_id)
    if type(event) is e.RequestOpened and (known is None or event.request != known.key):
        last = known.key.request_epoch if known else state.pool.epoch_floor
        if known is not None and known.life != "CLOSED":
            raise Refused(
                known.key, "RequestOpened", known.describe(), legal_now(known), "the earlier life is not closed"
            )
        if event.request.request_epoch != last + 1:
            raise SequenceConflict(
                event.request, f"request_epoch {last + 1}", f"request_epoch {event.request.request_epoch}"
            )
        known = RequestState(key=event.request)
    if known is None or known.key != event.request:
        raise SequenceConflict(event.request, f"a life of {known.key if known else 'no such request'}", event.request)
    if event.seq != known.seq:
        raise SequenceConflict(event.request, known.seq, event.seq)
    return replace(known, seq=event.seq + 1)


def _expect_phase(state: State, request: RequestState, event: Event) -> RequestState:
    """Advance every machine that knows the event; a missing key is the error. Then the joint rules."""
    kind, name = type(event), type(event).__name__
    if kind not in REDUCE:
        raise Refused(request.key, name, request.describe(), legal_now(request), "a fact of the pool, not of a request")
    before = request
    for machine, table in MACHINES[kind]:
        if kind is e.BlocksRetired and event.cause != "retain":  # type: ignore[attr-defined]
            continue  # only the view that the retain lane replaced moves that lane
        phase = request.life if machine == "life" else getattr(request, machine).phase
        after = table.get((phase, name))
        if after is None:
            raise Refused(request.key, name, before.describe(), legal_now(before))
        if after == phase:
            continue
        if machine == "life":
            request = replace(request, life=after)
        else:
            request = replace(request, **{machine: replace(getattr(request, machine), phase=after)})
    if before.life not in LIVING and kind not in NOT_OF_THE_LIVING:
        raise Refused(request.key, name, before.describe(), legal_now(before), "the request is closed")
    reason = joint.broken(state, before, event)
    if reason is not None:
        raise Refused(request.key, name, before.describe(), legal_now(before), reason)
    return request


def legal_now(request: RequestState) -> tuple[str, ...]:
    """Events that the tables take in this state, machine by machine."""
    found: list[str] = []
    for machine, table in phases.TABLES.items():
        found += phases.legal(table, request.life if machine == "life" else getattr(request, machine).phase)
    return tuple(found)
