"""`kvsweep simulate`: many random scenarios from consecutive seeds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from kvsweep.cli.terminal import DATA_FAULT, AsJson, answer, fail, progress, warn

if TYPE_CHECKING:
    from kvsweep.scenarios.verify.simulate.sweep import SweepResult


def simulate(
    seeds: Annotated[int, typer.Option(help="How many, each run twice.", min=1)] = 100,
    start: Annotated[int, typer.Option(help="The first one; the others follow it.", min=0)] = 20260916,
    jobs: Annotated[int, typer.Option(help="Processes.", min=1, max=256)] = 1,
    out: Annotated[
        Path, typer.Option(help="Folder for the scenario that the first failing seed is shrunk to.")
    ] = Path(),
    as_json: AsJson = False,
) -> None:
    """Random worlds, workloads and faults under virtual time: do all laws hold, and does everything drain?"""
    from kvsweep.scenarios.verify.simulate.judge import WorkerFailed
    from kvsweep.scenarios.verify.simulate.sweep import sweep

    if not as_json:
        typer.echo(f"seeds {start} to {start + seeds - 1}")
    try:
        with progress("seeds", seeds) as tell:
            found = sweep(range(start, start + seeds), jobs=jobs, out=out, watch=tell)
    except WorkerFailed as error:
        fail(error, DATA_FAULT)
    except OSError as error:
        fail(f"--out: expected a folder to write to, got {str(out)!r} ({error.strerror})", DATA_FAULT)
    if as_json:
        answer(found)
    else:
        Console().print(_table(found))
    if not found.passed:
        warn(_wrong(found))
    if not as_json:
        typer.echo(f"repeat: {_repeat(found)}")
    if not found.passed:
        raise typer.Exit(DATA_FAULT)


def _wrong(found: SweepResult) -> str:
    failure = found.first_failure
    if failure is None:
        return f"none of {found.seeds:,} seeds reached: {', '.join(found.missing)}"
    return " ".join(
        f"{found.failures:,} of {found.seeds:,} seeds fail, the first is {failure.seed}: {failure.broken[0]} "
        f"(shrunk to {failure.scenario}: {failure.steps} steps, {failure.faults} faults; {_repeat(found)})".split()
    )


def _repeat(found: SweepResult) -> str:
    """The command that shows the same again; after a failure, the seed alone."""
    if found.first_failure is not None:
        return f"kvsweep simulate --seeds 1 --start {found.first_failure.seed}"
    return f"kvsweep simulate --seeds {found.seeds} --start {found.start}"


def _table(found: SweepResult) -> Table:
    title = (
        f"{found.seeds:,} seeds twice, {found.events:,} events each time, "
        f"{found.seeds_per_s:g} seeds/s, {found.events_per_s:,.0f} events/s"
    )
    table = Table("situation", "seeds that reached it", title=title)
    for name, seen in found.situations.items():
        table.add_row(name, f"{seen:,}" if seen else "none")
    return table
