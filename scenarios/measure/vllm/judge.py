"""What two runs of the same prompts say about each other, and what the connector's own summary says. Pure."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from kvsweep.scenarios.measure.vllm.job import Ran, Token

MARGIN = 1e-3  # nats; where stock's own best two are closer, the last bits of a sum decide
# Declared beforehand, for fp32: what a logprob may differ by under the same attention, and under approximate attention.
SAME_ATTENTION = 1e-3
APPROXIMATE = 1.0


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The first place at which two outputs of one request part."""

    request: int
    position: int
    stock: int
    ours: int
    gap: float  # of stock's own best two there, nats

    @property
    def counts(self) -> bool:
        """Whether it is a fault; below the margin either token is as good an answer."""
        return self.gap > MARGIN


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of two runs. Behind an excused difference the prefixes differ: those positions are not compared."""

    positions: int
    equal: int
    excused: list[Difference]
    wrong: list[Difference]
    not_compared: int
    largest_logprob_delta: float  # over the positions compared, nats


def compare(stock: Ran, ours: Ran) -> Compared:
    """Token by token. Raises ValueError where the runs have other requests or lengths."""
    excused: list[Difference] = []
    wrong: list[Difference] = []
    equal = skipped = 0
    largest = 0.0
    for request, (theirs, mine) in enumerate(zip(stock.outputs, ours.outputs, strict=True)):
        if len(theirs) != len(mine):
            raise ValueError(f"outputs[{request}]: expected {len(theirs)} tokens, got {len(mine)}")
        for position, (a, b) in enumerate(zip(theirs, mine, strict=True)):
            if a.id != b.id:
                found = Difference(request=request, position=position, stock=a.id, ours=b.id, gap=a.gap)
                (wrong if found.counts else excused).append(found)
                skipped += len(theirs) - position - 1
                break
            equal += 1
            delta = abs(a.logprob - b.logprob)
            largest = delta if math.isnan(delta) else max(largest, delta)
    return Compared(
        positions=sum(map(len, stock.outputs)),
        equal=equal,
        excused=excused,
        wrong=wrong,
        not_compared=skipped,
        largest_logprob_delta=largest,
    )


class Deltas(msgspec.Struct, frozen=True, kw_only=True):
    """Logprobs of the same forced tokens in two runs: stock's full attention, and what the other run read."""

    positions: int
    top1_agreement: float  # part of the positions at which both have the same best token
    mean: float  # of |difference| of the forced token's logprob, nats
    p95: float
    largest: float
    beyond: float  # part of the positions with more than `tolerance`
    tolerance: float
    overlap: float  # mean part of the probability of stock's best few that the other run gives them too, at least
    skipped: int  # positions that were left out


def deltas(stock: Ran, other: Ran, *, tolerance: float, skip: int = 0) -> Deltas:
    """Compare teacher-forced runs; the first `skip` tokens of each request are left out.

    Raises ValueError where the forced tokens differ or a logprob is no number.
    """
    pairs = [
        (a, b)
        for theirs, mine in zip(stock.outputs, other.outputs, strict=True)
        for a, b in list(zip(theirs, mine, strict=True))[skip:]
    ]
    if not pairs:
        raise ValueError(f"skip: expected less than the tokens of a request, got {skip}")
    off = [abs(a.logprob - b.logprob) for a, b in pairs]
    for (a, b), value in zip(pairs, off, strict=True):
        if a.id != b.id:
            raise ValueError(f"outputs: expected the same forced tokens, got {a.id} and {b.id}")
        if not math.isfinite(value):
            raise ValueError(f"logprob of token {a.id}: expected numbers, got {a.logprob} and {b.logprob}")
    return Deltas(
        positions=len(pairs),
        top1_agreement=sum(a.first == b.first for a, b in pairs) / len(pairs),
        mean=statistics.fmean(off),
        p95=sorted(off)[math.ceil(0.95 * len(off)) - 1],
        largest=max(off),
        beyond=sum(value > tolerance for value in off) / len(off),
        tolerance=tolerance,
        overlap=statistics.fmean(_overlap(a, b) for a, b in pairs),
        skipped=sum(map(len, stock.outputs)) - len(pairs),
    )


FEW = 5


def _overlap(a: Token, b: Token) -> float:
    """A token that is not among the other run's best counts as if it had no probability there."""
    best = sorted(a.top.items(), key=lambda item: -item[1])[:FEW]
    both = sum(min(math.exp(value), math.exp(b.top.get(token, -math.inf))) for token, value in best)
    return both / sum(math.exp(value) for _, value in best)


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """A median with the interval that holds the true one in 95 of 100 such measurements."""

    median: float
    low: float
    high: float
    count: int


def median_interval(values: Sequence[float], *, draws: int = 4000, seed: int = 1) -> Interval:
    """Median and percentile-bootstrap interval. Raises ValueError for fewer than 5 values."""
    if len(values) < 5:
        raise ValueError(f"values: expected at least 5, got {len(values)}")
    draw = random.Random(seed)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(draws))
    low, high = medians[math.floor(0.025 * draws)], medians[math.ceil(0.975 * draws) - 1]
    return Interval(median=statistics.median(values), low=low, high=high, count=len(values))


def decode_step(ran: Ran, requests: int) -> float:
    """Median seconds of the steps that gave a token to each of `requests` requests; NaN where there was none.

    The step that ends a prefill gives tokens too: it is the longest of them, and no median.
    """
    seconds = [took for tokens, took in ran.steps if tokens == requests]
    return statistics.median(seconds) if seconds else math.nan


def summary_faults(summary: Mapping[str, Any], *, released: bool, commits: int) -> list[str]:
    """What the connector's summary shows to be wrong, a sentence each.

    released  whether blocks have to have gone back to vLLM's pool while their requests ran
    commits   how many there have to be at least
    """
    found = []
    if summary["commits"] < commits:
        found.append(f"commits: expected at least {commits}, got {summary['commits']}")
    if summary["checksums"]["checked"] == 0 and commits:
        found.append("checksums: expected some, got none")
    if summary["checksums"]["wrong"]:
        found.append(f"checksums: {summary['checksums']['wrong']} of {summary['checksums']['checked']} are wrong")
    if released and summary["released_blocks"] == 0:
        found.append("released_blocks: expected blocks that went back to vLLM's pool, got 0")
    if summary["held_blocks"]:
        found.append(f"held_blocks: expected none at the end, got {summary['held_blocks']}")
    if summary["pending"]:
        found.append(f"pending: expected nothing at the end, got {list(summary['pending'])[:3]}")
    return found


def pool_faults(ran: Ran) -> list[str]:
    """Blocks of vLLM's own pool that did not come back, and an engine that found no rest."""
    found = []
    if ran.free_before != ran.free_after:
        found.append(f"vLLM's pool: {ran.free_before} blocks were free before, {ran.free_after} are after")
    if ran.idle_steps > 200:
        found.append(f"the engine took {ran.idle_steps} steps to rest after its last request")
    return found
