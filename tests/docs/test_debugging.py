"""docs/debugging.md is true: its commands, run again on ledgers of the same storms, give the answers that it shows."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/debugging.md").read_text(encoding="utf-8")


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("transcript", ROOT / "scripts/transcript.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


transcript = load()


def test_f2_b6_j1_the_page_answers_what_the_commands_answer(tmp_path: Path) -> None:
    """F2, B6, J1: why an acknowledgement was ignored, who owned a block, what a rank saw, where two runs part."""
    found = transcript.answers(PAGE, tmp_path)
    assert len(found) == 7
    for command, shown, now in found:
        told = f"{command}\nIf this is another processor: python scripts/transcript.py docs/debugging.md"
        assert transcript.unchanging(shown) == transcript.unchanging(now), told


def test_a_page_with_another_answer_is_written_anew() -> None:
    page = "```sh\nkvsweep demo\n```\n\n```console\n$ kvsweep --version\nold 2026-09-16T08:30:00.123\n```\n"
    assert list(transcript.commands(page)) == [
        ("sh", "kvsweep demo", ""),
        ("console", "kvsweep --version", "old 2026-09-16T08:30:00.123"),
    ]
    command, shown, now = "kvsweep --version", "old 2026-09-16T08:30:00.123", "new 2026-09-16T08:30:01"
    assert f"$ {command}\n{now}\n" in transcript.rewritten(page, [(command, shown, now)])
    same = [(command, shown, "old 2027-01-01T00:00:00")]
    assert transcript.rewritten(page, same) == page


def test_a_command_that_fails_is_an_error() -> None:
    assert transcript.run("kvsweep --version")
    with pytest.raises(SystemExit, match="kvsweep log requests nothing: exit code 1"):
        transcript.run("kvsweep log requests nothing")
