"""Which tests there are: read off the files, or asked of pytest in a process of its own."""

import ast
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@cache
def tests_in(module: str) -> frozenset[str]:
    """Names of a module's own test functions, without those that never run; empty where there is no such module."""
    path = ROOT / module
    if not (path.name.startswith("test_") and path.is_file()):
        return frozenset()
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            marks = {ast.unparse(mark).split("(")[0].rsplit(".", 1)[-1] for mark in node.decorator_list}
            if not marks & {"skip", "xfail"}:
                found.add(node.name)
    return frozenset(found)


def missing(ids: Iterable[str]) -> list[str]:
    """Those of the pytest ids (module::function, maybe with [parameters]) that name no test function."""
    return sorted(one for one in set(ids) if _function(one) not in tests_in(one.partition("::")[0]))


def _function(one: str) -> str:
    return one.partition("::")[2].partition("[")[0]


def not_collected(ids: Iterable[str]) -> list[str]:
    """The same, by pytest's own word. Imports every module that is named, so it takes a while."""
    wanted = set(ids)
    modules = sorted({one.partition("::")[0] for one in wanted})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "", "-p", "no:cacheprovider", *modules]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found = {line for line in run.stdout.splitlines() if "::" in line}
    return sorted(wanted - found - {line.partition("[")[0] for line in found})
