"""`kvsweep soak`: does anything grow over many requests and rounds?"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from kvsweep.cli.terminal import DATA_FAULT, AsJson, answer, fail, progress


def soak(
    requests: Annotated[int, typer.Option(help="Requests at a time.", min=1)] = 256,
    rounds: Annotated[int, typer.Option(help="Compaction rounds over all requests.", min=1)] = 10_000,
    ranks: Annotated[int, typer.Option(help="Ranks; two KV heads are there to split.", min=1, max=2)] = 2,
    seed: Annotated[int, typer.Option(help="Of selections.", min=0)] = 20260916,
    as_json: AsJson = False,
) -> None:
    """Many requests and rounds without a model: does any table, queue or history grow?"""
    import anyio

    from kvsweep.scenarios.verify.soak import Soak

    with progress("rounds", rounds) as tell:
        run = Soak(requests=requests, rounds=rounds, ranks=ranks, seed=seed, watch=tell)
        result = anyio.run(run.run)
    if as_json:
        answer(result)
    else:
        table = Table(
            "largest size", "first half", "second half", title=f"{result.rounds:,} rounds, {result.lives:,} lives"
        )
        for name, (early, late) in result.sizes.items():
            table.add_row(name, f"{early:,}", f"{late:,}")
        Console().print(table)
    if result.grown:
        fail(f"these have grown: {', '.join(result.grown)}", DATA_FAULT)
