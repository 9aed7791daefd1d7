"""The demo: one request on a real model, compacted round after round, compared with plain decoding token by token."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import anyio
import torch
from msgspec import Struct

from kvsweep.kernels.table import KernelChoice, describe
from kvsweep.ledger.errors import SettingsError
from kvsweep.runtime.coordinator import Coordinator
from kvsweep.runtime.driver import Driver
from kvsweep.runtime.settings import Settings
from kvsweep.scenarios.engine.attention import ContiguousKv
from kvsweep.scenarios.engine.bundle import Bundle, load_smollm2, load_synthetic
from kvsweep.scenarios.engine.loop import Scorer, Session
from kvsweep.scenarios.engine.model import DType, Model
from kvsweep.scenarios.engine.sampling import Sampler
from kvsweep.scenarios.engine.text import load_text
from kvsweep.scenarios.evidence import evidence
from kvsweep.scenarios.stack import coordinator_of, kernels_of, layout_of, world_of

DRAFT_TOKENS = 4
REQUEST_ID = "demo/0"

CHECKS = (
    "tokens equal plain decoding (fp32)",
    "no law of the state is broken at the end",
    "no lease, fence or quarantine is left and every block is free again",
)
NOT_RUN = (
    "GPU transfer",
    "shared-memory race",
    "several ranks",
    "several requests",
    "faults (delayed, duplicated or lost messages)",
)


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
    dtype: DType = "fp32"
    temperature: float = 0.0
    seed: int = 20260916
    rounds: int | None = None
    text: Path | None = None
    synthetic: bool = False
    kernels: KernelChoice = "auto"


class DemoResult(Struct, frozen=True, kw_only=True):
    """The closing figures; every one was counted or measured in this run."""

    tokens: list[int]
    text: str
    lossless: bool
    first_difference: int | None  # index of the first token that differs from plain decoding
    accepted_per_verify: float
    verifies: int
    rounds: int
    metrics: dict[str, int | float]
    counted: dict[str, int]  # by the memories and the producer themselves, apart from what operations reported
    physical_blocks_released: int
    remap: dict[str, int]
    owned_blocks_max: int
    owned_blocks: int  # at the end of decoding
    live_blocks: int  # largest per-layer count of the last view
    vacant_areas: int
    device_blocks: list[int]
    adopted_areas: int
    uploaded_areas: int
    model: dict[str, Any]
    source: str  # of the text
    seed: int
    ledger: str
    events: int
    digest: str
    seconds: dict[str, float]  # measured; not part of the digest
    kernels: str  # what copied, ranked and planned; the digest is the same with either
    not_run: list[str]


Watcher = Callable[[str, int, int], None]
"""(what is under way, done, of how many)."""


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
    ):
        if not good:
            raise SettingsError(name, expected, str(value))


def settings_of(options: DemoOptions, ledger: str) -> Settings:
    """The coordinator's settings for these options. Raises SettingsError naming the field."""
    return Settings.of(
        log={"url": ledger},
        selection={
            "budget": options.budget,
            "shared": options.selection == "shared",
            "incumbent_factor": options.hysteresis,
        },
        source={
            "kind": "copy" if options.source == "copy" else "source_only",
            "allow_copy": options.source == "copy",
        },
        transfer={"deadline_s": 600.0},  # a slow machine must not change what the run does
        retain={"layer_tables": options.retain == "remap", "pack": options.pack},
        kernels={"choice": options.kernels},
        seed=options.seed,
    )


def plain_tokens(model: Model, prompt: list[int], count: int, sampler: Sampler, watch: Watcher) -> list[int]:
    """Plain decoding, one token at a time over a contiguous cache: what the demo's output must equal."""
    cache = ContiguousKv(model.config, len(prompt) + count)
    logits = model.forward(torch.tensor(prompt), torch.arange(len(prompt)), cache, logits_for=slice(-1, None))
    tokens = [sampler.sample(logits[0])]
    while len(tokens) < count:
        at = torch.tensor([len(prompt) + len(tokens) - 1])
        logits = model.forward(torch.tensor([tokens[-1]]), at, cache)
        tokens.append(sampler.sample(logits[0]))
        watch("plain decoding, to compare", len(tokens), count)
    return tokens


def run_demo(
    options: DemoOptions,
    *,
    ledger: str,
    command: list[str],
    bundle: Bundle | None = None,
    watch: Watcher = lambda what, done, of: None,
) -> DemoResult:
    """Run once and compare with plain decoding.

    ledger   a log url of a ledger that does not exist yet
    command  recorded as evidence
    bundle   a model that is loaded already, of the options' dtype; None loads the one that the options name
    Raises the errors of loading and settings; each is one sentence.
    """
    check_options(options)
    settings = settings_of(options, ledger)
    clock, seconds = time.perf_counter, {}
    started = clock()
    watch("loading the model", 0, 1)
    if bundle is None:
        bundle = load_synthetic(options.seed, options.dtype) if options.synthetic else load_smollm2(options.dtype)
    text = load_text(options.text)
    prompt, limit = _prompt(bundle, text.body, options)
    seconds["load"] = clock() - started
    layout = layout_of(bundle.model.config, model_hash=bundle.sha256 or "synthetic", block_size=options.block_size)
    driver = Driver.open(
        settings,
        world_of(layout, tokens=len(prompt) + limit + DRAFT_TOKENS + 1, settings=settings),
        evidence=evidence(
            command=command,
            seed=options.seed,
            configuration=_configuration(options),
            model=_model(bundle),
            checks=CHECKS,
            not_run=NOT_RUN,
        ),
        kernels=describe(kernels_of(settings)),
    )
    started = clock()
    try:
        kv = coordinator_of(driver)
        session = anyio.run(_decode, kv, bundle.model, options, prompt, limit, watch)
        driver.check_laws()
        _expect_free(driver)
    finally:
        driver.close()
    seconds["compacted decoding"] = clock() - started
    started = clock()
    sampler = Sampler(temperature=options.temperature, seed=options.seed, request_id=REQUEST_ID)
    plain = plain_tokens(bundle.model, prompt, len(session.emitted), sampler, watch)
    seconds["plain decoding"] = clock() - started
    return _result(options, bundle, text.source, kv, session, plain, ledger, seconds)


def _prompt(bundle: Bundle, body: str, options: DemoOptions) -> tuple[list[int], int]:
    """(prompt ids, tokens to emit). Raises SettingsError where text or context is too short."""
    context = bundle.model.config.context
    ids = bundle.tokenizer.encode(body)
    if not 1 <= options.prompt_tokens <= len(ids):
        raise SettingsError("prompt-tokens", f"1 to {len(ids)}, the tokens of the text", str(options.prompt_tokens))
    room = context - options.prompt_tokens - DRAFT_TOKENS - 1
    wanted = options.tokens if options.rounds is None else room
    if not 1 <= wanted <= room:
        raise SettingsError("tokens", f"1 to {room}, what the context of {context} leaves", str(wanted))
    return ids[: options.prompt_tokens], wanted


async def _decode(
    kv: Coordinator, model: Model, options: DemoOptions, prompt: list[int], limit: int, watch: Watcher
) -> Session:
    async with kv:
        session = Session(
            kv,
            model,
            Sampler(temperature=options.temperature, seed=options.seed, request_id=REQUEST_ID),
            request_id=REQUEST_ID,
            prompt=prompt,
            scorer=options.scorer,
            every=options.every,
            draft_tokens=DRAFT_TOKENS,
        )
        watch("prefill", 0, 1)
        session.prefill()

        def stepped(_: int) -> None:
            if options.rounds is None:
                watch(_status(session), min(len(session.emitted), limit), limit)
            else:
                watch(_status(session), session.progress.rounds, options.rounds)

        await session.generate(limit, rounds=options.rounds, on_step=stepped)
        kv.finish(session.key)
        await kv.settled()
    return session


def _status(session: Session) -> str:
    progress = session.progress
    return f"round {progress.rounds}: {progress.live_blocks} blocks live, {progress.owned_blocks} owned"


def _expect_free(driver: Driver) -> None:
    """Nothing may be held when the only request has closed: every reserved block has come back."""
    run = driver.state.pool.run
    free = driver.pools.device.free
    if run is None or free != run.device_blocks or driver.pools.cpu.free[0] != run.cpu_full_blocks:
        raise RuntimeError(f"blocks did not come back: free {free}, {driver.pools.cpu.free}")


def _configuration(options: DemoOptions) -> dict[str, Any]:
    return {
        name: str(value) if isinstance(value, Path) else value
        for name, value in ((field, getattr(options, field)) for field in DemoOptions.__dataclass_fields__)
        if name != "kernels"  # recorded apart, and in no digest
    }


def _model(bundle: Bundle) -> dict[str, Any]:
    config = bundle.model.config
    return {
        "name": config.name,
        "file": bundle.path.name if bundle.path else None,
        "sha256": bundle.sha256,
        "layers": len(config.layers),
        "kv_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "dtype": config.dtype,
    }


def _counted(kv: Coordinator) -> dict[str, int]:
    """Under the metrics' names: what went through each memory, whatever operation it was for."""
    cpu, devices = kv.producer.memory.traffic, [device.memory.traffic for device in kv.devices]
    return {
        "cpu_gather_bytes": kv.producer.cpu_gather_bytes,
        "cpu_destination_blocks": kv.producer.cpu_destination_blocks,
        "h2d_bytes": cpu.read_bytes,
        "unpack_bytes": sum(device.written_bytes for device in devices),
        "d2h_bytes": sum(device.read_bytes for device in devices),
        "resident_moved_bytes": sum(device.moved_bytes for device in devices),
    }


def _result(
    options: DemoOptions,
    bundle: Bundle,
    source: str,
    kv: Coordinator,
    session: Session,
    plain: list[int],
    ledger: str,
    seconds: dict[str, float],
) -> DemoResult:
    driver = kv.driver
    metrics, progress, emitted = driver.metrics, session.progress, session.emitted
    differs = [at for at, (ours, theirs) in enumerate(zip(emitted, plain, strict=True)) if ours != theirs]
    run = driver.state.pool.run
    return DemoResult(
        tokens=emitted,
        text=bundle.tokenizer.decode(emitted),
        lossless=not differs,
        first_difference=differs[0] if differs else None,
        accepted_per_verify=progress.accepted_per_verify,
        verifies=progress.verifies,
        rounds=progress.rounds,
        metrics={
            name: getattr(metrics, name)
            for name in (
                "cpu_gather_bytes",
                "cpu_destination_blocks",
                "h2d_bytes",
                "unpack_bytes",
                "d2h_bytes",
                "resident_moved_bytes",
                "packed_bytes",
                "table_updates",
                "metadata_bytes",
                "plan_s",
                "wait_s",
            )
        },
        counted=_counted(kv),
        physical_blocks_released=metrics.physical_blocks_released,
        remap=metrics.remap,
        owned_blocks_max=progress.owned_blocks_max,
        owned_blocks=progress.owned_blocks,
        live_blocks=progress.live_blocks,
        vacant_areas=progress.vacant_areas,
        device_blocks=list(run.device_blocks) if run else [],
        adopted_areas=metrics.adopted_areas,
        uploaded_areas=metrics.uploaded_areas,
        model=_model(bundle),
        source=source,
        seed=options.seed,
        ledger=ledger.partition(":")[2] or ledger,
        events=driver.events,
        digest=driver.final_digest,
        seconds=seconds,
        kernels=describe(kernels_of(driver.settings)),
        not_run=[*NOT_RUN, *(["native extension"] if kernels_of(driver.settings).name == "numpy" else [])],
    )
