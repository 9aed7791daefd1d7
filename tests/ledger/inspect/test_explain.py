"""Explaining an event: the tables' own words, the deciding rule, and exactly what changed."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.ledger.inspect.test_lives import Apart, walked
from tests.ledger.walks import Walk

from kvsweep.ledger import events as e
from kvsweep.ledger import phases
from kvsweep.ledger.errors import LayoutError, LogCorrupt
from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import POOL, RequestKey
from kvsweep.ledger.inspect.as_data import event_to_builtins, figures, named
from kvsweep.ledger.inspect.causes import OF_OPERATION
from kvsweep.ledger.inspect.explain import (
    CLAUSES,
    NOT_PLANNED,
    Change,
    Decision,
    Explanation,
    Step,
    explain,
    explain_frame,
    render,
)
from kvsweep.ledger.inspect.replay import Ledger
from kvsweep.ledger.joint import JOINT
from kvsweep.ledger.store.codec import EVENT_TYPES
from kvsweep.ledger.store.memory import MemoryLog

CONTRACT = Path(__file__).resolve().parents[3] / "docs"


@pytest.fixture(scope="module")
def ledger(written: Any) -> Ledger:
    log = MemoryLog()
    log.append(written.events)
    return Ledger(log)


def explained(ledger: Ledger, written: Any, kind: type[Event], nth: int = 0) -> Explanation:
    positions = [at for at, event in enumerate(written.events, 1) if isinstance(event, kind)]
    return ledger.explain(positions[nth])


def test_a_legal_event_names_the_row_of_the_table_that_let_it_in(ledger: Ledger, written: Any) -> None:
    found = explained(ledger, written, e.ResidencyCommitted)
    assert found.state == "running/moved/idle/idle"
    assert found.clauses == ("F1",)
    assert found.steps == (
        Step(machine="upload", before="MOVED", after="COMMITTED", legal=("ResidencyCommitted", "UploadAborted")),
    )
    assert found.rules == tuple(f"{rule.name} ({rule.clause})" for rule in JOINT if e.ResidencyCommitted in rule.events)
    assert len(found.rules) == 1
    assert "UploadAborted" in found.legal
    assert "RequestFinished" in found.legal
    assert "RankTransferred" not in found.legal
    assert found.decision is None


def test_the_changes_are_exactly_what_the_event_changed(ledger: Ledger, written: Any) -> None:
    found = explained(ledger, written, e.ResidencyCommitted)
    assert set(found.changes) == {
        Change(what="upload", before="MOVED", after="COMMITTED"),
        Change(what="map revision", before="0", after="1"),
        Change(what="generation", before="0", after="1"),
        Change(what="views", before="[]", after="[1]"),
        Change(what="view slots", before="{}", after="{'0': 2, '2': 2}"),
    }
    opened = explained(ledger, written, e.RequestOpened)
    assert Change(what="life", before="-", after="RUNNING") in opened.changes
    assert explained(ledger, written, e.DigestRecorded).changes == ()
    released = explained(ledger, written, e.TransferSettled, nth=1)
    assert Change(what="owned blocks", before="[2, 0]", after="[0, 0]") in released.changes


def test_b7_a_retired_view_that_the_lane_did_not_replace_moves_no_lane(ledger: Ledger, written: Any) -> None:
    assert [step.machine for step in explained(ledger, written, e.BlocksRetired).steps] == ["retain"]
    [frame] = [
        frame for frame in ledger.replay() if isinstance(frame.event, e.BlocksRetired) and frame.event.cause == "retain"
    ]
    other = msgspec.structs.replace(frame, event=msgspec.structs.replace(frame.event, cause="upload"))
    assert explain_frame(other).steps == ()


def test_f2_an_ignored_and_a_refused_acknowledgement_name_the_rule(ledger: Ledger, written: Any) -> None:
    refused = explained(ledger, written, e.AckRefused)
    assert refused.decision == Decision(
        verdict="future",
        rule="newer operation",
        expected="below 4",
        got="99",
        stands="the acknowledgement table of another version",
        clauses=("F2",),
    )
    assert (refused.clauses, refused.steps, refused.changes) == (("F2",), (), ())
    ignored = explained(ledger, written, e.AckIgnored)
    assert ignored.decision is not None
    assert (ignored.decision.verdict, ignored.decision.rule) == ("stale", "not open, not settling")


def test_f2_an_ignored_acknowledgement_is_judged_again_for_both_sides(written: Any) -> None:
    from kvsweep.ledger.acks import Ack, judge

    events: list[Event] = list(written.events)
    index = next(at for at, event in enumerate(events) if isinstance(event, e.AckIgnored))
    event: Any = events[index]
    event = msgspec.structs.replace(event, operation=msgspec.structs.replace(event.operation, map_revision=77))
    frames = list(Ledger(_memory(events[:index])).replay())
    verdict = judge(
        frames[-1].after,
        Ack(operation=event.operation, rank=event.rank, process_epoch=event.process_epoch, outcome=event.outcome),
    )
    events[index] = msgspec.structs.replace(event, verdict=verdict.kind, rule=verdict.rule)
    assert verdict.kind == "stale"
    assert "map revision 77" in verdict.got
    found = explain(_memory(events[: index + 1]), index + 1)
    assert found.decision == Decision(
        verdict=verdict.kind,
        rule=verdict.rule,
        expected=verdict.expected,
        got=verdict.got,
        stands="row 4 of 11 of the acknowledgement table",
        clauses=("F2",),
    )


def test_g3_a_refused_plan_and_command_say_what_was_missing(ledger: Ledger, written: Any) -> None:
    plan = explained(ledger, written, e.PlanRefused)
    assert plan.decision == Decision(
        verdict="refused",
        rule=f"upload: no_space: {NOT_PLANNED['no_space'][0]}",
        expected="9 places",
        got="0 vacant areas, 4 free blocks",
        stands="planning of the upload lane",
        clauses=("G3",),
    )
    command = explained(ledger, written, e.CommandRefused)
    assert command.decision is not None
    assert command.decision.rule == "it runs"
    assert command.decision.expected.startswith("a state that takes Resume; here legal: RequestPreempted,")
    assert command.decision.got == "running/idle/idle/idle"


def _memory(events: list[Event]) -> MemoryLog:
    log = MemoryLog()
    log.append(events)
    return log


def test_every_frame_can_be_explained_and_agrees_with_the_tables(ledger: Ledger, written: Any) -> None:
    """Oracle: the tables, looked up by hand for each frame."""
    for frame in ledger.replay():
        found = explain_frame(frame)
        name = found.event["type"]
        json.loads(msgspec.json.encode(found))
        assert render(found).startswith(f"{frame.position}: {name} of ")
        for step in found.steps:
            assert phases.TABLES[step.machine][step.before, name] == step.after
            assert name in step.legal
            assert set(step.legal) <= set(found.legal)


def test_a_position_outside_the_ledger_is_refused(ledger: Ledger, written: Any) -> None:
    last = len(written.events)
    for position in (-1, 0, last + 1):
        with pytest.raises(LayoutError, match=f"position: expected a position from 1 to {last}, got {position}"):
            ledger.explain(position)


def test_every_event_type_names_clauses_of_the_contract() -> None:
    assert set(CLAUSES) == set(EVENT_TYPES)
    listed = set(re.findall(r"\b[A-J]\d+\b", "\n".join(file.read_text() for file in CONTRACT.rglob("contract*"))))
    assert {clause for clauses in CLAUSES.values() for clause in clauses} <= listed


def test_figures_count_what_a_request_holds(ledger: Ledger, written: Any) -> None:
    state = ledger.state(until=1 + next(at for at, ev in enumerate(written.events) if isinstance(ev, e.RetainPlanned)))
    found = figures(state, state.requests["a-b-c"])
    assert found.life == "RUNNING"
    assert (found.retain, found.generation, found.views) == ("PLANNED", 1, [1])
    assert found.view_slots == {"0": 2, "2": 2}
    assert found.held_areas == 4  # two slots in each of two layers
    assert found.held_rows == [0, 1]  # the view's and the one to be written
    assert found.held_sources == 4
    assert found.owned_blocks == [2, 0]


def test_facts_as_plain_data_keep_ids_as_lists(written: Any) -> None:
    event = next(event for event in written.events if isinstance(event, e.BlocksLeased))
    found = event_to_builtins(event)
    assert found["type"] == "BlocksLeased"
    assert found["request"] == {"request_id": "a-b-c", "request_epoch": 1}
    assert found["destination"] == {"0": [0, 1], "2": [0, 1]}
    assert found["reserved"] == [[0, 1], []]
    assert found["copies"] == []


@pytest.mark.parametrize(
    ("name", "shown"), [("a-b-c", "a-b-c #1"), ("", "'' #1"), ("a\x1b[2J", r"'a\x1b[2J' #1"), ("요청", "요청 #1")]
)
def test_f5_an_id_is_shown_whole_and_cannot_write_to_the_terminal(name: str, shown: str) -> None:
    assert named(RequestKey(name, 1)) == shown


# ---- by the lives it is about alone


@pytest.mark.parametrize("kind", [Apart, Walk])
@pytest.mark.parametrize("seed", [20260916, 20260917])
def test_an_explanation_by_few_lives_is_that_of_the_whole_ledger(kind: type[Walk], seed: int) -> None:
    """Oracle: the same words for the frame that a fold of everything gives."""
    log = walked(kind, seed)
    frames = list(Ledger(log).replay())
    rng = np.random.default_rng(seed)
    pool = [frame.position for frame in frames if frame.event.request == POOL]
    chosen = {*rng.integers(1, len(frames) + 1, size=60).tolist(), *pool[:12], *pool[-12:]}
    for position in sorted(chosen):
        whole = explain_frame(frames[position - 1])
        found = msgspec.structs.replace(explain(log, position), facts=())
        assert found == whole, f"seed {seed}, position {position}"


def test_f2_the_facts_before_an_acknowledgement_are_its_operation_and_its_speaker(written: Any) -> None:
    events = list(written.events)
    index = next(at for at, event in enumerate(events) if isinstance(event, e.AckIgnored))
    event: Any = events[index]
    lost = e.RankLost(request=POOL, seq=2, rank=1, process_epoch=102, pool_generation=2)
    events = [*events[:index], lost, event]
    found = explain(_memory(events), len(events))
    number = event.operation.operation_id
    expected = [
        at for at, other in enumerate(events[:-1], 1)
        if getattr(other, "operation", None) == event.operation or isinstance(other, e.RankLost)
    ]  # fmt: skip
    opened = next(at for at, other in enumerate(events, 1) if isinstance(other, e.RequestOpened))
    assert [fact.position for fact in found.facts] == sorted({opened, *expected})
    assert f"operation {number} is sent to ranks 0, 1" in [fact.sentence for fact in found.facts]
    assert found.facts[-1].stream == "the pool"


def test_a_report_on_another_request_s_operation_names_whose_it_is(written: Any) -> None:
    events = list(written.events)
    second = next(at for at, event in enumerate(events) if isinstance(event, e.PlanRefused))
    twin, first = events[second].request, next(event for event in events if isinstance(event, e.TransferStarted))
    operation = msgspec.structs.replace(first.operation, request=twin)
    known = sum(event.request == twin for event in events[:second])
    ack = e.AckIgnored(
        request=twin, seq=known, operation=operation, rank=0, process_epoch=101, outcome="completed", verdict="stale",
        rule="operation neither open nor settling",
    )  # fmt: skip
    found = explain(_memory([*events[:second], ack]), second + 1)
    assert [(fact.type, fact.stream) for fact in found.facts] == [
        ("UploadPlanned", "a-b-c #1"),
        ("RequestOpened", "@pool #1"),
    ]


def test_e3_a_plan_says_how_and_what_it_stands_on(ledger: Ledger, written: Any) -> None:
    planned = explained(ledger, written, e.UploadPlanned)
    assert planned.decision is not None
    assert planned.decision.verdict == "planned"
    assert planned.decision.rule == "diff: what is wanted and not resident is uploaded, in ascending order"
    assert planned.decision.got == "blocks to upload, by layer: {0: 2, 2: 2}"
    assert planned.clauses == ("E3", "E4", "F1")
    assert [fact.type for fact in planned.facts] == ["RequestOpened", "BlocksSelected"]
    retained = explained(ledger, written, e.RetainPlanned)
    assert retained.decision is not None
    assert retained.decision.rule.startswith("layer: layers keep different slots")
    assert [fact.type for fact in retained.facts] == ["RequestOpened", "BlocksSelected", "ResidencyCommitted"]


def test_a_late_report_on_a_forgotten_life_is_explained_in_the_pool_s_stream(written: Any) -> None:
    """F2: nobody knows the life any more; the rule is the same as when it was judged."""
    ack: Any = next(event for event in written.events if isinstance(event, e.AckIgnored))
    rule = "operation neither open nor settling"
    forgotten = msgspec.structs.replace(ack.operation, request=RequestKey("forgotten", 1))
    events = [*written.events, msgspec.structs.replace(ack, request=POOL, seq=4, operation=forgotten, rule=rule)]
    found = explain(_memory(events), len(events))
    assert found.decision is not None
    assert found.decision.expected == "an open or settling operation"
    assert found.state == "pool"
    assert found.changes == ()


def test_an_operation_of_many_reports_is_told_by_its_latest(written: Any) -> None:
    events = list(written.events)
    index = next(at for at, event in enumerate(events) if isinstance(event, e.AckIgnored))
    event: Any = events[index]
    repeated = [msgspec.structs.replace(event, seq=event.seq + n) for n in range(2 * OF_OPERATION)]
    found = explain(_memory([*events[:index], *repeated]), index + len(repeated))
    said = [fact for fact in found.facts if fact.type == "AckIgnored"]
    assert len(said) == OF_OPERATION
    assert said[-1].position == index + len(repeated) - 1


def test_a_history_that_was_not_lived_is_named_where_it_breaks(written: Any) -> None:
    events = list(written.events)
    index = next(at for at, event in enumerate(events) if isinstance(event, e.ResidencyCommitted))
    event: Any = events[index]
    events[index] = msgspec.structs.replace(event, generation=9)
    with pytest.raises(LogCorrupt, match=rf"corrupt at position {index + 1}: .*expected generation 1, got 9"):
        explain(_memory(events), index + 2)
    assert explain(_memory(events), index).position == index
