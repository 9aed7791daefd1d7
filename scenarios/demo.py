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

from kvsweep.ledger.errors import SettingsError
from kvsweep.runtime.clock import MachineClock, TurnClock
from kvsweep.runtime.driver import Driver, open_store
from kvsweep.runtime.settings import Settings
from kvsweep.scenarios.ack import AckPipe
from kvsweep.scenarios.engine.attention import ContiguousKv
from kvsweep.scenarios.engine.bundle import Bundle, load_smollm2, load_synthetic
from kvsweep.scenarios.engine.fleet import Fleet
from kvsweep.scenarios.engine.loop import Scorer, Session
from kvsweep.scenarios.engine.model import DType, Model
from kvsweep.scenarios.engine.sampling import Sampler
from kvsweep.scenarios.engine.text import load_text
from kvsweep.scenarios.engine.weather import Storm, links
from kvsweep.scenarios.evidence import evidence
from kvsweep.scenarios.stack import Stack, layout_of, world_of

DRAFT_TOKENS = 4
REQUEST_ID = "demo/0"

CHECKS = (
    "tokens equal plain decoding (fp32)",
    "no law of the state is broken at the end",
    "no lease, fence or quarantine is left and every block is free again",
)
NOT_RUN = (
    "native extension",
    "GPU transfer",
    "shared-memory race",
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
    requests: int = 1  # with more than one, half of each prompt is shared
    ranks: int = 1
    writer: Literal["inline", "thread"] = "inline"  # of the ledger; a thread's timing makes runs differ
    chaos: int | None = None  # seed of the storm; None is calm weather and a roomy pool


class DemoResult(Struct, frozen=True, kw_only=True):
    """The closing figures; every one was counted or measured in this run."""

    tokens: dict[str, list[int]]  # by request
    text: str  # of the first request
    lossless: bool
    first_difference: str | None  # request and index of the first token that differs from plain decoding
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
    not_run: list[str]
    requests: int
    ranks: int
    shared_blocks: int  # prompt blocks that were attached instead of computed
    preemptions: int
    refused: dict[str, int]  # rounds that ended early, by reason
    storm: dict[str, int]  # what the chaos did, counted
    held_at_end: dict[str, int]  # leases, fences, quarantine, shared; all 0 in a sound run
    free_at_end: list[int]  # device blocks a group


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
        ("requests", options.requests, 1 <= options.requests <= 256, "1 to 256"),
        ("ranks", options.ranks, options.ranks >= 1, "at least 1"),
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
    ack_fd: int | None = None,
    watch: Watcher = lambda what, done, of: None,
) -> DemoResult:
    """Run once and compare with plain decoding.

    ledger   a log url of a ledger that does not exist yet
    command  recorded as evidence
    bundle   a model that is loaded already, of the options' dtype; None loads the one that the options name
    ack_fd   open file descriptor that gets every acknowledged position as a line
    Raises the errors of loading and settings; each is one sentence.
    """
    check_options(options)
    acks = None if ack_fd is None else AckPipe(ack_fd)
    settings = settings_of(options, ledger)
    clock, seconds = time.perf_counter, {}
    started = clock()
    watch("loading the model", 0, 1)
    if bundle is None:
        bundle = load_synthetic(options.seed, options.dtype) if options.synthetic else load_smollm2(options.dtype)
    text = load_text(options.text)
    prompts, limit = _prompts(bundle, text.body, options)
    seconds["load"] = clock() - started
    layout = layout_of(bundle.model.config, model_hash=bundle.sha256 or "synthetic", block_size=options.block_size)
    layout.shard(0, options.ranks)  # refuses more ranks than KV heads before anything is written
    world = world_of(
        layout,
        tokens=len(prompts[0]) + limit + DRAFT_TOKENS + 1,
        settings=settings,
        requests=options.requests,
        ranks=options.ranks,
        tight=options.chaos is not None,
    )
    log = open_store(settings)
    if acks is not None:
        log.watch(acks)
    driver = Driver.open(
        settings,
        world,
        evidence=evidence(
            command=command,
            seed=options.seed,
            configuration=_configuration(options),
            model=_model(bundle),
            checks=CHECKS,
            not_run=_not_run(options),
        ),
        log=log,
        deadlines=MachineClock() if options.chaos is None else TurnClock(),
    )
    started = clock()
    try:
        run = anyio.run(_decode, driver, bundle.model, options, prompts, limit, watch)
        driver.check_laws()
        _expect_free(driver)
    finally:
        driver.close()
    if acks is not None:
        acks.check()
    seconds["compacted decoding"] = clock() - started
    started = clock()
    plain = {}
    for member, prompt in zip(run.fleet.members, prompts, strict=True):
        name = member.session.key.request_id
        sampler = Sampler(temperature=options.temperature, seed=options.seed, request_id=name)
        plain[name] = plain_tokens(bundle.model, prompt, len(member.session.emitted), sampler, watch)
    seconds["plain decoding"] = clock() - started
    return _result(options, bundle, text.source, driver, run, plain, ledger, seconds)


def _shared_tokens(options: DemoOptions) -> int:
    """Tokens at the start of every prompt that are the same, whole blocks."""
    if options.requests == 1:
        return 0
    return options.prompt_tokens // 2 // options.block_size * options.block_size


def _prompts(bundle: Bundle, body: str, options: DemoOptions) -> tuple[list[list[int]], int]:
    """(prompt ids of each request, tokens to emit). Raises SettingsError where text or context is too short."""
    context = bundle.model.config.context
    ids = bundle.tokenizer.encode(body)
    shared = _shared_tokens(options)
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


@dataclass(frozen=True)
class _Run:
    """What is looked at when everything has settled."""

    stack: Stack
    fleet: Fleet
    storm: Storm | None


async def _decode(
    driver: Driver, model: Model, options: DemoOptions, prompts: list[list[int]], limit: int, watch: Watcher
) -> _Run:
    async with Stack(driver, chaos=None if options.chaos is None else links(options.chaos)) as stack:
        storm = None if options.chaos is None else Storm(stack, options.chaos)
        sessions = [
            Session(
                stack,
                model,
                Sampler(temperature=options.temperature, seed=options.seed, request_id=f"demo/{index}"),
                request_id=f"demo/{index}",
                prompt=prompt,
                scorer=options.scorer,
                every=options.every,
                draft_tokens=DRAFT_TOKENS,
            )
            for index, prompt in enumerate(prompts)
        ]

        def stepped(fleet: Fleet) -> None:
            if options.rounds is None:
                done = sum(min(len(member.session.emitted), limit) for member in fleet.members)
                watch(_status(fleet), done, limit * len(fleet.members))
            else:
                watch(_status(fleet), fleet.rounds_done, options.rounds)

        watch("prefill", 0, 1)
        fleet = Fleet(
            stack,
            [(session, limit) for session in sessions],
            shared_tokens=_shared_tokens(options),
            rounds=options.rounds,
            weather=storm,
            on_step=stepped,
        )
        await fleet.run()
    return _Run(stack=stack, fleet=fleet, storm=storm)


def _status(fleet: Fleet) -> str:
    live = sum(member.session.progress.live_blocks for member in fleet.members)
    owned = sum(member.session.progress.owned_blocks for member in fleet.members)
    return f"round {fleet.rounds_done}: {live} blocks live, {owned} owned"


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


def _counted(stack: Stack) -> dict[str, int]:
    """Under the metrics' names: what went through each memory, whatever operation it was for."""
    shards = [shard.traffic for shard in stack.producer.shards]
    devices = [node.memory.traffic for node in stack.nodes]
    return {
        "cpu_gather_bytes": stack.producer.cpu_gather_bytes,
        "cpu_destination_blocks": stack.producer.cpu_destination_blocks,
        "h2d_bytes": sum(shard.read_bytes for shard in shards),
        "unpack_bytes": sum(device.written_bytes for device in devices),
        "d2h_bytes": sum(device.read_bytes for device in devices),
        "resident_moved_bytes": sum(device.moved_bytes for device in devices),
    }


def _held(driver: Driver) -> dict[str, int]:
    """What is held when everything should be free again, by what it is."""
    state = driver.state
    kinds = [holder.kind for holders in state.ownership.held.values() for holder in holders]
    settling = sum(len(request.settling) for request in state.requests.values())
    return {
        "leases": kinds.count("src"),
        "fences": kinds.count("fence"),
        "quarantine": settling,
        "shared": len(state.pool.prefixes),
    }


def _not_run(options: DemoOptions) -> list[str]:
    """What this run leaves unproven (J2)."""
    left = list(NOT_RUN)
    if options.ranks == 1:
        left.append("several ranks")
    if options.requests == 1:
        left.append("several requests")
    if options.chaos is None:
        left.append("faults (delayed, duplicated or failed messages)")
    return left


METRICS = (
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


def _result(
    options: DemoOptions,
    bundle: Bundle,
    source: str,
    driver: Driver,
    run: _Run,
    plain: dict[str, list[int]],
    ledger: str,
    seconds: dict[str, float],
) -> DemoResult:
    metrics, pool = driver.metrics, driver.state.pool
    sessions = [member.session for member in run.fleet.members]
    progress = [session.progress for session in sessions]
    verifies = sum(one.verifies for one in progress)
    tokens = {session.key.request_id: session.emitted for session in sessions}
    differs = [
        f"{name}, token {at}"
        for name, ours in tokens.items()
        for at, (one, other) in enumerate(zip(ours, plain[name], strict=True))
        if one != other
    ]
    refused: dict[str, int] = {}
    for one in progress:
        for reason, count in one.refused.items():
            refused[reason] = refused.get(reason, 0) + count
    return DemoResult(
        tokens=tokens,
        text=bundle.tokenizer.decode(sessions[0].emitted),
        lossless=not differs,
        first_difference=differs[0] if differs else None,
        accepted_per_verify=(sum(one.accepted for one in progress) - verifies) / verifies if verifies else 0.0,
        verifies=verifies,
        rounds=sum(one.rounds for one in progress),
        metrics={name: getattr(metrics, name) for name in METRICS},
        counted=_counted(run.stack),
        physical_blocks_released=metrics.physical_blocks_released,
        remap=metrics.remap,
        owned_blocks_max=max(one.owned_blocks_max for one in progress),
        owned_blocks=sum(one.owned_blocks for one in progress),
        live_blocks=max(one.live_blocks for one in progress),
        vacant_areas=sum(one.vacant_areas for one in progress),
        device_blocks=list(pool.run.device_blocks) if pool.run else [],
        adopted_areas=metrics.adopted_areas,
        uploaded_areas=metrics.uploaded_areas,
        model=_model(bundle),
        source=source,
        seed=options.seed,
        ledger=ledger.partition(":")[2] or ledger,
        events=driver.events,
        digest=driver.final_digest,
        seconds=seconds,
        not_run=_not_run(options),
        requests=options.requests,
        ranks=options.ranks,
        shared_blocks=sum(one.shared_blocks for one in progress),
        preemptions=sum(one.preemptions for one in progress),
        refused=refused,
        storm=dict(run.storm.done) if run.storm else {},
        held_at_end=_held(driver),
        free_at_end=list(driver.pools.device.free),
    )
