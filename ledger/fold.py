"""The one door of facts: `take` checks key, number, phase and joint rules, then reduces, in a draft.

A refused event changes nothing: every check stands before the first change, and what the draft has copied is equal.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from kvsweep.ledger import events as e
from kvsweep.ledger import joint, phases
from kvsweep.ledger.draft import Draft
from kvsweep.ledger.errors import KvsweepError, Refused, SequenceConflict
from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import POOL, RequestKey
from kvsweep.ledger.reducers import life, pool, prefix, retain, settle, tail, upload
from kvsweep.ledger.standing import Standing
from kvsweep.ledger.state import RequestState, State

Reducer = Callable[[Draft, RequestState, Any], None]
PoolReducer = Callable[[Draft, Any], None]

REDUCE: Final[Mapping[type[Event], Reducer]] = {
    e.RequestOpened: life.opened,
    e.RequestPreempted: life.preempted,
    e.RequestResumed: life.resumed,
    e.RequestFinished: life.finished,
    e.RequestClosed: life.closed,
    e.BlocksRetired: life.retired,
    e.BlocksSelected: upload.selected,
    e.UploadPlanned: upload.planned,
    e.UploadStaged: upload.staged,
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

REDUCE_POOL: Final[Mapping[type[Event], PoolReducer]] = {
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


class Rule(Struct, frozen=True, gc=False):
    """All that holds for one kind of fact in a request's stream."""

    name: str
    reduce: Reducer
    machine: str  # the one that it moves; "" for none
    after: Mapping[str, str]  # phase of that machine -> the next one; a phase that is missing is the error
    joint: tuple[joint.JointRule, ...]
    living: bool  # only while the life is under way


def _rule(kind: type[Event], reduce: Reducer) -> Rule:
    name = kind.__name__
    machine = next((machine for machine, alphabet in phases.ALPHABET.items() if name in alphabet), "")
    table = phases.TABLES.get(machine, {})
    return Rule(
        name=name,
        reduce=reduce,
        machine=machine,
        after={phase: after for (phase, event), after in table.items() if event == name},
        joint=tuple(rule for rule in joint.JOINT if kind in rule.events),
        living=kind not in NOT_OF_THE_LIVING,
    )


RULES: Final[Mapping[type[Event], Rule]] = {kind: _rule(kind, reduce) for kind, reduce in REDUCE.items()}
"""The one table of rules: what moves, what must hold, what changes."""


def take(draft: Draft, event: Event) -> None:
    """Fold one event. Raises SequenceConflict or Refused; a draft in which that happened can only be dropped."""
    key = event.request
    if key is POOL or key == POOL:
        _take_pool(draft, event)
        return
    if draft.pool.run is None:
        raise Refused(key, type(event).__name__, "an unconfigured pool", ("RunConfigured",))
    known = draft.latest(key.request_id)
    if type(event) is e.RequestOpened and (known is None or key != known.key):
        known = _new_life(draft, event, known)
    elif known is None or known.key != key:
        raise SequenceConflict(key, f"a life of {known.key if known else 'no such request'}", key)
    elif event.seq != known.seq:
        raise SequenceConflict(key, known.seq, event.seq)
    _take(draft, known, event)


def _take(draft: Draft, known: RequestState, event: Event) -> None:
    """Fold the next event of this life."""
    rule = RULES.get(type(event))
    if rule is None:
        name = type(event).__name__
        raise Refused(known.key, name, known.describe(), legal_now(known), "a fact of the pool, not of a request")
    request = draft.own(known) if known.life != "NEW" else known
    _reduce(draft, request, rule, event)
    request.seq = event.seq + 1
    draft.requests[known.key.request_id] = request  # a new life joins last: refused, it has never been there


def _reduce(draft: Draft, request: RequestState, rule: Rule, event: Event) -> None:
    """Phase, life and joint rules are checked; the reducer checks the rest, changes, and the machine moves on."""
    machine, after, lane = rule.machine, "", None
    if machine == "life":
        after = _next(request, rule, request.life)
    elif machine and not (type(event) is e.BlocksRetired and event.cause != "retain"):
        # Of the views that are retired only the one that the retain lane replaced moves that lane.
        lane = getattr(request, machine)
        after = _next(request, rule, lane.phase)
    if rule.living and request.life not in LIVING:
        raise Refused(request.key, rule.name, request.describe(), legal_now(request), "the request is closed")
    for one in rule.joint:
        reason = one.reason(draft, request, event)
        if reason is not None:
            stated = f"{one.name}: {reason}"
            raise Refused(request.key, rule.name, request.describe(), legal_now(request), stated)
    if lane is not None:
        setattr(request, machine, lane.__copy__())
    rule.reduce(draft, request, event)
    if lane is not None:
        getattr(request, machine).phase = after
    elif after:
        request.life = after


def _next(request: RequestState, rule: Rule, phase: str) -> str:
    after = rule.after.get(phase)
    if after is None:
        raise Refused(request.key, rule.name, request.describe(), legal_now(request))
    return after


def _new_life(draft: Draft, event: Event, known: RequestState | None) -> RequestState:
    last = known.key.request_epoch if known else draft.pool.epoch_floor
    if known is not None and known.life != "CLOSED":
        raise Refused(known.key, "RequestOpened", known.describe(), legal_now(known), "the earlier life is not closed")
    if event.request.request_epoch != last + 1:
        raise SequenceConflict(
            event.request, f"request_epoch {last + 1}", f"request_epoch {event.request.request_epoch}"
        )
    if event.seq != 0:
        raise SequenceConflict(event.request, 0, event.seq)
    return RequestState(key=event.request)


def _take_pool(draft: Draft, event: Event) -> None:
    reduce = REDUCE_POOL.get(type(event))
    if reduce is None:
        legal = tuple(kind.__name__ for kind in REDUCE_POOL)
        raise Refused(event.request, type(event).__name__, "the pool stream", legal)
    if event.seq != draft.pool.seq:
        raise SequenceConflict(event.request, draft.pool.seq, event.seq)
    if draft.pool.run is None and not isinstance(event, e.RunConfigured):
        raise Refused(event.request, type(event).__name__, "an unconfigured pool", ("RunConfigured",))
    reduce(draft, event)
    draft.own_pool().seq = event.seq + 1


def emit(draft: Draft, kind: type[Event], request: RequestState, /, **fields: Any) -> None:
    """Make the next event of the request's stream and fold it. `request` is the draft's own record, and goes along."""
    event = kind(request=request.key, seq=request.seq, **fields)
    _reduce(draft, request, RULES[kind], event)
    request.seq += 1
    draft.events.append(event)


def emit_in(draft: Draft, kind: type[Event], stream: RequestKey, /, **fields: Any) -> None:
    """The same in a stream by its name: the pool's, a life's, or that of a life which begins."""
    known = draft.known(stream)
    seq = draft.pool.seq if stream == POOL else 0 if known is None else known.seq
    event = kind(request=stream, seq=seq, **fields)
    take(draft, event)
    draft.events.append(event)


def apply(state: State, event: Event) -> State:
    """State after the event. Raises SequenceConflict or Refused; `state` is never changed."""
    return apply_all(state, (event,))


def apply_all(state: State, events: Iterable[Event]) -> State:
    """Fold a whole batch; the first illegal event raises and nothing of the batch is kept."""
    standing = Standing(state)
    for event in events:
        fold(standing, event)
    return standing.state


def fold(standing: Standing, event: Event) -> None:
    """Fold one event into what stands. Raises SequenceConflict or Refused, and nothing has changed then."""
    draft = standing.draft()
    try:
        take(draft, event)
    except BaseException:
        draft.drop()
        raise
    standing.stage(draft)
    standing.adopt()


def fold_all(standing: Standing, events: Sequence[Event]) -> Iterator[Event]:
    """Fold events into what stands and give each that stands then: all in one draft, where all are legal.

    Raises as `fold` does, after those before the one that is illegal.
    """
    draft = standing.draft()
    try:
        for event in events:
            take(draft, event)
    except (KvsweepError, LookupError, ValueError):
        draft.drop()
        for event in events:
            fold(standing, event)
            yield event
        return
    standing.stage(draft)
    standing.adopt()
    yield from events


def legal_now(request: RequestState) -> tuple[str, ...]:
    """Events that the tables take in this state, machine by machine."""
    found: list[str] = []
    for machine, table in phases.TABLES.items():
        found += phases.legal(table, request.life if machine == "life" else getattr(request, machine).phase)
    return tuple(found)
