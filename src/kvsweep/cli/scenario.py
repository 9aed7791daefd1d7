"""`kvsweep scenario`: run scenario files, and list those that ship."""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import asdict
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvsweep.cli.terminal import DATA_FAULT, USAGE_FAULT, AsJson, answer, fail, progress
from kvsweep.ledger.errors import KvsweepError, SettingsError, UsageError

if TYPE_CHECKING:
    from kvsweep.scenarios.verify.script.format import Script
    from kvsweep.scenarios.verify.script.run import Verdict

scenario_app = typer.Typer(no_args_is_help=True, help="Scripted runs: a world, steps, faults, and what must be seen.")


def found_file(name: str) -> Path:
    """The file of this name, or the scenario that ships under it. Raises SettingsError where there is neither."""
    from kvsweep.scenarios.verify.script.load import LIBRARY, library

    path = Path(name)
    if path.exists():
        return path
    shipped = LIBRARY / f"{name}.toml"
    if shipped in library():
        return shipped
    raise SettingsError(name, "a scenario file, or the name of one that ships (kvsweep scenario list)", "neither")


@scenario_app.command()
def run(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Scenario files, or names of shipped ones.")],
    seed: Annotated[int | None, typer.Option(help="Instead of the file's own.", min=0)] = None,
    ledger: Annotated[
        Path | None, typer.Option(help="New ledger file for the facts of the run; one scenario only.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run scenarios in virtual time and say which laws held and which situations were reached."""
    from kvsweep.scenarios.verify.script.load import load_script
    from kvsweep.scenarios.verify.script.run import run_script

    done: list[tuple[str, Verdict]] = []
    try:
        if ledger is not None and len(files) > 1:
            raise SettingsError("--ledger", "one scenario, one ledger", f"{len(files)} scenarios")
        scripts = [(name, load_script(found_file(name))) for name in files]
        with progress("scenarios", len(files)) as tell:
            for name, script in scripts:
                verdict = run_script(script, seed, ledger)
                done.append(
                    (name, verdict if verdict.passed or ledger is not None else _again_with_ledger(script, verdict))
                )
                tell(len(done))
    except KvsweepError as error:
        fail(error, USAGE_FAULT if isinstance(error, UsageError) else DATA_FAULT, command="kvsweep scenario")
    failed = [(name, verdict) for name, verdict in done if not verdict.passed]
    if as_json:
        answers = [asdict(verdict) | {"repeat": repeat_command(name, verdict)} for name, verdict in done]
        several = {"scenarios": answers, "passed": not failed}
        answer(answers[0] if len(answers) == 1 else several)
    else:
        _show(done)
    if failed:
        name, verdict = failed[0]
        why = verdict.broken[0] if verdict.broken else f"never reached: {', '.join(verdict.missing)}"
        fail(
            f"{len(failed)} of {len(done)} failed, first {name!r} with seed {verdict.seed}: {why}; "
            f"repeat: {repeat_command(name, verdict)}",
            DATA_FAULT,
            command="kvsweep scenario",
        )


def repeat_command(name: str, verdict: Verdict) -> str:
    """The command that gives this verdict again."""
    return f"kvsweep scenario run {shlex.quote(name)} --seed {verdict.seed}"


def _again_with_ledger(script: Script, verdict: Verdict) -> Verdict:
    """A run that failed is made again with a ledger that stays: equal runs have equal facts."""
    from kvsweep.scenarios.verify.script.run import run_script

    return run_script(script, verdict.seed, Path(tempfile.mkdtemp(prefix="kvsweep-")) / "scenario.ledger")


def _show(done: list[tuple[str, Verdict]]) -> None:
    table = Table("scenario", "seed", "verdict", "facts", "turns")
    for _, verdict in done:
        word = "[green]passed[/]" if verdict.passed else "[red]failed[/]"
        table.add_row(escape(verdict.title), str(verdict.seed), word, f"{verdict.events:,}", f"{verdict.turns:,}")
    console = Console()
    console.print(table)
    for name, verdict in done:
        if verdict.passed:
            continue
        console.print(f"[bold]{escape(verdict.title)}[/]")
        for what, found in (("broken", verdict.broken), ("never reached", verdict.missing)):
            for line in found:
                console.print(f"  {what}: {escape(line)}")
        console.print(f"  seed {verdict.seed}, ledger {escape(str(verdict.ledger))}")
        console.print(f"  repeat: {escape(repeat_command(name, verdict))}", soft_wrap=True)


@scenario_app.command(name="list")
def list_shipped(as_json: AsJson = False) -> None:
    """The scenarios that ship: name, title, and which clauses each shows."""
    from kvsweep.scenarios.verify.script.load import library, load_script

    shipped = [(path, load_script(path)) for path in library()]
    if as_json:
        rows = [
            {"name": path.stem, "title": script.title, "shows": script.shows, "path": str(path)}
            for path, script in shipped
        ]
        answer({"scenarios": rows})
        return
    table = Table("name", "title", "shows")
    for path, script in shipped:
        table.add_row(path.stem, escape(script.title), escape(", ".join(script.shows)))
    Console().print(table)
