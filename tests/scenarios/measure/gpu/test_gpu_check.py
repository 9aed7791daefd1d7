"""The check that is made for a GPU, at small sizes on the simulated driver: it runs, and it can fail."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kvsweep.kernels.cuda.simulated import SimulatedDriver
from kvsweep.scenarios.measure.gpu import check as module
from kvsweep.scenarios.measure.gpu import correct, graph
from kvsweep.scenarios.measure.gpu.bench import Bench
from kvsweep.scenarios.measure.gpu.check import GOALS, SECTIONS, Check, Goal, judge

ROOT = Path(__file__).resolve().parents[4]
pytestmark = pytest.mark.skipif(
    shutil.which("c++") is None and shutil.which("g++") is None, reason="no C++ compiler for the simulated driver"
)


def check(tmp_path: Path, **more: Any) -> Check:
    return Check(SimulatedDriver(seed=20260916, multiprocessors=1), tmp_path, small=True, **more)


def test_j2_every_section_that_needs_no_gpu_passes_and_the_others_say_why(tmp_path: Path) -> None:
    said: list[str] = []
    found = check(tmp_path, said=said.append).run()
    assert found["passed"]
    assert found["simulated"]
    sections = found["sections"]
    assert tuple(sections) == SECTIONS
    ran = {name: one["status"] for name, one in sections.items()}
    assert ran == {**dict.fromkeys(SECTIONS, "passed"), "memcheck": "not run", "racecheck": "not run"}
    assert len(found["not_run"]) == 2
    assert all(record["equal"] for name in ("kernels", "graph", "demo") for record in sections[name]["results"])
    assert min(record["h2d_bytes"] for record in sections["demo"]["results"]) > 0
    assert all(record["digest equals the host device"] for record in sections["demo"]["results"])
    assert {row["ratio"] for row in sections["bandwidth"]["results"]} == {None}, "a simulation measures nothing"
    assert {goal["met"] for goal in found["goals"]} == {None}
    assert "kernels/cuda/copy.cu" in found["sources_sha256"]
    assert said[0] == "kernels: passed"
    json.dumps(found)


def test_every_goal_has_a_row_that_it_judges(tmp_path: Path) -> None:
    rows = check(tmp_path, sections=("bandwidth",)).run()["sections"]["bandwidth"]["results"]
    for row in rows:
        row |= {"ours_us": 1.0, "peer_us": 1.0, "ratio": 1.0}
    judged = judge(rows, simulated=False)
    assert len(judged) == len(GOALS)
    assert all(one["measured"] for one in judged), judged
    assert {one["goal"]: one["met"] for one in judged}["one launch: at least 3.0 of a launch a layer"] is False


def test_a_goal_is_met_by_all_of_its_rows_or_missed() -> None:
    rows = [{"path": "move", "peer": "copy", "size": f"1 of {n} KiB", "ratio": n / 10, "ours_us": 6.0} for n in (8, 9)]
    assert Goal("move", "copy", least_ratio=0.8).judge(rows, simulated=False)["met"] is True
    assert Goal("move", "copy", least_ratio=0.85).judge(rows, simulated=False)["met"] is False
    assert Goal("move", "copy", " 9 KiB", least_ratio=0.85).judge(rows, simulated=False)["met"] is True
    assert Goal("move", "copy", most_us=6.0).judge(rows, simulated=False)["met"] is True
    assert Goal("move", "copy", most_us=5.9).judge(rows, simulated=False)["met"] is False
    assert Goal("move", "other", least_ratio=0.1).judge(rows, simulated=False)["met"] is None
    assert Goal("move", "copy", least_ratio=0.8).judge(rows, simulated=True)["met"] is None


def test_a_kernel_that_differs_and_one_that_breaks_fail_their_section_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "check_kernels", lambda bench: [{"equal": True}, {"equal": False}])

    def broken(bench: Bench) -> list[dict[str, Any]]:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(module, "check_graph", broken)
    found = check(tmp_path, sections=("kernels", "graph", "bandwidth")).run()
    sections = found["sections"]
    assert (sections["kernels"]["status"], sections["kernels"]["why"]) == ("failed", "1 records differ")
    assert (sections["graph"]["status"], sections["graph"]["why"]) == ("failed", "RuntimeError: no such kernel")
    assert sections["bandwidth"]["status"] == "passed"
    assert not found["passed"]


def test_the_checks_see_a_kernel_that_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No launch reaches memory any more: every record that expects bytes to move must say so."""
    driver = SimulatedDriver(seed=1, multiprocessors=1)
    monkeypatch.setattr(driver._shim, "run", lambda *arguments, **named: None)
    bench = Bench(driver, small=True)
    assert not any(record["equal"] for record in correct.check_kernels(bench))
    assert not any(record["equal"] for record in graph.check_graph(bench))


def test_no_section_begins_after_its_time(tmp_path: Path) -> None:
    ticks = iter(range(0, 10_000, 200))
    found = check(tmp_path, seconds=300.0, clock=lambda: float(next(ticks))).run()
    assert found["sections"]["kernels"]["status"] == "passed"
    assert found["sections"]["demo"]["why"] == "300 seconds were over"
    assert "demo: 300 seconds were over" in found["not_run"]


@pytest.mark.parametrize(
    ("code", "writes", "status", "why"),
    [
        (0, True, "passed", ""),
        (9, True, "failed", "it reports errors"),
        (1, False, "not run", "it does not run here (exit code 1)"),
    ],
)
def test_what_compute_sanitizer_says_is_told_apart_from_its_absence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, writes: bool, status: str, why: str
) -> None:
    seen: list[list[str]] = []

    def run(command: list[str], **options: Any) -> "subprocess.CompletedProcess[str]":
        seen.append(command)
        if writes:
            Path(command[-1]).write_text("{}")
        return subprocess.CompletedProcess(command, code, stdout="ERROR SUMMARY", stderr="")

    monkeypatch.setattr(module.shutil, "which", lambda name: f"/opt/{name}")
    monkeypatch.setattr(module.subprocess, "run", run)
    found = check(tmp_path, sections=("memcheck",), again=("python", "gpu_check.py")).run()
    assert (found["sections"]["memcheck"]["status"], found["sections"]["memcheck"]["why"]) == (status, why)
    assert seen[0][:6] == ["/opt/compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "9", "python"]


# ---- the script


def script(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [str(ROOT / "scripts/gpu-check"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_one_command_writes_a_record(tmp_path: Path) -> None:
    record = tmp_path / "deep" / "record.json"
    done = script("--dry-run", "--only", "kernels", "--record", str(record))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"passed: {record}"
    found = json.loads(record.read_text())
    assert found["command"][:2] == ["scripts/gpu-check", "--dry-run"]
    assert "demo: not asked for" in found["not_run"]


def test_a_section_that_is_not_there_is_refused() -> None:
    done = script("--dry-run", "--only", "kernel")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("gpu-check: --only: expected kernels or graph or demo")
