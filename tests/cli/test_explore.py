"""`kvsweep explore`: what a shell and a program get."""

import pytest
from msgspec.structs import replace
from tests.cli.command_line import Command, command_of

from kvsweep.runtime.core import restarts
from kvsweep.scenarios.verify.explore import sweep
from kvsweep.scenarios.verify.explore.worlds import WORLDS

KEYS = {"world", "title", "states", "coordinator_states", "depth", "broken", "trail", "sometimes_missing", "cut"}


@pytest.fixture
def kvsweep(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return command_of(monkeypatch, capsys)


def test_one_world_is_one_object(kvsweep: Command) -> None:
    answer = kvsweep("explore", "tight", "--json")
    assert (answer.code, answer.err) == (0, "")
    assert answer.json.keys() == KEYS
    assert (answer.json["world"], answer.json["broken"], answer.json["sometimes_missing"]) == ("tight", [], [])


def test_without_a_name_every_world_is_in_the_list_in_the_order_of_the_page(kvsweep: Command) -> None:
    answer = kvsweep("explore", "--limit", 5, "--json")
    assert answer.code == 0
    assert [found["world"] for found in answer.json] == [world.name for world in WORLDS]
    assert all(found["cut"] and found["states"] == 5 for found in answer.json)


def test_a_table_says_of_a_cut_world_that_it_is_cut(kvsweep: Command) -> None:
    answer = kvsweep("explore", "churn", "--limit", 5)
    assert answer.code == 0
    assert "cut" in answer.out
    assert "all laws hold" not in answer.out
    assert "all laws hold" in kvsweep("explore", "tight").out


def test_worlds_are_searched_side_by_side(kvsweep: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "NAMES", ("tight", "three-layers"))
    answer = kvsweep("explore", "--limit", 100, "--jobs", 2, "--json")
    assert (answer.code, answer.err) == (0, "")
    assert [(found["world"], found["states"]) for found in answer.json] == [("tight", 100), ("three-layers", 100)]


def test_a_world_that_is_not_there_is_one_sentence(kvsweep: Command) -> None:
    sentence = kvsweep("explore", "atlantis").expect_sentence(2)
    assert sentence.startswith("kvsweep: WORLD: expected one of churn, ")
    assert sentence.endswith("got 'atlantis'")


@pytest.mark.parametrize(("option", "value"), [("--limit", 0), ("--jobs", 0), ("--limit", "many")])
def test_an_option_that_cannot_be_is_one_sentence(kvsweep: Command, option: str, value: object) -> None:
    assert option in kvsweep("explore", "tight", option, value).expect_sentence(2)


def test_a_broken_law_is_told_with_the_way_to_it(kvsweep: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "_say_again", lambda *_: None)
    answer = kvsweep("explore", "producer-restart")
    assert answer.code == 1
    *_, last = answer.out.splitlines()
    assert last == "  the producer restarts"
    assert answer.err.startswith("kvsweep: producer-restart: after 8 actions: everything drains: ")
    assert len(answer.err.splitlines()) == 1
    as_data = kvsweep("explore", "producer-restart", "--json")
    assert (as_data.code, len(as_data.json["trail"])) == (1, 8)


def test_a_situation_that_was_not_reached_is_a_failure(kvsweep: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    worlds = [replace(world, sometimes=("the moon is reached",)) for world in WORLDS]
    monkeypatch.setattr(sweep, "WORLDS", worlds)
    answer = kvsweep("explore", "tight")
    assert answer.code == 1
    assert answer.err == "kvsweep: tight: never reached: the moon is reached\n"


def test_a_process_that_ends_early_is_one_sentence(kvsweep: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "NAMES", ("tight", "atlantis"))
    monkeypatch.setattr(sweep, "WORLDS", [*WORLDS, replace(WORLDS[0], name="atlantis")])
    sentence = kvsweep("explore", "--limit", 2, "--jobs", 2).expect_sentence(1)
    assert sentence == "kvsweep: the process that searched atlantis ended with 1, saying ['StopIteration']"
