"""What the compiled core owes the process it lives in."""

import subprocess
import sys

import pytest
from tests.runtime.rig import CoreRig
from tests.runtime.storms import Storm

from kvsweep.ledger import compiled
from kvsweep.ledger.fold import apply_all
from kvsweep.ledger.ids import RequestKey
from kvsweep.ledger.state import EMPTY

pytestmark = pytest.mark.skipif(compiled.fold is None, reason="the compiled fold was not built")

KEPT_FOR_EVER = """
import ctypes
from kvsweep.scenarios.bench.round import QUICK, RoundBench
bench = RoundBench(QUICK, "memory:", seed=1)
bench.run(1, lambda done, of: None)
assert bench.driver.core._standing._core is not None
ctypes.pythonapi.Py_IncRef(ctypes.py_object(bench))
"""


def test_a_program_that_ends_with_an_open_driver_says_nothing_of_it() -> None:
    ended = subprocess.run([sys.executable, "-c", KEPT_FOR_EVER], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


@pytest.mark.parametrize("seed", [5, 6])
def test_an_interrupt_while_a_turn_is_adopted_loses_no_event(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    storm = Storm(seed)
    steps, standing = storm.driver.core.steps, storm.driver.core._standing
    forget, hit = steps.forget_fence, []

    def interrupted(request: RequestKey, number: int) -> None:
        if not hit and standing._core is not None and standing._decided is None:
            hit.append(number)
            forget(request, number)
            raise KeyboardInterrupt
        forget(request, number)

    monkeypatch.setattr(steps, "forget_fence", interrupted)
    with pytest.raises(KeyboardInterrupt):
        storm.run(2000)
    assert apply_all(EMPTY, [event for batch in storm.log.batches for event in batch]) == storm.driver.state
    assert storm.run(200).driver.read_only is None


def test_a_text_that_no_log_could_keep_stops_no_other_request() -> None:
    """A core without a log takes any text."""
    made = CoreRig()
    key, other = made.open("a"), made.open("b")
    made.started(made.select(key, {0: (0, 3), 1: (1, 2)}, idempotency_key="\ud800"))
    made.upload(other, {0: (0, 3), 1: (1, 2)})
