"""The kernels under the address sanitizer, and that it would see an overrun."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvsweep.kernels.cuda.errors import NoDevice
from kvsweep.kernels.cuda.shim import SANITIZED, build
from kvsweep.kernels.cuda.source import module_source

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs the script beside this file with the sanitizer loaded first; skipped where the compiler has none."""
    try:
        library = build(module_source(), tmp_path_factory.mktemp("sanitized"), SANITIZED)
    except NoDevice as error:
        pytest.skip(f"no sanitized build: {error}")
    found = subprocess.run(["c++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    environment = {
        "PATH": os.environ["PATH"],
        "LD_PRELOAD": found.stdout.strip(),
        "PYTHONMALLOC": "malloc",
        "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0",  # the interpreter keeps what it allocates
    }

    def start(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-P", str(Path(__file__).with_name("sanitized.py")), str(library), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    return start


def test_no_kernel_touches_a_byte_that_is_not_its_own(run: Run) -> None:
    done = run()
    assert (done.returncode, done.stdout) == (0, "all equal\n"), done.stderr


def test_an_overrun_is_reported_with_the_line_of_the_kernel(run: Run) -> None:
    done = run("overrun")
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr
    assert "copy.cu:" in done.stderr
