"""Compact mode: what attention over a kept set does to the model's word, and what it frees."""

from __future__ import annotations

import statistics
from typing import Any, Final

from kvsweep.ledger.inspect.replay import Ledger
from kvsweep.scenarios.measure.vllm.job import Batch, Engine, Ran
from kvsweep.scenarios.measure.vllm.judge import (
    APPROXIMATE,
    SAME_ATTENTION,
    decode_step,
    deltas,
    pool_faults,
    summary_faults,
)
from kvsweep.scenarios.measure.vllm.kit import Kit, granted_most, prompts

TOP: Final = 20  # logprobs of each position
QUALITY: Final[dict[str, Any]] = {"blocks": 400, "context": 1024, "requests": 8, "chunked": 512, "logprobs": TOP}
QUALITY_TOKENS: Final = 96
CAPACITY: Final[dict[str, Any]] = {"blocks": 97, "context": 512, "requests": 16, "chunked": 512}
CAPACITY_TOKENS: Final = 192
BUDGETS: Final = (0.5, 0.25)
INTERVAL: Final = 16  # engine steps between two rounds of a request
WARM_UP: Final = 16  # tokens of each request that are not compared: its first round may still be under way
SINK, RECENT = 1, 2  # blocks

# name, settings; `full` keeps everything: it shows what the tables alone change
VARIANTS: Final[dict[str, dict[str, Any]]] = {
    "full": {"policy": "full"},
    **{
        f"{policy} {budget:.0%} {tables}": {"policy": policy, "budget": budget, "tables": tables}
        for policy, tables in (("recency", "shared"), ("quest", "layer"), ("quest", "shared"))
        for budget in BUDGETS
    },
}


def settings(given: dict[str, Any]) -> dict[str, Any]:
    """The connector's settings of a variant."""
    return {"mode": "compact", "interval": INTERVAL, "sink": SINK, "recent": RECENT} | given


def check_quality(kit: Kit) -> tuple[list[str], dict[str, Any], list[tuple[str, str]]]:
    """Stock decodes greedily; every variant is then forced to say the same tokens, and its logprobs are compared."""
    given = prompts(kit.tokens, count=8, shortest=256, longest=704)
    (stock,) = kit.run(kit.engine("quality-stock", **QUALITY), Batch(prompts=given, tokens=QUALITY_TOKENS))
    forced = [[token.id for token in one] for one in stock.outputs]
    faults: list[str] = []
    figures: dict[str, Any] = {}
    rows: list[tuple[str, str]] = []
    for name, variant in VARIANTS.items():
        engine = kit.engine(f"quality-{slug(name)}", connector=settings(variant), **QUALITY)
        (ours,) = kit.run(engine, Batch(prompts=given, tokens=QUALITY_TOKENS, forced=forced))
        summary, exact = kit.summary(engine), variant["policy"] == "full"
        tolerance, skip = (SAME_ATTENTION, 0) if exact else (APPROXIMATE, WARM_UP)
        found = deltas(stock, ours, tolerance=tolerance, skip=skip)
        figures[name] = {"deltas": found, "summary": summary}
        faults += [f"{name}: {one}" for one in common_faults(kit, engine, ours, summary, exact=exact)]
        if exact and found.beyond:
            faults.append(f"{name}: logprobs differ by up to {found.largest:.2g} although nothing is dropped")
        if not exact and found.mean == 0.0:
            faults.append(f"{name}: logprobs are stock's own: attention read everything")
        rows.append(
            (
                f"{name}: top-1 agreement, overlap; Δ mean, p95, largest, over {found.tolerance:g}",
                f"{found.top1_agreement:.1%}, {found.overlap:.1%}; {found.mean:.2g}, {found.p95:.2g}, "
                f"{found.largest:.2g}, {found.beyond:.1%} of {found.positions}",
            )
        )
        rows.append((f"{name}: {RESIDENT}", resident(summary, ours)))
    rows.append(("stock: blocks of the pool in use while decoding", f"{in_use(stock):.0f}"))
    return faults, figures, rows


def check_capacity(kit: Kit) -> tuple[list[str], dict[str, Any], list[tuple[str, str]]]:
    """Sixteen requests grow in a pool that takes their prompts and not their ends: how often vLLM has to preempt.

    Where prompts fill the pool, vLLM lets requests wait instead, and what is given back lets more of them in.
    """
    given = prompts(kit.tokens, count=16, shortest=48, longest=144)
    asked = Batch(prompts=given, tokens=CAPACITY_TOKENS)
    (stock,) = kit.run(kit.engine("capacity-stock", **CAPACITY), asked)
    figures: dict[str, Any] = {"stock": numbers(stock)}
    rows = [("stock: preemptions, steps, seconds", words(stock))]
    faults = [] if stock.preemptions else ["stock: expected preemptions in this pool, got none"]
    for budget in BUDGETS:
        name = f"quest {budget:.0%}"
        variant = {"policy": "quest", "budget": budget, "tables": "shared"}
        engine = kit.engine(f"capacity-{slug(name)}", connector=settings(variant), **CAPACITY)
        (ours,) = kit.run(engine, asked)
        summary = kit.summary(engine)
        figures[name] = {**numbers(ours), "summary": summary}
        rows += [
            (f"{name}: preemptions, steps, seconds", words(ours)),
            (f"{name}: {RESIDENT}", resident(summary, ours)),
        ]
        faults += [f"{name}: {one}" for one in common_faults(kit, engine, ours, summary, exact=False)]
        if ours.preemptions >= stock.preemptions:
            faults.append(f"{name}: {ours.preemptions} preemptions, stock has {stock.preemptions}: no capacity gained")
    return faults, figures, rows


def common_faults(kit: Kit, engine: Engine, ours: Ran, summary: dict[str, Any], *, exact: bool) -> list[str]:
    """What must hold in every compact run: pool, checksums, ledger, and no more resident than was granted.

    A keep leaves at most the grant in any layer. Between an upload and its keep a view has what it had and what came:
    twice the grant. (What a request owns includes its prompt until the first commit, so that has no such bound.)
    """
    found = [*pool_faults(ours), *summary_faults(summary, released=True, commits=1)]
    found += kit.replay_faults(engine, summary)
    if exact:
        return found
    connector = engine.connector or {}
    with Ledger.open(connector["ledger"]) as ledger:
        most, beyond = granted_most(ledger, budget=connector["budget"], least=SINK + RECENT)
    for what, times in (("kept_blocks_max", 1), ("resident_blocks_max", 2)):
        if summary[what] > times * most:
            found.append(f"{what}: expected at most {times * most} ({times} times the grant), got {summary[what]}")
    return found + beyond


def numbers(ran: Ran) -> dict[str, Any]:
    """What the capacity of a run comes to."""
    return {
        "preemptions": ran.preemptions,
        "steps": len(ran.steps),
        "seconds": ran.seconds,
        "running_at_most": max(count for count, _ in ran.steps),
        "decode_step_s": decode_step(ran, max(count for count, _ in ran.steps)),
    }


def words(ran: Ran) -> str:
    return f"{ran.preemptions}, {len(ran.steps)}, {ran.seconds:.0f}"


RESIDENT: Final = "blocks given back, most resident in a layer, in use while decoding"


def resident(summary: dict[str, Any], ran: Ran) -> str:
    return f"{summary['released_blocks']:,}, {summary['resident_blocks_max']}, {in_use(ran):.0f}"


def in_use(ran: Ran) -> float:
    """Mean blocks of vLLM's pool that were not free, over the steps in which every request got a token."""
    most = max(count for count, _ in ran.steps)
    used = [
        (ran.free_before or 0) - left for (count, _), left in zip(ran.steps, ran.free, strict=True) if count == most
    ]
    return statistics.fmean(used)


def slug(name: str) -> str:
    """A folder's name."""
    return name.replace("%", "").replace(" ", "-")
