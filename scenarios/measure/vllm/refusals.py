"""What the start-up refuses, and that it does so in one sentence that names what differs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final

from kvsweep.scenarios.measure.vllm.engines import EngineFailed
from kvsweep.scenarios.measure.vllm.job import Batch, Engine
from kvsweep.scenarios.measure.vllm.kit import FINISH_S, Kit

LONGEST: Final = 600  # characters of a sentence

# name: what is given to the engine, and the words that its refusal has to say.
SETTINGS: Final[dict[str, tuple[dict[str, Any], tuple[str, ...]]]] = {
    "unknown setting": ({"budgit": 0.5}, ("budgit",)),
    "budget of 0": ({"mode": "compact", "budget": 0.0}, ("budget", "0")),
    "budget of text": ({"mode": "compact", "budget": "half"}, ("budget", "float", "half")),
    "unknown policy": ({"mode": "compact", "policy": "random"}, ("policy", "random")),
    "hysteresis below 1": ({"mode": "compact", "hysteresis": 0.5}, ("hysteresis",)),
    "policy in lossless mode": ({"mode": "lossless", "policy": "quest"}, ("policy", "lossless", "quest")),
    "ledger of no kind": ({"ledger": "paper:x"}, ("log.url", "paper:x")),
}
ENGINES: Final[dict[str, tuple[dict[str, Any], tuple[str, ...]]]] = {
    "another vLLM": ({"version": "0.33.0"}, ("0.32", "0.33.0")),
    "a producer only": ({"role": "kv_producer"}, ("kv_role", "kv_both", "kv_producer")),
}


def sliding_model(tiny: Path, folder: Path) -> Path:
    """The tiny model once more, as one whose layers see 64 tokens."""
    shutil.copytree(tiny, folder)
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config |= {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 64}
    path.write_text(json.dumps(config), encoding="utf-8")
    return folder


def check_refusals(kit: Kit) -> tuple[list[str], dict[str, Any], list[tuple[str, str]]]:
    """Each has to end the start with the connector's own sentence; the engine next door, without them, has to start."""
    small: dict[str, Any] = {"model": str(kit.tiny), "tokenizer": False, "blocks": 32, "context": 256, "requests": 2}
    wanted = {
        **{name: ({"connector": given}, words) for name, (given, words) in SETTINGS.items()},
        **{name: ({"connector": {}} | given, words) for name, (given, words) in ENGINES.items()},
        "a sliding window": (
            {"connector": {}, "model": str(sliding_model(kit.tiny, kit.folder / "sliding"))},
            ("sliding window", "64"),
        ),
    }
    faults: list[str] = []
    figures: dict[str, Any] = {}
    rows: list[tuple[str, str]] = []
    for name, (given, words) in wanted.items():
        engine = kit.engine(f"refusal-{name.replace(' ', '-')}", **(small | given))
        sentence, found = refusal(kit, engine, words)
        figures[name] = sentence
        rows.append((name, sentence))
        faults += [f"{name}: {one}" for one in found]
    engine = kit.engine("refusal-none", connector={}, **small)
    with kit.child(engine) as child:
        child.run(Batch(prompts=[list(range(1, 70))], tokens=4), FINISH_S)
        child.finish(FINISH_S)
    rows.append(("none of them", "starts"))
    return faults, figures, rows


def refusal(kit: Kit, engine: Engine, words: tuple[str, ...]) -> tuple[str, list[str]]:
    """What the start said, and what is wrong with it."""
    kit.said(f"  {engine.name}")
    try:
        with kit.child(engine):
            return "started", ["expected a refusal, but it started"]
    except EngineFailed as error:
        said, kind = error.fault.message, error.fault.type
    lacking = [word for word in words if word not in said]
    found = [f"says nothing of {', '.join(lacking)}: {said!r}"] if lacking else []
    if kind in ("TimeoutExpired", "ProcessEnded"):
        found.append(f"ended without a sentence: {kind}")
    if "got Expected" in said or "got Invalid" in said or "got Object" in said:
        found.append(f"names no value that came: {said!r}")  # the decoder's own words in place of the value
    if len(said) > LONGEST or "\n" in said.strip():
        found.append(f"is no single sentence: {len(said)} characters, {said.count(chr(10))} line breaks")
    return said, found
