"""`kvsweep bench log`: every row is measured, its figures agree, and what is not installed is said."""

import builtins
import json
from typing import Any

import pytest
from typer.testing import CliRunner

from kvsweep.cli.main import app
from kvsweep.ledger import laws
from kvsweep.ledger.fold import apply_all
from kvsweep.ledger.state import EMPTY
from kvsweep.ledger.store.codec import encode_batch
from kvsweep.scenarios.measure.bench.log import QUICK, LogBench, LogRow, Sizes, run_log_bench
from kvsweep.scenarios.measure.bench.log_events import EVENTS_A_ROUND, batches, endless, plain_lives, rounds, rounds_of

STABLE = {"path", "size", "ours_ms", "peer", "peer_ms", "ratio", "limit", "of_limit"}


def test_every_row_is_measured_and_its_figures_agree_with_each_other() -> None:
    """J2: a ratio is a quotient of two figures of the same row."""
    done = CliRunner().invoke(app, ["bench", "log", "--quick", "--json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report.keys() == {"machine", "rows", "figures", "not_run"}
    assert {row["path"] for row in report["rows"]} == {
        "append, p50 an event",
        "append, p99 an event",
        "commit beside",
        "turn of the busy loop",
        "durable group",
        "CPU of a durable group",
        "replay",
        "open and recover",
        "one life",
    }
    for row in report["rows"]:
        assert STABLE <= row.keys() == set(LogRow.__struct_fields__)
        assert row["ours_ms"] > 0
        assert row["ratio"] == pytest.approx(row["peer_ms"] / row["ours_ms"])
        assert row["of_limit"] == pytest.approx(row["limit_ms"] / row["ours_ms"])
    assert {"loss of the busy loop", "events/s decoded and folded"} <= report["figures"].keys()
    assert {row["peer"] for row in report["rows"]} >= {"write + fdatasync", "encode only", "a row an event"}


def test_a_peer_that_is_not_installed_is_listed_as_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **named: Any) -> Any:
        if name.split(".")[0] == "eventsourcing":
            raise ImportError(f"No module named {name!r}")
        return real(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    report = run_log_bench(quick=True, rounds=1)
    assert set(report.not_run) == {"eventsourcing recorder", "eventsourcing application"}
    assert all("No module named 'eventsourcing" in why for why in report.not_run.values())
    assert not any("eventsourcing" in row.peer for row in report.rows)
    assert len({row.path for row in report.rows}) == 8  # all but the CPU time against them


def test_the_rounds_fold_and_are_what_a_coordinator_makes() -> None:
    made = rounds(2, requests=3, layers=4, keep=6, seed=1)
    events = [event for turn in made.turns for event in turn]
    assert apply_all(EMPTY, events) == made.state
    assert laws.check(made.state) == []
    last = [len(turn) for turn in made.turns[-8:]]
    assert (last, sum(last)) == ([5, 1, 4, 1, 2, 1, 4, 1], EVENTS_A_ROUND)
    whole = next(rounds_of(made.turns))
    assert sum(map(len, whole)) == EVENTS_A_ROUND - 1, "a first round replaces nothing"
    assert all(len(request.views) == 1 for request in made.state.requests.values())


def test_the_sizes_are_those_that_the_goals_name() -> None:
    made = rounds(3, requests=2, layers=32, keep=18, seed=1)
    bodies = [len(body) for turn in made.turns[3:] for body in encode_batch(turn)]
    assert 450 < sum(bodies) / len(bodies) < 600
    assert (Sizes().lives * Sizes().life, QUICK.lives * QUICK.life) == (1_000_000, 800)


def test_endless_turns_are_lives_of_their_own() -> None:
    made = rounds(1, requests=2, layers=2, keep=4, seed=1)
    count = sum(map(len, made.turns))
    groups = batches(endless(made.turns), count)
    first, second = next(groups), next(groups)
    assert first == [event for turn in made.turns for event in turn]
    assert {event.request for event in first}.isdisjoint({event.request for event in second})
    assert [event.seq for event in first] == [event.seq for event in second]


def test_plain_lives_fold_and_close() -> None:
    run = rounds(1, requests=1, layers=1, keep=2, seed=1).turns[0][0]
    events = list(plain_lives(5, 30, run))
    state = apply_all(EMPTY, events)
    assert len(events) == 1 + 5 * 30
    apply_all(EMPTY, plain_lives(1300, 5, run))  # more than the state remembers
    assert {request.life for request in state.requests.values()} == {"CLOSED"}


def test_the_bench_leaves_nothing_behind(tmp_path: Any) -> None:
    bench = LogBench(QUICK, clock="cpu", progress=lambda step: None, folder=str(tmp_path))
    bench._million()
    assert list(tmp_path.iterdir()) == []
