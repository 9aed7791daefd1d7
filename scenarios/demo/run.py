"""Acknowledged positions, a line each, on a file descriptor: what a harness compares with the ledger after a kill."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import anyio
import torch

from kvsweep.kernels.table import describe
from kvsweep.ledger.errors import LogError, SettingsError
from kvsweep.ledger.store.log import Position
from kvsweep.runtime.clock import MachineClock, TurnClock
from kvsweep.runtime.driver import Driver
from kvsweep.runtime.recovery import newer
from kvsweep.runtime.run_config import RunConfig
from kvsweep.runtime.settings import Settings
from kvsweep.runtime.stores import open_store
from kvsweep.scenarios.demo.attention import ContiguousKv
from kvsweep.scenarios.demo.bundle import Bundle, load_smollm2, load_synthetic
from kvsweep.scenarios.demo.devices import MakeDevice, choose_device
from kvsweep.scenarios.demo.fleet import YIELDS_PER_STEP, Fleet
from kvsweep.scenarios.demo.loop import Session
from kvsweep.scenarios.demo.model import Model
from kvsweep.scenarios.demo.options import (
    DRAFT_TOKENS,
    DemoOptions,
    check_options,
    configuration_of,
    prompts_of,
    settings_of,
    shared_tokens,
)
from kvsweep.scenarios.demo.result import DemoResult, Run, model_of, not_run, result_of
from kvsweep.scenarios.demo.sampling import Sampler
from kvsweep.scenarios.demo.stack import Stack, kernels_of, layout_of, run_config_of
from kvsweep.scenarios.demo.text import load_text
from kvsweep.scenarios.demo.weather import Storm, links
from kvsweep.scenarios.evidence import evidence


class AckPipe:
    """Watcher of a log. Called by the one thread that stores; a descriptor that nobody reads holds that thread up."""

    def __init__(self, descriptor: int) -> None:
        """Raises SettingsError for a descriptor that is not open."""
        try:
            os.fstat(descriptor)
        except (OSError, OverflowError) as error:
            raise SettingsError("ack-fd", "an open file descriptor", str(descriptor)) from error
        self._descriptor = descriptor
        self._last: Position = 0
        self.broken: str | None = None  # why positions could not be written any more

    def __call__(self, durable: Position) -> None:
        lines = "".join(f"{position}\n" for position in range(self._last + 1, durable + 1)).encode()
        self._last = durable
        if self.broken is None:
            try:
                while lines:
                    lines = lines[os.write(self._descriptor, lines) :]
            except OSError as error:
                self.broken = str(error)

    def check(self) -> None:
        """Raise SettingsError where positions are missing on the descriptor."""
        if self.broken is not None:
            raise SettingsError("ack-fd", "a file descriptor that takes every acknowledged position", self.broken)


CHECKS = (
    "tokens equal plain decoding (fp32)",
    "no law of the state is broken at the end",
    "no lease, fence or quarantine is left and every block is free again",
)
Watcher = Callable[[str, int, int], None]
"""(what is under way, done, of how many)."""


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
    device: tuple[MakeDevice, str] | None = None,
    turns_per_step: int = YIELDS_PER_STEP,
    go_on: bool = False,
    watch: Watcher = lambda what, done, of: None,
) -> DemoResult:
    """Run once and compare with plain decoding.

    ledger   a log url of a ledger that does not exist yet
    go_on    take one that exists: what its run has left under way is settled, its requests end, and new lives begin
    command  recorded as evidence
    bundle   a model that is loaded already, of the options' dtype; None loads the one that the options name
    ack_fd   open file descriptor that gets every acknowledged position as a line
    device   how a rank's device is made, and what it is in words; None makes what the options name
    turns_per_step  of the event loop, that copies get beside each step. With so many that all of them end, the order of
                    events, and with it the digest, is the same on every device
    Raises the errors of loading and settings; each is one sentence.
    """
    check_options(options)
    make_device, device_name = device or choose_device(options.device)
    acks = None if ack_fd is None else AckPipe(ack_fd)
    settings = settings_of(options, ledger)
    clock, seconds = time.perf_counter, {}
    started = clock()
    watch("loading the model", 0, 1)
    if bundle is None:
        bundle = load_synthetic(options.seed, options.dtype) if options.synthetic else load_smollm2(options.dtype)
    text = load_text(options.text)
    prompts, limit = prompts_of(bundle, text.body, options)
    seconds["load"] = clock() - started
    layout = layout_of(bundle.model.config, model_hash=bundle.sha256 or "synthetic", block_size=options.block_size)
    layout.shard(0, options.ranks)  # refuses more ranks than KV heads before anything is written
    config = run_config_of(
        layout,
        tokens=len(prompts[0]) + limit + DRAFT_TOKENS + 1,
        settings=settings,
        requests=options.requests,
        ranks=options.ranks,
        tight=options.chaos is not None,
    )
    parts = ", ".join(filter(None, (describe(kernels_of(settings)), device_name)))
    driver = _open(options, settings, config, bundle, command, parts, acks, go_on=go_on)
    started = clock()
    try:
        stack, fleet, storm = anyio.run(
            _decode, driver, make_device, bundle.model, options, prompts, limit, turns_per_step, watch
        )
        on_gpu = device is None and options.device == "cuda"
        run = Run(stack=stack, fleet=fleet, storm=storm, parts=parts, on_gpu=on_gpu)
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
    return result_of(options, bundle, text.source, driver, run, plain, ledger, seconds)


def _open(
    options: DemoOptions,
    settings: Settings,
    config: RunConfig,
    bundle: Bundle,
    command: list[str],
    parts: str,
    acks: AckPipe | None,
    *,
    go_on: bool,
) -> Driver:
    """The driver on a new ledger, or on one that is gone on with."""
    log = open_store(settings)
    try:
        if log.durable() and not go_on:
            found = f"{settings.log.url}: expected a new ledger, found one with events"
            raise LogError(f"{found}; give another path, or --go-on")
        config = newer(config, log)
    except BaseException:
        log.close()
        raise
    if acks is not None:
        log.watch(acks)
    return Driver.open(
        settings,
        config,
        evidence=evidence(
            command=command,
            seed=options.seed,
            configuration=configuration_of(options),
            model=model_of(bundle),
            checks=CHECKS,
            not_run=not_run(options),
        ),
        kernels=parts,
        log=log,
        deadlines=MachineClock() if options.chaos is None else TurnClock(),
    )


async def _decode(
    driver: Driver,
    make_device: MakeDevice,
    model: Model,
    options: DemoOptions,
    prompts: list[list[int]],
    limit: int,
    turns_per_step: int,
    watch: Watcher,
) -> tuple[Stack, Fleet, Storm | None]:
    chaos = None if options.chaos is None else links(options.chaos)
    async with Stack(driver, chaos=chaos, make_device=make_device) as stack:
        await _end_earlier_lives(stack)
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
            shared_tokens=shared_tokens(options),
            rounds=options.rounds,
            weather=storm,
            turns_per_step=turns_per_step,
            on_step=stepped,
        )
        await fleet.run()
    return stack, fleet, storm


async def _end_earlier_lives(stack: Stack) -> None:
    """Whose tokens ended with an earlier process, its requests have nobody left who wants their blocks."""
    kv, requests = stack.kv, stack.driver.state.requests
    for request in requests.values():
        if request.life not in ("FINISHING", "CLOSED"):
            kv.finish(request.key)
    await kv.until(lambda: all(one.life == "CLOSED" for one in stack.driver.state.requests.values()))


def _status(fleet: Fleet) -> str:
    live = sum(member.session.progress.live_blocks for member in fleet.members)
    owned = sum(member.session.progress.owned_blocks for member in fleet.members)
    return f"round {fleet.rounds_done}: {live} blocks live, {owned} owned"


def _expect_free(driver: Driver) -> None:
    """Nothing may be held when the last request has closed: every reserved block has come back."""
    run = driver.state.pool.run
    free = driver.pools.device.free
    if run is None or free != run.device_blocks or driver.pools.cpu.free[0] != run.cpu_full_blocks:
        raise RuntimeError(f"blocks did not come back: free {free}, {driver.pools.cpu.free}")
