"""What a round of a request costs the serving thread: the coordinator alone, with selecting and planning kernels apart.

Nothing moves here: ranks and producer answer at once, so that what is measured is deciding, folding and handing over.
"""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from msgspec import Struct

from kvsweep.kernels.table import Kernels, choose_kernels, describe
from kvsweep.ledger.ids import Logical, Operation, RequestKey, Rows, int32_bytes, no_rows
from kvsweep.ledger.layout import LayerLayout, Layout
from kvsweep.ledger.messages import (
    Acknowledged,
    BlockSelection,
    Done,
    RegisterSources,
    Release,
    Retain,
    Select,
)
from kvsweep.runtime.core.core import Core
from kvsweep.runtime.core.upload_plan import keep_slots
from kvsweep.runtime.driver import Driver
from kvsweep.runtime.run_config import RunConfig
from kvsweep.runtime.selection import select_blocks
from kvsweep.runtime.settings import Settings

BLOCK_TOKENS = 16
GOAL_US = 150.0
SEED = 20260916
Clock = Literal["wall", "cpu"]
CLOCKS: dict[Clock, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.thread_time}
Watcher: TypeAlias = Callable[[int, int], None]
"""(rounds done, of how many)."""

WARM_ROUNDS = 1
"""Rounds that are run and not counted, after the first upload of the whole selection."""


class Size(Struct, frozen=True, kw_only=True):
    """What is kept of what, and how much of it changes in a round."""

    requests: int = 256
    ranks: int = 2
    layers: int = 32
    kept: int = 256  # blocks a layer
    blocks: int = 2048  # of the sequence
    new: int = 13  # blocks a layer and round: 5 % of what is kept

    def __str__(self) -> str:
        kept = f"{self.layers} x {self.kept:,} of {self.blocks:,}"
        return f"{self.requests} requests, {self.ranks} ranks, {kept}, {self.new} new a layer"


QUICK = Size(requests=3, layers=2, kept=16, blocks=64, new=2)


class Part(Struct, frozen=True, kw_only=True):
    """One part of a round, over all requests and counted rounds. Times are milliseconds a request and round."""

    path: str
    size: str
    ours_ms: float  # median
    p99_ms: float
    peer: str
    peer_ms: float | None
    ratio: float | None  # peer_ms / ours_ms
    limit: str
    limit_ms: float | None
    of_limit: float | None  # limit_ms / ours_ms: 1 and above meets it


class RoundReport(Struct, frozen=True, kw_only=True):
    machine: dict[str, str | int]
    rows: list[Part]


class Lap:
    """Seconds by part, added up while a request's round runs."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.seconds: dict[str, float] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        started = self.clock()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + self.clock() - started


class TimedKernels:
    """Kernels whose planning calls are timed under "plan kernels" and whose ranking calls under "select kernels"."""

    def __init__(self, kernels: Kernels, lap: Lap) -> None:
        self.kernels, self.lap = kernels, lap

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.kernels, name)
        if not callable(found):
            return found
        part = "select kernels" if name.startswith(("rank_", "select_")) else "plan kernels"

        def timed(*arguments: Any, **fields: Any) -> Any:
            with self.lap.part(part):
                return found(*arguments, **fields)

        return timed


class RoundBench:
    """256 requests that select, upload and retain in turn over one driver and a ledger on disk."""

    def __init__(self, size: Size, url: str, *, seed: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.size, self.lap = size, Lap(clock)
        self.rng = np.random.default_rng(seed)
        self.layout = Layout.of(
            model_hash="bench",
            dtype="bfloat16",
            block_size=BLOCK_TOKENS,
            layers=tuple(
                LayerLayout(layer=n, group=0, kind="full", kv_heads=8, head_dim=128) for n in range(size.layers)
            ),
        )
        settings = Settings.of(
            log={"url": url},
            selection={"budget": size.kept / size.blocks, "sink_blocks": 1, "recent_blocks": 2},
            limits={"open_requests": size.requests},
            transfer={"deadline_s": 600.0},
        )
        self.kernels: Any = TimedKernels(choose_kernels(settings.kernels.choice), self.lap)
        self.config = RunConfig(
            layout=self.layout,
            ranks=tuple((rank, 1 + rank) for rank in range(size.ranks)),
            producer_epoch=1,
            device_blocks=(size.requests * (size.kept + 4 * size.new),),
            cpu_full_blocks=size.requests * size.blocks,
            cpu_total_blocks=size.requests * size.blocks,
        )
        self.driver = Driver.open(settings, self.config)
        self.driver.core = Core(settings, state=self.driver.state, kernels=self.kernels)
        self.scores: dict[RequestKey, np.ndarray] = {}
        self.revision = 0

    # ---- the run

    def run(self, rounds: int, watch: Watcher) -> list[Part]:
        """Open every request, upload its selection once, then `rounds` counted rounds."""
        for index in range(self.size.requests):
            self._open(index)
        laps: list[dict[str, float]] = []
        for at in range(-1 - WARM_ROUNDS, rounds):
            watch(at + 1 + WARM_ROUNDS, rounds + 1 + WARM_ROUNDS)
            for key in self.scores:
                self.lap.seconds = {}
                self._round(key)
                if at >= 0:
                    laps.append(dict(self.lap.seconds))
            self.driver.log.flush()  # freed blocks wait for the disk, and here every request comes round at once
            self._take_back()
        self.driver.check_laws()
        return list(self._parts(laps))

    def close(self) -> None:
        self.driver.close()

    def _open(self, index: int) -> None:
        key, size = self.driver.open_request(f"request/{index}"), self.size
        source = np.arange(index * size.blocks, (index + 1) * size.blocks)
        logical = int32_bytes(range(size.blocks))
        self.driver.handle(RegisterSources(request=key, logical=logical, source=int32_bytes(source)))
        self.scores[key] = self.rng.random((size.layers, size.blocks), dtype=np.float32)

    def _round(self, key: RequestKey) -> None:
        """Score, select, upload what is new, keep what is selected."""
        self._churn(key)
        self.revision += 1
        with self.lap.part("select"):
            selection = select_blocks(
                self.scores[key],
                request=key,
                revision=self.revision,
                layout=self.layout,
                policy=self.driver.settings.selection,
                kernels=self.kernels,
                ranked_tail=False,  # every layer has its own table
            )
        with self.lap.part("coordinator"):
            step, _ = self.driver.begin_step([key])
            turn = self.driver.handle(Select(selection=selection, idempotency_key=f"s{self.revision}"))
            self._answer(turn.operation)
            self.driver.end_step(step)
            self._retain(key, selection)

    def _retain(self, key: RequestKey, selection: BlockSelection) -> None:
        request = self.driver.state.requests[key.request_id]
        wanted: Rows[Logical] = selection.logical_blocks_by_layer
        turn = self.driver.handle(
            Retain(
                request=key,
                keep=keep_slots(request, wanted),
                adopt=no_rows(self.layout.active_layers),
                map_revision=request.map_revision,
                selection_revision=selection.selection_revision,
                idempotency_key=f"r{self.revision}",
            )
        )
        self._answer(turn.operation)

    def _answer(self, operation: Operation | None) -> None:
        """Every rank is done, then the producer has heard; what is due is taken, and blocks go back."""
        driver = self.driver
        if operation is None:
            raise LookupError("nothing was started")
        self._take_back()
        for rank, epoch in self.config.ranks:  # each knows its own: nobody asks the coordinator
            driver.handle(Done(operation=operation, rank=rank, process_epoch=epoch, outcome="completed"))
        driver.handle(Acknowledged(operation=operation, process_epoch=self.config.producer_epoch))
        self._take_back()

    def _take_back(self) -> None:
        for effect in self.driver.poll():
            if isinstance(effect, Release):
                self.driver.release(effect)

    def _churn(self, key: RequestKey) -> None:
        """Some of the best fall to the end and as many others rise to the top, in each layer."""
        size, scores = self.size, self.scores[key]
        middle = slice(1, size.blocks - 2)
        order = np.argsort(-scores[:, middle], axis=1) + 1
        best, rest = order[:, : size.kept - 3], order[:, size.kept - 3 :]
        for layer in range(size.layers):
            fall = self.rng.permutation(best[layer])[: size.new]
            rise = self.rng.permutation(rest[layer])[: size.new]
            scores[layer, fall], scores[layer, rise] = scores[layer, rise], scores[layer, fall]

    # ---- what came of it

    def _parts(self, laps: list[dict[str, float]]) -> Iterator[Part]:
        def row(path: str, seconds: list[float], goal_us: float | None = None) -> Part:
            ms = np.asarray(seconds) * 1e3
            median = float(np.median(ms))
            return Part(
                path=path,
                size=str(self.size),
                ours_ms=median,
                p99_ms=float(np.percentile(ms, 99)),
                peer="",
                peer_ms=None,
                ratio=None,
                limit="" if goal_us is None else f"goal {goal_us:g} us",
                limit_ms=None if goal_us is None else goal_us / 1e3,
                of_limit=None if goal_us is None else goal_us / 1e3 / median,
            )

        plan = [lap.get("plan kernels", 0.0) for lap in laps]
        rank = [lap.get("select kernels", 0.0) for lap in laps]
        work = [lap["coordinator"] - planned for lap, planned in zip(laps, plan, strict=True)]
        yield row("coordinator, without kernels", work, GOAL_US)
        yield row("plan kernels", plan)
        yield row("select kernels", rank)
        yield row(
            "select, beside its kernels", [lap["select"] - ranked for lap, ranked in zip(laps, rank, strict=True)]
        )


def run_round_bench(
    size: Size,
    *,
    rounds: int,
    clock: Clock = "wall",
    seed: int = SEED,
    watch: Watcher = lambda done, of: None,
) -> RoundReport:
    """One run on a ledger in a temporary directory, written by its thread.

    clock  wall, or the CPU time of the serving thread: steadier where others use the machine
    """
    with tempfile.TemporaryDirectory(prefix="kvsweep-bench-") as folder:
        bench = RoundBench(size, f"sqlite:{Path(folder) / 'round.ledger'}", seed=seed, clock=CLOCKS[clock])
        try:
            rows = bench.run(rounds, watch)
        finally:
            bench.close()
    machine: dict[str, str | int] = {
        "cores": os.cpu_count() or 0,
        "kernels": describe(bench.kernels.kernels),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "system": f"{platform.system()} {platform.release()}",
        "seed": seed,
        "clock": clock,
        "rounds": rounds,
    }
    return RoundReport(machine=machine, rows=rows)
