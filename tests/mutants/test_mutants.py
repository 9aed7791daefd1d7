"""Deliberate faults: each still applies and names a test that is there; the command tells killed from survived."""

import ast
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from tests.collected import missing

ROOT = Path(__file__).resolve().parents[2]
CORE = ("ledger/", "runtime/")


@pytest.fixture(scope="module")
def mutants() -> Iterator[ModuleType]:
    """scripts/mutants.py."""
    spec = importlib.util.spec_from_file_location("kvsweep_mutants_script", ROOT / "scripts/mutants.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_every_mutant_still_applies(mutants: ModuleType) -> None:
    listed = mutants.read_mutants(ROOT / "tests/mutants")
    assert [f"{one.name}: {fault}" for one in listed if (fault := mutants.fault_of(one, ROOT))] == []


def test_every_mutant_is_a_program_and_says_why_it_is_a_fault(mutants: ModuleType) -> None:
    for one in mutants.read_mutants(ROOT / "tests/mutants"):
        assert one.file.endswith(".py"), one.name
        ast.parse((ROOT / one.file).read_text(encoding="utf-8").replace(one.text, one.replacement))
        assert len(one.why) > 20, one.name


def test_every_mutants_test_is_there(mutants: ModuleType) -> None:
    listed = mutants.read_mutants(ROOT / "tests/mutants")
    assert missing(one.test for one in listed) == []


def test_there_are_many_and_they_are_everywhere(mutants: ModuleType) -> None:
    files = [one.file for one in mutants.read_mutants(ROOT / "tests/mutants")]
    assert len(files) >= 40
    assert sum(file.startswith(CORE) for file in files) >= 30
    assert {file.split("/")[0] for file in files} == {"kernels", "ledger", "runtime", "transports"}


# ---- the command, on a tree of its own


def plant(root: Path, monkeypatch: pytest.MonkeyPatch, mutants: ModuleType, *rows: dict[str, str]) -> None:
    """A small tree: one module, one test, and these mutants of it."""
    for folder in mutants.COPIED[:-1]:
        (root / folder).mkdir()
    (root / "pyproject.toml").write_text("", encoding="utf-8")
    (root / "ledger/sums.py").write_text("def add(a, b):\n    return a + b\n", encoding="utf-8")
    (root / "src/sums").symlink_to("../ledger")
    (root / "src/sums.py").symlink_to("../ledger/sums.py")
    checks = {"add": "sums.add(1, 2) == 3", "zero": "sums.add(0, 0) == 0"}
    tests = "".join(f"def test_{name}():\n    assert {check}\n" for name, check in checks.items())
    (root / "tests/test_sums.py").write_text(f"import sums\n{tests}", encoding="utf-8")
    (root / "tests/mutants").mkdir()
    lines = []
    for row in rows:
        fields = {"file": "ledger/sums.py", "text": "a + b", "why": "w", "test": "tests/test_sums.py::test_add", **row}
        lines += ["[[mutant]]", *(f"{name} = {json.dumps(value)}" for name, value in fields.items())]
    (root / "tests/mutants/all.toml").write_text("\n".join(lines), encoding="utf-8")
    monkeypatch.setattr(mutants, "ROOT", root)


def test_killed_survived_and_what_is_no_program_are_told_apart(
    mutants: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(
        tmp_path,
        monkeypatch,
        mutants,
        {"name": "difference", "replacement": "a - b"},
        {"name": "nothing there", "replacement": "a - b", "test": "tests/test_sums.py::test_zero"},
        {"name": "unknown name", "replacement": "a + c"},
        {"name": "no program", "replacement": "a +"},
    )
    assert mutants.main(["--json", "--limit", "300"]) == 1
    said = json.loads(capsys.readouterr().out)
    verdicts = {one["name"]: one["verdict"] for one in said["outcomes"]}
    assert verdicts == {
        "difference": "killed",
        "nothing there": "survived",
        "unknown name": "not run",
        "no program": "not run",
    }
    assert (said["mutants"], said["killed"]) == (4, 1)
    assert said["left"] == ["nothing there", "unknown name", "no program"]
    assert (tmp_path / "ledger/sums.py").read_text(encoding="utf-8").count("a + b") == 1, (
        "the tree itself is not touched"
    )


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (
            {"name": "gone", "text": "a * b", "replacement": "a"},
            "1 mutant(s) no longer apply; gone: its text stands 0 times in ledger/sums.py, expected once",
        ),
        (
            {"name": "moved", "file": "ledger/x.py", "replacement": "a"},
            "1 mutant(s) no longer apply; moved: ledger/x.py is not there",
        ),
        (
            {"name": "same", "replacement": "a + b"},
            "1 mutant(s) no longer apply; same: its replacement is the text itself",
        ),
        ({"name": "odd"}, "all.toml: mutant 'odd': field 'replacement' is missing or unknown"),
        (
            {"name": "red", "replacement": "a", "test": "tests/test_sums.py::test_none"},
            "without any fault, pytest ends with status 4: nothing ran",
        ),
    ],
)
def test_what_does_not_apply_is_one_sentence_and_an_exit_status(
    mutants: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    row: dict[str, str],
    said: str,
) -> None:
    plant(tmp_path, monkeypatch, mutants, row)
    assert mutants.main([]) == 1
    assert capsys.readouterr().err == f"mutants: {said}\n"


def test_an_unknown_name_is_refused(mutants: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert mutants.main(["there is none"]) == 1
    assert capsys.readouterr().err == "mutants: there is no mutant 'there is none'\n"


@pytest.mark.full
def test_every_mutant_is_killed_by_its_test(mutants: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert mutants.main(["--jobs", "2", "--json"]) == 0, capsys.readouterr().out
