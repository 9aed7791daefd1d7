"""Runs one benchmark of kernels: the machine, and a row for every path, size and peer."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from msgspec import Struct

from kvsweep.kernels import KernelArgumentError
from kvsweep.kernels.compiled import ISAS, Isa, NativeKernels
from kvsweep.scenarios.measure.bench import planning, unpack
from kvsweep.scenarios.measure.bench.measure import Case, Clock, Row, one_core, rows_of
from kvsweep.scenarios.measure.bench.moving import Moving

Name = Literal["planner", "selector", "gather", "scatter", "unpack", "retain"]
SEED = 20260916


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
    made = {
        "planner": planning.planner_cases,
        "selector": planning.selector_cases,
        "retain": planning.retain_cases,
        "unpack": unpack.cases,
    }
    return made[name](native, rng, quick=quick)


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
