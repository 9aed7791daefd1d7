"""The contract as data: complete, and joined to the tests that name its clauses."""

from pathlib import Path
from types import ModuleType

import pytest

from kvsweep.scenarios.verify.script.load import library, load_script

ROOT = Path(__file__).resolve().parents[2]
COUNT = {"A": 4, "B": 7, "C": 3, "D": 9, "E": 10, "F": 5, "G": 4, "H": 3, "J": 4}
# What this version builds; the page lists the rest as not yet shown.
BUILT = {
    *(f"A{n}" for n in range(1, 5)),
    *(f"B{n}" for n in range(1, 8)),
    "C2",
    *("D1", "D2", "D3", "D8"),
    *(f"E{n}" for n in range(1, 10)),
    *("F1", "F2", "F5"),
    *("G1", "G3", "G4"),
    *("J1", "J4"),
}


def test_every_clause_is_listed_once_in_order(docs: ModuleType) -> None:
    listed = [clause.id for clause in docs.read_contract(ROOT / "docs/contract.toml").clauses]
    expected = [f"{group}{number}" for group, count in COUNT.items() for number in range(1, count + 1)]
    assert listed == [*expected[: expected.index("J1")], "I", *expected[expected.index("J1") :]]


def test_clause_i_lists_its_cases(docs: ModuleType) -> None:
    cases = {clause.id: clause.cases for clause in docs.read_contract(ROOT / "docs/contract.toml").clauses}
    assert len(cases["I"]) == 16
    assert all(not listed for clause, listed in cases.items() if clause != "I")


def test_scenarios_name_clauses_that_exist(docs: ModuleType) -> None:
    known = {clause.id for clause in docs.read_contract(ROOT / "docs/contract.toml").clauses}
    shown = {(path.name, clause) for path in library() for clause in load_script(path).shows}
    assert {clause for _, clause in shown if not clause.startswith("I: ")} <= known, sorted(shown)


def test_j4_withdrawn_claims_stay_on_the_page(docs: ModuleType) -> None:
    """J4: four claims are shown, struck out and labelled."""
    page = (ROOT / "docs/contract.md").read_text(encoding="utf-8")
    contract = docs.read_contract(ROOT / "docs/contract.toml")
    claims = next(clause.withdrawn for clause in contract.clauses if clause.id == "J4")
    assert len(claims) == 4
    assert [claim for claim in claims if f"~~{claim}~~ (withdrawn)" not in page] == []


def test_every_clause_of_what_is_built_is_named_by_a_test(docs: ModuleType) -> None:
    contract = docs.read_contract(ROOT / "docs/contract.toml")
    shown = docs.scan_tests(ROOT, contract)
    assert shown.unknown == ()
    assert {clause.id for clause in contract.clauses} >= BUILT
    assert sorted(BUILT - shown.clauses.keys()) == []


def write_tests(root: Path, source: str) -> None:
    (root / "tests/part").mkdir(parents=True)
    (root / "tests/part/test_x.py").write_text(source, encoding="utf-8")


@pytest.mark.parametrize(
    ("source", "ids"),
    [
        ("def test_e9_largest(): ...", {"E9"}),
        ("async def test_e3_e10_both(): ...", {"E3", "E10"}),
        ("def test_plan():\n    '''E3, (E4): order and count.'''", {"E3", "E4"}),
        ("class TestX:\n    def test_b1_shared(self): ...", {"B1"}),
        ("def test_plan(): ...", set()),
        ("def test_plan():\n    '''Uses float64 and A100.'''", set()),
        ("def helper():\n    '''E3'''", set()),
        ("@pytest.mark.skip(reason='no')\ndef test_e9_x(): ...", set()),
        ("@pytest.mark.xfail\ndef test_e9_x(): ...", set()),
    ],
)
def test_the_scan_reads_names_and_docstrings(docs: ModuleType, tmp_path: Path, source: str, ids: set[str]) -> None:
    write_tests(tmp_path, source)
    shown = docs.scan_tests(tmp_path, docs.read_contract(ROOT / "docs/contract.toml"))
    assert shown.clauses == dict.fromkeys(sorted(ids), ("tests/part/test_x.py",))
    assert shown.unknown == ()


def test_a_name_with_an_unknown_clause_is_reported(docs: ModuleType, tmp_path: Path) -> None:
    write_tests(tmp_path, "def test_b9_x(): ...")
    shown = docs.scan_tests(tmp_path, docs.read_contract(ROOT / "docs/contract.toml"))
    assert shown.unknown == ("tests/part/test_x.py::test_b9_x: B9",)


def test_clause_i_is_shown_only_with_all_its_cases(docs: ModuleType, tmp_path: Path) -> None:
    contract = docs.read_contract(ROOT / "docs/contract.toml")
    keys = [key for clause in contract.clauses for key in clause.cases]
    for number, named in enumerate((keys[:-1], keys)):
        root = tmp_path / str(number)
        write_tests(root, "\n".join(f"def test_i_{key}(): ..." for key in named))
        shown = docs.scan_tests(root, contract)
        assert sorted(shown.cases) == sorted(named)
        assert ("I" in shown.clauses) == (named == keys)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '[[group]]\nid="A"\ntitle="t"\n[[clause]]\nid="A1"\ntxet="x"\ntext="x"',
            "c.toml: clause A1 has unknown field 'txet'",
        ),
        (
            '[[group]]\nid="A"\ntitle="t"\n[[clause]]\nid="B1"\ntext="x"',
            "c.toml: clause B1 stands under group B, which is not listed",
        ),
        (
            '[[group]]\nid="A"\ntitle="t"\n[[clause]]\nid="A1"\ntext="x"\n[[clause]]\nid="A1"\ntext="y"',
            "c.toml: clause A1 is listed twice",
        ),
    ],
)
def test_faults_of_the_data_are_named(docs: ModuleType, tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "c.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(docs.DocsError) as error:
        docs.read_contract(path)
    assert str(error.value) == message
