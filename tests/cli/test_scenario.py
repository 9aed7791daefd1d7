"""`kvsweep scenario`: what a shell gets."""

from pathlib import Path

import pytest
from tests.cli.command_line import Command, command_of

from kvsweep.ledger.inspect.replay import Ledger
from kvsweep.scenarios.verify.script.load import library

PASSES = 'title = "One upload"\n[[step]]\ndo = "open"\nblocks = 2\n[[step]]\ndo = "upload"\nwant = [1]\n'
FAILS = f'{PASSES}[expect]\nsometimes = ["pack"]\nevents = {{ residency_committed = 7 }}\n'
KEYS = {"title", "seed", "passed", "broken", "missing", "ledger"}


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return command_of(monkeypatch, capsys)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one file that passes and one that fails; it is the working directory."""
    (tmp_path / "passes.toml").write_text(PASSES)
    (tmp_path / "fails.toml").write_text(FAILS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_scenario_that_passes(command: Command, files: Path) -> None:
    answer = command("scenario", "run", "passes.toml", "--seed", "3", "--json")
    assert (answer.code, answer.err) == (0, "")
    assert answer.json.keys() >= KEYS
    assert answer.json["title"] == "One upload"
    assert (answer.json["seed"], answer.json["passed"]) == (3, True)
    assert (answer.json["broken"], answer.json["missing"], answer.json["ledger"]) == ([], [], None)
    shown = command("scenario", "run", "passes.toml")
    assert shown.code == 0
    assert "One upload" in shown.out
    assert "passed" in shown.out


def test_a_scenario_that_fails_says_why_and_how_to_repeat_it_and_keeps_its_ledger(
    command: Command, files: Path
) -> None:
    answer = command("scenario", "run", "fails.toml", "--json")
    assert answer.code == 1
    assert answer.err == (
        "kvsweep scenario: 1 of 1 failed, first 'fails.toml' with seed 20260916: steps end as the script says "
        f"(turn {answer.json['turns']}): $.expect.events.residency_committed: expected 7, got 0; "
        "repeat: kvsweep scenario run fails.toml --seed 20260916\n"
    )
    assert answer.json["missing"] == ["pack"]
    assert answer.json["repeat"] == "kvsweep scenario run fails.toml --seed 20260916"
    with Ledger.open(f"sqlite:{answer.json['ledger']}") as ledger:
        checked = ledger.verify()
    assert checked.ok
    assert checked.digest == answer.json["digest"]
    shown = command("scenario", "run", "fails.toml")
    lines = shown.out.splitlines()
    assert "  never reached: pack" in lines
    assert "  repeat: kvsweep scenario run fails.toml --seed 20260916" in lines


def test_several_scenarios_are_a_list_and_one_word(command: Command, files: Path) -> None:
    answer = command("scenario", "run", "passes.toml", "fails.toml", "--json")
    assert answer.code == 1
    assert answer.json["passed"] is False
    assert [one["passed"] for one in answer.json["scenarios"]] == [True, False]
    assert all(one.keys() >= KEYS for one in answer.json["scenarios"])


def test_a_ledger_is_kept_where_it_was_asked_for(command: Command, files: Path) -> None:
    answer = command("scenario", "run", "passes.toml", "--ledger", "kept.ledger", "--json")
    assert answer.json["ledger"] == "kept.ledger"
    again = command("scenario", "run", "passes.toml", "--ledger", "kept.ledger").expect_sentence(1)
    assert "expected a new ledger" in again
    two = command("scenario", "run", "passes.toml", "fails.toml", "--ledger", "x.ledger").expect_sentence(2)
    assert two == "kvsweep scenario: --ledger: expected one scenario, one ledger, got 2 scenarios"


def test_a_name_that_is_no_scenario(command: Command, files: Path) -> None:
    line = command("scenario", "run", "nothing_of_this_name").expect_sentence(2)
    assert line == (
        "kvsweep scenario: nothing_of_this_name: expected a scenario file, or the name of one that ships "
        "(kvsweep scenario list), got neither"
    )
    (files / "typo.toml").write_text('title = "x"\n[[step]]\ndo = "open"\nblokcs = 2\n')
    line = command("scenario", "run", "typo.toml").expect_sentence(2)
    assert line == (
        "kvsweep scenario: typo.toml: $.step[0]: expected a field and value of the format, got Object contains unknown "
        "field `blokcs`"
    )


def test_shipped_scenarios_are_listed_and_run_by_name(command: Command, files: Path) -> None:
    listed = command("scenario", "list", "--json").json["scenarios"]
    assert [one["name"] for one in listed] == [path.stem for path in library()]
    assert all(one["title"] and one["shows"] for one in listed)
    assert command("scenario", "run", listed[0]["name"]).code == 0
    assert listed[0]["name"] in command("scenario", "list").out
