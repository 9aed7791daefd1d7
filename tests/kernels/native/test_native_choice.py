"""Which kernels run: a choice, made once, that never falls back in silence."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvsweep.kernels import KernelArgumentError
from kvsweep.kernels.compiled import NativeKernels, available_isas
from kvsweep.kernels.table import NumpyKernels, choose_kernels, describe


def test_native_is_the_default_where_it_is_built() -> None:
    assert isinstance(choose_kernels(), NativeKernels)
    assert isinstance(choose_kernels("native", threads=2), NativeKernels)
    assert choose_kernels().name == "native"
    assert isinstance(choose_kernels("numpy"), NumpyKernels)
    assert choose_kernels() is choose_kernels()


@pytest.mark.parametrize("choice", ["cuda", "", None])
def test_another_choice_is_refused(choice: Any) -> None:
    with pytest.raises(KernelArgumentError, match=r'^kernels: expected "auto", "native" or "numpy", got '):
        choose_kernels(choice)


@pytest.mark.parametrize("threads", [0, -1, 1025, True, 1.0])
def test_threads_outside_their_range_are_refused(threads: Any) -> None:
    with pytest.raises(KernelArgumentError, match=r"^threads: expected an integer in \[1, 1024\], got "):
        NativeKernels(threads=threads)


def test_an_instruction_set_that_is_not_here_is_refused() -> None:
    with pytest.raises(KernelArgumentError, match=r"^isa: expected scalar"):
        NativeKernels(isa="sse9")  # type: ignore[arg-type]
    assert NativeKernels().isa == available_isas()[-1]


def test_evidence_names_what_ran() -> None:
    assert describe(NumpyKernels()) == "numpy"
    text = describe(NativeKernels(threads=2, isa="scalar"))
    assert text.startswith("native (scalar, threads 2, extension SHA-256 ")


def test_without_the_extension_numpy_runs_and_native_is_refused(tmp_path: Path) -> None:
    """A None in sys.modules is what an extension that does not load looks like."""
    code = (
        "import sys\n"
        "sys.modules['kvsweep.kernels._native'] = None\n"
        "from kvsweep.kernels.table import choose_kernels, why_not_native\n"
        "print(choose_kernels().name, why_not_native() is not None)\n"
        "choose_kernels('native')\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["numpy", "True"]
    assert 'KernelArgumentError: kernels: expected "auto" or "numpy" on this installation' in done.stderr
