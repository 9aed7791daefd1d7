"""Why an event is where it is: the events before it, the rule that let it in or kept it out, and what it changed."""

from collections.abc import Collection, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from kvsweep.ledger import acks, joint, phases
from kvsweep.ledger import events as e
from kvsweep.ledger.errors import LayoutError, LogCorrupt
from kvsweep.ledger.events import (
    AckIgnored,
    AckRefused,
    CommandRefused,
    Event,
    PlanRefused,
    RetainPlanned,
    UploadPlanned,
)
from kvsweep.ledger.fold import legal_now
from kvsweep.ledger.ids import POOL, RequestKey, Rows
from kvsweep.ledger.inspect.as_data import Builtins, event_to_builtins, named, state_values
from kvsweep.ledger.inspect.causes import EventLine, causes_of
from kvsweep.ledger.inspect.lives import Frame, fold_lives, open_lives, operations_begun
from kvsweep.ledger.inspect.sentences import sentence
from kvsweep.ledger.state import RequestState, State
from kvsweep.ledger.store.log import LogStore, Position
from kvsweep.ledger.store.query import Where

CLAUSES: Final[Mapping[str, tuple[str, ...]]] = {
    "RequestOpened": ("F5",),
    "RequestPreempted": ("G3",),
    "RequestResumed": ("F4",),
    "RequestFinished": ("G3", "B6"),
    "RequestClosed": ("B6",),
    "BlocksSelected": ("D1", "F1"),
    "UploadPlanned": ("E3", "E4", "F1"),
    "UploadStaged": ("F1", "G1"),
    "BlocksLeased": ("A1", "B6", "F1"),
    "TransferStarted": ("F1",),
    "RankTransferred": ("A2", "F1"),
    "TransferCompleted": ("F1",),
    "ResidencyCommitted": ("F1",),
    "KeepMapPublished": ("F1",),
    "UploadAcknowledged": ("F1",),
    "UploadAborted": ("G3",),
    "RetainPlanned": ("B1", "B2", "B3", "G1"),
    "ReadersDrained": ("G1", "G2"),
    "TablesApplied": ("A2", "G1"),
    "AllRanksApplied": ("G1",),
    "OwnersCommitted": ("B4", "G1"),
    "BlocksRetired": ("B6", "B7", "G1"),
    "RetainAcknowledged": ("G1",),
    "RetainAborted": ("G3",),
    "TailOpened": ("G4",),
    "TailSealed": ("E2", "G4"),
    "StoreStarted": ("G4",),
    "RankStored": ("A2",),
    "StoreCompleted": ("D1",),
    "StoreAborted": ("G3",),
    "BlockLost": ("G3",),
    "TailDropped": ("B6", "G4"),
    "FenceOpened": ("B6", "G2"),
    "SourcesRegistered": ("A1",),
    "TransferSettled": ("B6", "G3"),
    "AckIgnored": ("F2",),
    "AckRefused": ("F2",),
    "PlanRefused": ("G3",),
    "CommandRefused": ("G1",),
    "RunConfigured": ("J1",),
    "RankLost": ("F2",),
    "RankRestarted": ("F2",),
    "ProducerRestarted": ("F2",),
    "DigestRecorded": ("J1",),
    "PrefixPublished": ("B6", "D1"),
    "PrefixAttached": ("B6", "D1"),
    "PrefixEvicted": ("B6",),
    "CoordinatorRestarted": ("F2", "G3", "J1"),
    "HandshakeAgreed": ("D4",),
    "HandshakeRefused": ("D4", "D5"),
}
"""Contract clauses that each event serves."""

CLAUSE_TITLES: Final[Mapping[str, str]] = {
    "A1": "named sources instead of gathered copies",
    "A2": "each cost is counted by whoever did the work",
    "B1": "when one table may be rewritten for all layers",
    "B2": "a shared rewrite goes by the kept slots, in order",
    "B3": "a table a layer, or moved bytes, where layers disagree",
    "B4": "what is read and who frees are two things",
    "B6": "a block is free with its last holder",
    "B7": "moved bytes and freed blocks are two figures",
    "D1": "the records of a round",
    "D4": "both sides hold the same contract",
    "D5": "no way to load is no start",
    "E2": "only whole blocks have a score",
    "E3": "what is wanted and not resident, in order",
    "E4": "uploads go by ascending block",
    "E6": "a full plan rather than a wanted block left out",
    "F1": "plan, lease, transfer, every rank, commit, acknowledge",
    "F2": "an acknowledgement counts once, for exactly its operation",
    "F4": "resuming uses the same ledger and stages",
    "F5": "a request is its whole id and its epoch",
    "G1": "plan, drain, apply, every rank, commit, retire",
    "G2": "another step is no proof that the last one ended",
    "G3": "before the acknowledgement, failure keeps the old state",
    "G4": "what is being written is never cleared",
    "J1": "what is needed to repeat a run",
}
"""A few words on each clause that an explanation may name."""


class Decision(Struct, frozen=True, kw_only=True):
    """Why something was ignored, refused or planned so."""

    verdict: str
    rule: str
    expected: str
    got: str
    stands: str  # where the rule is kept
    clauses: tuple[str, ...]  # of the contract


_PRODUCER: Final = "what waits for the producer's report"
_EARLIER: Final = "the acknowledgement table of another version"
_ACK_ROWS: Final = {rule: number for number, (rule, _, _) in enumerate(acks.TABLE, 1)}
_JOINT: Final = {rule.name: rule.clause for rule in joint.JOINT}

NOT_PLANNED: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "no_space": ("a plan that does not get its blocks changes nothing, and is made again when blocks return", ("G3",)),
    "no_row": ("a plan needs a table row without a holder; one comes back when a generation retires", ("G1", "G3")),
    "invalid_source": ("an upload reads only CPU blocks that are valid on every rank", ("A1", "D1")),
    "unequal_layers": ("one table for all layers needs layers that keep the same slots of one row", ("B1",)),
    "rank_lost": ("an operation waits for every rank, so none begins while one is gone", ("F1",)),
}
"""Reasons of PlanRefused, with the rule behind each."""

PLANNED: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "diff": ("what is wanted and not resident is uploaded, in ascending order", ("E3", "E4")),
    "full": ("what is resident is disregarded and the whole selection is uploaded", ("E4", "E6")),
    "shared": ("all layers keep the same slots of one row: that row is rewritten", ("B1", "B2")),
    "layer": ("layers keep different slots: each gets a table of its own, and nothing moves", ("B3", "B4")),
    "move": ("the backend reads one table: kept blocks are copied out of place", ("B3",)),
    "pack": ("areas outside the fullest blocks are copied into those, so that blocks become free", ("B6", "B7")),
}
"""Kinds of upload and ways to retain, with the rule behind each."""


def decision(before: State, request: RequestState | None, event: Event) -> Decision | None:
    """The decision that an event records, or None where it records none."""
    match event:
        case AckRefused():
            return _acknowledged(event, event.expected, event.got)
        case AckIgnored():
            found = _judged_again(before, event)
            same = found.rule == event.rule
            return _acknowledged(event, found.expected if same else "", found.got if same else "")
        case PlanRefused():
            rule, clauses = NOT_PLANNED.get(event.reason, (event.reason, ("G3",)))
            return Decision(
                verdict="refused",
                rule=f"{event.lane}: {event.reason}: {rule}",
                expected=f"{event.needed} places",
                got=f"{event.vacant} vacant areas, {event.free} free blocks",
                stands=f"planning of the {event.lane} lane",
                clauses=clauses,
            )
        case CommandRefused():
            legal = ", ".join(legal_now(request)) if request else "nothing"
            name = event.reason.partition(":")[0]
            return Decision(
                verdict="refused",
                rule=event.reason,
                expected=f"a state that takes {event.command}; here legal: {legal}",
                got=event.state,
                stands="the joint rules" if name in _JOINT else "the tables of the lanes",
                clauses=(_JOINT[name],) if name in _JOINT else ("G1",),
            )
        case UploadPlanned():
            return _planned(event.kind, "upload", event.logical, "to upload")
        case RetainPlanned():
            return _planned(event.mode, "retain", event.keep, "kept")
        case _:
            return None


def _judged_again(before: State, event: AckIgnored) -> acks.Verdict:
    """The event does not keep both sides: the table is asked once more."""
    said = acks.Ack(
        operation=event.operation, rank=event.rank, process_epoch=event.process_epoch, outcome=event.outcome
    )
    return acks.judge(before, said)


def _acknowledged(event: AckIgnored | AckRefused, expected: str, got: str) -> Decision:
    row = _ACK_ROWS.get(event.rule)
    table = f"row {row} of {len(acks.TABLE)} of the acknowledgement table" if row else _EARLIER
    return Decision(
        verdict=event.verdict,
        rule=event.rule,
        expected=expected,
        got=got,
        stands=table if event.rank >= 0 else _PRODUCER,
        clauses=("F2",),
    )


def _planned(how: str, lane: str, rows: Rows, what: str) -> Decision:  # type: ignore[type-arg]
    rule, clauses = PLANNED[how]
    counts = dict(zip(rows.layers.tolist(), rows.counts.tolist(), strict=True))
    return Decision(
        verdict="planned",
        rule=f"{how}: {rule}",
        expected="",
        got=f"blocks {what}, by layer: {counts}",
        stands=f"planning of the {lane} lane",
        clauses=clauses,
    )


class Step(Struct, frozen=True, kw_only=True):
    """One machine that knows the event: the table's row that let it in, and what else that phase takes."""

    machine: str
    before: str
    after: str
    legal: tuple[str, ...]


class Change(Struct, frozen=True, kw_only=True):
    what: str
    before: str
    after: str


class Explanation(Struct, frozen=True, kw_only=True):
    position: Position
    event: Builtins
    sentence: str
    clauses: tuple[str, ...]
    words: dict[str, str]  # clause -> what it is about
    state: str  # life/upload/retain/store before the event
    facts: tuple[EventLine, ...]  # earlier events that it depends on, in order
    steps: tuple[Step, ...]  # empty: no machine moves, the event is recorded only
    rules: tuple[str, ...]  # joint rules that were asked, 'name (clause)'
    legal: tuple[str, ...]  # every event that the tables took before it; joint rules may forbid some
    changes: tuple[Change, ...]
    decision: Decision | None


def explain(log: LogStore, position: Position) -> Explanation:
    """Explain the event at a position. Raises LayoutError for a position that the ledger does not have.

    Only the lives that the event is about are folded, and no body of another one is read.
    """
    first, last = log.header.first, log.durable()
    if not first <= position <= last:
        raise LayoutError("position", f"a position from {first} to {last}", str(position))
    record = next(log.find(Where(after=position - 1, until=position)), None)
    if record is None:
        raise LogCorrupt(position, "the event is missing")
    frame = None
    lives, sharing = _lives(log, position, record.event), isinstance(record.event, e.PrefixEvicted)
    for frame in fold_lives(log, lives, until=position, since=position - 1, sharing=sharing):  # noqa: B007 - the last
        pass
    if frame is None or frame.position != position:
        raise LogCorrupt(position, f"the event is not in its stream, that of {named(record.event.request)}")
    if isinstance(record.event, e.AckIgnored | e.AckRefused):
        frame = _as_judged(log, frame, record.event)
    request = _before(frame)
    return replace(explain_frame(frame), facts=causes_of(log, position, frame.event, request))


def explain_frame(frame: Frame) -> Explanation:
    """Explain one event by the states around it alone: without the events before it."""
    event = frame.event
    request = _before(frame)
    name = type(event).__name__
    found = decision(frame.before, request, event)
    asked = [rule for rule in joint.JOINT if isinstance(event, rule.events)]
    clauses = CLAUSES[name] if found is None else tuple(dict.fromkeys((*found.clauses, *CLAUSES[name])))
    return Explanation(
        position=frame.position,
        event=event_to_builtins(event),
        sentence=sentence(event),
        clauses=clauses,
        words={clause: CLAUSE_TITLES[clause] for clause in (*clauses, *(rule.clause for rule in asked))},
        state="pool" if request is None else request.describe(),
        facts=(),
        steps=() if request is None else _steps(request, event),
        rules=tuple(f"{rule.name} ({rule.clause})" for rule in asked),
        legal=() if request is None else legal_now(request),
        changes=_changes(frame),
        decision=found,
    )


def render(explanation: Explanation) -> str:
    """The explanation as lines of text."""
    event = explanation.event
    key = RequestKey(event["request"]["request_id"], event["request"]["request_epoch"])
    stream = "the pool" if key == POOL else named(key)
    lines = [
        f"{explanation.position}: {event['type']} of {stream}, its event {event['seq']}",
        f"  says     {explanation.sentence}",
    ]
    lines += [f"  clause   {clause}: {words}" for clause, words in explanation.words.items()]
    lines += [f"  fact     {fact.position} {fact.type} of {fact.stream}: {fact.sentence}" for fact in explanation.facts]
    lines.append(f"  before   {explanation.state}")
    lines += [
        f"  table    {step.machine}: {step.before} -> {step.after}; {step.before} takes {', '.join(step.legal)}"
        for step in explanation.steps
    ]
    lines += [f"  rule     {rule}" for rule in explanation.rules]
    if explanation.legal:
        lines.append(f"  legal    by the tables: {', '.join(explanation.legal)}")
    if explanation.decision is not None:
        found = explanation.decision
        lines += [f"  verdict  {found.verdict}: {found.rule}", f"  stands   in {found.stands}"]
        if found.expected:
            lines.append(f"  expected {found.expected}; got {found.got}")
        elif found.got:
            lines.append(f"  got      {found.got}")
    lines += [f"  changed  {change.what}: {change.before} -> {change.after}" for change in explanation.changes]
    if not explanation.changes:
        lines.append("  changed  nothing")
    return "\n".join(lines)


def _lives(log: LogStore, position: Position, event: Event) -> Collection[RequestKey]:
    """Whose states tell what the event did."""
    if event.request != POOL:
        return (event.request,)
    return open_lives(log, until=position) if isinstance(event, e.ProducerRestarted) else ()


def _as_judged(log: LogStore, frame: Frame, event: e.AckIgnored | e.AckRefused) -> Frame:
    """With every operation that had been given out by then: the acknowledgement was held against that number."""
    following = operations_begun(log, until=frame.position)
    before, after = (
        replace(state, pool=replace(state.pool, next_operation_id=following)) for state in (frame.before, frame.after)
    )
    if event.request == POOL and event.operation.request != POOL:
        # Recorded there because its life had been forgotten, or had never been.
        floor = max(before.pool.epoch_floor, event.operation.request.request_epoch)
        before = replace(before, pool=replace(before.pool, epoch_floor=floor))
    return replace(
        frame, before=before, after=replace(after, pool=replace(after.pool, epoch_floor=before.pool.epoch_floor))
    )


def _before(frame: Frame) -> RequestState | None:
    """The request as the event found it; a life that begins is still new. None for the pool's events."""
    key = frame.event.request
    if key == POOL:
        return None
    return frame.before.request(key) or RequestState(key=key)


def _steps(request: RequestState, event: Event) -> tuple[Step, ...]:
    name, found = type(event).__name__, []
    for machine, table in phases.TABLES.items():
        phase = request.life if machine == "life" else getattr(request, machine).phase
        after = table.get((phase, name))
        # A view that nobody's retain replaced is retired without moving that lane.
        if after is None or (isinstance(event, e.BlocksRetired) and event.cause != "retain"):
            continue
        found.append(Step(machine=machine, before=phase, after=after, legal=phases.legal(table, phase)))
    return tuple(found)


def _changes(frame: Frame) -> tuple[Change, ...]:
    before, after = (
        state_values(frame.before, frame.event.request),
        state_values(frame.after, frame.event.request),
    )
    return tuple(
        Change(what=what, before=before.get(what, "-"), after=after.get(what, "-"))
        for what in {**before, **after}
        if before.get(what, "-") != after.get(what, "-")
    )
