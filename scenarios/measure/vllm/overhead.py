"""What the connector costs a step that it changes nothing in: stock and `full` policy take turns."""

from __future__ import annotations

from typing import Any, Final

from kvsweep.scenarios.measure.vllm.job import Batch
from kvsweep.scenarios.measure.vllm.judge import decode_step, median_interval
from kvsweep.scenarios.measure.vllm.kit import BATCH_S, FINISH_S, Kit, prompts

PAIRS: Final = 12
GOAL: Final = 1.05
REQUESTS: Final = 16
TOKENS: Final = 48


def check_overhead(kit: Kit, pairs: int = PAIRS) -> tuple[list[str], dict[str, Any], list[tuple[str, str]]]:
    """Two engines stand at once and one of them is stopped; each pair is one batch of each, in turns of order.

    The figure is the ratio of a pair's median decode steps. A missed goal is said and is no fault: a busy machine
    would make it one.
    """
    asked = Batch(prompts=prompts(kit.tokens, count=REQUESTS, shortest=33, longest=96), tokens=TOKENS)
    shape: dict[str, Any] = {"blocks": 256, "context": 256, "requests": REQUESTS, "logprobs": None}
    stock = kit.engine("overhead-stock", **shape)
    ours = kit.engine("overhead-full", connector={"mode": "compact", "policy": "full"}, **shape)
    kit.said(f"  {stock.name} and {ours.name}, {pairs} pairs")
    steps: dict[str, list[float]] = {stock.name: [], ours.name: []}
    seconds: dict[str, list[float]] = {stock.name: [], ours.name: []}
    with kit.child(stock) as first:
        first.run(asked, BATCH_S)  # the first batch touches memory that later ones find
        first.pause()
        with kit.child(ours) as second:
            second.run(asked, BATCH_S)
            second.pause()
            for pair in range(pairs):
                for child in (first, second) if pair % 2 == 0 else (second, first):
                    ran = child.run(asked, BATCH_S)
                    child.pause()
                    steps[child.engine.name].append(decode_step(ran, REQUESTS))
                    seconds[child.engine.name].append(ran.seconds)
            second.finish(FINISH_S)
        first.finish(FINISH_S)
    summary = kit.summary(ours)
    found, whole = (
        median_interval([mine / theirs for theirs, mine in zip(one[stock.name], one[ours.name], strict=True)])
        for one in (steps, seconds)
    )
    medians = {name: median_interval(values) for name, values in steps.items()}
    figures = {
        "ratio": found,
        "step_s": medians,
        "steps_s": steps,
        "batch_ratio": whole,
        "summary": summary,
        "goal": GOAL,
    }
    rows = [
        (f"{name}: median step, 16 requests", f"{one.median * 1e3:.1f} ms ({one.low * 1e3:.1f}–{one.high * 1e3:.1f})")
        for name, one in medians.items()
    ]
    met = "met" if found.median <= GOAL else "MISSED"
    rows.append(
        (f"full policy over stock, {pairs} pairs", f"{found.median:.3f} ({found.low:.3f}–{found.high:.3f}), goal {met}")
    )
    rows += [
        ("the whole batch, prefill and every step of it", f"{whole.median:.3f} ({whole.low:.3f}–{whole.high:.3f})"),
        ("meanwhile: commits, blocks given back", f"{summary['commits']:,}, {summary['released_blocks']:,}"),
    ]
    return kit.replay_faults(ours, summary), figures, rows
