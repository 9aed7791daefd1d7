"""A driver with host devices and a host producer, and an oracle of the bytes of every (layer, logical block)."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from tests.runtime.rig import PRODUCER, RANKS, free_sources, make_layout, make_settings

from kvsweep.ledger import events as e
from kvsweep.ledger.ids import HOLE, Int32, RequestKey, Rows, Slot, int32_bytes, int32_view, no_rows
from kvsweep.ledger.layout import Layout
from kvsweep.ledger.messages import (
    BlockSelection,
    Effect,
    Finish,
    Preempt,
    RegisterSources,
    Release,
    Resume,
    Retain,
    Select,
    Turn,
)
from kvsweep.ledger.state import RequestState, View
from kvsweep.runtime.clock import Clock
from kvsweep.runtime.core.steps import HandedOut
from kvsweep.runtime.core.upload_plan import keep_slots
from kvsweep.runtime.driver import Driver
from kvsweep.runtime.run_config import RunConfig
from kvsweep.transports.host import HostDevice
from kvsweep.transports.producer import HostProducer
from kvsweep.transports.rank import RankWorker

SEED = 20260916


class DeviceRig:
    """Bytes of logical block b of layer l are `full[l][b]` on every side, for every request."""

    def __init__(
        self,
        layout: Layout | None = None,
        *,
        ranks: int = 1,
        whole: int = 32,
        device_blocks: int = 64,
        cpu: tuple[int, int] = (128, 192),
        seed: int = SEED,
        staging_bytes: int = 4096,
        deadlines: Clock | None = None,
        **settings: Any,
    ) -> None:
        self.layout = layout or make_layout()
        self.whole = whole
        self.rng = np.random.Generator(np.random.PCG64(seed))
        self.full = {
            layer.layer: self.rng.integers(0, 255, (whole + 64, self.layout.block_bytes(layer.layer)), dtype=np.uint8)
            for layer in self.layout.layers
        }
        self.producer = HostProducer(self.layout, full_blocks=cpu[0], total_blocks=cpu[1], process_epoch=PRODUCER)
        self._made = (device_blocks, seed, staging_bytes)
        self.devices = [self._device(rank) for rank in range(ranks)]
        self.workers = [
            RankWorker(device, rank=rank, process_epoch=RANKS[rank][1]) for rank, device in enumerate(self.devices)
        ]
        world = RunConfig(
            layout=self.layout,
            ranks=RANKS[:ranks],
            producer_epoch=PRODUCER,
            device_blocks=(device_blocks,) * self.layout.groups,
            cpu_full_blocks=cpu[0],
            cpu_total_blocks=cpu[1],
        )
        self.events: list[e.Event] = []
        self.driver = Driver.open(make_settings(**settings), world, clock=lambda: 0.0, deadlines=deadlines)
        self.driver.watch(self.events.append)

    def _device(self, rank: int) -> HostDevice:
        device_blocks, seed, staging_bytes = self._made
        return HostDevice(
            self.layout,
            device_blocks=(device_blocks,) * self.layout.groups,
            cpu=self.producer.memory,
            seed=seed + rank,
            staging_bytes=staging_bytes,
            clock=lambda: 0.0,
        )

    def restart(self, rank: int, process_epoch: int) -> None:
        """A new process of this rank: empty memory, nothing remembered, nobody told yet."""
        self.devices[rank] = self._device(rank)
        self.workers[rank] = RankWorker(self.devices[rank], rank=rank, process_epoch=process_epoch)

    # ---- requests

    def open(self, name: str = "a", *, blocks: int | None = None) -> RequestKey:
        """A request whose first whole blocks lie in CPU blocks of the pool, in shuffled order."""
        key = self.driver.open_request(name)
        given = self.rng.permutation(free_sources(self.driver.pools, self.whole if blocks is None else blocks))
        for layer in self.full:
            self.producer.memory.areas(layer)[given] = self.full[layer][: given.size]
        self.driver.handle(
            RegisterSources(request=key, logical=int32_bytes(range(given.size)), source=int32_bytes(given))
        )
        return key

    def request(self, key: RequestKey) -> RequestState:
        found = self.driver.state.request(key)
        assert found is not None
        return found

    def view(self, key: RequestKey) -> View:
        found = self.request(key).view
        assert found is not None
        return found

    def owned(self, key: RequestKey, group: int = 0) -> int:
        return int(self.driver.state.ownership.owned(key, self.layout)[group].size)

    def preempt_and_resume(self, key: RequestKey) -> None:
        self.driver.handle(Preempt(request=key))
        self.driver.handle(Resume(request=key))

    def finish(self, key: RequestKey) -> None:
        self.driver.handle(Finish(request=key))

    # ---- selections

    def selection(
        self, key: RequestKey, want: Mapping[int, Int32], *, tail: Mapping[int, Int32] | None = None
    ) -> BlockSelection:
        rest = tail if tail is not None else dict.fromkeys(want, np.empty(0, dtype=np.int32))
        return BlockSelection(
            request=key,
            selection_revision=self.request(key).selection_revision + 1,
            block_size=self.layout.block_size,
            logical_blocks_by_layer=Rows.of({layer: np.sort(ids) for layer, ids in want.items()}),
            ranked_tail_by_layer=Rows.of(rest),
            group_by_layer=int32_bytes([self.layout.layers[layer].group for layer in sorted(want)]),
            whole_blocks=self.whole,
            effective_budget_blocks=max(ids.size for ids in want.values()),
        )

    def select(
        self,
        key: RequestKey,
        want: Mapping[int, Int32],
        *,
        tail: Mapping[int, Int32] | None = None,
        idempotency_key: str = "",
    ) -> Turn:
        return self.driver.handle(
            Select(selection=self.selection(key, want, tail=tail), idempotency_key=idempotency_key)
        )

    def retain(self, key: RequestKey, want: Mapping[int, Int32], *, pack: bool = False) -> Turn:
        request = self.request(key)
        keep: Rows[Slot] = keep_slots(request, Rows.of(dict(want)))
        return self.driver.handle(
            Retain(
                request=key,
                keep=keep,
                adopt=no_rows(self.layout.active_layers),
                map_revision=request.map_revision,
                selection_revision=request.selection_revision,
                idempotency_key="",
                pack=pack,
            )
        )

    # ---- the world's turn

    def poison_released(self, effect: Release) -> None:
        """Whoever still reads a freed block reads NaN."""
        for group, blocks in enumerate(effect.device):
            for device in self.devices:
                device.poison(group, int32_view(blocks))

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Release):
                self.poison_released(effect)
                self.driver.release(effect)
        self.producer.perform(effects)
        for worker in self.workers:
            worker.perform(effects)

    def turn(self, steps: int | None = None) -> bool:
        """Effects out, stream items run, reports in. Whether anything happened."""
        effects = self.driver.poll()
        self.perform(effects)
        busy = bool(effects)
        for device in self.devices:
            busy = device.advance(steps) > 0 or busy
        for acknowledged in self.producer.poll():
            self.driver.handle(acknowledged)
            busy = True
        for worker in self.workers:
            for report in worker.poll():
                self.driver.handle(report)
                worker.acknowledge(report.operation.operation_id)
                busy = True
        return busy

    def quiet(self) -> None:
        while self.turn():
            pass

    # ---- the oracle

    def check_bytes(self, key: RequestKey, view: View | None = None) -> None:
        """Every area that the view names holds the bytes of its logical block, on every rank."""
        view = view or self.request(key).view
        if view is None:
            return
        for layer, physical in view.physical.items():
            logical = view.logical.row(layer)
            assert logical.size == physical.size
            assert HOLE not in physical
            for rank, device in enumerate(self.devices):
                got, expected = device.memory.areas(layer)[physical], self.full[layer][logical]
                wrong = np.flatnonzero((got != expected).any(axis=1))
                assert not wrong.size, (
                    f"rank {rank}, layer {layer}, generation {view.generation}: "
                    f"logical blocks {logical[wrong].tolist()} have wrong bytes"
                )

    def check_reader(self, key: RequestKey, handed: HandedOut, logical: Rows[Any]) -> None:
        """What a step that was handed this generation reads through the rank's own table."""
        for layer, blocks in logical.items():
            for worker, device in zip(self.workers, self.devices, strict=True):
                physical = worker.table(key, handed.row, handed.generation, layer)
                assert (device.memory.areas(layer)[physical] == self.full[layer][blocks]).all(), (
                    f"layer {layer}: a reader of generation {handed.generation} sees wrong bytes"
                )

    def held_per_layer(self, key: RequestKey) -> dict[int, int]:
        """Distinct areas of each layer that any holder names, recounted from the relation."""
        held: dict[int, set[int]] = {layer.layer: set() for layer in self.layout.layers}
        for holding in self.driver.state.ownership.holders(key).values():
            for layer, blocks in holding.areas.items():
                held[layer].update(blocks.tolist())
        return {layer: len(blocks) for layer, blocks in held.items()}
