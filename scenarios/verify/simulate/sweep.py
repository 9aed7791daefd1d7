"""Many seeds, each run twice, over a few processes; the first failure is shrunk to a scenario file."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from kvsweep.scenarios.verify.script.expectations import SITUATIONS
from kvsweep.scenarios.verify.script.format import Script
from kvsweep.scenarios.verify.script.load import dump
from kvsweep.scenarios.verify.simulate.draw import random_script
from kvsweep.scenarios.verify.simulate.judge import judge_twice, judged, law_of
from kvsweep.scenarios.verify.simulate.shrink import TRIES, shrink

SOMETIMES: Final = tuple(SITUATIONS)
"""All that a scenario can name."""


ENOUGH_SEEDS = 2000
"""From this many seeds on, every situation must have been reached by one of them."""
FAILED_KEPT = 64


class Failure(Struct, frozen=True, kw_only=True):
    """The first seed that failed, in the order of seeds.

    broken    every broken law, the first one first
    scenario  file of the shrunk scenario
    steps     of it
    """

    seed: int
    broken: tuple[str, ...]
    scenario: str
    steps: int
    faults: int
    tries: int


class SweepResult(Struct, frozen=True, kw_only=True):
    """What `kvsweep simulate --json` shows.

    events      of one run of each seed; `events_per_s` counts both
    situations  seeds that reached it, by name
    failed      at most 64 seeds, ascending
    """

    start: int
    seeds: int
    jobs: int
    failed: tuple[int, ...]
    failures: int
    seconds: float
    seeds_per_s: float
    events: int
    events_per_s: float
    situations: dict[str, int]
    missing: tuple[str, ...]
    first_failure: Failure | None = None

    @property
    def passed(self) -> bool:
        """No seed failed; and where there were enough of them, every situation was reached."""
        return not self.failures and not (self.seeds >= ENOUGH_SEEDS and self.missing)


def sweep(
    seeds: range, *, jobs: int = 1, out: Path | None = None, watch: Callable[[int], None] = lambda done: None
) -> SweepResult:
    """Run every seed twice. Raises OSError where the scenario of a failure cannot be written.

    jobs   processes
    out    folder of the shrunk scenario; None: the current one
    watch  is told how many seeds are done
    """
    started = time.perf_counter()
    situations = dict.fromkeys(SOMETIMES, 0)
    failed: list[int] = []
    events = failures = 0
    for done, one in enumerate(judged(seeds, jobs), 1):
        events += one.events
        for name in one.situations:
            situations[name] += 1
        if one.broken:
            failures += 1
            failed = sorted([*failed, one.seed])[:FAILED_KEPT]
        watch(done)
    seconds = time.perf_counter() - started
    return SweepResult(
        start=seeds.start,
        seeds=len(seeds),
        jobs=jobs,
        failed=tuple(failed),
        failures=failures,
        seconds=round(seconds, 3),
        seeds_per_s=round(len(seeds) / seconds, 2),
        events=events,
        events_per_s=round(2 * events / seconds, 1),
        situations=situations,
        missing=tuple(name for name, seen in situations.items() if not seen),
        first_failure=explain(failed[0], out) if failed else None,
    )


def explain(seed: int, out: Path | None, *, tries: int = TRIES) -> Failure:
    """Shrink the scenario of a seed that fails and write it beside. Raises OSError."""
    script = random_script(seed)
    broken = judge_twice(script).broken
    laws = {law_of(one) for one in broken}

    def fails(smaller: Script) -> bool:
        return bool(laws & {law_of(one) for one in judge_twice(smaller).broken})

    small, tries = shrink(script, fails, tries=tries)
    path = (out or Path()) / f"seed-{seed}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    found = replace(small, title=f"Failure of seed {seed}", about="; ".join(broken[:3]))
    path.write_text(dump(found), encoding="utf-8")
    return Failure(
        seed=seed, broken=broken, scenario=str(path), steps=len(small.step), faults=len(small.fault), tries=tries
    )
