"""The whole path on either implementation of the kernels: same tokens, same digest."""

from pathlib import Path

import pytest

from kvsweep.kernels.table import why_not_native
from kvsweep.scenarios.demo.run import DemoOptions, run_demo


@pytest.mark.skipif(why_not_native() is not None, reason="the native kernels are not built")
def test_c2_native_and_numpy_kernels_give_one_digest(tmp_path: Path) -> None:
    """J1: the ledger says which ran; the digest, over every event and the final state, does not depend on it."""
    results = []
    for name in ("native", "numpy"):
        url = f"sqlite:{tmp_path / name}.ledger"
        options = DemoOptions(kernels=name, synthetic=True, prompt_tokens=256, rounds=1)
        results.append(run_demo(options, ledger=url, command=[]))
    native, numpy = results
    assert native.digest == numpy.digest
    assert native.tokens == numpy.tokens
    assert native.kernels.startswith("native (")
    assert (numpy.kernels, "native extension" in numpy.not_run) == ("numpy", True)
    assert "native extension" not in native.not_run
