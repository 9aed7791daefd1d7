"""The goals of a run on a GPU: which row has to reach which ratio. A simulation meets none and misses none."""

from __future__ import annotations

import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from kvsweep.kernels.cuda.api import CudaDriver
from kvsweep.scenarios.evidence import source_hashes
from kvsweep.scenarios.measure.gpu.bandwidth import measure, missing_peers
from kvsweep.scenarios.measure.gpu.bench import SEED, Bench
from kvsweep.scenarios.measure.gpu.correct import check_kernels
from kvsweep.scenarios.measure.gpu.graph import check_graph


@dataclass(frozen=True, slots=True)
class Goal:
    """The ratio of every row of this path and peer whose size ends like this, at least; or microseconds, at most."""

    path: str
    peer: str
    size: str = ""
    least_ratio: float | None = None
    most_us: float | None = None

    def judge(self, rows: list[dict[str, Any]], *, simulated: bool) -> dict[str, Any]:
        """{"goal", "measured", "met"}; met is None where nothing was measured."""
        found = [
            row
            for row in rows
            if row["path"] == self.path and row["peer"] == self.peer and row["size"].endswith(self.size)
        ]
        figure = "ours_us" if self.most_us is not None else "ratio"
        measured = [] if simulated else [row[figure] for row in found]
        if self.most_us is not None:
            text, met = f"at most {self.most_us} us", all(value <= self.most_us for value in measured)
        else:
            text, met = (
                f"at least {self.least_ratio} of {self.peer}",
                all(value >= (self.least_ratio or 0) for value in measured),
            )
        size = f", {self.size.strip()}" if self.size else ""
        return {"goal": f"{self.path}{size}: {text}", "measured": measured, "met": met if measured else None}


GOALS = (
    Goal("scatter", "device copy", " 8 KiB", least_ratio=0.70),
    *(Goal("scatter", "device copy", f" {size} KiB", least_ratio=0.85) for size in (16, 32, 64)),
    Goal("one launch", "a launch a layer", least_ratio=3.0),
    Goal("move", "device copy", least_ratio=0.80),
    Goal("move", "gather and scatter", least_ratio=1.7),
    Goal("unpack and scatter", "plain scatter", least_ratio=0.80),
    Goal("remap", "device copy", most_us=6.0),
    *(Goal("pull", "one large pinned copy", f" {size} KiB", least_ratio=0.80) for size in (8, 16)),
    *(Goal("pull", "batched copy engine", f" {size} KiB", least_ratio=5.0) for size in (8, 16)),
    Goal("pull", "batched copy engine", " 64 KiB", least_ratio=0.90),
)


def judge(rows: list[dict[str, Any]], *, simulated: bool) -> list[dict[str, Any]]:
    """Every goal with what was measured for it."""
    return [goal.judge(rows, simulated=simulated) for goal in GOALS]


SectionName = Literal["kernels", "graph", "demo", "bandwidth", "memcheck", "racecheck"]
SECTIONS: tuple[SectionName, ...] = ("kernels", "graph", "demo", "bandwidth", "memcheck", "racecheck")
LIBRARIES = ("numpy", "torch", "cupy-cuda12x", "cupy-cuda13x")
SANITIZER_SECONDS = 90


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one section. results: its records; none where it was not run."""

    status: Literal["passed", "failed", "not run"]
    why: str = ""
    results: Any = None


@dataclass
class Check:
    """What is run, on which driver.

    again    command that runs this check anew, for the tools that watch a process; empty where there is none
    seconds  after which no further section is begun
    """

    driver: CudaDriver
    folder: Path
    small: bool = False
    sections: Sequence[SectionName] = SECTIONS
    again: Sequence[str] = ()
    seconds: float = 240.0
    clock: Callable[[], float] = time.monotonic
    said: Callable[[str], None] = field(default=lambda line: None)

    def run(self) -> dict[str, Any]:
        """The record: machine, sections with their results, goals, and everything that was not run."""
        started = self.clock()
        bench = Bench(self.driver, self.small)
        found: dict[str, Any] = {}
        for name in SECTIONS:
            begun = self.clock()
            outcome = self._one(name, bench, begun - started)
            found[name] = {
                "status": outcome.status,
                "why": outcome.why,
                "seconds": round(self.clock() - begun, 1),
                "results": outcome.results,
            }
            self.said(f"{name}: {outcome.status}{f' ({outcome.why})' if outcome.why else ''}")
        rows = found["bandwidth"]["results"] or []
        return {
            "title": "what was checked and measured on a GPU",
            "device": self.driver.name,
            "simulated": bench.simulated,
            "multiprocessors": self.driver.multiprocessors,
            "seed": SEED,
            "versions": _versions(),
            "sources_sha256": source_hashes(),
            "sections": found,
            "goals": judge(rows, simulated=bench.simulated),
            "not_run": [
                *(f"{name}: {one['why']}" for name, one in found.items() if one["status"] == "not run"),
                *(missing_peers() if rows else []),
            ],
            "passed": all(one["status"] != "failed" for one in found.values()),
        }

    def _one(self, name: SectionName, bench: Bench, elapsed: float) -> Outcome:
        if name not in self.sections:
            return Outcome("not run", "not asked for")
        if elapsed > self.seconds:
            return Outcome("not run", f"{self.seconds:.0f} seconds were over")
        try:
            if name in ("memcheck", "racecheck"):
                return self._watched(name)
            return _judged(self._results(name, bench))
        except Exception as error:  # noqa: BLE001 - one section's end is written down and the next one begins
            return Outcome("failed", f"{type(error).__name__}: {error}")
        finally:
            if name not in ("memcheck", "racecheck"):
                bench.clear()

    def _results(self, name: SectionName, bench: Bench) -> list[dict[str, Any]] | Outcome:
        if name == "kernels":
            return check_kernels(bench)
        if name == "graph":
            return check_graph(bench)
        if name == "bandwidth":
            return measure(bench)
        try:
            from kvsweep.scenarios.measure.gpu.whole import check_whole
        except ImportError as error:
            return Outcome("not run", f"the demo's libraries are missing: {error}")
        return check_whole(self.driver, self.folder, small=self.small)

    def _watched(self, tool: str) -> Outcome:
        """The kernels at small sizes in a process that compute-sanitizer watches."""
        program = shutil.which("compute-sanitizer")
        if program is None:
            return Outcome("not run", "compute-sanitizer is not installed")
        if not self.again:
            return Outcome("not run", "no GPU to watch")
        record = self.folder / f"{tool}.json"
        command = [program, "--tool", tool, "--error-exitcode", "9", *self.again]
        command += ["--only", "kernels", "--small", "--record", str(record)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SANITIZER_SECONDS)
        except subprocess.TimeoutExpired:
            return Outcome("not run", f"it took more than {SANITIZER_SECONDS} seconds")
        tail = (done.stdout + done.stderr).strip().splitlines()[-12:]
        if done.returncode == 9:
            return Outcome("failed", "it reports errors", tail)
        if done.returncode or not record.exists():
            return Outcome("not run", f"it does not run here (exit code {done.returncode})", tail)
        return Outcome("passed", results=tail)


def _judged(results: list[dict[str, Any]] | Outcome) -> Outcome:
    if isinstance(results, Outcome):
        return results
    wrong = [record for record in results if not record.get("equal", True)]
    return Outcome("failed", f"{len(wrong)} records differ", results) if wrong else Outcome("passed", results=results)


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
