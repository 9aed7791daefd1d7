"""One seed, one legal scenario; together they hold every kind of step, fault and world."""

from typing import get_args

from msgspec.structs import asdict

from kvsweep.scenarios.verify.script import faults as f
from kvsweep.scenarios.verify.script import steps as s
from kvsweep.scenarios.verify.script.format import Script
from kvsweep.scenarios.verify.script.load import check, dump, parse
from kvsweep.scenarios.verify.simulate.draw import MOST_FAULTS, MOST_REQUESTS, MOST_STEPS, random_script

SCRIPTS = [random_script(seed) for seed in range(300)]


def test_a_seed_draws_one_scenario_and_another_seed_another() -> None:
    assert random_script(7) == random_script(7)
    assert random_script(7) != random_script(8)
    assert random_script(7).seed == 7


def test_every_scenario_is_legal_and_survives_its_file() -> None:
    for script in SCRIPTS:
        check(script)
        assert parse(dump(script)) == script, script.seed


def test_every_kind_of_step_and_fault_is_drawn() -> None:
    """`replace_table` is left out: nothing honest does it, and it must be seen as broken."""
    steps = {type(step) for script in SCRIPTS for step in script.step}
    assert steps == set(get_args(s.Step))
    faults = {type(fault) for script in SCRIPTS for fault in script.fault}
    assert faults == set(get_args(f.Fault)) - {f.ReplaceTable}


def test_worlds_differ_in_everything_that_a_world_has() -> None:
    """KV is always synthetic: a model's would show nothing more, and slowly."""
    worlds = [asdict(script.world) for script in SCRIPTS]
    same = {name for name in worlds[0] if len({repr(world[name]) for world in worlds}) == 1}
    assert same == {"kv", "open_steps"}
    groups = {tuple(group.kind for group in script.world.groups) for script in SCRIPTS}
    assert groups == {
        ("full",),
        ("full", "full"),
        ("full", "sliding"),
        ("full", "sliding", "full"),
    }
    assert {script.world.block_size for script in SCRIPTS} == {1, 2, 4, 8, 16}
    assert {script.world.ranks for script in SCRIPTS} == {1, 2, 3}


def test_sizes_stay_within_bounds() -> None:
    """A burst may pass the last step by what it consists of."""
    assert max(len(script.step) for script in SCRIPTS) <= MOST_STEPS + 16
    assert max(len(script.fault) for script in SCRIPTS) in (MOST_FAULTS, MOST_FAULTS + 1)
    assert max(len(opened(script)) for script in SCRIPTS) <= MOST_REQUESTS


def test_lists_stand_on_one_line_of_the_file() -> None:
    script = Script(
        title="two [\n 1,\n] lines",
        step=(s.Open(blocks=3), s.Upload(want={0: (0, 2), 1: (1,)}), s.BeginStep(name='a "b"', requests=("a",))),
    )
    lines = dump(script).splitlines()
    assert {"0 = [0, 2]", "1 = [1]", 'requests = ["a"]'} <= set(lines)
    assert parse(dump(script)) == script


def opened(script: Script) -> set[str]:
    return {step.request for step in script.step if isinstance(step, s.Open)}


def test_no_report_is_forged_that_nobody_could_see_through() -> None:
    """A rank's own name, number and revisions under a report that it did not send would have to be believed."""
    for script in SCRIPTS:
        for step in script.step:
            if isinstance(step, s.Say):
                told = step.process_epoch or step.map_revision or step.pool_generation or step.life
                assert told or step.operation == 1000 or step.outcome == "nonsense", (script.seed, step)
