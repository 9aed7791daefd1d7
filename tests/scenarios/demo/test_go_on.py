"""A demo that was stopped is gone on with: its ledger settles, its requests end, and new lives decode as plainly."""

from pathlib import Path

import pytest
from tests.cli.command_line import Command, command_of
from tests.scenarios.demo.test_kill import kill_after

from kvsweep.ledger import events as e
from kvsweep.ledger.inspect.replay import Ledger
from kvsweep.ledger.store.open import open_log

DEMO = "demo --synthetic --prompt-tokens 64 --tokens 24 --block-size 8 --every 4 --requests 2 --ranks 2".split()


@pytest.fixture
def kvsweep_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return command_of(monkeypatch, capsys)


def cut(whole: Path, path: Path) -> None:
    """What a process leaves that ends with an operation under way: the batch that started it, and nothing after."""
    with Ledger.open(f"sqlite:{whole}") as ledger:
        events = [record.event for record in ledger.events()]
    starts = [index for index, event in enumerate(events) if isinstance(event, e.TransferStarted | e.ReadersDrained)]
    log = open_log(f"sqlite:{path}")
    log.append(events[: starts[len(starts) // 2] + 1])
    log.close()


def expect_gone_on_with(kvsweep_command: Command, path: Path) -> None:
    with Ledger.open(f"sqlite:{path}") as ledger:
        living = [request for request in ledger.state().requests.values() if request.life != "CLOSED"]
    refused = kvsweep_command(*DEMO, "--ledger", path).expect_sentence(1)
    assert "expected a new ledger, found one with events; give another path, or --go-on" in refused
    answer = kvsweep_command(*DEMO, "--ledger", path, "--go-on", "--json")
    assert (answer.code, answer.err) == (0, ""), answer.err
    assert answer.json["lossless"]
    assert kvsweep_command("log", "replay", path, "--verify", "--json").json["ok"]
    with Ledger.open(f"sqlite:{path}") as ledger:
        facts = [record.event for record in ledger.events() if isinstance(record.event, e.CoordinatorRestarted)]
        state = ledger.state()
    assert len(facts) == 1
    assert "--go-on" in facts[0].evidence, "the second run's command is recorded too"
    assert {request.life for request in state.requests.values()} == {"CLOSED"}
    assert all(state.requests[request.key.request_id].key.request_epoch == 2 for request in living)
    assert state.ownership.held == {}, "nothing is held for anybody"


def test_j1_a_run_that_was_cut_short_is_gone_on_with(kvsweep_command: Command, tmp_path: Path) -> None:
    assert kvsweep_command(*DEMO, "--ledger", tmp_path / "whole.ledger").code == 0
    cut(tmp_path / "whole.ledger", tmp_path / "cut.ledger")
    with Ledger.open(f"sqlite:{tmp_path / 'cut.ledger'}") as ledger:
        requests = ledger.state().requests.values()
    assert {request.life for request in requests} == {"RUNNING"}
    assert any(request.open_operations() for request in requests)
    expect_gone_on_with(kvsweep_command, tmp_path / "cut.ledger")


@pytest.mark.full
@pytest.mark.parametrize("events", [2, 40, 100, 200])
def test_a_killed_demo_is_gone_on_with(kvsweep_command: Command, tmp_path: Path, events: int) -> None:
    path = tmp_path / "killed.ledger"
    kill_after(path, events, command=DEMO)
    expect_gone_on_with(kvsweep_command, path)


def test_another_world_is_named(kvsweep_command: Command, tmp_path: Path) -> None:
    path = tmp_path / "ended.ledger"
    small = "demo --synthetic --prompt-tokens 64 --tokens 4 --block-size 8 --json --ledger".split()
    assert kvsweep_command(*small, path).code == 0
    sentence = kvsweep_command(*small, path, "--go-on", "--prompt-tokens", "96").expect_sentence(1)
    assert "the ledger cannot go on with this run: device_blocks: expected (" in sentence
    again = kvsweep_command(*small, path, "--go-on")
    assert (again.code, again.json["lossless"]) == (0, True)
