"""What a run in one process is made of: a model's ledger layout, pools that fit a sequence, and what connects them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import anyio
import numpy as np
from msgspec.structs import replace

from kvsweep.kernels.table import Kernels, choose_kernels
from kvsweep.ledger.errors import LogError
from kvsweep.ledger.ids import HOLE, int32_bytes, int32_view
from kvsweep.ledger.layout import LayerLayout, Layout, Packing
from kvsweep.ledger.messages import ProcessStarted, RegisterSources, Release
from kvsweep.ledger.store.log import LogStore
from kvsweep.runtime.coordinator import Coordinator
from kvsweep.runtime.driver import Driver
from kvsweep.runtime.run_config import RunConfig
from kvsweep.runtime.settings import Settings
from kvsweep.runtime.stores import open_store
from kvsweep.scenarios.demo.devices import MakeDevice, NodeDevice, host_device
from kvsweep.transports.blocks import BlockMemory, Traffic
from kvsweep.transports.handshake import capabilities
from kvsweep.transports.links import Chaos, RankLink, in_process_link
from kvsweep.transports.producer import HostProducer, Producer
from kvsweep.transports.rank import RankWorker
from kvsweep.transports.rank_server import serve_rank

if TYPE_CHECKING:
    from kvsweep.scenarios.demo.model import ModelConfig  # loads torch

SPARE_BLOCKS = 16
TIGHT_TAIL_BLOCKS = 4
LEDGER_DTYPE = {"fp32": "float32", "bf16": "bfloat16"}


def layout_of(config: ModelConfig, *, model_hash: str, block_size: int, packing: Packing = "natural") -> Layout:
    """The ledger's layout of a model: full layers are group 0, sliding ones follow, one group a window."""
    windows = sorted({layer.window for layer in config.layers if layer.window is not None})
    return Layout.of(
        model_hash=model_hash,
        dtype=LEDGER_DTYPE[config.dtype],
        block_size=block_size,
        packing=packing,
        layers=tuple(
            LayerLayout(
                layer=index,
                group=0 if layer.window is None else 1 + windows.index(layer.window),
                kind=layer.kind,
                kv_heads=config.kv_heads,
                head_dim=config.head_dim,
                window_tokens=layer.window or 0,
            )
            for index, layer in enumerate(config.layers)
        ),
    )


def run_config_of(
    layout: Layout, *, tokens: int, settings: Settings, requests: int = 1, ranks: int = 1, tight: bool = False
) -> RunConfig:
    """Pools for requests of `tokens` tokens each. Roomy: each whole, its kept set once more, and a few spare blocks.

    Tight: one whole request, and for each the kept set and a short tail: what does not fit has to wait or give way.
    Process epochs come from the seed, so that runs repeat.
    """
    whole = -(-tokens // layout.block_size)
    kept = int(settings.selection.budget * whole) + settings.selection.sink_blocks + settings.selection.recent_blocks
    full, seed = requests * whole + SPARE_BLOCKS, settings.seed
    device = whole + requests * (kept + TIGHT_TAIL_BLOCKS) if tight else requests * (whole + kept) + SPARE_BLOCKS
    return RunConfig(
        layout=layout,
        ranks=tuple((rank, 1 + seed % 2**20 + rank) for rank in range(ranks)),
        producer_epoch=1 + seed % 2**19,
        device_blocks=(device,) * layout.groups,
        cpu_full_blocks=full,
        cpu_total_blocks=full + (2 * kept * requests if settings.source.kind == "copy" else 0),
    )


def new_store(settings: Settings) -> LogStore:
    """The store that the settings name, for one run from its beginning. Raises LogError where it has events already."""
    log = open_store(settings)
    if log.durable():
        log.close()
        raise LogError(f"{settings.log.url}: expected a new ledger, found one with events; give another path")
    return log


def kernels_of(settings: Settings) -> Kernels:
    """What the settings choose. Raises KernelArgumentError where native kernels are asked for and not built."""
    return choose_kernels(settings.kernels.choice, threads=settings.kernels.threads)


class Node:
    """One rank in this process: worker, device and the CPU shard it reads. A restart begins with empty memory."""

    device: NodeDevice

    def __init__(
        self,
        layout: Layout,
        shard: BlockMemory,
        settings: Settings,
        device_blocks: Sequence[int],
        make_device: MakeDevice = host_device,
    ) -> None:
        self.layout, self.shard, self.settings, self.device_blocks = layout, shard, settings, device_blocks
        self._make = make_device
        self._started = False
        self._before, self._current = Traffic(), Traffic()  # of its processes that have ended, and of this one

    def start(self, rank: int, process_epoch: int) -> None:
        """A new process: fresh device memory, nothing remembered."""
        self.close()
        self._before = self.traffic
        self._started = True
        seed = self.settings.seed * 1000 + rank * 10 + process_epoch % 10
        self.device = self._make(self.layout, self.shard, self.settings, self.device_blocks, seed)
        self.memory = self.device.memory
        self._current = self.memory.traffic
        self.worker = RankWorker(self.device, rank=rank, process_epoch=process_epoch)
        self.process = anyio.CancelScope()

    @property
    def traffic(self) -> Traffic:
        """Bytes that went through the memories of all its processes."""
        past, now = self._before, self._current
        return Traffic(
            past.read_bytes + now.read_bytes, past.written_bytes + now.written_bytes, past.moved_bytes + now.moved_bytes
        )

    def close(self) -> None:
        """The process's memory goes with it."""
        if self._started:
            self.device.close()
            self._started = False

    def serve(self, link: RankLink) -> Callable[[], Coroutine[Any, Any, None]]:
        """The process as it is now: what it has not done when it is killed is never done."""
        process, worker, device = self.process, self.worker, self.device

        async def run() -> None:
            with process:
                await serve_rank(worker, device, link)

        return run


class Stack:
    """The driver's ranks on their devices, its producer, links and the shell around them. An async context manager.

    connect  makes (coordinator's end, rank's end) of a rank's link; without it: in this process, with the chaos
    intercept    stands between the coordinator and the producer
    producer one that has lived on while the coordinator was started anew
    """

    def __init__(
        self,
        driver: Driver,
        *,
        chaos: Chaos | None = None,
        connect: Callable[[int], tuple[RankLink, RankLink]] | None = None,
        intercept: Callable[[HostProducer], Producer] = lambda producer: producer,
        make_device: MakeDevice = host_device,
        producer: HostProducer | None = None,
    ) -> None:
        pool = driver.state.pool
        if pool.run is None:
            raise LookupError("the driver is not configured")
        self.driver, self.chaos, self._connect = driver, chaos, connect
        count = len(pool.ranks)
        self.producer = producer or HostProducer(
            pool.layout,
            full_blocks=pool.run.cpu_full_blocks,
            total_blocks=pool.run.cpu_total_blocks,
            process_epoch=pool.producer_epoch,
            ranks=count,
            kernels=kernels_of(driver.settings),
        )
        self.nodes = [
            Node(
                pool.layout.shard(rank, count),
                self.producer.shards[rank],
                driver.settings,
                pool.run.device_blocks,
                make_device,
            )
            for rank, _ in pool.ranks
        ]
        self._starts = 0
        links = {}
        self._ends: list[tuple[Node, RankLink]] = []
        for node, (rank, epoch) in zip(self.nodes, pool.ranks, strict=True):
            node.start(rank, epoch)
            links[rank], end = self._link(rank)
            self._ends.append((node, end))
        self._agree()
        self.kv = Coordinator(driver, links=links, producer=intercept(self.producer), on_release=self._poison)
        self._stack = AsyncExitStack()

    def _agree(self) -> None:
        """Every rank shows its contract before the first command (D4)."""
        pool, settings = self.driver.state.pool, self.driver.settings
        if pool.run is None:
            raise LookupError("the driver is not configured")
        copies = settings.source.allow_copy
        producer = capabilities(
            pool.layout,
            role="producer",
            selection_unit=settings.selection.method,
            source_kinds=("source_only", "copy") if copies else ("source_only",),
            tp_size=len(self.nodes),
            process_epoch=pool.producer_epoch,
            full_blocks=pool.run.cpu_full_blocks,
            total_blocks=pool.run.cpu_total_blocks,
        )
        self.driver.agree(
            producer,
            [
                replace(producer, role="rank", source_kinds=("source_only", "copy"), process_epoch=epoch)
                for _, epoch in pool.ranks
            ],
        )

    def _link(self, rank: int) -> tuple[RankLink, RankLink]:
        if self._connect is not None:
            return self._connect(rank)
        self._starts += 1
        chaos = replace(self.chaos, seed=self.chaos.seed * 100 + self._starts) if self.chaos else None
        return in_process_link(chaos=chaos)

    async def __aenter__(self) -> Self:
        self._tasks = await self._stack.enter_async_context(anyio.create_task_group())
        for node, end in self._ends:
            self._tasks.start_soon(node.serve(end))
        await self._stack.enter_async_context(self.kv)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        try:
            return await self._stack.__aexit__(kind, error, traceback)
        finally:
            for node in self.nodes:
                node.close()

    def _poison(self, effect: Release) -> None:
        """Whoever still reads a freed block reads NaN."""
        for group, blocks in enumerate(effect.device):
            for node in self.nodes:
                node.device.poison(group, int32_view(blocks))

    def restart_rank(self, rank: int) -> None:
        """The rank's process ends and a new one begins: its memory is gone, its link is new."""
        epoch = dict(self.driver.state.pool.ranks)[rank] + 1
        node = self.nodes[rank]
        node.process.cancel()
        node.start(rank, epoch)
        ours, end = self._link(rank)
        self.kv.handle(ProcessStarted(rank=rank, process_epoch=epoch))
        self.kv.connect(rank, ours)
        self._tasks.start_soon(node.serve(end))

    def restart_producer(self, *, register: bool = True) -> None:
        """A new producer process over the same CPU memory: every block is registered again before it is used.

        register  false: nothing is registered yet
        """
        state = self.driver.state
        tables = {request.key: request.source for request in state.requests.values() if request.life != "CLOSED"}
        self.producer.process_epoch += 1
        self.kv.handle(ProcessStarted(process_epoch=self.producer.process_epoch))
        for key, table in tables.items() if register else ():
            source = int32_view(table)
            logical = np.flatnonzero(source != HOLE).astype(np.int32)
            if logical.size and self.driver.state.request(key) is not None:
                self.kv.handle(
                    RegisterSources(request=key, logical=int32_bytes(logical), source=int32_bytes(source[logical]))
                )
