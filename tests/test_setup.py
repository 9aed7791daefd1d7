"""The set-up behind ./demo and ./check: which Python it takes, what it says when there is none."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BROKEN = "exit 127"
# Answers as a real one would: the probe of the version ends with this status.
OLD = "exit 1"
GOOD = "exit 0"


@pytest.fixture
def bin_folder(tmp_path: Path) -> Path:
    """A PATH of its own with nothing on it but what the script needs beside Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("bash", "dirname", "cat"):
        found = shutil.which(name)
        assert found is not None
        (folder / name).symlink_to(found)
    return folder


def bash(code: str, path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", code], env={"PATH": str(path)}, capture_output=True, text=True, check=False
    )


def python(folder: Path, name: str, behaviour: str) -> Path:
    script = folder / name
    script.write_text(f"#!{folder}/bash\n{behaviour}\n", encoding="utf-8")
    script.chmod(0o755)
    return script


@pytest.mark.parametrize("present", [{}, {"python3": OLD}, {"python3.12": BROKEN, "python": OLD}])
def test_without_a_usable_python_one_sentence_says_what_is_needed(bin_folder: Path, present: dict[str, str]) -> None:
    for name, behaviour in present.items():
        python(bin_folder, name, behaviour)
    done = bash(f"source {ROOT}/scripts/setup.sh; found=$(find_python); echo $found", bin_folder)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "error: needs Python 3.11 or newer with the venv module; "
        "none of python3.13, python3.12, python3.11, python3, python is one\n"
    )


def test_a_broken_or_old_python_is_passed_over(bin_folder: Path) -> None:
    python(bin_folder, "python3.13", BROKEN)
    python(bin_folder, "python3.12", OLD)
    wanted = python(bin_folder, "python3", GOOD)
    done = bash(f"source {ROOT}/scripts/setup.sh; find_python", bin_folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{wanted}\n", "")


def test_check_refuses_an_unknown_argument_before_it_installs_anything() -> None:
    done = subprocess.run([ROOT / "check", "--fast"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: ./check takes --full or nothing, got: --fast\n"
