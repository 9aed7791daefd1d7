"""README: its Python runs as it stands there, and what it quotes was printed by this version's commands."""

import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from typer.core import TyperGroup
from typer.main import get_command

from kvsweep.cli.demo import COSTS, closing_table
from kvsweep.cli.main import app
from kvsweep.scenarios.demo.options import DemoOptions
from kvsweep.scenarios.demo.run import run_demo

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_python_of_the_readme_runs(tmp_path: Path) -> None:
    """In an interpreter of its own, outside the checkout."""
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-P", "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    table, figures = done.stdout.splitlines()
    assert len(table.strip("[]").split()) == 8  # a quarter of 32 blocks
    method, moved, released = figures.split()
    assert (method, moved) == ("layer", "0")
    assert int(released) > 0


def test_the_quoted_tables_have_the_rows_of_today() -> None:
    """The figures are of the run that is named there; the rows must be those that a reader sees."""
    options = DemoOptions(prompt_tokens=64, tokens=4, block_size=8, every=8, synthetic=True)
    console = Console(width=110)
    with console.capture() as captured:
        console.print(closing_table(run_demo(options, ledger="memory:", command=["kvsweep", "demo"])))

    def names(text: str) -> list[str]:
        return [name.strip() for name in re.findall(r"^│ ([^│]*[^│ ]) +│", text, re.MULTILINE)]

    (quoted,) = re.findall(r"```text\n(.*?)```", README, re.DOTALL)
    assert names(quoted) == names(captured.get())
    assert set(COSTS) <= set(names(quoted))


def test_every_option_of_the_demo_is_explained() -> None:
    """docs/demo.md names each option of the command, and no other."""
    command = get_command(app)
    assert isinstance(command, TyperGroup)
    known = {option for parameter in command.commands["demo"].params for option in parameter.opts}
    page = (ROOT / "docs/demo.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `(--[a-z-]+)", page, re.MULTILINE))
    assert named == known


def test_every_metric_is_explained() -> None:
    page = (ROOT / "docs/demo.md").read_text(encoding="utf-8")
    assert [name for name in COSTS if f"`{name}`" not in page] == []
