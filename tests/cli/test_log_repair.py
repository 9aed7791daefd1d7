"""`kvsweep log repair`: what is damaged is cut off and named, and what was there stays beside it."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.ledger.small_run import Writer, small_run
from typer.testing import CliRunner, Result

from kvsweep.cli.log import log_app
from kvsweep.ledger.errors import SettingsError
from kvsweep.ledger.inspect.replay import Ledger
from kvsweep.ledger.store.codec import encode
from kvsweep.ledger.store.open import open_log

DAMAGED = 31


@pytest.fixture(scope="module")
def written() -> Writer:
    return small_run()


@pytest.fixture
def path(tmp_path: Path, written: Writer) -> Path:
    """A ledger of groups of ten events."""
    path = tmp_path / "ledger.db"
    log = open_log(f"sqlite:{path}")
    for at in range(0, len(written.events), 10):
        log.append(written.events[at : at + 10])
    log.close()
    return path


def damage(path: Path, written: Writer) -> None:
    whole, body = path.read_bytes(), encode(written.events[DAMAGED - 1])
    index = whole.index(body) + len(body) - 1
    path.write_bytes(whole[:index] + bytes([whole[index] ^ 1]) + whole[index + 1 :])


def run(*arguments: object) -> Result:
    return CliRunner().invoke(log_app, [str(argument) for argument in arguments])


def answer(*arguments: object) -> Any:
    result = run(*arguments, "--json")
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return json.loads(result.stdout)


def test_a_whole_ledger_is_left_as_it_is(path: Path, written: Writer) -> None:
    before = path.read_bytes()
    found = answer("repair", path)
    assert (found["changed"], found["kept"], found["dropped"]) == (False, len(written.events), 0)
    assert "nothing is damaged" in run("repair", path).stdout
    assert path.read_bytes() == before


def test_what_stands_behind_the_damage_is_dropped_and_said(path: Path, tmp_path: Path, written: Writer) -> None:
    damage(path, written)
    assert run("verify", path).exit_code == 1
    shown = run("repair", path).stdout
    kept = DAMAGED // 10 * 10
    assert (
        f"{kept} events are kept, up to position {kept}; damaged at position {DAMAGED}: the event does not have"
        in shown
    )
    assert f"dropped: {len(written.events) - kept} events" in shown
    assert "a prefix of a ledger" in shown
    assert "kept as it was: " in shown
    assert answer("verify", path)["ok"]
    assert [one["position"] for one in answer("events", path)["events"]] == list(range(1, kept + 1))
    assert len(list(tmp_path.iterdir())) == 2


def test_the_same_by_the_api(path: Path, written: Writer) -> None:
    damage(path, written)
    found = Ledger.repair(f"sqlite:{path}")
    assert (found.changed, found.position, found.kept) == (True, DAMAGED, DAMAGED // 10 * 10)
    with Ledger.open(f"sqlite:{path}") as ledger:
        assert ledger.verify().ok
    for url in ("memory:", "sqlite:", str(path)):
        with pytest.raises(SettingsError, match=r'log\.url: expected "sqlite:PATH"'):
            Ledger.repair(url)


def test_a_ledger_that_is_written_or_is_none_is_refused(path: Path, tmp_path: Path) -> None:
    log = open_log(f"sqlite:{path}")
    result = run("repair", path)
    log.close()
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"kvsweep log: ledger {path} has a writer already: expected one, got a second\n"
    missing = run("repair", tmp_path / "no.db")
    assert missing.stderr == f"kvsweep log: ledger {tmp_path / 'no.db'} does not exist\n"
    assert run("repair", "memory:x").exit_code == 2
