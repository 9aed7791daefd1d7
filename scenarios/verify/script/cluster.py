"""Everything that a scripted run consists of, and the machines' side of its steps."""

from __future__ import annotations

import random
from collections.abc import Callable

import anyio
import numpy as np
from anyio.abc import TaskGroup
from msgspec.structs import replace

from kvsweep.ledger import events as e
from kvsweep.ledger.errors import Aborted, PoolExhausted, SettingsError
from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import HOLE, Int32, RequestKey, Rows, int32_bytes, int32_view
from kvsweep.ledger.layout import Layout
from kvsweep.ledger.messages import ProcessLost, RegisterSources, Turn
from kvsweep.ledger.state import RequestState
from kvsweep.ledger.store.memory import MemoryLog
from kvsweep.runtime.metrics import Metrics
from kvsweep.runtime.run_config import RunConfig
from kvsweep.scenarios.demo.stack import Node, Stack, new_store
from kvsweep.scenarios.verify.checkers.checked_driver import CheckedDriver, Checks
from kvsweep.scenarios.verify.checkers.content import HostMemory
from kvsweep.scenarios.verify.script.content import MadeUpKv, SyntheticKv, rank_part, tag_of
from kvsweep.scenarios.verify.script.fault_injector import FaultInjector
from kvsweep.scenarios.verify.script.format import Script
from kvsweep.scenarios.verify.script.producer import ScriptProducer
from kvsweep.scenarios.verify.script.timeline import Timeline
from kvsweep.scenarios.verify.script.wires import Deliver, ProcessLog, ScriptLink, Wire
from kvsweep.transports.host import HostDevice
from kvsweep.transports.links import Delivery
from kvsweep.transports.producer import HostProducer

MAX_EVENTS = 1_000_000


class Cluster:
    """Driver, coordinator, ranks and producer under the timeline of one run.

    ledger  "memory:", or "sqlite:PATH" of a new file
    """

    def __init__(self, script: Script, seed: int, ledger: str = "memory:") -> None:
        world = script.world
        self.script, self.world = script, world
        self.layout = world.layout()
        self.chance = random.Random(seed)
        self.timeline = Timeline()
        self.kv_of = kv_of(script, self.layout)
        self.dead: set[int] = set()
        self.left = False  # the last life has come to a clean end
        self.tags: Callable[[RequestKey, int], int] = lambda key, logical: tag_of(key)
        self.wires: list[Wire] = []
        self.injector = FaultInjector(script.fault, self.timeline, self)
        self.metrics = Metrics()
        self.checks: list[Checks] = []  # of each life of the coordinator
        self.memory = HostMemory({}, {})
        self._settings = world.settings(seed, ledger)
        self.store = MemoryLog(max_events=MAX_EVENTS) if ledger == "memory:" else new_store(self._settings)
        self._watchers: list[Callable[[Event], None]] = []
        self._restarted: list[Callable[[], None]] = []
        self._producer: HostProducer | None = None
        self._events = 0  # facts of earlier lives of the coordinator
        self._begin(world.run_config(self.layout))

    def _begin(self, config: RunConfig) -> None:
        """One life of the coordinator: on a new ledger, or on what the life before has left."""
        known = self.store.durable()
        self._life, self._over, self._scope = ProcessLog(self.store), anyio.Event(), anyio.CancelScope()
        self.driver = CheckedDriver.open(
            self._settings, config, log=self._life.as_store, clock=lambda: 0.0, deadlines=self.timeline.clock
        )
        self.stack = Stack(
            self.driver,
            connect=self._connect,
            intercept=lambda producer: ScriptProducer(producer, self.injector, self.timeline),
            producer=self._producer,
        )
        self._producer, self.kv = self.stack.producer, self.stack.kv
        self.memory.shards = dict(enumerate(self._producer.shards))
        self.driver.checks.read_bytes(self.memory, self._truth)
        self.checks.append(self.driver.checks)
        self.driver.watch(self._see)
        for record in self.store.read(after=known):  # from before anybody could watch
            self._see(record.event)

    def start(self, tasks: TaskGroup) -> None:
        """Serve in a task of its own until `leave` or a crash; the life after a crash is started like the first."""
        self._tasks = tasks
        tasks.start_soon(self._live, self.stack, self._over, self._scope)

    async def _live(self, stack: Stack, over: anyio.Event, scope: anyio.CancelScope) -> None:
        with scope:
            async with stack:
                await over.wait()
            self.left = True

    def leave(self) -> None:
        """A clean end, at which NotSettled is raised out of the task where something is left."""
        self._over.set()

    def watch(self, watcher: Callable[[Event], None]) -> None:
        """Call back with every fact from now on, before the script's own moments see it."""
        self._watchers.append(watcher)

    def on_restart(self, action: Callable[[], None]) -> None:
        """Act whenever the coordinator has started anew."""
        self._restarted.append(action)

    @property
    def events(self) -> int:
        """Facts so far."""
        return self._events + self.driver.events

    @property
    def crashed(self) -> bool:
        """Whether the coordinator's process has ended and no new one goes on yet."""
        return self._life.ended

    def _see(self, event: Event) -> None:
        self.metrics.apply(event)
        for watcher in self._watchers:
            watcher(event)
        self.injector.see(event)

    def _truth(self, rank: int, key: RequestKey, layer: int, logical: int) -> bytes | None:
        """What one rank's part of a block has; windows may have let go of a sliding layer's blocks before the CPU."""
        if layer not in self.layout.active_layers:
            return None
        whole = self.kv_of.block(self.tags(key, logical), layer, logical)
        return rank_part(whole, self.layout, layer, rank, self.world.ranks).tobytes()

    # ---- links

    def _connect(self, rank: int) -> tuple[ScriptLink, ScriptLink]:
        links = self.world.links
        hostile = links.lose or self.injector.loses
        delivery = Delivery.LOSSY if hostile else Delivery.UNORDERED_DUPLICATING
        down = self._wire(lambda data: self.injector.on_frame(rank, data, to_rank=True))
        up = self._wire(lambda data: self.injector.on_frame(rank, data, to_rank=False))
        return ScriptLink(down, up, delivery), ScriptLink(up, down, delivery)

    def _wire(self, deliver: Deliver) -> Wire:
        self.wires.append(Wire(self.timeline, self.world.links, self.chance, deliver))
        return self.wires[-1]

    @property
    def activity(self) -> tuple[int, int, int]:
        """Something that changes with every fact, frame and copy."""
        frames = sum(wire.passed for wire in self.wires)
        return self.events, frames, sum(node.device.queued for node in self.stack.nodes)

    # ---- machines

    def node(self, rank: int) -> Node:
        return self.stack.nodes[rank]

    def alive(self, rank: int) -> bool:
        return rank not in self.dead

    def kill(self, rank: int) -> None:
        """The process ends; what it has not done is never done."""
        self.dead.add(rank)
        self.node(rank).process.cancel()

    def crash(self) -> None:
        """The coordinator's process ends: nothing that it would still do is done."""
        self._life.end()

    def restart_coordinator(self) -> None:
        """A new process goes on with the ledger; every rank begins anew, the producer lives on."""
        pool, producer = self.driver.state.pool, self.stack.producer
        self.crash()
        self._scope.cancel()
        self.dead.clear()
        self._events += self.driver.events
        ranks = tuple((rank, epoch + 1) for rank, epoch in pool.ranks)
        config = replace(self.world.run_config(self.layout), ranks=ranks, producer_epoch=producer.process_epoch)
        self._begin(config)
        self.start(self._tasks)
        for action in self._restarted:
            action()

    def notice(self, rank: int) -> None:
        """The coordinator learns that the process has ended."""
        pool = self.driver.state.pool
        if rank in self.dead and rank not in pool.lost:
            self.kv.handle(ProcessLost(rank=rank, process_epoch=dict(pool.ranks)[rank]))

    def restart_rank(self, rank: int) -> None:
        """A new process on empty memory, over a new link."""
        self.dead.discard(rank)
        self.stack.restart_rank(rank)

    def restart_producer(self, *, register: bool = True) -> None:
        """A new producer process with empty memory: what it names again, at once or later, it has read anew."""
        for shard in self.stack.producer.shards:
            for group in range(self.layout.groups):
                shard.poison(group, np.arange(shard.blocks(group), dtype=np.int32))
        self.stack.restart_producer(register=False)
        if register:
            self.register_all()

    def device(self, rank: int) -> HostDevice:
        """What a script looks into and meddles with."""
        device = self.node(rank).device
        if not isinstance(device, HostDevice):
            raise TypeError(f"expected a device of the host, got {type(device).__name__}")
        return device

    def replace_table(self, rank: int, request_id: str) -> None:
        """Overwrite the current row of a request on one rank with a table of other blocks."""
        request = self.driver.state.requests.get(request_id)
        view = request.view if request is not None else None
        if request is None or view is None:
            return
        other = {layer: np.roll(ids, 1) if ids.size > 1 else (ids + 1) for layer, ids in view.physical.items()}
        self.device(rank).tables.write(request.key, view.row, view.generation, Rows.of(other))

    # ---- the producer's blocks

    def state_of(self, key: RequestKey) -> RequestState:
        found = self.driver.state.request(key)
        if found is None:
            raise LookupError(f"{key} is not known")
        return found

    def register_stale(self, key: RequestKey, owner: RequestKey | None = None) -> None:
        """The producer names the blocks that a restart made stale, or those of another request."""
        if owner is None:
            table = int32_view(self.state_of(key).stale)
            logical = np.flatnonzero(table != HOLE).astype(np.int32)
            self._fill(key, logical, table[logical])
        else:
            table = int32_view(self.state_of(owner).source)
            logical = np.flatnonzero(table != HOLE).astype(np.int32)
        expect_room(
            self.kv.handle(
                RegisterSources(request=key, logical=int32_bytes(logical), source=int32_bytes(table[logical]))
            )
        )

    def register_all(self) -> None:
        """The producer names every block that a restart of it made stale."""
        for request in list(self.driver.state.requests.values()):
            if request.life != "CLOSED" and (int32_view(request.stale) != HOLE).any():
                self.register_stale(request.key)

    def register_new(self, key: RequestKey, blocks: int) -> None:
        """The producer holds these first blocks already, in CPU blocks that were free."""
        full = self.driver.pools.cpu.full
        given = full.reserve(blocks)
        if given is None:
            ids = np.arange(blocks, dtype=np.int32)  # more than there is room for: the claim is refused, and says so
        else:
            full.release(given)
            ids = given[::-1].astype(np.int32)  # none has the number of its logical block by accident
            self._fill(key, np.arange(blocks, dtype=np.int32), ids)
        expect_room(
            self.kv.handle(
                RegisterSources(request=key, logical=int32_bytes(np.arange(blocks)), source=int32_bytes(ids))
            )
        )

    def _fill(self, key: RequestKey, logical: Int32, sources: Int32) -> None:
        """The full KV of these logical blocks is in these CPU blocks."""
        size = self.layout.block_size
        for layer in range(len(self.layout.layers)):
            for block, source in zip(logical.tolist(), sources.tolist(), strict=True):
                k, v = self.kv_of.tokens(self.tags(key, block), layer, block * size, size)
                self.stack.producer.write_rows(layer, source, 0, k, v)


def kv_of(script: Script, layout: Layout) -> MadeUpKv:
    """What the world's KV is made of. Raises SettingsError where it needs a model and torch is not installed."""
    if script.world.kv == "synthetic":
        return SyntheticKv(layout)
    try:
        from kvsweep.scenarios.verify.script.model_kv import ModelKv
    except ImportError as error:
        raise SettingsError("$.world.kv", "synthetic, or the package's extra 'demo'", f"model ({error})") from error
    return ModelKv(layout, script.seed)


def expect_room(turn: Turn) -> None:
    """Raise PoolExhausted where a plan could not get its blocks; Aborted where it lacks something else."""
    for event in turn.events:
        if isinstance(event, e.PlanRefused):
            if event.reason == "no_space":
                raise PoolExhausted(f"{event.lane} of {event.request.request_id}", event.needed, event.free)
            raise Aborted(event.request, f"{event.lane}: {event.reason}")
