"""The demo in a storm: late, repeated, forged and failed messages, restarts, a tight pool. The tokens stay the same."""

import functools
import re
from pathlib import Path

import pytest
from tests.cli.command_line import Command, command_of

from kvsweep.ledger import events
from kvsweep.ledger.events import AckIgnored, AckRefused, BlockLost, TransferSettled
from kvsweep.ledger.inspect.replay import Ledger
from kvsweep.scenarios.demo.bundle import load_synthetic
from kvsweep.scenarios.demo.options import DemoOptions
from kvsweep.scenarios.demo.result import DemoResult
from kvsweep.scenarios.demo.run import run_demo

SEEDS = range(20)
COPIED = ("h2d_bytes", "unpack_bytes", "d2h_bytes")
BUNDLE = load_synthetic(20260916)


@functools.cache
def storm(seed: int | None, ledger: str = "memory:") -> DemoResult:
    options = DemoOptions(
        prompt_tokens=96, tokens=20, block_size=8, every=8, synthetic=True, requests=4, ranks=3, chaos=seed
    )
    return run_demo(options, ledger=ledger, command=["kvsweep", "demo", "--chaos", str(seed)], bundle=BUNDLE)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_storm_changes_no_token_and_leaves_nothing_held(seed: int) -> None:
    """D6, F2, F4, G1 – G3 in one: repeat with `kvsweep demo --synthetic … --chaos SEED`."""
    result = storm(seed)
    assert result.lossless, f"seed {seed}: {result.first_difference}"
    assert result.held_at_end == {"leases": 0, "fences": 0, "quarantine": 0, "shared": 0}, f"seed {seed}"
    assert result.free_at_end == result.device_blocks, f"seed {seed}"
    assert result.storm["rank restarts"] == 1, f"seed {seed}"
    assert result.storm["producer restarts"] == 1, f"seed {seed}"


def test_a_storm_and_a_calm_give_the_same_tokens() -> None:
    assert storm(3).tokens == storm(None).tokens


def test_j1_one_seed_gives_one_digest_in_a_storm_too() -> None:
    assert storm(5).digest == storm.__wrapped__(5).digest
    assert storm(5).digest != storm(6).digest


def test_storms_reach_every_situation_that_they_are_for(tmp_path: Path) -> None:
    """Over a few seeds: each verdict, quarantine, lost blocks, both restarts, shared prefixes. All verify."""
    kinds: set[type] = set()
    verdicts: set[str] = set()
    for seed in range(6):
        path = tmp_path / f"{seed}.ledger"
        storm(seed, f"sqlite:{path}")
        with Ledger.open(f"sqlite:{path}") as ledger:
            checked = ledger.verify()
            assert checked.ok, f"seed {seed}: {checked}"
            for record in ledger.events():
                kinds.add(type(record.event))
                if isinstance(record.event, AckIgnored | AckRefused):
                    verdicts.add(record.event.verdict)
    assert verdicts == {"duplicate", "stale", "future", "conflict"}
    assert kinds >= {
        TransferSettled,
        BlockLost,
        events.RankRestarted,
        events.ProducerRestarted,
        events.PrefixPublished,
        events.PrefixAttached,
        events.PrefixEvicted,
        events.HandshakeAgreed,
    }


@pytest.mark.parametrize("seed", [7, 11])
def test_a2_what_a_restarted_rank_had_copied_stays_counted(seed: int) -> None:
    """Operations that ended well before the restart are reported: their bytes went through a memory all the same."""
    result = storm(seed)
    assert result.storm["rank restarts"] == 1
    less = {name: (result.metrics[name], counted) for name, counted in result.counted.items() if name in COPIED}
    assert all(counted >= reported for reported, counted in less.values()), less
    assert result.metrics["d2h_bytes"] > 0


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
def recorded_storm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int]]:
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
    recorded_storm: tuple[Path, dict[str, int]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    verdict: str,
) -> None:
    """F2: repeated and old reports change nothing; future and contradicting ones are refused."""
    path, positions = recorded_storm
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
