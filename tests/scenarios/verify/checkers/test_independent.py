"""An oracle shares no code with what it checks: which modules the checkers may import, and nothing else."""

import ast
from pathlib import Path

import pytest

CHECKERS = Path(__file__).resolve().parents[4] / "scenarios/verify/checkers"
DATA = {
    "kvsweep.ledger.errors",
    "kvsweep.ledger.events",
    "kvsweep.ledger.ids",
    "kvsweep.ledger.messages",
    "kvsweep.runtime.core.steps",
    "kvsweep.transports.blocks",
    "kvsweep.transports.host",
    "kvsweep.transports.pools",
}
"""Facts, messages and memory; of `runtime.steps` only what a step was handed."""


def imports(path: Path) -> dict[str, set[str]]:
    """module -> names, of the project's imports that are no checkers themselves."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kvsweep"):
            module, names = node.module or "", {alias.name for alias in node.names}
            if module == "kvsweep.ledger":
                found.update({f"{module}.{name}": set() for name in names})
            elif not module.startswith("kvsweep.scenarios.verify.checkers"):
                found.setdefault(module, set()).update(names)
        elif isinstance(node, ast.Import):
            found.update({alias.name: set() for alias in node.names if alias.name.startswith("kvsweep")})
    return found


ORACLES = sorted(path.name for path in CHECKERS.glob("*.py") if path.name != "checked_driver.py")


@pytest.mark.parametrize("name", ORACLES)
def test_no_oracle_imports_reducers_state_or_ownership(name: str) -> None:
    """`checked_driver.py` only plugs them in."""
    found = imports(CHECKERS / name)
    assert set(found) - DATA == set()
    assert found.get("kvsweep.runtime.core.steps", set()) <= {"HandedOut"}


def test_there_is_something_to_look_at() -> None:
    assert len(ORACLES) >= 8
    assert "kvsweep.ledger.events" in imports(CHECKERS / "ownership.py")
