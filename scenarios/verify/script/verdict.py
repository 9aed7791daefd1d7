"""What a run of a scenario comes to."""

from __future__ import annotations

from msgspec import Struct


class Verdict(Struct, frozen=True, kw_only=True):
    """Passed when no law is broken, every step ended as written, every figure is as expected and nothing is missing.

    broken   "law: what is wrong", the first of each law with the turn at which it was seen
    missing  situations that were expected and not reached
    ledger   where the facts are kept; None: only in memory, and gone
    unseed   one more draw of the run's generator at its end: equal runs have equal ones
    """

    title: str
    seed: int
    passed: bool
    broken: list[str]
    missing: list[str]
    ledger: str | None
    digest: str
    unseed: int
    events: int
    turns: int
    reached: list[str]  # situations
    figures: dict[str, int]
