"""Every published fault has an answer, and every answer exists: tests that are collected, scenarios that ship."""

from pathlib import Path
from types import ModuleType

import pytest
from tests.collected import missing, not_collected

ROOT = Path(__file__).resolve().parents[2]


def test_every_case_is_answered_and_few_cannot_exist(docs: ModuleType) -> None:
    cases = docs.read_faults(ROOT / "docs/faults.toml").cases
    numbers = [int(case.id.removeprefix("B")) for case in cases]
    assert numbers == sorted(numbers)
    assert len(cases) == 90
    assert sum(bool(case.never) for case in cases) < 10
    assert len({case.kind for case in cases}) == len(cases)


def named_tests(docs: ModuleType) -> set[str]:
    return {test for case in docs.read_faults(ROOT / "docs/faults.toml").cases for test in case.tests}


def test_every_named_test_is_there(docs: ModuleType) -> None:
    named = named_tests(docs)
    assert len(named) > 90
    assert missing(named) == []


@pytest.mark.full
def test_every_named_test_is_collected(docs: ModuleType) -> None:
    """By pytest itself: a module that does not import would be noticed here."""
    gone = "tests/docs/test_faults.py::test_x"
    assert not_collected({*named_tests(docs), gone}) == [gone]


def test_a_name_that_is_no_test_is_missing() -> None:
    module = "tests/docs/test_faults.py"
    there, gone, helper = (f"{module}::{name}" for name in ("test_every_named_test_is_there", "test_x", "named_tests"))
    nowhere = "tests/docs/test_nothing.py::test_x"
    assert missing([there, gone, helper, nowhere]) == [helper, gone, nowhere]


def test_every_named_scenario_ships(docs: ModuleType) -> None:
    faults = docs.read_faults(ROOT / "docs/faults.toml")
    named = {name for case in faults.cases for name in case.scenarios}
    named |= {name for scenarios in faults.rows.values() for name in scenarios}
    there = {path.name for path in (ROOT / "scenarios/verify/library").glob("*.toml")}
    assert sorted(named - there) == []


def test_i_every_row_has_a_test_and_a_scenario(docs: ModuleType) -> None:
    """I: the keys are those of the contract, and a test is named after each."""
    contract = docs.read_contract(ROOT / "docs/contract.toml")
    rows = docs.read_faults(ROOT / "docs/faults.toml").rows
    keys = [key for clause in contract.clauses for key in clause.cases]
    assert list(rows) == keys
    assert all(rows.values())
    assert sorted(docs.scan_tests(ROOT, contract).cases) == sorted(keys)


CASE = '[[case]]\nid="B1"\nkind="k"\nsource="s"\n'
ROW = '[[row]]\nkey="k"\nscenarios=["s.toml"]\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f'{CASE}tset=["t"]\n{ROW}', "f.toml: case B1 has unknown field 'tset'"),
        (f"{CASE}{ROW}", "f.toml: case B1 needs tests, or one sentence why it cannot exist"),
        (f'{CASE}tests=["t"]\nnever="n"\n{ROW}', "f.toml: case B1 needs tests, or one sentence why it cannot exist"),
        (f'{CASE}tests=["t"]\n{CASE}tests=["t"]\n{ROW}', "f.toml: case B1 is listed twice"),
    ],
)
def test_wrong_data_is_refused_by_case(docs: ModuleType, tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "f.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(docs.DocsError) as error:
        docs.read_faults(path)
    assert str(error.value) == message
