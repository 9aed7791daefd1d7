"""Why an event is where it is: the facts before it, the rule that let it in or kept it out, and what it changed."""

from collections.abc import Collection

from msgspec import Struct
from msgspec.structs import replace

from kvsweep.ledger import events as e
from kvsweep.ledger import joint, phases
from kvsweep.ledger.errors import LayoutError, LogCorrupt
from kvsweep.ledger.events import Event
from kvsweep.ledger.fold import legal_now
from kvsweep.ledger.ids import POOL, RequestKey
from kvsweep.ledger.inspect.as_data import Plain, named, plain_event
from kvsweep.ledger.inspect.clauses import CLAUSES, WORDS
from kvsweep.ledger.inspect.earlier import Fact, facts_before
from kvsweep.ledger.inspect.frame import Frame
from kvsweep.ledger.inspect.lives import fold_lives, open_lives, operations_begun
from kvsweep.ledger.inspect.reasons import Decision, decision
from kvsweep.ledger.inspect.sentences import sentence
from kvsweep.ledger.inspect.summary import facts
from kvsweep.ledger.state import RequestState
from kvsweep.ledger.store.log import LogStore, Position
from kvsweep.ledger.store.query import Where


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
    event: Plain
    sentence: str
    clauses: tuple[str, ...]
    words: dict[str, str]  # clause -> what it is about
    state: str  # life/upload/retain/store before the event
    facts: tuple[Fact, ...]  # earlier events that it depends on, in order
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
    return replace(explain_frame(frame), facts=facts_before(log, position, frame.event, request))


def explain_frame(frame: Frame) -> Explanation:
    """Explain one event by the states around it alone: without the facts before it."""
    event = frame.event
    request = _before(frame)
    name = type(event).__name__
    found = decision(frame.before, request, event)
    asked = [rule for rule in joint.JOINT if isinstance(event, rule.events)]
    clauses = CLAUSES[name] if found is None else tuple(dict.fromkeys((*found.clauses, *CLAUSES[name])))
    return Explanation(
        position=frame.position,
        event=plain_event(event),
        sentence=sentence(event),
        clauses=clauses,
        words={clause: WORDS[clause] for clause in (*clauses, *(rule.clause for rule in asked))},
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
    """The request as the event found it; a life that begins is still new. None for the pool's facts."""
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
    before, after = facts(frame.before, frame.event.request), facts(frame.after, frame.event.request)
    return tuple(
        Change(what=what, before=before.get(what, "-"), after=after.get(what, "-"))
        for what in {**before, **after}
        if before.get(what, "-") != after.get(what, "-")
    )
