"""`kvsweep simulate`: what a sweep counts, what it says of a failure, and what makes it fail."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tests.cli.command_line import Command, command_of

from kvsweep.scenarios.verify.script.expectations import SITUATIONS
from kvsweep.scenarios.verify.script.run import Verdict
from kvsweep.scenarios.verify.simulate import judge, sweep
from kvsweep.scenarios.verify.simulate.draw import random_script
from kvsweep.scenarios.verify.simulate.judge import Judged, WorkerFailed, judge_twice

KEYS = {
    "start",
    "seeds",
    "jobs",
    "failed",
    "failures",
    "seconds",
    "seeds_per_s",
    "events",
    "events_per_s",
    "situations",
    "missing",
    "first_failure",
}


@pytest.fixture
def kvsweep_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return command_of(monkeypatch, capsys)


def fake(seed: int, *broken: str, situations: tuple[str, ...] = ()) -> Judged:
    return Judged(seed=seed, broken=broken, situations=situations, events=10)


def test_a_sweep_in_json(kvsweep_command: Command) -> None:
    answer = kvsweep_command("simulate", "--seeds", 2, "--start", 5, "--json")
    assert (answer.code, answer.err) == (0, "")
    found = answer.json
    assert found.keys() == KEYS
    assert (found["start"], found["seeds"], found["failed"], found["first_failure"]) == (5, 2, [], None)
    assert found["events"] > 40
    assert list(found["situations"]) == list(SITUATIONS)
    assert set(found["missing"]) == {name for name, seen in found["situations"].items() if not seen}


def test_the_seeds_stand_first_and_the_command_that_repeats_them_last(
    kvsweep_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge, "judge_seed", fake)
    answer = kvsweep_command("simulate", "--seeds", 12, "--start", 40)
    lines = answer.out.splitlines()
    assert (answer.code, answer.err) == (0, "")
    assert lines[0] == "seeds 40 to 51"
    assert lines[-1] == "repeat: kvsweep simulate --seeds 12 --start 40"


def test_processes_share_the_seeds_and_find_the_same(tmp_path: Path) -> None:
    seeds = range(30, 33)
    alone, shared = sweep.sweep(seeds, out=tmp_path), sweep.sweep(seeds, jobs=2, out=tmp_path)
    assert (alone.jobs, shared.jobs) == (1, 2)
    assert alone.situations == shared.situations
    assert (alone.events, alone.failed) == (shared.events, shared.failed)


def test_a_process_that_dies_ends_the_sweep_with_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(share: range) -> object:
        words = f"import sys; print('gone', file=sys.stderr); sys.exit({share.step})"
        return subprocess.Popen([sys.executable, "-c", words], stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    monkeypatch.setattr(judge, "_start", start)
    with pytest.raises(WorkerFailed, match=r"a process of the sweep ended with 2: gone"):
        list(judge.judged(range(4), jobs=2))


def test_a_failing_seed_ends_with_exit_code_1_its_file_and_its_command(
    kvsweep_command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Seeds 8 and 9 break a law as long as their scenario opens a request."""

    def judged(script: object) -> Judged:
        seed = script.seed  # type: ignore[attr-defined]
        broken = ["ownership (turn 3): event 4: block 1"] if seed >= 8 and script.step else []  # type: ignore[attr-defined]
        return fake(seed, *broken)

    monkeypatch.setattr(judge, "judge_twice", judged)
    monkeypatch.setattr(sweep, "judge_twice", judged)
    answer = kvsweep_command("simulate", "--seeds", 4, "--start", 6, "--out", tmp_path, "--json")
    assert answer.code == 1
    path = tmp_path / "seed-8.toml"
    assert answer.err == (
        "kvsweep: 2 of 4 seeds fail, the first is 8: ownership (turn 3): event 4: block 1 "
        f"(shrunk to {path}: 1 steps, 0 faults; kvsweep simulate --seeds 1 --start 8)\n"
    )
    found = answer.json
    assert (found["failed"], found["failures"]) == ([8, 9], 2)
    assert found["first_failure"]["seed"] == 8
    assert found["first_failure"]["scenario"] == str(path)
    assert path.exists()


def test_from_two_thousand_seeds_on_every_situation_must_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    first, *others = SITUATIONS
    monkeypatch.setattr(judge, "judge_seed", lambda seed: fake(seed, situations=tuple(others)))
    few, many = sweep.sweep(range(1999)), sweep.sweep(range(2000))
    assert few.missing == many.missing == (first,)
    assert (few.passed, many.passed) == (True, False)


def test_failed_seeds_are_counted_without_end_and_kept_up_to_a_bound(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(judge, "judge_seed", lambda seed: fake(seed, "a law: broken"))
    monkeypatch.setattr(sweep, "explain", lambda seed, out: None)
    found = sweep.sweep(range(500), out=tmp_path)
    assert (found.failures, found.failed) == (500, tuple(range(sweep.FAILED_KEPT)))


def test_a_folder_that_cannot_be_written_is_one_sentence(
    kvsweep_command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(judge, "judge_seed", lambda seed: fake(seed, "a law: broken"))
    monkeypatch.setattr(sweep, "judge_twice", lambda script: fake(script.seed, "a law: broken"))
    monkeypatch.setattr(sweep, "shrink", lambda script, fails, tries: (script, 1))
    answer = kvsweep_command("simulate", "--seeds", 1, "--out", tmp_path / "file", "--json")
    assert answer.expect_sentence(1) == (
        f"kvsweep: --out: expected a folder to write to, got '{tmp_path / 'file'}' (File exists)"
    )


RUN = """
from kvsweep.scenarios.verify.script.run import run_script
from kvsweep.scenarios.verify.simulate.draw import random_script
for seed in (11, 12, 20):
    verdict = run_script(random_script(seed))
    print(verdict.digest, verdict.unseed, verdict.turns, verdict.events)
"""


def test_a_seed_gives_one_run_whatever_the_hashes_of_strings_are() -> None:
    """Both runs of a sweep share their process: what hangs on the order of a set of names shows only here."""
    said = {
        subprocess.run(
            [sys.executable, "-c", RUN],
            env={"PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(said) == 1
    assert len(said.pop().splitlines()) == 3


def test_what_hangs_on_more_than_the_seed_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A draw that the second run does not repeat: digest, turns or the draw after the last one differ."""
    real, calls = judge.run_script, itertools.count()

    def another_each_time(script: object) -> Verdict:
        return msgspec.structs.replace(real(script), unseed=next(calls))  # type: ignore[arg-type]

    assert not judge_twice(random_script(5)).broken
    monkeypatch.setattr(judge, "run_script", another_each_time)
    (broken,) = judge_twice(random_script(5)).broken
    assert broken.startswith(f"{judge.SAME_TWICE}: expected ")
    assert json.dumps(broken)
