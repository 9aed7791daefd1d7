"""Runs one benchmark and shows it: the machine, and a row for every path, size and peer."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from msgspec import Struct
from rich.table import Table

from kvsweep.kernels import KernelArgumentError
from kvsweep.kernels.compiled import ISAS, Isa, NativeKernels
from kvsweep.scenarios.measure.bench import planner, retain, selector, unpack
from kvsweep.scenarios.measure.bench.measure import Case, Clock, Row, one_core, rows_of
from kvsweep.scenarios.measure.bench.moving import Moving

Name = Literal["planner", "selector", "gather", "scatter", "unpack", "retain"]
SEED = 20260916
WIDE = 220
"""Characters that a table of every column needs."""


class Report(Struct, frozen=True, kw_only=True):
    machine: dict[str, str | int]
    rows: list[Row]


def run_bench(
    name: Name, *, rounds: int, quick: bool, threads: int = 1, isa: Isa | None = None, clock: Clock = "wall"
) -> Report:
    """Measure. All times are minima over `rounds` interleaved rounds in this process, pinned to `threads` cores.

    quick  small sizes, to see that it works: its figures say nothing
    clock  wall, or the CPU time of the calling thread: one thread only, for a machine that others use too
    isa    cap on the instruction set; the limits (copy, read) are measured with the same one
    """
    if clock == "cpu" and threads != 1:
        raise KernelArgumentError("clock", "wall where several threads share the work", "cpu")
    native = NativeKernels(threads=threads, isa=isa)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    rows: list[Row] = []
    try:
        with one_core(threads):
            for case in cases(name, native, quick=quick):
                rows += rows_of(case, rounds=rounds, isa=ISAS.index(native.isa), threads=threads, clock=clock)
    finally:
        torch.set_num_threads(before)
    return Report(machine={**machine(native), "clock": clock, "rounds": rounds}, rows=rows)


def cases(name: Name, native: NativeKernels, *, quick: bool) -> Iterator[Case]:
    """The cases of one benchmark, made one after another: each may hold gigabytes."""
    rng = np.random.default_rng(SEED)
    if name == "gather":
        return Moving(native, rng, quick=quick).gathers()
    if name == "scatter":
        return Moving(native, rng, quick=quick).scatters()
    modules = {"planner": planner.cases, "selector": selector.cases, "unpack": unpack.cases, "retain": retain.cases}
    return modules[name](native, rng, quick=quick)


def machine(native: NativeKernels) -> dict[str, str | int]:
    return {
        "processor": _processor(),
        "cores": os.cpu_count() or 0,
        "isa": native.isa,
        "threads": native.threads,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": metadata.version("torch"),
        "system": f"{platform.system()} {platform.release()}",
        "seed": SEED,
    }


def _processor() -> str:
    try:
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


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
