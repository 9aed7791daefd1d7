"""`kvsweep bench round`: a run of every part, kernels apart from the rest, and the goal beside what was measured."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvsweep.cli.main import app
from kvsweep.ledger.inspect.replay import Ledger
from kvsweep.scenarios.measure.bench.round import GOAL_US, QUICK, RoundBench, run_round_bench

PARTS = ["coordinator, without kernels", "plan kernels", "select kernels", "select, beside its kernels"]


def test_every_part_of_a_round_is_measured_apart() -> None:
    """J2: what is compared with the goal leaves out just what stands in a row of its own."""
    report = run_round_bench(QUICK, rounds=2, clock="cpu")
    assert [row.path for row in report.rows] == PARTS
    work, *others = report.rows
    assert work.limit_ms == GOAL_US / 1e3
    assert work.of_limit == pytest.approx(work.limit_ms / work.ours_ms)
    assert all(0 < row.ours_ms <= row.p99_ms for row in report.rows)
    assert all(row.limit_ms is None and row.of_limit is None for row in others)


def test_the_measured_rounds_are_whole_rounds(tmp_path: Path) -> None:
    """Selected, uploaded, retained and acknowledged, with new blocks each time; the ledger of it verifies."""
    url = f"sqlite:{tmp_path}/round.ledger"
    bench = RoundBench(QUICK, url, seed=7)
    bench.run(2, lambda done, of: None)
    bench.close()
    with Ledger.open(url) as ledger:
        assert ledger.verify().ok
        kinds = [type(record.event).__name__ for record in ledger.events()]
    rounds = QUICK.requests * 4  # the first upload, one to warm up and two that count
    assert kinds.count("UploadAcknowledged") == kinds.count("RetainAcknowledged") == rounds
    assert kinds.count("RankTransferred") == kinds.count("TablesApplied") == QUICK.ranks * rounds
    assert "KeepMapPublished" not in kinds


def test_json_has_the_stable_keys() -> None:
    done = CliRunner().invoke(app, ["bench", "round", "--quick", "--rounds", "1", "--clock", "cpu", "--json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report.keys() == {"machine", "rows"}
    stable = {"path", "size", "ours_ms", "peer", "peer_ms", "ratio", "limit", "of_limit"}
    assert all(stable <= row.keys() for row in report["rows"])
