"""The example that the embedding page points to runs as it stands, and stays short."""

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parent.parent / "examples" / "embed.py"


def test_the_embedding_example_runs_and_keeps_compacting() -> None:
    run = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["256 tokens", "288 tokens", "320 tokens", "352 tokens"]
    assert all(" layer, released " in line for line in lines), run.stdout


def test_the_embedding_example_is_short() -> None:
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) <= 60
