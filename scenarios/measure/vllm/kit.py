"""What every check needs: where things are, prompts, how an engine is started, what a result is."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from kvsweep.ledger.inspect.replay import Ledger
from kvsweep.scenarios.demo.text import load_text
from kvsweep.scenarios.demo.tokenizer import BpeTokenizer
from kvsweep.scenarios.demo.weights import ModelFile, find_model_file
from kvsweep.scenarios.measure.vllm.engines import Child
from kvsweep.scenarios.measure.vllm.job import Batch, Engine, Ran

SEED = 20260916


def text_tokens() -> list[int]:
    """The shipped text as token ids of the demo's model. Raises MissingModel where its package is absent."""
    return BpeTokenizer(ModelFile(find_model_file()).vocabulary()).encode(load_text().body)


def prompts(
    tokens: list[int], *, count: int, shortest: int, longest: int, shared: int = 0, groups: int = 1, seed: int = SEED
) -> list[list[int]]:
    """`count` prompts of `shortest` to `longest` tokens, spread evenly over the range and shuffled.

    shared  tokens that every prompt of a group begins with, less than `shortest`
    groups  how many different beginnings there are; prompts take turns
    Raises ValueError for a range that is empty or longer than the text, or a beginning that fills a prompt.
    """
    if not 0 < shortest <= longest <= len(tokens):
        raise ValueError(f"shortest, longest: expected 0 < {shortest} <= {longest} <= {len(tokens)} (the text)")
    if shared >= shortest:
        raise ValueError(f"shared: expected less than the shortest prompt of {shortest} tokens, got {shared}")
    draw = random.Random(seed)
    lengths = [shortest + (longest - shortest) * index // max(count - 1, 1) for index in range(count)]
    draw.shuffle(lengths)

    def stretch(length: int) -> list[int]:
        at = draw.randrange(len(tokens) - length + 1)
        return tokens[at : at + length]

    beginnings = [stretch(shared) for _ in range(groups)]
    return [beginnings[index % groups] + stretch(length - shared) for index, length in enumerate(lengths)]


START_S = 900.0  # a compiled engine of three ranks on two cores takes minutes
BATCH_S = 900.0
FINISH_S = 120.0


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of one check: it holds when no fault is named."""

    name: str
    seconds: float
    faults: list[str]
    figures: dict[str, Any]
    rows: list[tuple[str, str]]  # of the table: what, how much


@dataclass
class Kit:
    """Paths of one run of the script, and the text."""

    python: Path
    script: Path
    folder: Path  # of this run; each engine gets a folder of its own in it
    model: Path
    tiny: Path
    tokens: list[int]  # the shipped text
    said: Callable[[str], None]
    paths: tuple[Path, ...] = ()
    module: str | None = None
    kept: dict[str, Ran] = field(default_factory=dict)  # runs of stock that several checks compare with

    def child(self, engine: Engine) -> Child:
        """Start an engine. Raises EngineFailed."""
        return Child(self.python, self.script, engine, self.folder / engine.name, paths=self.paths, start_s=START_S)

    def engine(self, name: str, *, connector: dict[str, Any] | None = None, **shape: Any) -> Engine:
        """An engine over the demo's model; with `connector` it writes a ledger and a summary into its folder."""
        if connector is not None:
            place = self.folder / name
            connector = {"ledger": f"sqlite:{place}/ledger.db", "summary": f"{place}/summary.json"} | connector
        return Engine(
            **{"model": str(self.model), "module": self.module, "connector": connector} | shape | {"name": name}
        )

    def run(self, engine: Engine, *batches: Batch) -> list[Ran]:
        """Start it, run the batches, shut it down. Raises EngineFailed."""
        self.said(f"  {engine.name}")
        with self.child(engine) as child:
            ran = [child.run(batch, BATCH_S) for batch in batches]
            child.finish(FINISH_S)
        return ran

    def summary(self, engine: Engine) -> dict[str, Any]:
        """What the connector of an engine that has ended wrote."""
        text = (self.folder / engine.name / "summary.json").read_text(encoding="utf-8")
        found: dict[str, Any] = json.loads(text)
        return found

    def replay_faults(self, engine: Engine, summary: dict[str, Any]) -> list[str]:
        """Fold the engine's ledger from its first event; it has to give the digest that the engine had at its end."""
        with Ledger.open(str((engine.connector or {})["ledger"])) as ledger:
            verified = ledger.verify()
            found = [*committed_twice(ledger), *kept_beyond_budget(ledger)]
        if not verified.ok:
            return [f"the ledger does not verify: {verified.message} at {verified.position}"]
        if verified.digest != summary["digest"]:
            return [f"the ledger replays to {verified.digest}, the engine ended at {summary['digest']}"]
        return found


def committed_twice(ledger: Ledger) -> list[str]:
    """Operations that were committed more than once, a sentence each."""
    seen: set[tuple[Any, ...]] = set()
    found = []
    for record in ledger.events(types=("ResidencyCommitted", "OwnersCommitted")):
        event: Any = record.event
        key = (event.request, event.operation.operation_id, type(event).__name__)
        if key in seen:
            found.append(f"operation {event.operation.operation_id} of {event.request} was committed twice")
        seen.add(key)
    return found


def kept_beyond_budget(ledger: Ledger) -> list[str]:
    """Views that keep more blocks of a layer than the selection before them granted, a sentence each."""
    granted: dict[Any, int] = {}
    found = []
    for record in ledger.events(types=("BlocksSelected", "RetainPlanned")):
        event: Any = record.event
        if type(event).__name__ == "BlocksSelected":
            granted[event.request] = event.effective_budget_blocks
        elif (most := int(max(event.keep.counts))) > granted[event.request]:
            found.append(f"{event.request} keeps {most} blocks, granted were {granted[event.request]}")
    return found


def granted_most(ledger: Ledger, *, budget: float, least: int) -> tuple[int, list[str]]:
    """The most blocks that a selection was granted, and those that were granted more than the budget says.

    budget  part of the whole blocks; at `least` that many blocks (the protected ones) are granted in any case
    """
    most, found = 0, []
    for record in ledger.events(types=("BlocksSelected",)):
        event: Any = record.event
        most = max(most, event.effective_budget_blocks)
        bound = max(int(budget * event.whole_blocks), min(least, event.whole_blocks))
        if event.effective_budget_blocks > bound:
            found.append(f"{event.request} was granted {event.effective_budget_blocks} of {event.whole_blocks} blocks")
    return most, found
