"""The decision table for a rank's acknowledgement: first match wins, top to bottom (contract F2).

A repeated ACK is a no-op, an old one is ignored, a future or conflicting one is an error; none of them changes state.
"""

from collections.abc import Callable
from typing import Final, Literal, NamedTuple, Protocol, get_args

from msgspec import Struct

from kvsweep.ledger.events import Outcome
from kvsweep.ledger.ids import Operation
from kvsweep.ledger.state import ClosedOperation, OpenOperation, PoolState, RequestState

VerdictKind = Literal["applied", "aborts", "settles", "duplicate", "stale", "future", "conflict"]
OUTCOMES: Final = frozenset(get_args(Outcome)) - {"epoch_ended"}
"""What a rank can say. That its process has ended is seen from outside: said by the process, it would free what the
process may still write."""


class Ack(Struct, frozen=True, kw_only=True):
    """What the table looks at: who speaks, of which operation, and what it says."""

    operation: Operation
    rank: int
    process_epoch: int
    outcome: str


class Verdict(Struct, frozen=True, kw_only=True):
    kind: VerdictKind
    rule: str
    expected: str = ""
    got: str = ""


APPLIED: Final = Verdict(kind="applied", rule="operation open, outcome completed")


class Facts(Protocol):
    """What acknowledgements are held against: a state, or a draft of one."""

    @property
    def pool(self) -> PoolState: ...
    def latest(self, request_id: str) -> RequestState | None: ...


class _Known(NamedTuple):
    """The facts that an ACK is held against, looked up once."""

    pool: PoolState
    request: RequestState | None  # latest life of the request id
    live: OpenOperation | None  # open or settling
    settling: bool
    closed: ClosedOperation | None


def judge(facts: Facts, ack: Ack) -> Verdict:
    """Verdict of the first row of the table that matches."""
    known = _look_up(facts, ack)
    for rule, kind, test in TABLE:
        found = test(known, ack)
        if found is not None:
            return Verdict(kind=kind, rule=rule, expected=found[0], got=found[1])
    return APPLIED


def _look_up(facts: Facts, ack: Ack) -> _Known:
    request = facts.latest(ack.operation.request.request_id)
    live, settling, closed = None, False, None
    if request is not None:
        number = ack.operation.operation_id
        for lane in (request.upload, request.retain, request.store):
            if lane.open is not None and lane.open.operation.operation_id == number:
                live = lane.open
            if lane.closed is not None and lane.closed.operation == ack.operation:
                closed = lane.closed
        for opened in request.settling:
            if opened.operation.operation_id == number:
                live, settling = opened, True
    return _Known(facts.pool, request, live, settling, closed)


Found = tuple[str, str] | None
"""(expected, got) where the row matches, else None."""

MATCH: Final = ("", "")


def _old_life(known: _Known, ack: Ack) -> Found:
    if known.request is None:
        return None
    current, got = known.request.key.request_epoch, ack.operation.request.request_epoch
    if got < current or (got == current and known.request.life == "CLOSED"):
        return f"request epoch {current}, {known.request.life.lower()}", f"request epoch {got}"
    return None


def _newer_than_known(known: _Known, ack: Ack) -> Found:
    pool = known.pool
    if ack.operation.operation_id >= pool.next_operation_id:
        return f"operation id below {pool.next_operation_id}", str(ack.operation.operation_id)
    epoch = known.request.key.request_epoch if known.request else pool.epoch_floor
    if ack.operation.request.request_epoch > epoch:
        return f"request epoch up to {epoch}", str(ack.operation.request.request_epoch)
    process = pool.process_epoch(ack.rank)
    if process is not None and ack.process_epoch > process:
        return f"process epoch up to {process} of rank {ack.rank}", str(ack.process_epoch)
    return None


def _recorded_in_last(known: _Known, ack: Ack) -> Found:
    if known.live is None and known.closed is not None and (ack.rank, ack.outcome) in known.closed.outcomes:
        return _once(ack)
    return None


def _once(ack: Ack) -> Found:
    return f"one word of rank {ack.rank} on operation {ack.operation.operation_id}", f"{ack.outcome} again"


def _not_live(known: _Known, ack: Ack) -> Found:
    if known.live is not None:
        return None
    found, closed = ack.operation, "closed with another outcome, " if known.closed else ""
    return (
        "an open or settling operation",
        f"{closed}operation {found.operation_id} of map revision {found.map_revision}",
    )


def _differs(known: _Known, ack: Ack) -> Found:
    live = known.live
    if live is None:
        return None
    if live.operation != ack.operation:
        for field in ("pool_generation", "map_revision", "request"):
            ours, theirs = getattr(live.operation, field), getattr(ack.operation, field)
            if ours != theirs:
                return f"{field} {ours}", f"{field} {theirs}"
    if not live.ranks:
        return "an operation that was sent", "one that was not"
    if all(rank != ack.rank for rank, _ in live.ranks):
        return f"one of ranks {[rank for rank, _ in live.ranks]}", f"rank {ack.rank}"
    if ack.outcome not in OUTCOMES:
        return f"outcome one of {sorted(OUTCOMES)}", repr(ack.outcome)
    return None


def _old_process(known: _Known, ack: Ack) -> Found:
    process = known.pool.process_epoch(ack.rank)
    if process is not None and ack.process_epoch < process:
        return f"process epoch {process} of rank {ack.rank}", str(ack.process_epoch)
    if ack.rank in known.pool.lost:  # said before it ended, heard after
        return f"a living process of rank {ack.rank}", f"process epoch {process}, which has ended"
    return None


def _process_after_plan(known: _Known, ack: Ack) -> Found:
    planned = dict(known.live.ranks)[ack.rank] if known.live else ack.process_epoch
    if ack.process_epoch != planned:
        return f"process epoch {planned} named by the plan", str(ack.process_epoch)
    return None


def _recorded_same(known: _Known, ack: Ack) -> Found:
    recorded = dict(known.live.outcomes).get(ack.rank) if known.live else None
    return _once(ack) if recorded == ack.outcome else None


def _recorded_other(known: _Known, ack: Ack) -> Found:
    recorded = dict(known.live.outcomes).get(ack.rank) if known.live else None
    return (f"outcome {recorded}, as recorded", f"outcome {ack.outcome}") if recorded is not None else None


def _settles(known: _Known, ack: Ack) -> Found:
    return MATCH if known.settling else None


def _not_completed(known: _Known, ack: Ack) -> Found:
    return MATCH if ack.outcome != "completed" else None


TABLE: Final[tuple[tuple[str, VerdictKind, Callable[[_Known, Ack], Found]], ...]] = (
    ("request epoch is old, or the request is closed", "stale", _old_life),
    ("request epoch, operation or process epoch not given out yet", "future", _newer_than_known),
    ("the lane's last closed operation, with this rank and outcome", "duplicate", _recorded_in_last),
    ("operation neither open nor settling", "stale", _not_live),
    ("differs from the operation it names", "conflict", _differs),
    ("process epoch is old", "stale", _old_process),
    ("process epoch is not the one of the plan", "conflict", _process_after_plan),
    ("rank already recorded with this outcome", "duplicate", _recorded_same),
    ("rank already recorded with another outcome", "conflict", _recorded_other),
    ("operation settles", "settles", _settles),
    ("operation open, outcome failed or cancelled", "aborts", _not_completed),
)
