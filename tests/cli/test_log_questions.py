"""`kvsweep log` asked why: conditions, blocks, partings, tails, exports; every error is one sentence."""

import json
import os
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.cli.command_line import answer, refusal, run
from tests.ledger.small_run import Writer, small_run

from kvsweep.cli.log import following
from kvsweep.ledger import events as e
from kvsweep.ledger.inspect.replay import Ledger
from kvsweep.ledger.store.codec import SCHEMA, encode
from kvsweep.ledger.store.open import open_log
from kvsweep.ledger.store.query import Where

VERBS: dict[str, list[object]] = {
    "requests": [],
    "events": [],
    "tail": [],
    "explain": [],
    "why-block": ["0:0"],
    "replay": [],
    "verify": [],
    "stats": [],
    "export": ["-"],
}
"""Every verb that takes one ledger, with what else it needs."""


@pytest.fixture(scope="module")
def written() -> Writer:
    return small_run()


@pytest.fixture
def path(tmp_path: Path, written: Writer) -> Path:
    path = tmp_path / "ledger.db"
    log = open_log(f"sqlite:{path}")
    for event in written.events:
        log.append([event])
    log.close()
    return path


def position_of(written: Writer, kind: type[e.Event], nth: int = 0) -> int:
    return [at for at, event in enumerate(written.events, 1) if isinstance(event, kind)][nth]


# ---- events


def test_events_are_found_by_operation_rank_and_block(path: Path, written: Writer) -> None:
    found = answer("events", path, "--operation", 1)["events"]
    assert [one["event"]["type"] for one in found] == [
        type(event).__name__
        for event in written.events
        if getattr(getattr(event, "operation", None), "operation_id", None) == 1
    ]
    seen = answer("events", path, "--rank", 1, "--until", 18)["events"]
    assert [one["event"]["type"] for one in seen] == ["TransferStarted", "RankTransferred", "ReadersDrained"]
    named = answer("events", path, "--block", "0:5")["events"]
    assert [one["event"]["type"] for one in named] == ["TailOpened", "FenceOpened"]
    both = answer("events", path, "--rank", 0, "--operation", 1, "--type", "RankTransferred")["events"]
    assert len(both) == 1


def test_events_beyond_the_limit_are_said_to_be_there(path: Path, written: Writer) -> None:
    found = answer("events", path, "--limit", 3)
    assert ([one["position"] for one in found["events"]], found["more"]) == ([1, 2, 3], True)
    assert not answer("events", path, "--limit", len(written.events))["more"]
    shown = run("events", path, "--limit", 3)
    assert shown.stderr == "kvsweep log: more than 3 events; --limit or --after shows others\n"


def test_events_are_found_by_the_time_they_were_stored_at(path: Path, written: Writer) -> None:
    times = [one["time"] for one in answer("events", path)["events"]]
    assert times == sorted(times)
    for bound in (times[0], times[len(times) // 2], times[-1]):
        since = answer("events", path, "--since", bound)["events"]
        before = answer("events", path, "--before", bound)["events"]
        # Shown to the millisecond, kept to the microsecond.
        assert all(one["time"] >= bound for one in since)
        assert all(one["time"] <= bound for one in before)
        assert len(since) + len(before) == len(times)
    assert answer("events", path, "--since", "2999-01-01")["events"] == []
    assert len(answer("events", path, "--before", "2999-01-01T00:00:00+02:00")["events"]) == len(times)
    assert refusal(2, "events", path, "--since", "yesterday") == (
        "kvsweep log: --since: expected a time such as 2026-09-16T08:30:00, got 'yesterday'"
    )


# ---- tail


def test_tail_shows_the_last_events(path: Path, written: Writer) -> None:
    lines = run("tail", path, "-n", 3, "--json").stdout.splitlines()
    last = len(written.events)
    assert [json.loads(line)["position"] for line in lines] == [last - 2, last - 1, last]
    shown = run("tail", path, "-n", 2, "--request", "@pool").stdout
    assert shown.count("@pool #1") == 2
    assert run("tail", path, "-n", 0).stdout == ""


def test_following_goes_on_with_what_is_stored(tmp_path: Path, written: Writer) -> None:
    url = f"sqlite:{tmp_path / 'live.db'}"
    log = open_log(url)
    log.append(written.events[:5])
    left = [written.events[5:9], [], written.events[9:30]]
    with Ledger.open(url) as ledger:
        found = following(ledger, Where(), 5, wait=lambda: log.append(left.pop(0)))
        assert [next(found).position for _ in range(25)] == list(range(6, 31))
        left = [written.events[30:]]
        kinds = following(ledger, Where(types=("RequestClosed",)), 30, wait=lambda: log.append(left.pop(0)))
        assert next(kinds).position == position_of(written, e.RequestClosed)
    log.close()


# ---- explain, why-block, diff


def test_explain_takes_a_position_or_finds_the_last_that_meets_the_conditions(path: Path, written: Writer) -> None:
    ack = position_of(written, e.AckRefused)
    assert answer("explain", path, ack)["position"] == ack
    assert answer("explain", path, "--type", "AckRefused", "--rank", 1)["position"] == ack
    assert answer("explain", path, "--operation", 1, "--type", "RankTransferred")["position"] == (
        position_of(written, e.RankTransferred, 1)
    )
    shown = run("explain", path, position_of(written, e.ResidencyCommitted)).stdout
    assert "  clause   F1: plan, lease, transfer, every rank, commit, acknowledge" in shown
    assert "BlocksLeased of a-b-c #1: operation 1 leases 4 in 2 layers" in shown
    assert "  table    upload: MOVED -> COMMITTED" in shown
    last = len(written.events)
    assert refusal(2, "explain", path, last + 1) == (
        f"kvsweep log: position: expected a position from 1 to {last}, got {last + 1}"
    )


def test_b6_why_block_tells_owners_holders_and_writes(path: Path, written: Writer) -> None:
    found = answer("why-block", path, "0:1")
    leased, freed = position_of(written, e.BlocksLeased), position_of(written, e.BlocksRetired, 1)
    assert found["owners"] == [{"request": "a-b-c", "epoch": 1, "since": leased, "until": freed, "shared": False}]
    assert {hold["kind"] for hold in found["holds"]} == {"destination", "view"}
    assert [write["hold"]["since"] for write in found["writes"]] == [leased, leased]
    shown = run("why-block", path, "0:1").stdout
    assert "block 0:1, layers [0, 2]: owners" in shown
    assert "destination of operation 1: logical 2 in layers 0, 2" in shown
    at = answer("why-block", path, "0:1", "--at", leased)
    assert at["owner"]["request"] == "a-b-c"
    assert [hold["layer"] for hold in at["holds"]] == [0, 2]
    shown = run("why-block", path, "0:1", "--at", leased).stdout
    assert f"block 0:1 after position {leased}: owned by a-b-c #1 since {leased}" in shown
    assert "owned by nobody" in run("why-block", path, "0:1", "--at", 1).stdout
    assert answer("why-block", path, "0:1", "--until", 1)["owners"] == []


def test_diff_names_the_first_event_that_differs(path: Path, tmp_path: Path, written: Writer) -> None:
    events: list[Any] = list(written.events)
    index = position_of(written, e.RankTransferred) - 1
    events[index] = replace(events[index], h2d_bytes=7)
    other = tmp_path / "other.db"
    log = open_log(f"sqlite:{other}")
    log.append(events)
    log.close()
    found = answer("diff", path, other, "--every-event")
    assert (found["parted"], found["common"]) == (True, index)
    assert found["fields"] == [{"what": "h2d_bytes", "first": "4096", "second": "7"}]
    shown = run("diff", path, other, "--every-event").stdout
    assert f"the same up to position {index}" in shown
    assert "A goes on with RankTransferred of a-b-c #1: rank 0 (process 101) has operation 1: 4096 bytes" in shown
    assert answer("diff", path, path)["parted"] is False
    assert f"the same {len(written.events)} events" in run("diff", path, path).stdout
    missing = tmp_path / "no.db"
    assert refusal(1, "diff", path, missing) == f"kvsweep log: ledger {missing} does not exist"
    assert refusal(1, "diff", missing, path) == f"kvsweep log: ledger {missing} does not exist"


# ---- verify, stats, export


def test_j1_verify_is_the_verdict_on_everything(path: Path, written: Writer) -> None:
    assert answer("verify", path) == answer("replay", path, "--verify")
    assert "ok: True" in run("verify", path).stdout
    assert answer("verify", path, "--until", 7)["events"] == 7


def test_stats_count_events_operations_and_bytes(path: Path, written: Writer) -> None:
    found = answer("stats", path)
    assert (found["events"], found["first"], found["last"]) == (len(written.events), 1, len(written.events))
    assert sum(one["events"] for one in found["types"]) == len(written.events)
    assert {one["type"] for one in found["types"]} == {type(event).__name__ for event in written.events}
    assert (found["requests"], found["lives"], found["open_lives"]) == (2, 3, 2)
    assert found["lanes"] == [
        {"lane": "upload", "begun": 2, "completed": 1, "aborted": 1},
        {"lane": "retain", "begun": 1, "completed": 1, "aborted": 0},
        {"lane": "store", "begun": 1, "completed": 1, "aborted": 0},
    ]
    assert (found["ignored"], found["refused"], found["schema"]) == (1, 3, SCHEMA)
    [file] = found["files"]
    assert (file["path"], file["bytes"]) == (str(path), path.stat().st_size)
    assert 0 < found["bytes"] < file["bytes"]
    assert found["begun_s"] <= found["ended_s"]
    assert "3 lives of 2 requests, 2 open" in run("stats", path).stdout


def test_export_writes_lines_that_hold_every_event(path: Path, tmp_path: Path, written: Writer) -> None:
    to = tmp_path / "events.jsonl"
    size = len(written.events)
    assert answer("export", path, to) == {
        "events": size, "path": str(to), "format": "jsonl", "bytes": to.stat().st_size,
    }  # fmt: skip
    lines = [json.loads(line) for line in to.read_text().splitlines()]
    assert [line["event"] for line in lines] == [one["event"] for one in answer("events", path)["events"]]
    assert run("export", path, "-", "--until", 5).stdout.splitlines() == to.read_text().splitlines()[:5]
    assert refusal(2, "export", path, to) == f"kvsweep log: FILE: expected a new file, got {to}, which exists"
    assert f"{size} events to" in run("export", path, tmp_path / "again.jsonl").stdout


def test_export_writes_parquet_that_arrow_reads(path: Path, tmp_path: Path, written: Writer) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    to = tmp_path / "events.parquet"
    answer("export", path, to)
    table = parquet.read_table(to)
    assert table.num_rows == len(written.events)
    assert table.column("type").to_pylist() == [type(event).__name__ for event in written.events]
    assert [json.loads(text)["seq"] for text in table.column("event").to_pylist()] == [
        event.seq for event in written.events
    ]
    with Ledger.open(f"sqlite:{path}") as ledger:
        assert ledger.table().equals(table.cast(ledger.table().schema))
        assert ledger.table(Where(types=("RankTransferred",))).num_rows == 2


def test_an_export_that_cannot_be_written_leaves_nothing(path: Path, tmp_path: Path) -> None:
    away = tmp_path / "away" / "events.jsonl"
    assert refusal(1, "export", path, away) == f"kvsweep log: {away} cannot be written: No such file or directory"
    assert refusal(2, "export", path, "events.csv") == (
        "kvsweep log: FILE: expected a name that ends in .jsonl or .parquet, or --format, got 'events.csv'"
    )
    assert "FILE: expected a name" in refusal(2, "export", path, "-", "--format", "parquet")
    assert [name for name in os.listdir(tmp_path) if "part" in name] == []


def test_without_pyarrow_parquet_is_refused_by_name(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "kvsweep.ledger.inspect.arrow", raising=False)
    line = refusal(2, "export", path, tmp_path / "events.parquet")
    assert line.startswith("kvsweep log: pyarrow: expected installed (the package's extra 'arrow'), got ")
    assert [name for name in os.listdir(tmp_path) if "parquet" in name] == []


# ---- what cannot be answered


@pytest.mark.parametrize("verb", VERBS)
def test_what_is_no_ledger_is_one_sentence(verb: str, tmp_path: Path) -> None:
    more = VERBS[verb]
    missing, strange, empty, other = (tmp_path / name for name in ("no.db", "strange.db", "empty.db", "other.db"))
    strange.write_bytes(b"not a database, but long enough to be looked at" * 99)
    empty.touch()
    sqlite3.connect(other).execute("CREATE TABLE t (a)").connection.close()
    assert refusal(1, verb, missing, *more) == f"kvsweep log: ledger {missing} does not exist"
    assert refusal(1, verb, strange, *more) == f"kvsweep log: ledger {strange} cannot be opened: file is not a database"
    assert (
        refusal(1, verb, empty, *more) == f"kvsweep log: ledger {empty} is empty: expected an SQLite file, got 0 bytes"
    )
    assert refusal(1, verb, tmp_path, *more) == f"kvsweep log: ledger {tmp_path}: expected a file, got a directory"
    assert refusal(1, verb, other, *more) == (
        f"kvsweep log: {other} is no ledger: expected application id 0x6b767377, got 0x0"
    )
    assert "log.url" in refusal(2, verb, "memory:x", *more)


@pytest.mark.parametrize("verb", VERBS)
def test_a_torn_and_a_newer_ledger_are_one_sentence(verb: str, path: Path) -> None:
    whole, more = path.read_bytes(), VERBS[verb]
    path.write_bytes(whole[: len(whole) // 2])
    assert f"kvsweep log: ledger {path} " in refusal(1, verb, path, *more)
    path.write_bytes(whole)
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 9")
    db.commit()
    db.close()
    expected = f"kvsweep log: ledger schema: expected {SCHEMA}, which this version reads, got 9"
    assert refusal(1, verb, path, *more) == expected


def test_an_empty_ledger_has_nothing_to_tell(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    open_log(f"sqlite:{path}").close()
    assert answer("requests", path) == {"requests": []}
    assert answer("events", path) == {"events": [], "more": False}
    assert answer("stats", path)["events"] == 0
    assert answer("verify", path)["ok"]
    assert answer("replay", path)["requests"] == []
    assert run("tail", path).exit_code == 0
    assert run("export", path, "-").stdout == ""
    assert answer("diff", path, path)["parted"] is False
    assert refusal(2, "explain", path) == (
        "kvsweep log: ledger: expected at least one event that meets the conditions, got none"
    )
    assert refusal(2, "why-block", path, "0:0") == (
        "kvsweep log: ledger: expected RunConfigured as its first event, got none"
    )


def test_bad_conditions_are_one_sentence(path: Path, written: Writer) -> None:
    last = len(written.events)
    for option in ("--after", "--until"):
        assert refusal(2, "events", path, option, last + 1) == (
            f"kvsweep log: {option}: expected a position from 0 to {last}, got {last + 1}"
        )
    assert refusal(2, "events", path, "--request", "nobody") == (
        "kvsweep log: --request: expected one of the 2 ids in it, got 'nobody'"
    )
    assert refusal(2, "events", path, "--block", "8") == "kvsweep log: block: expected GROUP:ID, two numbers, got '8'"
    pool = "kvsweep log: block: expected GROUP:ID within 0:0 to 0:7, 1:0 to 1:3, got"
    assert refusal(2, "events", path, "--block", "0:8") == f"{pool} 0:8"
    assert refusal(2, "why-block", path, "2:0") == f"{pool} 2:0"
    assert refusal(2, "why-block", path, "0:x") == "kvsweep log: block: expected GROUP:ID, two numbers, got '0:x'"
    assert refusal(2, "why-block", path, "0:0", "--at", last + 1) == (
        f"kvsweep log: --at: expected a position from 0 to {last}, got {last + 1}"
    )
    assert refusal(2, "why-block", path, "0:0", "--until", last + 1) == (
        f"kvsweep log: until: expected a position from 0 to {last}, got {last + 1}"
    )
    assert "operation: expected an operation id of 0 or more, got -1" in refusal(2, "events", path, "--operation", -1)


@pytest.mark.parametrize("verb", VERBS)
def test_a_ledger_that_is_being_written_answers(verb: str, tmp_path: Path, written: Writer) -> None:
    path = tmp_path / "live.db"
    log = open_log(f"sqlite:{path}")
    log.append(written.events[:30])
    first = run(verb, path, *VERBS[verb])
    assert (first.exit_code, first.stderr) == (0, ""), first.output
    log.append(written.events[30:])
    second = run(verb, path, *VERBS[verb])
    assert (second.exit_code, second.stderr) == (0, ""), second.output
    log.close()


def test_a_damaged_event_is_one_sentence_wherever_it_is_met(path: Path, written: Writer) -> None:
    whole = path.read_bytes()
    body = encode(written.events[9])
    index = whole.index(body) + len(body) - 1
    path.write_bytes(whole[:index] + bytes([whole[index] ^ 1]) + whole[index + 1 :])
    for verb, more in (("events", []), ("export", ["-"]), ("explain", [10])):
        result = run(verb, path, *more)
        assert result.exit_code == 1
        assert "ledger is corrupt at position 10" in result.stderr
        assert len(result.stderr.splitlines()) == 1
