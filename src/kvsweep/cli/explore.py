"""`kvsweep explore`: every order of what may happen in small worlds of the production core."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from kvsweep.cli.terminal import DATA_FAULT, USAGE_FAULT, AsJson, answer, fail, progress, warn

if TYPE_CHECKING:
    from kvsweep.scenarios.verify.explore.search import Found


def explore(
    world: Annotated[str | None, typer.Argument(help="One of the worlds that ship; without it, all of them.")] = None,
    jobs: Annotated[int, typer.Option(help="Processes, a world at a time each.", min=1, max=256)] = 1,
    limit: Annotated[
        int | None,
        typer.Option(help="States of a world after which it is cut; nothing is claimed of a cut one.", min=1),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Search small worlds breadth first: every delivery, loss, repetition, abort, restart, in every order."""
    from kvsweep.scenarios.verify.explore.sweep import NAMES, ProcessEnded, sweep

    if world is not None and world not in NAMES:
        fail(f"WORLD: expected one of {', '.join(NAMES)}, got {world!r}", USAGE_FAULT)
    names = NAMES if world is None else (world,)
    found: list[Found] = []
    try:
        with progress("searching") as tell:

            def watch(name: str, states: int) -> None:
                tell(states, what=f"{len(found)} of {len(names)} worlds, states of {name}")

            found.extend(sweep(names, limit=limit, jobs=jobs, watch=watch))
    except ProcessEnded as error:
        fail(error, DATA_FAULT)
    found.sort(key=lambda one: NAMES.index(one.world))
    if as_json:
        answer(found if world is None else found[0])
    else:
        Console().print(_table(found))
    wrong = [one for one in found if one.broken or one.sometimes_missing]
    for one in wrong:
        if one.broken and not as_json:
            typer.echo("\n".join((f"{one.world}: {one.broken[0]}", *(f"  {action}" for action in one.trail))))
        warn(_sentence(one))
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
