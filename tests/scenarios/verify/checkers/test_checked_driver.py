"""The production coordinator, ranks and host devices under every checker: nothing is found, and planted faults are."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio.lowlevel
import numpy as np
import pytest

from kvsweep.ledger import events as e
from kvsweep.ledger.errors import DoubleFree
from kvsweep.ledger.ids import RequestKey
from kvsweep.ledger.layout import LayerLayout, Layout
from kvsweep.ledger.messages import BlockSelection, Done, OpenTail, SealTail, Select
from kvsweep.ledger.sources import leading
from kvsweep.ledger.state import RequestState
from kvsweep.runtime.clock import TurnClock
from kvsweep.runtime.core.steps import OpenSteps
from kvsweep.runtime.core.upload_plan import adoptable, keep_slots
from kvsweep.runtime.run_config import RunConfig
from kvsweep.runtime.selection import select_blocks
from kvsweep.runtime.settings import Settings
from kvsweep.scenarios.demo.stack import Stack
from kvsweep.scenarios.verify.checkers.checked_driver import CheckedDriver, Checks
from kvsweep.scenarios.verify.checkers.conservation import WatchedPools
from kvsweep.scenarios.verify.checkers.content import HostMemory, pattern

BLOCK, LAYERS, RANKS, WHOLE = 4, 2, 2, 8
LAYOUT = Layout.of(
    model_hash="checked",
    dtype="float32",
    block_size=BLOCK,
    layers=tuple(LayerLayout(layer=n, group=0, kind="full", kv_heads=2, head_dim=4) for n in range(LAYERS)),
)


class Rig:
    def __init__(self, stack: Stack, driver: CheckedDriver) -> None:
        self.stack, self.kv, self.driver, self.checks = stack, stack.kv, driver, driver.checks
        self.revision = 0
        devices = {rank: node.device for rank, node in enumerate(stack.nodes)}
        self.checks.read_bytes(HostMemory(devices, dict(enumerate(stack.producer.shards))), self.truth)

    def truth(self, rank: int, request: RequestKey, layer: int, logical: int) -> bytes:
        return pattern(rank, request, layer, logical, self.stack.nodes[rank].layout.block_bytes(layer))

    def state(self, key: RequestKey) -> RequestState:
        found = self.driver.state.request(key)
        assert found is not None
        return found

    async def opened(self, name: str) -> RequestKey:
        key = self.kv.open_request(name)
        self.kv.handle(OpenTail(request=key, until=WHOLE))
        for block in self.state(key).tail:
            for rank, node in enumerate(self.stack.nodes):
                for layer in range(LAYERS):
                    written = np.frombuffer(self.truth(rank, key, layer, block.logical), dtype=np.uint8)
                    node.memory.areas(layer)[block.physical[0]] = written
        self.kv.handle(SealTail(request=key, confirmed_tokens=WHOLE * BLOCK))
        await self.kv.until(lambda: leading(self.state(key).source) == WHOLE)
        return key

    async def round(self, key: RequestKey, wanted: list[list[int]]) -> None:
        self.revision += 1
        scores = np.zeros((LAYERS, WHOLE), dtype=np.float32)
        for layer, blocks in enumerate(wanted):
            scores[layer, blocks] = 1.0
        policy = Settings.of(
            log={"url": "memory:"},
            selection={"budget": len(wanted[0]) / WHOLE, "sink_blocks": 0, "recent_blocks": 0},
        ).selection
        selection: BlockSelection = select_blocks(
            scores, request=key, revision=self.revision, layout=LAYOUT, policy=policy
        )
        await self.kv.upload(selection, idempotency_key=f"select-{self.revision}")
        want = selection.logical_blocks_by_layer
        await self.kv.retain(
            key,
            keep_slots(self.state(key), want),
            adopt=adoptable(self.state(key), want, LAYOUT, shared_table=False),
            map_revision=self.state(key).map_revision,
            selection_revision=self.revision,
            idempotency_key=f"retain-{self.revision}",
        )

    def details(self) -> list[str]:
        return [one.detail for one in self.checks.broken]


@asynccontextmanager
async def rig() -> AsyncIterator[Rig]:
    world = RunConfig(
        layout=LAYOUT,
        ranks=tuple((rank, 5) for rank in range(RANKS)),
        producer_epoch=1,
        device_blocks=(32,),
        cpu_full_blocks=24,
        cpu_total_blocks=24,
    )
    driver = CheckedDriver.open(Settings.of(log={"url": "memory:"}), world, deadlines=TurnClock())
    async with Stack(driver) as stack:
        yield Rig(stack, driver)


async def rounds(r: Rig) -> list[RequestKey]:
    """Two requests, rounds whose layers drift apart, a step open over every second of them."""
    keys = [await r.opened("a"), await r.opened("b")]
    for number in range(6):
        for key in keys:
            step = r.kv.begin_step([key])[0] if number % 2 else None
            await r.round(key, [[number % 8, (number + 3) % 8], [(number * 3 + 1) % 8, (number * 5 + 2) % 8]])
            r.checks.look()
            if step is not None:
                r.kv.end_step(step)
    return keys


@pytest.mark.anyio
async def test_a_run_passes_every_checker_and_drains() -> None:
    async with rig() as r:
        for key in await rounds(r):
            r.kv.finish(key)
        await r.kv.settled()
        r.checks.at_rest(r.driver.pools)
        assert r.details() == []
        assert r.checks.ownership.position == r.driver.events
        assert r.checks.ownership.relation.all_holders == ()


@pytest.mark.anyio
async def test_checks_that_begin_in_the_middle_take_the_history_for_granted() -> None:
    """A second set of checkers hears the ledger so far, and then what the first one hears."""
    async with rig() as r:
        keys = await rounds(r)
        await r.kv.until(lambda: r.driver.idle)  # nothing is on its way back to a pool
        later = Checks()
        later.remember(record.event for record in r.driver.log.read())
        assert later.broken == []
        assert later.ownership.relation.all_holders == r.checks.ownership.relation.all_holders
        r.driver.watch(later.ownership.see)
        r.driver.pools = WatchedPools(r.driver.pools, later.conservation)
        for key in keys:
            r.kv.finish(key)
        await r.kv.settled()
        later.at_rest(r.driver.pools)
        assert later.broken == []
        assert later.ownership.position == r.driver.events


@pytest.mark.anyio
async def test_bytes_that_change_under_a_view_are_found() -> None:
    async with rig() as r:
        key = await r.opened("a")
        await r.round(key, [[1, 2], [3, 4]])
        view = r.state(key).view
        assert view is not None
        r.stack.nodes[1].memory.areas(0)[int(view.physical.row(0)[0])] += 1
        r.checks.look()
        assert [detail.split(" reads")[0] for detail in r.details()] == [
            f"the current view of a: generation {view.generation}, rank 1, layer 0, slot 0 "
            f"(logical 1, block {int(view.physical.row(0)[0])})"
        ]


@pytest.mark.anyio
async def test_a_dropped_step_fence_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The core is broken on purpose: a view is retired although a step reads it."""
    monkeypatch.setattr(OpenSteps, "reads", lambda *_: False)
    async with rig() as r:
        await rounds(r)
        assert any("is retired while step" in detail for detail in r.details())


@pytest.mark.anyio
async def test_a_pool_that_hands_out_a_held_block_is_found() -> None:
    async with rig() as r:
        key = await r.opened("a")
        await r.round(key, [[1, 2], [3, 4]])
        owned = r.driver.state.ownership.owned(key, LAYOUT)[0]
        free = r.driver.pools.device.groups[0]
        free._free[owned[:1]] = True
        free._count += 1
        r.checks.conservation.balance(r.driver.pools)
        assert r.details() == ["device pool of group 0: 29 free and 4 held of 32"]
        with pytest.raises(DoubleFree):
            free.release(owned[:1])


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("report", "outcome"),
    [
        (lambda done: done, "repeated"),
        (lambda done: Done(operation=done.operation, rank=9, process_epoch=5, outcome="completed"), "refused"),
        (lambda done: Done(operation=done.operation, rank=0, process_epoch=4, outcome="completed"), "ignored"),
    ],
)
async def test_f2_reports_out_of_place_are_judged_alike(report: Callable[[Done], Done], outcome: str) -> None:
    """F2: the driver's verdict and the oracle's are one, while a rank is silent."""
    async with rig() as r:
        key = await r.opened("a")
        await r.round(key, [[1, 2], [3, 4]])
        held: list[int] = []

        def hold(event: object) -> None:
            if isinstance(event, e.TransferStarted):
                held.append(event.operation.operation_id)
                r.stack.nodes[1].device.faults.hold.add(held[0])

        r.driver.watch(hold)
        scores = np.ones((LAYERS, WHOLE), dtype=np.float32)
        policy = Settings.of(log={"url": "memory:"}, selection={"budget": 0.5}).selection
        chosen = select_blocks(scores, request=key, revision=2, layout=LAYOUT, policy=policy)
        r.kv.handle(Select(selection=chosen, idempotency_key="k"))
        for _ in range(5_000):
            opened = r.state(key).upload.open
            if opened is not None and opened.outcomes:
                break
            await anyio.lowlevel.checkpoint()
        opened = r.state(key).upload.open
        assert opened is not None
        said = Done(operation=opened.operation, rank=0, process_epoch=5, outcome="completed")
        assert r.kv.handle(report(said)).outcome == outcome
        r.stack.nodes[1].device.faults.hold.clear()
        await r.kv.until(lambda: r.state(key).upload.phase == "IDLE")
        assert r.details() == []
