"""One scenario run twice: everything that must hold in every run, and that both runs were the same."""

from __future__ import annotations

from msgspec import Struct

from kvsweep.scenarios.verify.script.format import Script
from kvsweep.scenarios.verify.script.run import run_script
from kvsweep.scenarios.verify.script.verdict import Verdict

SAME_TWICE = "a seed gives one run"


class Judged(Struct, frozen=True, kw_only=True):
    """What the runs of one seed came to. `broken` is empty where all is well; its entries name the law first."""

    seed: int
    broken: tuple[str, ...]
    situations: tuple[str, ...]
    events: int  # of one run


def judge_twice(script: Script) -> Judged:
    """Run it twice: digest and unseed must agree. A draw or an order that hangs on something else shows there."""
    first, second = run_script(script), run_script(script)
    broken = list(first.broken)
    if _identity(first) != _identity(second):
        broken.append(f"{SAME_TWICE}: expected {_identity(first)}, got {_identity(second)}")
    return Judged(seed=script.seed, broken=tuple(broken), situations=tuple(first.reached), events=first.events)


def _identity(verdict: Verdict) -> tuple[str, int, int]:
    return verdict.digest, verdict.unseed, verdict.turns


def law_of(broken: str) -> str:
    """Name of the law that a line of `broken` speaks of."""
    return broken.partition(":")[0].partition(" (turn ")[0]
