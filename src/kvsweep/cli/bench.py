"""`kvsweep bench`: kernels, ledger and rounds against their peers and limits, as tables."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from kvsweep.cli.terminal import USAGE_FAULT, AsJson, answer, fail, progress
from kvsweep.kernels.errors import KernelArgumentError

if TYPE_CHECKING:
    from kvsweep.scenarios.measure.bench.log import LogReport
    from kvsweep.scenarios.measure.bench.measure import Row
    from kvsweep.scenarios.measure.bench.round import RoundReport
    from kvsweep.scenarios.measure.bench.run import Report

WIDE = 220
"""Characters that a table of every column needs."""


def bench(
    name: Annotated[
        Literal["planner", "selector", "gather", "scatter", "unpack", "retain", "log", "round"],
        typer.Argument(help="Which kernels, the ledger, or a whole round of the coordinator."),
    ],
    rounds: Annotated[int, typer.Option(help="Interleaved rounds; the minimum counts.", min=1)] = 15,
    threads: Annotated[int, typer.Option(help="Of ours and of torch.", min=1, max=64)] = 1,
    isa: Annotated[
        Literal["scalar", "avx2", "avx512"] | None, typer.Option(help="Use no better instruction set than this.")
    ] = None,
    clock: Annotated[
        Literal["wall", "cpu"], typer.Option(help="CPU time is steadier where others use the machine; one thread only.")
    ] = "wall",
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes: shows that it works, measures nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Kernels, ledger and rounds against their peers, the machine's limits or their goals, measured in one run."""
    if name == "log":
        _bench_log(rounds=rounds, quick=quick, clock=clock, as_json=as_json)
        return
    if name == "round":
        _bench_round(rounds=rounds, quick=quick, clock=clock, as_json=as_json)
        return
    try:
        from kvsweep.scenarios.measure.bench.run import run_bench
    except ImportError as error:
        fail(f"bench needs the native kernels and the package's extra 'demo': {error}", USAGE_FAULT)
    try:
        report = run_bench(name, rounds=rounds, quick=quick, threads=threads, isa=isa, clock=clock)
    except KernelArgumentError as error:
        fail(error, USAGE_FAULT)
    if as_json:
        answer(report)
    else:
        console = Console(width=None if sys.stdout.isatty() else WIDE)  # a file has no width
        console.print(report_table(name, report, console.width))


def _bench_round(*, rounds: int, quick: bool, clock: Literal["wall", "cpu"], as_json: bool) -> None:
    from kvsweep.scenarios.measure.bench.round import QUICK, Size, run_round_bench

    with progress("rounds") as tell:
        report = run_round_bench(QUICK if quick else Size(), rounds=rounds, clock=clock, watch=tell)
    if as_json:
        answer(report)
    else:
        Console().print(round_table(report))


def _bench_log(*, rounds: int, quick: bool, clock: Literal["wall", "cpu"], as_json: bool) -> None:
    from kvsweep.scenarios.measure.bench.log import run_log_bench

    with progress("making events") as tell:
        report = run_log_bench(quick=quick, rounds=rounds, clock=clock, progress=lambda step: tell(what=step))
    if as_json:
        answer(report)
    else:
        Console().print(log_table(report))


# ---- tables


def report_table(name: str, report: Report, width: int) -> Table:
    """All columns where they fit into `width` characters, else what the goals are about; --json has everything."""
    columns: dict[str, Callable[[Row], str]] = {
        "path": lambda row: row.path,
        "size": lambda row: row.size,
        "ours ms": lambda row: f"{row.ours_ms:,.4g}",
        "peer": lambda row: row.peer,
        "peer ms": lambda row: f"{row.peer_ms:,.4g}",
        "ratio": lambda row: f"{row.ratio:,.2f}",
        "limit": lambda row: row.limit,
        "of limit": lambda row: f"{row.of_limit:.2f}",
        "memcpy": lambda row: f"{row.memcpy_ms:,.4g}",
        "stream copy": lambda row: f"{row.stream_copy_ms:,.4g}",
        "one read": lambda row: f"{row.read_ms:,.4g}",
        "peak KiB": lambda row: _kib(row.ours_peak_bytes),
        "peer KiB": lambda row: _kib(row.peer_peak_bytes),
    }
    if width < WIDE:
        columns = {title: columns[title] for title in ("path", "size", "ours ms", "peer", "ratio", "of limit")}
    table = Table(*columns, title=f"bench {name}: {', '.join(str(value) for value in report.machine.values())}")
    for row in report.rows:
        table.add_row(*(text(row) for text in columns.values()))
    return table


def _kib(size: int | None) -> str:
    return "?" if size is None else f"{size >> 10:,}"


def round_table(report: RoundReport) -> Table:
    table = Table("part", "size", "median ms", "p99 ms", "limit", "of limit")
    table.title = f"bench round: {', '.join(str(value) for value in report.machine.values())}"
    for row in report.rows:
        of_limit = "" if row.of_limit is None else f"{row.of_limit:.2f}"
        table.add_row(row.path, row.size, f"{row.ours_ms:,.4g}", f"{row.p99_ms:,.4g}", row.limit, of_limit)
    return table


def log_table(report: LogReport) -> Table:
    table = Table("path", "size", "ours ms", "peer", "peer ms", "ratio", "limit", "of limit")
    table.title = f"bench log: {', '.join(str(value) for value in report.machine.values())}"
    for row in report.rows:
        table.add_row(
            row.path,
            row.size,
            f"{row.ours_ms:,.4g}",
            row.peer,
            f"{row.peer_ms:,.4g}",
            f"{row.ratio:,.2f}",
            row.limit,
            f"{row.of_limit:.2f}",
        )
    for name, value in report.figures.items():
        table.add_row(name, "", f"{value:,.4g}", "", "", "", "", "")
    for name, why in report.not_run.items():
        table.add_row("not run", "", "", name, "", "", why, "")
    return table
