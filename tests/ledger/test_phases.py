"""The tables are complete: whatever they do not name is refused and changes nothing. And each joint rule bites."""

import itertools
from collections.abc import Iterator
from typing import Any, get_args

import numpy as np
import pytest
from msgspec.structs import replace
from tests.ledger.worlds import RANKS, A, World, frozen

from kvsweep.ledger import events as e
from kvsweep.ledger import joint, phases
from kvsweep.ledger.errors import Refused
from kvsweep.ledger.events import Event
from kvsweep.ledger.fold import REDUCE, REDUCE_POOL, apply
from kvsweep.ledger.state import Lane, OpenOperation, RequestState, State

# Written out again, from the life of an operation as it is meant and not from the tables: one walk a line.
LIFE = """
NEW -RequestOpened-> RUNNING -RequestPreempted-> PREEMPTED -RequestResumed-> RUNNING
RUNNING -RequestFinished-> FINISHING -RequestClosed-> CLOSED
PREEMPTED -RequestFinished-> FINISHING
"""
UPLOAD = """
IDLE -BlocksSelected-> SELECTED -KeepMapPublished-> PUBLISHED -UploadAcknowledged-> IDLE
SELECTED -UploadPlanned-> PLANNED -UploadStaged-> STAGED -BlocksLeased-> LEASED -TransferStarted-> MOVING
MOVING -RankTransferred-> MOVING
MOVING -TransferCompleted-> MOVED -ResidencyCommitted-> COMMITTED -UploadAcknowledged-> IDLE
MOVING -UploadAborted-> IDLE
MOVED -UploadAborted-> IDLE
"""
RETAIN = """
IDLE -RetainPlanned-> PLANNED -ReadersDrained-> APPLYING -TablesApplied-> APPLYING -AllRanksApplied-> APPLIED
APPLIED -OwnersCommitted-> COMMITTED -BlocksRetired-> RETIRED -RetainAcknowledged-> IDLE
PLANNED -RetainAborted-> IDLE
APPLYING -RetainAborted-> IDLE
APPLIED -RetainAborted-> IDLE
"""
STORE = """
IDLE -StoreStarted-> MOVING -RankStored-> MOVING -StoreCompleted-> IDLE
MOVING -StoreAborted-> IDLE
"""
WALKS = {"life": LIFE, "upload": UPLOAD, "retain": RETAIN, "store": STORE}
KINDS: tuple[type[Event], ...] = get_args(e.AnyEvent)
NOTED = {"AckIgnored", "AckRefused", "CommandRefused"}


def table_of(walks: str) -> dict[tuple[str, str], str]:
    """(state, event) -> state out of walks written as 'A -Event-> B'."""
    table: dict[tuple[str, str], str] = {}
    for line in walks.strip().splitlines():
        words = line.replace("->", "").replace(" -", " ").split()
        for state, event, after in zip(words[0::2], words[1::2], words[2::2], strict=False):
            assert table.setdefault((state, event), after) == after
    return table


MEANT = {machine: table_of(walks) for machine, walks in WALKS.items()}
STATES = {machine: sorted({state for state, _ in table} | set(table.values())) for machine, table in MEANT.items()}


@pytest.mark.parametrize("machine", phases.TABLES)
def test_every_table_is_what_it_is_meant_to_be_no_key_more_and_none_less(machine: str) -> None:
    assert dict(phases.TABLES[machine]) == MEANT[machine]


def test_every_event_of_a_table_is_a_fact_and_every_fact_has_a_reducer() -> None:
    names = {kind.__name__ for kind in KINDS}
    assert {event for table in MEANT.values() for _, event in table} <= names
    assert {*REDUCE, *REDUCE_POOL} == set(KINDS)


def test_g3_the_states_that_can_turn_back() -> None:
    assert {
        "upload": {"MOVING", "MOVED"}, "retain": {"PLANNED", "APPLYING", "APPLIED"}, "store": {"MOVING"}
    } == phases.ABORTABLE  # fmt: skip
    waits = {state for state in STATES["upload"] if state not in phases.PASSED_THROUGH}
    assert waits == {"IDLE", "PUBLISHED", "MOVING", "MOVED", "COMMITTED"}


def in_phases(w: World, life: str, upload: str, retain: str, store: str) -> State:
    """A state with these phases; each lane that is under way has an operation of its own."""

    def lane(name: Any, phase: str) -> Lane:
        opened = OpenOperation(operation=w.operation(), lane=name, ranks=RANKS)
        return Lane(phase=phase, open=None if phase in ("IDLE", "SELECTED") else opened)

    request = replace(
        w.of(), life=life, upload=lane("upload", upload), retain=lane("retain", retain), store=lane("store", store)
    )
    return replace(w.state, requests={"a": request})


def all_phases() -> Iterator[tuple[str, str, str, str]]:
    for life in STATES["life"]:
        yield from ((life, *lanes) for lanes in itertools.product(*(STATES[n] for n in ("upload", "retain", "store"))))


def refused_by_the_tables(kind: type[Event], event: Event, phase: dict[str, str]) -> bool:
    name = kind.__name__
    known = [machine for machine in MEANT if any(name == of for _, of in MEANT[machine])]
    if kind is e.BlocksRetired and event.cause != "retain":  # type: ignore[attr-defined]
        known = []
    if any((phase[machine], name) not in MEANT[machine] for machine in known):
        return True
    return phase["life"] in ("NEW", "CLOSED") and name not in {*NOTED, "RequestOpened"}


@pytest.mark.parametrize("life", STATES["life"])
def test_whatever_the_tables_do_not_name_is_refused_in_every_state_and_changes_nothing(
    life: str, make_event: Any
) -> None:
    """All phases of all four machines together, times all facts of a request."""
    w, rng, refusals = World(), np.random.default_rng(20260916), 0
    seq = w.of().seq
    batch = [(kind, make_event(kind, rng, request=A, seq=seq)) for kind in KINDS if kind in REDUCE]
    batch += [
        (e.BlocksRetired, replace(make_event(e.BlocksRetired, rng, request=A, seq=seq), cause=cause))
        for cause in ("retain", "upload")
    ]
    for phase in all_phases():
        if phase[0] != life:
            continue
        state = in_phases(w, *phase)
        before, named = frozen(state), dict(zip(MEANT, phase, strict=True))
        for kind, event in batch:
            if not refused_by_the_tables(kind, event, named):
                continue
            with pytest.raises(Refused) as refusal:
                apply(state, event)
            assert f"{kind.__name__} is illegal in {'/'.join(phase).lower()}" in str(refusal.value), phase
            refusals += 1
        assert frozen(state) == before, phase
    assert refusals > 6 * 7 * 2 * 20, "the sweep reached what it is about"


def test_a_refusal_lists_what_is_legal_machine_by_machine() -> None:
    w = World()
    with pytest.raises(Refused) as refusal:
        w.emit(e.RequestResumed)
    assert refusal.value.legal == ("RequestPreempted", "RequestFinished", "BlocksSelected", "RetainPlanned",
                                   "StoreStarted")  # fmt: skip
    assert str(refusal.value) == (
        "RequestKey(request_id='a', request_epoch=1): RequestResumed is illegal in running/idle/idle/idle; "
        "legal here: RequestPreempted, RequestFinished, BlocksSelected, RetainPlanned, StoreStarted"
    )


# ---- joint rules: each is broken once, by that rule alone


def rule(name: str) -> joint.JointRule:
    (found,) = [rule for rule in joint.JOINT if rule.name == name]
    return found


def reason(name: str, state: State, kind: type[Event], make_event: Any) -> str | None:
    request: RequestState = state.requests["a"]
    event = make_event(kind, np.random.default_rng(1), request=A, seq=request.seq)
    assert kind in rule(name).events
    return rule(name).reason(state, request, event)


OPEN = ["PUBLISHED", "MOVING", "MOVED", "COMMITTED"]
BROKEN = [
    *(("one view-changing operation at a time", e.RetainPlanned, ("RUNNING", up, "IDLE", "IDLE")) for up in OPEN),
    *(
        ("one view-changing operation at a time", e.BlocksSelected, ("RUNNING", "IDLE", keep, "IDLE"))
        for keep in ("PLANNED", "APPLYING", "APPLIED", "COMMITTED", "RETIRED")
    ),
    *(
        ("one view-changing operation at a time", kind, (life, "IDLE", "IDLE", "IDLE"))
        for kind in (e.RetainPlanned, e.BlocksSelected)
        for life in ("PREEMPTED", "FINISHING")
    ),
    ("commit only on the view planned on", e.ResidencyCommitted, ("PREEMPTED", "MOVED", "IDLE", "IDLE")),
    ("commit only on the view planned on", e.OwnersCommitted, ("FINISHING", "IDLE", "APPLIED", "IDLE")),
    *(
        ("turn back before the life changes", kind, ("RUNNING", *lanes, "IDLE"))
        for kind in (e.RequestPreempted, e.RequestFinished)
        for lanes in (("MOVING", "IDLE"), ("MOVED", "IDLE"), ("IDLE", "PLANNED"), ("IDLE", "APPLIED"))
    ),
    ("turn back before the life changes", e.RequestFinished, ("RUNNING", "IDLE", "IDLE", "MOVING")),
    ("close only when nothing is held", e.RequestClosed, ("FINISHING", "COMMITTED", "IDLE", "IDLE")),
    ("only a living request writes", e.TailOpened, ("PREEMPTED", "IDLE", "IDLE", "IDLE")),
    ("only a living request writes", e.PrefixPublished, ("PREEMPTED", "IDLE", "IDLE", "IDLE")),
    ("only a living request writes", e.PrefixAttached, ("PREEMPTED", "IDLE", "IDLE", "IDLE")),
    ("only a living request writes", e.StoreStarted, ("FINISHING", "IDLE", "IDLE", "IDLE")),
    ("only a living request writes", e.SourcesRegistered, ("FINISHING", "IDLE", "IDLE", "IDLE")),
]


@pytest.mark.parametrize(("name", "kind", "phase"), BROKEN)
def test_each_joint_rule_refuses_what_the_tables_would_take(
    name: str, kind: type[Event], phase: tuple[str, str, str, str], make_event: Any
) -> None:
    state = in_phases(World(), *phase)
    event = make_event(kind, np.random.default_rng(1), request=A, seq=state.requests["a"].seq)
    assert not refused_by_the_tables(kind, event, dict(zip(MEANT, phase, strict=True)))
    before = frozen(state)
    with pytest.raises(Refused, match=f"\\({name}: "):
        apply(state, event)
    assert frozen(state) == before


def test_every_joint_rule_is_broken_here_for_every_event_it_guards() -> None:
    assert {(name, kind) for name, kind, _ in BROKEN} >= {
        (rule.name, kind) for rule in joint.JOINT for kind in rule.events
    }


def test_preemption_lets_a_store_end_and_the_other_rules_are_silent_when_all_is_well(make_event: Any) -> None:
    w = World()
    storing = in_phases(w, "RUNNING", "IDLE", "IDLE", "MOVING")
    assert reason("turn back before the life changes", storing, e.RequestPreempted, make_event) is None
    moved = in_phases(w, "RUNNING", "MOVED", "IDLE", "IDLE")
    assert reason("commit only on the view planned on", moved, e.ResidencyCommitted, make_event) is None
    preempted = in_phases(w, "PREEMPTED", "IDLE", "IDLE", "IDLE")
    assert reason("only a living request writes", preempted, e.StoreStarted, make_event) is None


@pytest.mark.parametrize("change", [{"map_revision": 1}, {"pool_generation": 2}])
def test_f2_a_commit_on_another_map_revision_or_pool_generation_is_refused(
    change: dict[str, int], make_event: Any
) -> None:
    w = World()
    state = in_phases(w, "RUNNING", "MOVED", "APPLIED", "IDLE")
    if "map_revision" in change:
        state = replace(state, requests={"a": replace(state.requests["a"], **change)})
    else:
        state = replace(state, pool=replace(state.pool, **change))
    for kind in (e.ResidencyCommitted, e.OwnersCommitted):
        found = reason("commit only on the view planned on", state, kind, make_event)
        assert found is not None
        assert "planned on (pool generation, map revision) (1, 0)" in found
