"""Shrinking: what is left fails in the same way, is legal, and nothing that can be taken away is left."""

from pathlib import Path

import pytest

from kvsweep.ledger.reducers import settle
from kvsweep.scenarios.verify.script import faults as f
from kvsweep.scenarios.verify.script import steps as s
from kvsweep.scenarios.verify.script.address import Message
from kvsweep.scenarios.verify.script.format import Expect, Script
from kvsweep.scenarios.verify.script.load import check, load_script
from kvsweep.scenarios.verify.script.run import run_script
from kvsweep.scenarios.verify.script.world import Group, Links, ScenarioWorld
from kvsweep.scenarios.verify.simulate.draw import random_script
from kvsweep.scenarios.verify.simulate.judge import judge_twice, law_of
from kvsweep.scenarios.verify.simulate.shrink import shrink
from kvsweep.scenarios.verify.simulate.sweep import explain


def test_only_what_the_failure_needs_is_left() -> None:
    """A failure that hangs on one retain of b and one dropped report: all else goes, the world too."""

    def fails(script: Script) -> bool:
        check(script)
        retains = any(isinstance(step, s.Retain) and step.request == "b" for step in script.step)
        return retains and any(isinstance(fault, f.Drop) for fault in script.fault)

    script = Script(
        title="a failure",
        seed=3,
        world=ScenarioWorld(
            ranks=3,
            groups=(Group(layers=3), Group(kind="sliding", layers=1, window=4)),
            links=Links(lose=0.1, delay=3),
            tables="group",
            union=True,
        ),
        step=(
            s.Open(request="a", blocks=4),
            s.Open(request="b", blocks=4, name="b", wait=False),
            s.Await(of="b"),
            s.BeginStep(name="one", requests=("a", "b")),
            s.Round(request="a", name="round"),
            s.Retain(request="b"),
            s.Retry(of="round"),
            s.EndStep(of="one"),
            s.Wait(turns=30),
        ),
        fault=(f.Fail(on=Message(message="transfer")), f.Drop(on=Message(message="done", rank=2))),
        expect=Expect(steps="free"),
    )
    small, tries = shrink(script, fails)
    assert [type(step) for step in small.step] == [s.Open, s.Retain]
    assert [type(fault) for fault in small.fault] == [f.Drop]
    assert small.step[0].blocks == 1  # type: ignore[union-attr]
    assert small.world.groups == (Group(layers=1),)
    assert small.world.links == Links()
    assert small.world.tables == "layer"
    assert small.world.ranks == 3, "the fault speaks of rank 2"
    assert 0 < tries < 200


def test_shrinking_ends_after_the_tries_it_is_given() -> None:
    asked = 0

    def fails(script: Script) -> bool:
        nonlocal asked
        asked += 1
        return True

    _, tries = shrink(random_script(3), fails, tries=5)
    assert (asked, tries) == (5, 5)


def test_what_never_fails_again_stays_as_it_is() -> None:
    script = random_script(3)
    small, _ = shrink(script, lambda smaller: False, tries=40)
    assert small == script


def test_g3_a_failing_seed_becomes_a_small_file_that_reproduces_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """G3: an abort that frees its destinations at once is found in few seeds; its file fails in the same way."""
    quiet = settle._quiet
    monkeypatch.setattr(settle, "_settle", lambda state, request, opened, reason: quiet(state, request, opened))
    seed = next(seed for seed in range(20260916, 20260926) if judge_twice(random_script(seed)).broken)
    found = explain(seed, tmp_path / "new folder", tries=25)
    script = load_script(Path(found.scenario))
    assert found.scenario == str(tmp_path / "new folder" / f"seed-{seed}.toml")
    assert len(script.step) == found.steps < len(random_script(seed).step)
    verdict = run_script(script)
    assert law_of(verdict.broken[0]) in {law_of(one) for one in found.broken}
    monkeypatch.undo()
    assert run_script(script).passed, "with the fault taken back the same file passes"
