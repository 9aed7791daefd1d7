"""`kvsweep soak`: many requests and rounds without a model, to see that nothing grows.

Every request opens, writes random KV, selects at random with some inertia, uploads, retains, grows its tail, ends and
begins a new life. Sizes of every table, queue and history are sampled; a flat one is as large at the end as early on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import anyio
import anyio.lowlevel
import numpy as np
import numpy.typing as npt
from msgspec import Struct

from kvsweep.ledger.errors import PoolExhausted
from kvsweep.ledger.ids import RequestKey
from kvsweep.ledger.layout import LayerLayout, Layout
from kvsweep.ledger.messages import Finish, OpenTail, SealTail
from kvsweep.ledger.sources import leading
from kvsweep.ledger.state import RequestState
from kvsweep.ledger.store.memory import MemoryLog
from kvsweep.runtime.clock import TurnClock
from kvsweep.runtime.core.upload_plan import adoptable, keep_slots
from kvsweep.runtime.driver import Driver
from kvsweep.runtime.run_config import RunConfig
from kvsweep.runtime.selection import select_blocks
from kvsweep.runtime.settings import Settings
from kvsweep.scenarios.demo.stack import Stack

BLOCK, BLOCKS, LAYERS, LIFE_ROUNDS = 4, 16, 4, 12
SAMPLES = 40


class SoakResult(Struct, frozen=True, kw_only=True):
    """Sizes sampled over the run: the largest of the first half, less the warm-up, and of the last half."""

    requests: int
    rounds: int
    seed: int
    lives: int
    events: int
    seconds: float
    sizes: dict[str, tuple[int, int]]
    grown: list[str]  # sizes whose last half passes the first by more than a quarter and 8
    refused: int


@dataclass
class _Sizes:
    samples: dict[str, list[int]] = field(default_factory=dict)

    def add(self, name: str, size: int) -> None:
        self.samples.setdefault(name, []).append(size)

    def halves(self) -> dict[str, tuple[int, int]]:
        found = {}
        for name, sizes in self.samples.items():
            half = len(sizes) // 2
            found[name] = (max(sizes[half // 4 : half], default=0), max(sizes[half:], default=0))
        return found


class Soak:
    """One run. `rounds` counts over all requests."""

    def __init__(
        self, *, requests: int, rounds: int, ranks: int, seed: int, watch: Callable[[int], None] = lambda done: None
    ) -> None:
        self.requests, self.rounds, self.ranks, self.seed, self.watch = requests, rounds, ranks, seed, watch
        self.layout = Layout.of(
            model_hash="soak",
            dtype="float32",
            block_size=BLOCK,
            layers=tuple(LayerLayout(layer=n, group=0, kind="full", kv_heads=2, head_dim=4) for n in range(LAYERS)),
        )
        self.sizes = _Sizes()
        self.done = self.lives = self.refused = 0

    async def run(self) -> SoakResult:
        settings = Settings.of(
            log={"url": "memory:", "digest_every": 1000},
            limits={"open_steps": 2 * self.requests},
            transfer={"deadline_s": 600.0},
            seed=self.seed,
        )
        blocks = self.requests * (BLOCKS + LIFE_ROUNDS + 8)
        config = RunConfig(
            layout=self.layout,
            ranks=tuple((rank, 1) for rank in range(self.ranks)),
            producer_epoch=1,
            device_blocks=(blocks,),
            cpu_full_blocks=blocks,
            cpu_total_blocks=blocks,
        )
        log = MemoryLog(max_events=max(1_000_000, 200 * self.rounds))
        self.driver = Driver.open(settings, config, log=log, deadlines=TurnClock())
        started = time.perf_counter()
        async with Stack(self.driver) as stack:
            self.stack = stack
            async with anyio.create_task_group() as tasks:
                for index in range(self.requests):
                    tasks.start_soon(self._request, index)
        self.driver.check_laws()
        sizes = self.sizes.halves()
        return SoakResult(
            requests=self.requests,
            rounds=self.done,
            seed=self.seed,
            lives=self.lives,
            events=self.driver.events,
            seconds=time.perf_counter() - started,
            sizes=sizes,
            grown=[name for name, (early, late) in sizes.items() if late > early * 1.25 + 8],
            refused=self.refused,
        )

    async def _request(self, index: int) -> None:
        random = np.random.default_rng([self.seed, index])
        name, kv = f"soak/{index}", self.stack.kv
        while self.done < self.rounds:
            key = kv.open_request(name)
            self.lives += 1
            tokens = BLOCKS * BLOCK
            await self._grow(key, 0, tokens)
            scores = random.random((LAYERS, BLOCKS + LIFE_ROUNDS + 1), dtype=np.float32)
            # Lives begin at different ages, so that the requests do not all open and finish together.
            for revision in range(1, int(random.integers(1, LIFE_ROUNDS + 1)) + 1):
                if self.done >= self.rounds:
                    break
                await self._round(key, revision, scores)
                scores += 0.2 * random.random(scores.shape, dtype=np.float32)
                await self._grow(key, tokens, BLOCK)
                tokens += BLOCK
                self._sample()
            kv.handle(Finish(request=key))
            await kv.settled(key)

    def _state(self, key: RequestKey) -> RequestState:
        request = self.driver.state.request(key)
        if request is None:
            raise LookupError(f"{key} is not known")
        return request

    async def _grow(self, key: RequestKey, tokens: int, more: int) -> None:
        """A step writes `more` tokens; they are sealed and mirrored."""
        kv = self.stack.kv
        kv.handle(OpenTail(request=key, until=-(-(tokens + more) // BLOCK)))
        number, _ = kv.begin_step([key])
        await anyio.lowlevel.checkpoint()
        kv.end_step(number)
        kv.handle(SealTail(request=key, confirmed_tokens=tokens + more))
        await kv.until(lambda: self._state(key).store.phase == "IDLE", key)

    async def _round(self, key: RequestKey, revision: int, scores: npt.NDArray[np.float32]) -> None:
        kv, request = self.stack.kv, self._state(key)
        whole = leading(request.source)
        selection = select_blocks(
            np.ascontiguousarray(scores[:, :whole]),
            request=key,
            revision=revision,
            layout=self.layout,
            policy=self.driver.settings.selection,
        )
        try:
            await kv.upload(selection, idempotency_key=f"select-{revision}")
            request, want = self._state(key), selection.logical_blocks_by_layer
            await kv.retain(
                key,
                keep_slots(request, want),
                adopt=adoptable(request, want, self.layout, shared_table=False),
                map_revision=request.map_revision,
                selection_revision=revision,
                idempotency_key=f"retain-{revision}",
            )
        except PoolExhausted:
            self.refused += 1
        self.done += 1
        self.watch(self.done)

    def _sample(self) -> None:
        if self.done % max(1, self.rounds // SAMPLES):
            return
        state, add = self.driver.state, self.sizes.add
        requests = list(state.requests.values())
        add("requests", len(requests))
        add("closed requests", len(state.pool.closed))
        add("holders", sum(len(holders) for holders in state.ownership.held.values()))
        add("owned blocks", sum(len(blocks) // 4 for own in state.ownership.own.values() for blocks in own))
        add("views of one request", max(len(request.views) for request in requests))
        add("tail of one request", max(len(request.tail) for request in requests))
        add("settling operations", sum(len(request.settling) for request in requests))
        add("fences", sum(len(request.fences) for request in requests))
        add("idempotency keys of one request", max(len(request.commands) for request in requests))
        add("open steps", len(self.driver.core.steps))
        add("reports a rank remembers", max(node.worker.remembered for node in self.stack.nodes))
        add("items in device queues", max(node.device.queued for node in self.stack.nodes))
        add("awaited operations", self.stack.kv.awaited)
        add("frames to ranks", self.stack.kv.outgoing)
        add("threads", threading.active_count())
