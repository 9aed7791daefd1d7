"""What a ledger says about how its run can be repeated."""

import hashlib
import json
from pathlib import Path

import pytest

import kvsweep
from kvsweep.scenarios import evidence as module
from kvsweep.scenarios.evidence import evidence, source_hashes

ROOT = Path(__file__).resolve().parents[2]


def test_j1_sources_are_hashed_file_by_file() -> None:
    """J1: SHA-256 of what ran, equal to that of the files in the checkout."""
    found = source_hashes()
    wanted = sorted(
        path.relative_to(ROOT).as_posix()
        for folder in module.FOLDERS
        for path in (ROOT / folder).rglob("*.*")
        if path.suffix in (".py", ".cu") and "__pycache__" not in path.parts
    )
    assert sorted(found) == wanted
    for name in ("ledger/fold.py", "scenarios/demo/loop.py", "kernels/cuda/copy.cu"):
        assert found[name] == hashlib.sha256((ROOT / name).read_bytes()).hexdigest()


def make(**changed: object) -> str:
    facts: dict[str, object] = {
        "command": ["kvsweep", "demo"],
        "seed": 7,
        "configuration": {"every": 16},
        "model": {"sha256": "0" * 64},
        "checks": ["tokens are equal"],
        "not_run": ["GPU transfer"],
    }
    return evidence(**(facts | changed))  # type: ignore[arg-type]


def test_j1_j2_everything_that_repeats_a_run_is_there() -> None:
    """J1, J2: command, seed, configuration, active parts with versions, checks, and what was not run."""
    found = json.loads(make())
    assert found["command"] == ["kvsweep", "demo"]
    assert (found["seed"], found["configuration"], found["model"]) == (7, {"every": 16}, {"sha256": "0" * 64})
    assert (found["checks"], found["not_run"]) == (["tokens are equal"], ["GPU transfer"])
    assert found["active"]["kvsweep"] == kvsweep.__version__
    apart = {"native", "kernels", "device", "cuda"}
    assert not [part for part in found["active"] if any(report in part for report in apart)], "recorded apart"
    assert all(found["active"][name] for name in module.LIBRARIES)


def test_equal_runs_have_equal_evidence_and_others_do_not() -> None:
    assert make() == make()
    assert make() != make(seed=8)
    assert make() != make(command=["kvsweep", "demo", "--quick"])


def test_a_library_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIBRARIES", ("numpy", "no-such-library"))
    assert module.active_parts()["no-such-library"] == "not installed"
