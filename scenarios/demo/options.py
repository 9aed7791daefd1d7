"""What a demo is asked to do: its options, the settings they mean and the prompts they cut from a text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kvsweep.kernels.table import KernelChoice
from kvsweep.ledger.errors import SettingsError
from kvsweep.runtime.settings import Settings
from kvsweep.scenarios.demo.bundle import Bundle
from kvsweep.scenarios.demo.devices import DeviceKind
from kvsweep.scenarios.demo.loop import Scorer
from kvsweep.scenarios.demo.model import DType

DRAFT_TOKENS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """What the demo runs. Sizes in tokens unless they say blocks."""

    prompt_tokens: int = 2048
    tokens: int = 256
    block_size: int = 32
    budget: float = 0.25
    every: int = 16
    selection: Literal["layer", "shared"] = "layer"
    scorer: Scorer = "attention"
    hysteresis: float = 1.0
    retain: Literal["remap", "move"] = "remap"
    pack: Literal["auto", "never"] = "auto"
    source: Literal["source-only", "copy"] = "source-only"
    method: Literal["block", "token"] = "block"
    dtype: DType = "fp32"
    temperature: float = 0.0
    seed: int = 20260916
    rounds: int | None = None
    text: Path | None = None
    synthetic: bool = False
    kernels: KernelChoice = "auto"
    device: DeviceKind = "host"
    requests: int = 1  # with more than one, half of each prompt is shared
    ranks: int = 1
    writer: Literal["inline", "thread"] = "inline"  # of the ledger; a thread's timing makes runs differ
    chaos: int | None = None  # seed of the storm; None is calm weather and a roomy pool


def check_options(options: DemoOptions) -> None:
    """Raises SettingsError naming the option, where a number is outside its range."""
    for name, value, good, expected in (
        ("block-size", options.block_size, options.block_size >= 1, "at least 1 token"),
        ("budget", options.budget, 0 < options.budget <= 1, "a part above 0 and at most 1"),
        ("every", options.every, options.every >= 1, "at least 1 token"),
        ("hysteresis", options.hysteresis, 1 <= options.hysteresis < math.inf, "a finite factor of at least 1"),
        ("temperature", options.temperature, 0 <= options.temperature < math.inf, "0 or a finite number above it"),
        ("rounds", options.rounds, options.rounds is None or options.rounds >= 1, "at least 1 round"),
        ("seed", options.seed, options.seed >= 0, "0 or above"),
        ("requests", options.requests, 1 <= options.requests <= 256, "1 to 256"),
        ("ranks", options.ranks, options.ranks >= 1, "at least 1"),
        ("source", options.source, options.method == "block" or options.source == "copy", "copy with --method token"),
        ("writer", options.writer, options.chaos is None or options.writer == "inline", "inline with --chaos"),
        ("chaos", options.chaos, options.chaos is None or options.chaos >= 0, "a seed of 0 or above"),
    ):
        if not good:
            raise SettingsError(name, expected, str(value))


def settings_of(options: DemoOptions, ledger: str) -> Settings:
    """The coordinator's settings for these options. Raises SettingsError naming the field."""
    return Settings.of(
        log={"url": ledger, "writer": options.writer},
        selection={
            "method": options.method,
            "budget": options.budget,
            "shared": options.selection == "shared",
            "incumbent_factor": options.hysteresis,
        },
        source={
            "kind": "copy" if options.source == "copy" else "source_only",
            "allow_copy": options.source == "copy",
        },
        # On the machine's clock a slow machine must not change what the run does; the storm counts turns.
        transfer={"deadline_s": 600.0 if options.chaos is None else 2.0},
        retain={"layer_tables": options.retain == "remap", "pack": options.pack},
        kernels={"choice": options.kernels},
        seed=options.seed,
    )


def shared_tokens(options: DemoOptions) -> int:
    """Tokens at the start of every prompt that are the same, whole blocks."""
    if options.requests == 1:
        return 0
    return options.prompt_tokens // 2 // options.block_size * options.block_size


def prompts_of(bundle: Bundle, body: str, options: DemoOptions) -> tuple[list[list[int]], int]:
    """(prompt ids of each request, tokens to emit). Raises SettingsError where text or context is too short."""
    context = bundle.model.config.context
    ids = bundle.tokenizer.encode(body)
    shared = shared_tokens(options)
    own = options.prompt_tokens - shared
    most = shared + (len(ids) - shared) // options.requests
    if not 1 <= options.prompt_tokens <= most:
        raise SettingsError(
            "prompt-tokens", f"1 to {most} (the text has {len(ids)} tokens)", str(options.prompt_tokens)
        )
    room = context - options.prompt_tokens - DRAFT_TOKENS - 1
    wanted = options.tokens if options.rounds is None else room
    if not 1 <= wanted <= room:
        raise SettingsError("tokens", f"1 to {room}, what the context of {context} leaves", str(wanted))
    starts = [shared + index * own for index in range(options.requests)]
    return [ids[:shared] + ids[start : start + own] for start in starts], wanted


def configuration_of(options: DemoOptions) -> dict[str, Any]:
    return {
        name: str(value) if isinstance(value, Path) else value
        for name, value in ((field, getattr(options, field)) for field in DemoOptions.__dataclass_fields__)
        if name not in ("kernels", "device")  # recorded apart, and in no digest
    }
