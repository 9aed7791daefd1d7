"""Every scenario that ships passes, twice alike, reads back from what it is written as, and stays short."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from kvsweep.scenarios.verify.script.format import Script
from kvsweep.scenarios.verify.script.load import dump, library, load_script, parse
from kvsweep.scenarios.verify.script.run import Verdict, run_script

SHIPPED = library()
CONTRACT_I = {
    "B = 1",
    "B = 2",
    "B = 32",
    "B = 64",
    "empty selection, delta 0",
    "every layer empty",
    "tail exhausted",
    "layers with different counts",
    "duplicate, negative, unsorted tail ids",
    "partial sequence of B−1, B, B+1",
    "full and SW groups",
    "several full groups",
    "wrong source owner",
    "duplicate ACK",
    "stale ACK",
    "finish after enqueue",
    "finish of the last request",
    "producer restart",
    "all-rank ACK delayed by one",
    "all-rank ACK delayed by all",
    "a table replaced while a CUDA graph replays",
    "a source freed during a transfer",
}


def why(verdict: Verdict) -> str:
    lines = [*verdict.broken, *(f"never reached: {name}" for name in verdict.missing)]
    return "\n".join([f"seed {verdict.seed}: {verdict.title}", *lines])


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_scenario_passes_and_repeats_bit_for_bit(path: Path) -> None:
    script = load_script(path)
    verdict = run_script(script)
    assert verdict.passed, why(verdict)
    assert run_script(parse(dump(script))) == verdict


def test_i_every_case_has_a_scenario() -> None:
    shown = {
        clause.removeprefix("I: ") for path in SHIPPED for clause in load_script(path).shows if clause[:3] == "I: "
    }
    assert shown == CONTRACT_I


def test_shipped_scenarios_read_as_documentation() -> None:
    """Short, told in a sentence or two, and no title twice."""
    scripts = {path.stem: load_script(path) for path in SHIPPED}
    assert len({script.title for script in scripts.values()}) == len(scripts)
    for name, script in scripts.items():
        assert script.shows, f"{name} shows no clause"
        assert 20 <= len(script.about.strip()) <= 400, f"{name}: about has {len(script.about)} characters"
        assert not script.title.endswith("."), name
        assert name.islower(), name


def test_another_seed_is_another_run() -> None:
    """Where chance has a say: links draw from the seed."""
    script = load_script(next(path for path in SHIPPED if path.stem == "weather_on_every_link"))
    first, second = run_script(script, 1), run_script(script, 2)
    assert first.digest != second.digest
    assert first.unseed != second.unseed


def test_a_ledger_file_changes_nothing(tmp_path: Path) -> None:
    script = load_script(next(path for path in SHIPPED if path.stem == "late_reports_of_the_first_attempt"))
    kept = run_script(script, ledger=tmp_path / "scenario.ledger")
    assert kept.passed, why(kept)
    assert (kept.digest, kept.unseed) == (run_script(script).digest, run_script(script).unseed)
    assert kept.ledger == str(tmp_path / "scenario.ledger")


def test_scenarios_are_built_in_code_too() -> None:
    script = Script(title="nothing at all")
    assert run_script(script).passed
    assert dump(script) == 'title = "nothing at all"\n'


def test_the_example_of_the_page_runs() -> None:
    page = (Path(__file__).parents[4] / "docs/scenarios.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    verdict = run_script(parse(example))
    assert verdict.passed, why(verdict)


def test_a_scenario_needs_no_model_and_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from kvsweep.scenarios.verify.script.load import LIBRARY, load_script\n"
        "from kvsweep.scenarios.verify.script.run import run_script\n"
        "verdict = run_script(load_script(LIBRARY / 'one_report_twice.toml'))\n"
        "print(verdict.passed, 'torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "True False\n"
