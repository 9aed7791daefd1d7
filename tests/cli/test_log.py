"""`kvsweep log` as a stranger runs it: stable keys, one sentence an error, and an exit code that a script can trust."""

import json
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.cli.command_line import answer, refusal, run
from tests.ledger.small_run import Writer, small_run

from kvsweep.ledger import events as e
from kvsweep.ledger.store.codec import SCHEMA, encode
from kvsweep.ledger.store.open import open_log


@pytest.fixture(scope="module")
def written() -> Writer:
    return small_run()


@pytest.fixture
def path(tmp_path: Path, written: Writer) -> Path:
    path = tmp_path / "a ledger?.db"
    log = open_log(f"sqlite:{path}")
    log.append(written.events)
    log.close()
    return path


# ---- requests


def test_f5_requests_lists_every_life_by_its_whole_id(path: Path) -> None:
    found = answer("requests", path)["requests"]
    assert [(one["request"], one["epoch"]) for one in found] == [("@pool", 0), ("a-b-c", 1), ("@pool", 1), ("a-b-c", 2)]
    assert all(set(one) == {"request", "epoch", "events", "last"} for one in found)
    assert [one["epoch"] for one in answer("requests", path, "--request", "a-b-c")["requests"]] == [1, 2]
    assert [one["epoch"] for one in answer("requests", path, "--request", "@pool")["requests"]] == [1]
    shown = run("requests", path).stdout
    assert "the pool" in shown
    assert "@pool #1" in shown
    assert "a-b-c #2" in shown


def test_a_ledger_may_be_named_by_its_url(path: Path) -> None:
    assert answer("requests", f"sqlite:{path}") == answer("requests", path)


# ---- events


def test_events_are_all_there_in_order(path: Path, written: Writer) -> None:
    found = answer("events", path)["events"]
    assert [one["event"]["type"] for one in found] == [type(event).__name__ for event in written.events]
    assert [one["position"] for one in found] == list(range(1, len(found) + 1))
    leased = next(one["event"] for one in found if one["event"]["type"] == "BlocksLeased")
    assert leased["destination"] == {"0": [0, 1], "2": [0, 1]}


def test_events_are_filtered_by_request_type_and_position(path: Path, written: Writer) -> None:
    found = answer("events", path, "--request", "a-b-c", "--type", "RankTransferred", "--type", "RequestOpened")
    assert [one["event"]["type"] for one in found["events"]] == [
        "RequestOpened",
        "RankTransferred",
        "RankTransferred",
        "RequestOpened",
    ]
    assert len(answer("events", path, "--until", 7)["events"]) == 7
    assert answer("events", path, "--until", 0) == {"events": [], "more": False}
    shown = run("events", path, "--type", "RankTransferred").stdout
    assert shown.count("RankTransferred") == 2


# ---- replay


def test_j1_replay_verify_compares_the_recorded_digest(path: Path, written: Writer) -> None:
    recorded = [event for event in written.events if isinstance(event, e.DigestRecorded)][-1].digest
    assert answer("replay", path, "--verify") == {
        "events": len(written.events),
        "digest": recorded,
        "recorded_digest": recorded,
        "ok": True,
        "since": 0,
    }
    assert "ok: True" in run("replay", path, "--verify").stdout


def test_replay_shows_the_state_at_a_position(path: Path, written: Writer) -> None:
    position = 1 + next(at for at, event in enumerate(written.events) if isinstance(event, e.RetainPlanned))
    found = answer("replay", path, "--until", position)
    assert (found["events"], found["position"], found["ok"]) == (position, position, True)
    first = next(one for one in found["requests"] if one["request_id"] == "a-b-c")
    assert (first["life"], first["retain"], first["view_slots"]) == ("RUNNING", "PLANNED", {"0": 2, "2": 2})
    assert [one["request_id"] for one in found["requests"]] == ["a-b-c", "@pool"]
    only = answer("replay", path, "--until", position, "--request", "@pool")
    assert [one["request_id"] for one in only["requests"]] == ["@pool"]
    assert only["requests"] == found["requests"][1:]
    assert (only["ok"], only["digest"], only["recorded_digest"]) == (True, None, None)  # of the whole ledger only
    shown = run("replay", path, "--until", position).stdout
    assert f"state after position {position}" in shown
    assert "slots: 2" in shown


@pytest.mark.parametrize("nth", [0, 11, 30])
def test_j1_a_flipped_byte_fails_with_its_position(path: Path, written: Writer, nth: int) -> None:
    whole, body = path.read_bytes(), encode(written.events[nth])
    index = whole.index(body) + len(body) // 2
    path.write_bytes(whole[:index] + bytes([whole[index] ^ 4]) + whole[index + 1 :])
    result = run("replay", path, "--verify", "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 1
    assert (found["ok"], found["position"]) == (False, nth + 1)
    assert found["events"] <= nth
    assert f"does not hold at position {nth + 1}: the event does not have the checksum" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_history_that_was_not_lived_fails(tmp_path: Path, written: Writer) -> None:
    events: list[Any] = list(written.events)
    index = next(at for at, event in enumerate(events) if isinstance(event, e.RankTransferred))
    events[index] = replace(events[index], h2d_bytes=7)
    log = open_log(f"sqlite:{tmp_path / 'other.db'}")
    log.append(events)
    log.close()
    result = run("replay", tmp_path / "other.db", "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 1
    assert found["digest"] != found["recorded_digest"]
    assert "the recorded digest is" in found["message"]


def test_replay_verify_in_a_fresh_process(path: Path, written: Writer) -> None:
    code = "from kvsweep.cli.log import log_app; log_app()"
    command = [sys.executable, "-c", code, "replay", str(path), "--verify", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["ok"] is True


# ---- explain


def test_explain_names_rule_clause_and_change(path: Path, written: Writer) -> None:
    position = 1 + next(at for at, event in enumerate(written.events) if isinstance(event, e.AckRefused))
    found = answer("explain", path, "--until", position)
    assert (found["position"], found["event"]["type"], found["clauses"]) == (position, "AckRefused", ["F2"])
    assert found["decision"]["verdict"] == "future"
    assert (found["decision"]["expected"], found["decision"]["got"]) == ("below 4", "99")
    shown = run("explain", path, "--until", position).stdout
    assert "  verdict  future: newer operation" in shown
    assert "  changed  nothing" in shown


def test_explain_takes_the_last_event_of_a_request(path: Path, written: Writer) -> None:
    assert answer("explain", path)["position"] == len(written.events)
    found = answer("explain", path, "--request", "@pool")
    assert found["event"]["type"] == "TransferSettled"
    assert found["event"]["request"]["request_id"] == "@pool"


# ---- errors: one sentence, 1 for data, 2 for usage


@pytest.mark.parametrize("verb", ["requests", "events", "replay", "explain"])
def test_bad_data_is_one_sentence_and_exit_code_1(verb: str, tmp_path: Path) -> None:
    missing, strange, empty = tmp_path / "no.db", tmp_path / "strange.db", tmp_path / "empty.db"
    strange.write_bytes(b"not a database, but long enough to be looked at" * 99)
    empty.touch()
    assert refusal(1, verb, missing) == f"kvsweep log: ledger {missing} does not exist"
    assert refusal(1, verb, strange) == f"kvsweep log: ledger {strange} cannot be opened: file is not a database"
    assert refusal(1, verb, empty) == f"kvsweep log: ledger {empty} is empty: expected an SQLite file, got 0 bytes"


@pytest.mark.parametrize("verb", ["requests", "events", "replay", "explain"])
def test_truncated_and_newer_ledgers_are_one_sentence(verb: str, path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert "is damaged: expected" in refusal(1, verb, path)
    path.write_bytes(whole)
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 9")
    db.commit()
    db.close()
    expected = f"kvsweep log: ledger schema: expected {SCHEMA}, which this version reads, got 9"
    assert refusal(1, verb, path) == expected


def test_bad_usage_is_one_sentence_and_exit_code_2(path: Path, written: Writer) -> None:
    last = len(written.events)
    for verb in ("requests", "events", "replay", "explain"):
        assert refusal(2, verb, path, "--request", "a-b") == (
            "kvsweep log: --request: expected one of the 2 ids in it, got 'a-b'"
        )
    assert f"expected a position from 0 to {last}, got {last + 1}" in refusal(2, "events", path, "--until", last + 1)
    assert f"expected a position from 0 to {last}, got -1" in refusal(2, "replay", path, "--until", -1)
    assert "expected at least one event that meets the conditions, got none" in refusal(
        2, "explain", path, "--until", 0
    )
    assert "types: expected event types" in refusal(2, "events", path, "--type", "Nothing")
    assert "log.url" in refusal(2, "requests", "memory:x")


def test_tail_follows_another_process_until_it_is_interrupted(tmp_path: Path) -> None:
    written = small_run()
    path = tmp_path / "live.db"
    log = open_log(f"sqlite:{path}")
    log.append(written.events[:4])
    # Tests that run in the background of a shell are told to ignore interrupts, and so are their children.
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    heed += "; from kvsweep.cli.log import log_app; log_app()"
    command = [sys.executable, "-c", heed, "tail", str(path), "-f", "-n", "1", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as follower:
        try:
            assert follower.stdout is not None and follower.stderr is not None  # noqa: PT018
            assert json.loads(follower.stdout.readline())["position"] == 4
            log.append(written.events[4:6])
            assert [json.loads(follower.stdout.readline())["position"] for _ in range(2)] == [5, 6]
            follower.send_signal(signal.SIGINT)
            assert follower.wait(timeout=60) == 0
            assert follower.stderr.read() == ""
        finally:
            follower.kill()
    log.close()
