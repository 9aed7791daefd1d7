"""Why an event is where it is: what was legal, which row of a table let it in, what it changed."""

from collections import deque
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from kvsweep.ledger import acks, joint, phases
from kvsweep.ledger.errors import LayoutError
from kvsweep.ledger.event_base import Event
from kvsweep.ledger.events import AckIgnored, AckRefused, BlocksRetired, CommandRefused, PlanRefused
from kvsweep.ledger.fold import legal_now
from kvsweep.ledger.ids import POOL, RequestKey, int32_view
from kvsweep.ledger.plain import Plain, named, plain_event
from kvsweep.ledger.replay import Frame, Ledger
from kvsweep.ledger.state import RequestState, State
from kvsweep.ledger.store import Position

CLAUSES: Final[Mapping[str, tuple[str, ...]]] = {
    "RequestOpened": ("F5",),
    "RequestPreempted": ("G3",),
    "RequestResumed": ("F4",),
    "RequestFinished": ("G3", "B6"),
    "RequestClosed": ("B6",),
    "BlocksSelected": ("D1", "F1"),
    "UploadPlanned": ("E3", "E4", "F1"),
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
    "HandshakeAgreed": ("D4",),
    "HandshakeRefused": ("D4", "D5"),
}
"""Contract clauses that each event serves."""


class Figures(Struct, frozen=True, kw_only=True):
    """One life of one request at one position, in a few numbers. Slots and areas are counted in blocks of one layer."""

    request_id: str
    request_epoch: int
    life: str
    upload: str
    retain: str
    store: str
    map_revision: int
    generation: int  # of the current view; 0 = none
    views: list[int]  # generations held, current and draining
    view_slots: dict[str, int]  # layer -> slots of the current view
    tail: dict[str, str]  # logical block -> phase
    settling: list[int]  # operation ids
    fences: list[int]
    held_areas: int
    held_rows: list[int]
    held_sources: int
    owned_blocks: list[int]  # a group


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


class Decision(Struct, frozen=True, kw_only=True):
    """Why something was ignored or refused."""

    verdict: str
    rule: str
    expected: str
    got: str


class Explanation(Struct, frozen=True, kw_only=True):
    position: Position
    event: Plain
    clauses: tuple[str, ...]
    state: str  # life/upload/retain/store before the event
    steps: tuple[Step, ...]  # empty: no machine moves, the event is recorded only
    rules: tuple[str, ...]  # joint rules that were asked, 'name (clause)'
    legal: tuple[str, ...]  # every event that the tables took before it; joint rules may forbid some
    changes: tuple[Change, ...]
    decision: Decision | None


def figures(state: State, request: RequestState) -> Figures:
    """Count what one request is and holds."""
    view = request.view
    holdings = state.ownership.holders(request.key).values()
    return Figures(
        request_id=request.key.request_id,
        request_epoch=request.key.request_epoch,
        life=request.life,
        upload=request.upload.phase,
        retain=request.retain.phase,
        store=request.store.phase,
        map_revision=request.map_revision,
        generation=request.current,
        views=[held.generation for held in request.views],
        view_slots={str(layer): ids.size for layer, ids in view.logical.items()} if view else {},
        tail={str(block.logical): block.phase for block in request.tail},
        settling=[opened.operation.operation_id for opened in request.settling],
        fences=list(request.fences),
        held_areas=len(
            {(layer, area) for held in holdings for layer, ids in held.areas.items() for area in ids.tolist()}
        ),
        held_rows=sorted(state.ownership.rows(request.key)),
        held_sources=state.ownership.sources(request.key).size,
        owned_blocks=[blocks.size for blocks in state.ownership.owned(request.key, state.pool.layout)],
    )


def explain(ledger: Ledger, position: Position) -> Explanation:
    """Explain the event at a position. Raises LayoutError for a position that the ledger does not have."""
    last = ledger.last()
    if not 1 <= position <= last:
        raise LayoutError("position", f"a position from 1 to {last}", str(position))
    [frame] = deque(ledger.replay(until=position), maxlen=1)
    return explain_frame(frame)


def explain_frame(frame: Frame) -> Explanation:
    """Explain one event, given the states around it."""
    event = frame.event
    request = _before(frame)
    name = type(event).__name__
    return Explanation(
        position=frame.position,
        event=plain_event(event),
        clauses=CLAUSES[name],
        state="pool" if request is None else request.describe(),
        steps=() if request is None else _steps(request, event),
        rules=tuple(f"{rule.name} ({rule.clause})" for rule in joint.JOINT if isinstance(event, rule.events)),
        legal=() if request is None else legal_now(request),
        changes=_changes(frame),
        decision=_decision(frame.before, request, event),
    )


def render(explanation: Explanation) -> str:
    """The explanation as lines of text."""
    event = explanation.event
    key = RequestKey(event["request"]["request_id"], event["request"]["request_epoch"])
    lines = [
        f"{explanation.position}: {event['type']} of {named(key)}, its event {event['seq']}",
        f"  clauses  {', '.join(explanation.clauses)}",
        f"  before   {explanation.state}",
    ]
    lines += [
        f"  table    {step.machine}: {step.before} -> {step.after}; {step.before} takes {', '.join(step.legal)}"
        for step in explanation.steps
    ]
    lines += [f"  rule     {rule}" for rule in explanation.rules]
    if explanation.legal:
        lines.append(f"  legal    by the tables: {', '.join(explanation.legal)}")
    if explanation.decision is not None:
        found = explanation.decision
        lines.append(f"  verdict  {found.verdict}: {found.rule}")
        if found.expected or found.got:
            lines.append(f"  expected {found.expected}; got {found.got}")
    lines += [f"  changed  {change.what}: {change.before} -> {change.after}" for change in explanation.changes]
    if not explanation.changes:
        lines.append("  changed  nothing")
    return "\n".join(lines)


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
        if after is None or (isinstance(event, BlocksRetired) and event.cause != "retain"):
            continue
        found.append(Step(machine=machine, before=phase, after=after, legal=phases.legal(table, phase)))
    return tuple(found)


def _changes(frame: Frame) -> tuple[Change, ...]:
    before, after = _facts(frame.before, frame.event.request), _facts(frame.after, frame.event.request)
    return tuple(
        Change(what=what, before=before.get(what, "-"), after=after.get(what, "-"))
        for what in {**before, **after}
        if before.get(what, "-") != after.get(what, "-")
    )


def _facts(state: State, key: RequestKey) -> dict[str, str]:
    """Everything that an explanation compares, by name."""
    pool = state.pool
    facts = {
        "pool generation": str(pool.pool_generation),
        "ranks": str(dict(pool.ranks)),
        "lost ranks": str(list(pool.lost)),
        "producer epoch": str(pool.producer_epoch),
        "next operation": str(pool.next_operation_id),
        "prefixes": str([prefix.number for prefix in pool.prefixes]),
        "shared blocks": str([len(blocks) // 4 for blocks in state.ownership.shared]),
    }
    requests = [state.request(key)] if key != POOL else list(state.requests.values())
    for request in requests:
        if request is None:
            continue
        prefix = f"{named(request.key)} " if key == POOL else ""
        found = figures(state, request)
        facts |= {
            f"{prefix}{name.replace('_', ' ')}": str(getattr(found, name))
            for name in found.__struct_fields__
            if name not in ("request_id", "request_epoch")
        }
        facts[f"{prefix}selection revision"] = str(request.selection_revision)
        facts[f"{prefix}valid CPU blocks"] = str(int((int32_view(request.source) >= 0).sum()))
        facts[f"{prefix}stale CPU blocks"] = str(int((int32_view(request.stale) >= 0).sum()))
        facts[f"{prefix}outcomes"] = str(
            {o.operation.operation_id: dict(o.outcomes) for o in (*request.open_operations(), *request.settling)}
        )
    return facts


def _decision(before: State, request: RequestState | None, event: Event) -> Decision | None:
    if isinstance(event, AckRefused):
        return Decision(verdict=event.verdict, rule=event.rule, expected=event.expected, got=event.got)
    if isinstance(event, AckIgnored):
        # The event does not keep both sides: the table is asked again.
        found = acks.judge(
            before,
            acks.Ack(
                operation=event.operation, rank=event.rank, process_epoch=event.process_epoch, outcome=event.outcome
            ),
        )
        same = found.rule == event.rule
        return Decision(
            verdict=event.verdict,
            rule=event.rule,
            expected=found.expected if same else "",
            got=found.got if same else "",
        )
    if isinstance(event, PlanRefused):
        return Decision(
            verdict="refused",
            rule=f"{event.lane}: {event.reason}",
            expected=f"{event.needed} places",
            got=f"{event.vacant} vacant areas, {event.free} free blocks",
        )
    if isinstance(event, CommandRefused):
        legal = ", ".join(legal_now(request)) if request else "nothing"
        return Decision(
            verdict="refused", rule=event.reason, expected=f"a state that takes {event.command}; here legal: {legal}",
            got=event.state,
        )  # fmt: skip
    return None
