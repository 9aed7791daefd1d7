"""The coordinator's process ends right after any fact of a story; the next one goes on, and everything drains."""

from pathlib import Path

import pytest

from kvsweep.scenarios.verify.script.address import Moment
from kvsweep.scenarios.verify.script.faults import Crash
from kvsweep.scenarios.verify.script.format import Expect, Script
from kvsweep.scenarios.verify.script.run import run_script
from kvsweep.scenarios.verify.script.steps import (
    BeginStep,
    EndStep,
    Finish,
    Open,
    Preempt,
    Publish,
    RestartRank,
    Resume,
    Retain,
    Round,
    Step,
    Upload,
    Write,
)
from kvsweep.scenarios.verify.script.world import Group, ScenarioWorld

WORLD = ScenarioWorld(groups=(Group(), Group(kind="sliding", layers=1, window=8)), device_blocks=24, deadline=60)
STORY: tuple[Step, ...] = (
    Open(blocks=4, tokens=2),
    Publish(blocks=2),
    Round(want=(0, 2)),
    Open(request="b", blocks=4, registered=True),
    BeginStep(requests=("a", "b")),
    Upload(request="b", want=(0, 1, 3)),
    Retain(request="b", keep=(1,)),
    Write(blocks=1),
    EndStep(),
    Preempt(),
    Resume(),
    Resume(request="b"),
    Upload(want=(1, 3)),
    RestartRank(rank=1),
    Resume(),
    Resume(request="b"),
    Round(request="b", want=(2,)),
    Finish(),
    Write(request="b", blocks=1),
)
FACTS = (
    ("store_started", 1),
    ("rank_stored", 1),
    ("prefix_published", 1),
    ("tables_applied", 1),
    ("owners_committed", 1),
    ("blocks_leased", 1),
    ("rank_transferred", 1),
    ("residency_committed", 1),
    ("tail_dropped", 2),
    ("request_finished", 1),
)
MORE_FACTS = (
    ("request_opened", 1),
    ("tail_opened", 1),
    ("tail_sealed", 1),
    ("store_completed", 1),
    ("keep_map_published", 1),
    ("upload_acknowledged", 1),
    ("retain_planned", 1),
    ("blocks_retired", 1),
    ("retain_acknowledged", 1),
    ("sources_registered", 1),
    ("blocks_selected", 2),
    ("transfer_started", 1),
    ("owners_committed", 2),
    ("request_preempted", 1),
    ("request_resumed", 1),
    ("rank_restarted", 1),
    ("request_closed", 1),
)


def story(event: str, occurrence: int) -> Script:
    """A crash after this fact; another one hits the next process as it begins."""
    return Script(
        title=event,
        world=WORLD,
        step=STORY,
        fault=(
            Crash(coordinator=True, after=Moment(event=event, occurrence=occurrence)),
            Crash(coordinator=True, after=Moment(event="coordinator_restarted")),
        ),
        expect=Expect(steps="free", events={"coordinator_restarted": 2}),
    )


@pytest.mark.parametrize(
    ("event", "occurrence"), [*FACTS, *(pytest.param(*fact, marks=pytest.mark.full) for fact in MORE_FACTS)]
)
def test_f1_f3_a_coordinator_that_ends_after_this_fact_is_followed_by_one_that_goes_on(
    event: str, occurrence: int
) -> None:
    verdict = run_script(story(event, occurrence))
    assert verdict.passed, (verdict.broken, verdict.missing)


def test_a_run_with_crashes_repeats_bit_for_bit(tmp_path: Path) -> None:
    """In memory and in a file alike."""
    script = story("rank_transferred", 1)
    verdict = run_script(script)
    assert run_script(script) == verdict
    kept = run_script(script, ledger=tmp_path / "crashes.ledger")
    assert (kept.passed, kept.digest, kept.unseed) == (True, verdict.digest, verdict.unseed)
