"""The law of reducers, read off their text: every check stands before the first change."""

import ast
from pathlib import Path

import pytest

import kvsweep.ledger.reducers

FOLDER = Path(kvsweep.ledger.reducers.__path__[0])
RECORDS = {"request", "lane", "pool", "mine", "draft"}
CHANGES = {
    "change",
    "share",
    "begin",
    "close",
    "remember",
    "setattr",
    "append",
    "_replace",
    "_quiet",
    "_settle",
    "commit_view",
}
CHECKS = {"refuse", "_refuse", "open_in", "placed", "adopted_areas", "_find", "_kept", "_moved", "freed_by", "Refused"}
CHECKED = ("expect_", "_expect_", "check_", "_check_")


FUNCTIONS = {
    f"{path.stem}.{node.name}": node
    for path in sorted(FOLDER.glob("*.py"))
    for node in ast.parse(path.read_text(encoding="utf-8")).body
    if isinstance(node, ast.FunctionDef)
}


def called(node: ast.AST) -> str:
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def changes(node: ast.AST) -> bool:
    """An assignment to a field of a record, or a call that changes something."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
    fields = [part for target in targets for part in ast.walk(target) if isinstance(part, ast.Attribute)]
    records = {part.id for field in fields for part in ast.walk(field) if isinstance(part, ast.Name)}
    return bool(records & RECORDS) or called(node) in CHANGES


def checks(node: ast.AST) -> bool:
    name = called(node)
    return name in CHECKS or name.startswith(CHECKED)


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=[*FUNCTIONS])
def test_every_check_stands_before_the_first_change(function: ast.FunctionDef) -> None:
    """A refused event must leave the draft as it was: others go on in it."""
    nodes = [*ast.walk(function)]
    first = min((node.lineno for node in nodes if changes(node)), default=10**9)  # type: ignore[attr-defined]
    late = [ast.unparse(node) for node in nodes if checks(node) and node.lineno > first]  # type: ignore[attr-defined]
    assert late == []


def test_checks_and_changes_are_seen() -> None:
    """Both kinds stand in the reducers, in many of them: the lists above are no dead letters."""
    nodes = [node for function in FUNCTIONS.values() for node in ast.walk(function)]
    assert {called(node) for node in nodes if checks(node)} >= CHECKS
    assert {called(node) for node in nodes} >= CHANGES
    assert sum(map(changes, nodes)) > 60
