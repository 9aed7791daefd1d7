"""`log explain` on what a storm's peers said wrongly: which row of the table decided, what was expected, what came."""

import re
from pathlib import Path

import pytest
from tests.cli.command_line import Command, command_of

from kvsweep.ledger.events import AckIgnored, AckRefused
from kvsweep.ledger.inspect.replay import Ledger
from kvsweep.scenarios.demo.options import DemoOptions
from kvsweep.scenarios.demo.run import run_demo

SEED = 3  # a storm with every verdict in it
LINES = {
    "duplicate": (
        r"duplicate: the lane's last closed operation, with this rank and outcome"
        r"|duplicate: rank already recorded with this outcome",
        r"expected one word of rank \d on operation \d+; got (completed|failed|cancelled) again",
    ),
    "stale": (
        "stale: operation neither open nor settling",
        r"expected an open or settling operation; got operation \d+ of map revision \d+",
    ),
    "future": (
        "future: request epoch, operation or process epoch not given out yet",
        r"expected operation id below \d+; got 10000\d\d",
    ),
    "conflict": (
        "conflict: differs from the operation it names",
        r"expected map_revision \d+; got map_revision \d+",
    ),
}


@pytest.fixture(scope="module")
def storm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int]]:
    """A storm's ledger, and the position of the first report of each verdict."""
    path = tmp_path_factory.mktemp("storm") / "storm.ledger"
    options = DemoOptions(
        prompt_tokens=96, tokens=20, block_size=8, every=8, synthetic=True, requests=4, ranks=3, chaos=SEED
    )
    run_demo(options, ledger=f"sqlite:{path}", command=["kvsweep", "demo"])
    found: dict[str, int] = {}
    with Ledger.open(f"sqlite:{path}") as ledger:
        for record in ledger.events():
            if isinstance(record.event, AckIgnored | AckRefused):
                found.setdefault(record.event.verdict, record.position)
    return path, found


@pytest.mark.parametrize("verdict", LINES)
def test_f2_a_wrong_report_is_explained_by_its_rule_and_both_sides(
    storm: tuple[Path, dict[str, int]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    verdict: str,
) -> None:
    """F2: repeated and old reports change nothing; future and contradicting ones are refused."""
    path, positions = storm
    assert verdict in positions, f"seed {SEED}"
    explain: Command = command_of(monkeypatch, capsys)
    answer = explain("log", "explain", path, "--until", positions[verdict])
    assert (answer.code, answer.err) == (0, "")
    lines = " ".join(answer.out.split())
    assert "clause F2: an acknowledgement counts once" in lines
    rule, sides = LINES[verdict]
    assert re.search(rf"verdict ({rule}) stands in row \d+ of 11 of the acknowledgement table {sides}", lines), (
        answer.out
    )
    assert lines.endswith("changed nothing")
    found = explain("log", "explain", path, "--until", positions[verdict], "--json").json
    assert found["decision"]["verdict"] == verdict
    assert all(found["decision"][side] for side in ("rule", "expected", "got"))
