"""What the compiled core owes the process it lives in."""

import subprocess
import sys

import pytest

from kvsweep.ledger import compiled

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
