"""`kvsweep explore`: every order of what may happen in small worlds of the production core."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

if TYPE_CHECKING:
    from kvsweep.scenarios.verify.explore.search import Found

DATA_FAULT: Final = 1
USAGE_FAULT: Final = 2


def explore(
    world: Annotated[str | None, typer.Argument(help="One of the worlds that ship; without it, all of them.")] = None,
    jobs: Annotated[int, typer.Option(help="Processes, a world at a time each.", min=1, max=256)] = 1,
    limit: Annotated[
        int | None,
        typer.Option(help="States of a world after which it is cut; nothing is claimed of a cut one.", min=1),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout.")] = False,
) -> None:
    """Search small worlds breadth first: every delivery, loss, repetition, abort, restart, in every order."""
    from kvsweep.scenarios.verify.explore.sweep import NAMES, ProcessEnded, sweep

    if world is not None and world not in NAMES:
        typer.echo(f"kvsweep: WORLD: expected one of {', '.join(NAMES)}, got {world!r}", err=True)
        raise typer.Exit(USAGE_FAULT)
    names = NAMES if world is None else (world,)
    console = Console(stderr=True)
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    found: list[Found] = []
    try:
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task("searching", total=None)

            def watch(name: str, states: int) -> None:
                bar.update(task, description=f"{len(found)} of {len(names)} worlds, {name}: {states:,} states")

            found.extend(sweep(names, limit=limit, jobs=jobs, watch=watch))
    except ProcessEnded as error:
        typer.echo(f"kvsweep: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(DATA_FAULT) from error
    found.sort(key=lambda one: NAMES.index(one.world))
    if as_json:
        typer.echo(msgspec.json.encode(found if world is None else found[0]))
    else:
        Console().print(_table(found))
    wrong = [one for one in found if one.broken or one.sometimes_missing]
    for one in wrong:
        if one.broken and not as_json:
            typer.echo("\n".join((f"{one.world}: {one.broken[0]}", *(f"  {action}" for action in one.trail))))
        typer.echo(f"kvsweep: {_sentence(one)}", err=True)
    if wrong:
        raise typer.Exit(DATA_FAULT)


def _sentence(found: Found) -> str:
    if found.broken:
        return " ".join(f"{found.world}: after {len(found.trail)} actions: {found.broken[0]}".split())
    return f"{found.world}: never reached: {', '.join(found.sometimes_missing)}"


def _table(found: list[Found]) -> Table:
    states = sum(one.states for one in found)
    table = Table("world", "states", "of the coordinator alone", "depth", title=f"{states:,} states")
    table.add_column("outcome")
    for one in found:
        outcome = (
            "broken" if one.broken else "cut" if one.cut else "missing" if one.sometimes_missing else "all laws hold"
        )
        table.add_row(one.world, f"{one.states:,}", f"{one.coordinator_states:,}", str(one.depth), outcome)
    return table
