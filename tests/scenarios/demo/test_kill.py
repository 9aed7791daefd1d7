"""A demo that is killed at a random moment leaves a ledger that replays; a byte that is changed later is found."""

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.cli.command_line import Command, command_of

from kvsweep.ledger import laws
from kvsweep.ledger.errors import LogError
from kvsweep.ledger.inspect.replay import Ledger
from kvsweep.ledger.store.codec import encode
from kvsweep.scenarios.demo.options import DemoOptions
from kvsweep.scenarios.demo.run import run_demo

SEED = 20260916
DEMO = "from kvsweep.cli.main import main; main()"
# Far longer than any of the moments below: the run never ends by itself.
ENDLESS = "demo --synthetic --prompt-tokens 256 --tokens 20000 --block-size 8 --every 4".split()


@pytest.fixture
def kvsweep_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return command_of(monkeypatch, capsys)


def events_in(path: Path) -> int:
    """Events that a reader beside the writer sees; 0 as long as there is no ledger."""
    try:
        with Ledger.open(f"sqlite:{path}") as ledger:
            return ledger.last()
    except LogError:
        return 0


def kill_after(path: Path, events: int, command: list[str] = ENDLESS) -> int:
    """Run the demo, SIGKILL it once its ledger has that many events. Returns how many a reader had seen by then."""
    with subprocess.Popen([sys.executable, "-c", DEMO, *command, "--ledger", str(path)], stderr=subprocess.PIPE) as run:
        seen = 0
        while seen < events:
            try:
                run.wait(0.02)
            except subprocess.TimeoutExpired:
                seen = events_in(path)
            else:
                raise AssertionError(f"the demo ended by itself: {run.stderr.read().decode() if run.stderr else ''}")
        run.send_signal(signal.SIGKILL)
    assert run.returncode == -signal.SIGKILL
    return seen


def moments(count: int) -> list[int]:
    rng = np.random.Generator(np.random.PCG64(SEED))
    return sorted(rng.integers(1, 600, size=count).tolist())


MOMENTS = moments(7)


@pytest.mark.parametrize(
    "events", [pytest.param(at, marks=[] if nth == 3 else [pytest.mark.full]) for nth, at in enumerate(MOMENTS)]
)
def test_a_killed_demo_replays_to_a_consistent_state(kvsweep_command: Command, tmp_path: Path, events: int) -> None:
    """What a reader saw before the kill is there after it; the laws hold; recorded digests are met."""
    path = tmp_path / "killed.ledger"
    seen = kill_after(path, events)
    answer = kvsweep_command("log", "replay", path, "--verify", "--json")
    assert (answer.code, answer.err) == (0, ""), f"seed {SEED}, killed after {events} events"
    assert answer.json["ok"]
    assert answer.json["events"] >= seen >= events
    with Ledger.open(f"sqlite:{path}") as ledger:
        state = ledger.state()
        assert laws.check(state) == [], f"seed {SEED}, killed after {events} events"
        (request,) = state.requests.values()
        assert request.life == "RUNNING"
        explained = kvsweep_command("log", "explain", path, "--until", ledger.last(), "--json")
    assert explained.code == 0


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ledger of a demo that ended by itself."""
    path = tmp_path_factory.mktemp("closed") / "demo.ledger"
    options = DemoOptions(prompt_tokens=128, tokens=16, block_size=8, every=8, synthetic=True)
    run_demo(options, ledger=f"sqlite:{path}", command=["kvsweep", "demo"])
    return path


@pytest.mark.parametrize("part", [0.0, 0.25, 0.5, 0.75, 0.999])
def test_a_flipped_byte_fails_with_its_position(
    kvsweep_command: Command, closed: Path, tmp_path: Path, part: float
) -> None:
    """One bit in the body of one event, at the beginning, in the middle and in the last one; in the file itself."""
    with Ledger.open(f"sqlite:{closed}") as ledger:
        position = 1 + int(part * ledger.last())
        event = next(record.event for record in ledger.events() if record.position == position)
    whole, piece = closed.read_bytes(), encode(event)[:48]  # a long body does not lie in one piece
    assert whole.count(piece) == 1
    at = whole.index(piece) + len(piece) // 2
    path = tmp_path / "flipped.ledger"
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
    answer = kvsweep_command("log", "replay", path, "--verify")
    assert answer.code == 1
    assert f"position {position}" in answer.err
    assert len(answer.err.splitlines()) == 1
