"""The compiled core beside the one in Python, over everything that is at hand: storms, scenarios, the demo."""

from pathlib import Path
from typing import Any

import pytest
from tests.runtime import rig
from tests.runtime.core import both_cores
from tests.runtime.core.both_cores import BothCores
from tests.runtime.rig import PRODUCER, RANKS, CoreRig, selection
from tests.runtime.storms import Storm

from kvsweep.ledger import compiled
from kvsweep.ledger.ids import Operation, RequestKey
from kvsweep.ledger.messages import Acknowledged, Done, Select, Turn
from kvsweep.runtime import driver
from kvsweep.scenarios.demo.options import DemoOptions
from kvsweep.scenarios.demo.run import run_demo
from kvsweep.scenarios.verify.script.load import load_script
from kvsweep.scenarios.verify.script.run import run_script
from kvsweep.scenarios.verify.simulate.draw import random_script

pytestmark = pytest.mark.skipif(compiled.fold is None, reason="the compiled fold was not built")

SEED = 20260916
LIBRARY = Path(str(driver.__file__)).parents[1] / "scenarios" / "verify" / "library"
ORDINARY = {"Done", "Acknowledged", "Select", "Retain", "Reserved", "end_step"}


@pytest.fixture(autouse=True)
def both(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every core is two."""
    monkeypatch.setattr(driver, "Core", BothCores)
    monkeypatch.setattr(rig, "Core", BothCores)
    both_cores.compiled.clear()
    both_cores.in_python.clear()


def expect_shared_out() -> None:
    """Both ways were gone, or nothing was compared."""
    assert set(both_cores.compiled) == ORDINARY
    assert set(both_cores.in_python) >= {"Done", "Select", "Retain", "Preempt", "Finish"}


# ---- everything that is at hand


def test_storms() -> None:
    for seed in range(SEED, SEED + 12):
        storm = Storm(seed).run(250)
        storm.driver.check_laws()
    expect_shared_out()


@pytest.mark.full
def test_many_storms() -> None:
    for seed in range(1000):
        Storm(seed).run(300)
    expect_shared_out()


@pytest.mark.parametrize("path", sorted(LIBRARY.glob("*.toml"))[::4], ids=lambda path: path.stem)
def test_some_shipped_scenarios(path: Path) -> None:
    verdict = run_script(load_script(path))
    assert verdict.passed, verdict.broken


@pytest.mark.full
@pytest.mark.parametrize("path", sorted(LIBRARY.glob("*.toml")), ids=lambda path: path.stem)
def test_every_shipped_scenario(path: Path) -> None:
    verdict = run_script(load_script(path))
    assert verdict.passed, verdict.broken


def test_random_scenarios() -> None:
    for seed in range(SEED, SEED + 8):
        verdict = run_script(random_script(seed))
        assert not verdict.broken, f"seed {seed}: {verdict.broken}"


@pytest.mark.full
def test_many_random_scenarios() -> None:
    for seed in range(300):
        verdict = run_script(random_script(seed))
        assert not verdict.broken, f"seed {seed}: {verdict.broken}"


@pytest.mark.parametrize("seed", [1, 2])
def test_the_demo_in_a_storm_of_three_ranks(seed: int) -> None:
    options = DemoOptions(
        prompt_tokens=96, tokens=20, block_size=8, every=8, synthetic=True, requests=4, ranks=3, chaos=seed
    )
    assert run_demo(options, ledger="memory:", command=["kvsweep", "demo"]).lossless


# ---- where one turn does not come about


def started() -> tuple[CoreRig, RequestKey, Operation]:
    """An upload of one request that no rank has answered."""
    made = CoreRig()
    key = made.open(blocks=8)
    operation = made.send(Select(selection=selection(made.layout, key, 1, {0: (0, 3), 1: (1, 2)}), idempotency_key="s"))
    assert operation.operation is not None
    return made, key, operation.operation


def done(operation: Operation, at: int, **fields: Any) -> Done:
    rank, process_epoch = RANKS[at]
    word = {"operation": operation, "rank": rank, "process_epoch": process_epoch, "outcome": "completed"}
    return Done(**{**word, **fields})


def test_a_turn_that_the_log_does_not_take_has_not_been() -> None:
    made, _, operation = started()
    made.send(done(operation, 0))
    turn = made.core.handle(done(operation, 1))
    assert len(turn.events) == 3
    assert made.core.state.requests["a"].upload.phase == "MOVING", "a staged turn is no part of the state"
    made.core.discard(turn)
    assert made.core.state.requests["a"].upload.phase == "MOVING"
    again = made.send(done(operation, 1))
    assert again == turn
    assert made.send(Acknowledged(operation=operation, process_epoch=PRODUCER)).outcome == "accepted"


def test_a_state_that_is_looked_at_seldom_is_the_same() -> None:
    """More events than are kept to be folded again, without a look."""
    made, key, operation = started()
    core = made.core
    for revision in range(2, 60):
        for at in range(len(RANKS)):
            made.send(done(operation, at))
        made.send(Acknowledged(operation=operation, process_epoch=PRODUCER))
        wanted = {0: (revision % 8,), 1: ((revision + 3) % 8,)}
        turn: Turn = made.send(
            Select(selection=selection(made.layout, key, revision, wanted), idempotency_key=f"s{revision}")
        )
        assert turn.operation is not None
        operation = turn.operation
    assert isinstance(core, BothCores)
    core.agree()


@pytest.mark.parametrize(
    "strange",
    [
        {"rank": 7},
        {"rank": -1},
        {"process_epoch": 99},
        {"outcome": "failed"},
        {"outcome": "lost"},
        {"h2d_bytes": -1},
        {"wait_s": float("inf")},
        {"wait_s": 1},
    ],
    ids=str,
)
def test_words_that_are_not_ordinary_are_left_to_python(strange: dict[str, Any]) -> None:
    made, _, operation = started()
    made.core.adopt(made.core.handle(done(operation, 0, **strange)))
    assert (both_cores.in_python["Done"], both_cores.compiled["Done"]) == (1, 0)
    made.send(done(operation, 1))
    aborted = strange.get("outcome") == "failed"
    assert both_cores.compiled["Done"] == (0 if aborted else 1), "the word after it is ordinary again"


def test_where_the_settings_name_numpy_all_is_decided_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    made = CoreRig(kernels={"choice": "numpy"})
    made.open(blocks=8)
    assert made.core._standing._core is None


def test_a_fork_is_decided_in_python_and_stands_where_the_core_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    made, _, operation = started()
    made.send(done(operation, 0))
    twin = made.core.fork()
    assert twin.state == made.core.state
    turn = twin.handle(done(operation, 1))
    twin.adopt(turn)
    assert made.core.state.requests["a"].upload.phase == "MOVING"
    assert made.send(done(operation, 1)) == turn
    assert twin.state == made.core.state
    assert (twin._standing._core, made.core._standing._core is None) == (None, False)
