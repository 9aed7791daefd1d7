"""The races that published faults are made of, each by name, on ranks that copy late and out of order.

KV here is a function of (request, layer, logical block), so every reader can be checked byte for byte.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio.lowlevel
import numpy as np
import pytest

from kvsweep.ledger import events as e
from kvsweep.ledger.errors import Aborted, LayoutError
from kvsweep.ledger.ids import RequestKey, int32_view
from kvsweep.ledger.layout import LayerLayout, Layout
from kvsweep.ledger.messages import (
    BlockSelection,
    Done,
    OpenTail,
    Preempt,
    ProcessLost,
    ProcessStarted,
    Resume,
    SealTail,
    Select,
)
from kvsweep.ledger.ownership import Holder
from kvsweep.ledger.sources import leading
from kvsweep.ledger.state import RequestState
from kvsweep.runtime.clock import TurnClock
from kvsweep.runtime.core.upload_plan import adoptable, keep_slots
from kvsweep.runtime.driver import Driver
from kvsweep.runtime.run_config import RunConfig
from kvsweep.runtime.selection import select_blocks
from kvsweep.runtime.settings import Settings
from kvsweep.scenarios.demo.stack import Stack
from kvsweep.transports.links import Chaos

BLOCK, LAYERS, RANKS, BLOCKS = 4, 3, 2, 12
LAYOUT = Layout.of(
    model_hash="races",
    dtype="float32",
    block_size=BLOCK,
    layers=tuple(LayerLayout(layer=n, group=0, kind="full", kv_heads=2, head_dim=4) for n in range(LAYERS)),
)


class Rig:
    """A stack whose KV is known, with the steps of an engine in one call each."""

    def __init__(self, stack: Stack) -> None:
        self.stack, self.kv, self.driver = stack, stack.kv, stack.driver
        self.revision = 0

    def state(self, key: RequestKey) -> RequestState:
        request = self.driver.state.request(key)
        assert request is not None
        return request

    async def opened(self, name: str, blocks: int = 8) -> RequestKey:
        """A request whose first blocks are written, sealed and mirrored."""
        key = self.kv.open_request(name)
        self.kv.handle(OpenTail(request=key, until=blocks))
        for block in self.state(key).tail:
            for rank, node in enumerate(self.stack.nodes):
                for layer in range(LAYERS):
                    rows = np.full((1, BLOCK, 4), value(name, layer, block.logical), dtype=np.float32)
                    node.device.write_rows(layer, block.physical[0], 0, rows + rank, rows - rank)
        self.kv.handle(SealTail(request=key, confirmed_tokens=blocks * BLOCK))
        await self.kv.until(lambda: leading(self.state(key).source) == blocks, key)
        return key

    def selection(self, key: RequestKey, wanted: list[int], whole: int = 8) -> BlockSelection:
        self.revision += 1
        scores = np.zeros((LAYERS, whole), dtype=np.float32)
        scores[:, wanted] = 1.0
        policy = Settings.of(
            log={"url": "memory:"},
            selection={"budget": len(wanted) / whole, "sink_blocks": 0, "recent_blocks": 0},
        ).selection
        return select_blocks(scores, request=key, revision=self.revision, layout=LAYOUT, policy=policy)

    async def round(self, key: RequestKey, wanted: list[int]) -> None:
        selection = self.selection(key, wanted)
        await self.kv.upload(selection, idempotency_key=f"select-{self.revision}")
        await self.retain(key, selection)

    async def retain(self, key: RequestKey, selection: BlockSelection) -> None:
        want = selection.logical_blocks_by_layer
        await self.kv.retain(
            key,
            keep_slots(self.state(key), want),
            adopt=adoptable(self.state(key), want, LAYOUT, shared_table=False),
            map_revision=self.state(key).map_revision,
            selection_revision=selection.selection_revision,
            idempotency_key=f"retain-{selection.selection_revision}",
        )

    def read(self, key: RequestKey, generation: int) -> None:
        """Every rank's table of this generation leads to the right bytes in every layer."""
        view = next(view for view in self.state(key).views if view.generation == generation)
        for rank, node in enumerate(self.stack.nodes):
            for layer, logical in view.logical.items():
                table = node.worker.table(key, view.row, generation, layer)
                for block, area in zip(logical.tolist(), table.tolist(), strict=True):
                    bytes_now = node.device.typed(layer)[area]
                    expected = value(key.request_id, layer, block)
                    where = f"rank {rank}, layer {layer}, logical {block}, physical {area}"
                    assert (bytes_now[0] == expected + rank).all(), where
                    assert (bytes_now[1] == expected - rank).all(), where

    def hold_next(self, rank: int) -> list[int]:
        """The next operation that is sent is held back on this rank; its number appears in the list."""
        held: list[int] = []

        def on_event(event: object) -> None:
            if not held and isinstance(event, e.TransferStarted | e.ReadersDrained | e.StoreStarted):
                held.append(event.operation.operation_id)
                self.stack.nodes[rank].device.faults.hold.add(held[0])

        self.driver.watch(on_event)
        return held

    async def turns(self, condition: Callable[[], bool]) -> None:
        """Let the stack run until the condition holds; a fault that keeps it from holding is a failure, not a hang."""
        for _ in range(5_000):
            if condition():
                return
            await anyio.lowlevel.checkpoint()
        raise AssertionError("the situation was not reached in 5,000 turns")


def value(name: str, layer: int, logical: int) -> float:
    return float(sum(name.encode()) % 97 * 100 + layer * 20 + logical)


@asynccontextmanager
async def rig(*, deadline_s: float = 60.0, blocks: int = BLOCKS, chaos: Chaos | None = None) -> AsyncIterator[Rig]:
    settings = Settings.of(log={"url": "memory:"}, transfer={"deadline_s": deadline_s})
    world = RunConfig(
        layout=LAYOUT,
        ranks=tuple((rank, 5) for rank in range(RANKS)),
        producer_epoch=1,
        device_blocks=(blocks,),
        cpu_full_blocks=24,
        cpu_total_blocks=24,
    )
    driver = Driver.open(settings, world, deadlines=TurnClock())
    async with Stack(driver, chaos=chaos) as stack:
        yield Rig(stack)
        for key in [request.key for request in driver.state.requests.values() if request.life != "CLOSED"]:
            stack.kv.finish(key)
        await stack.kv.settled()
    driver.check_laws()
    assert driver.pools.device.free == (blocks,)


@pytest.mark.anyio
async def test_a_copy_reads_its_source_when_it_runs_not_when_it_is_queued() -> None:
    """D8: fails where the device copies at enqueue. What is queued is held, its source changes, then it runs."""
    async with rig() as r:
        key = await r.opened("a")
        await r.round(key, [0, 1])
        held = r.hold_next(0)
        selection = r.selection(key, [0, 5])
        turn = r.kv.handle(chosen(selection))
        assert turn.operation is not None
        await r.turns(lambda: bool(held) and r.stack.nodes[0].device.queued > 0)
        source = int(int32_view(r.state(key).source)[5])
        area = int(r.state(key).upload.open.destination.row(0)[0])  # type: ignore[union-attr]
        shard = r.stack.producer.shards[0]
        shard.typed(0)[source] += 0.5  # the producer's memory as it is when the copy runs
        r.stack.nodes[0].device.faults.hold.clear()
        await r.kv.until(lambda: r.state(key).upload.phase == "IDLE")
        assert (r.stack.nodes[0].device.typed(0)[area][0] == value("a", 0, 5) + 0.5).all()
        shard.typed(0)[source] -= 0.5
        r.stack.nodes[0].device.typed(0)[area] -= 0.5


def chosen(selection: BlockSelection) -> Select:
    return Select(selection=selection, idempotency_key=f"select-{selection.selection_revision}")


@pytest.mark.anyio
async def test_f1_ranks_are_collected_as_a_set_and_never_counted() -> None:
    """Fails where completions are counted: one rank that says it twice is not two ranks."""
    async with rig() as r:
        key = await r.opened("a")
        await r.round(key, [0, 1])
        held = r.hold_next(1)
        operation = r.kv.handle(chosen(r.selection(key, [0, 5]))).operation
        assert operation is not None
        await r.turns(lambda: len(r.state(key).upload.open.outcomes) == 1)  # type: ignore[union-attr]
        again = r.kv.handle(Done(operation=operation, rank=0, process_epoch=5, outcome="completed"))
        assert again.outcome == "repeated"
        assert r.state(key).upload.phase == "MOVING"
        assert held == [operation.operation_id]
        r.stack.nodes[1].device.faults.hold.clear()
        await r.kv.until(lambda: r.state(key).upload.phase == "IDLE")
        r.read(key, r.state(key).current)


@pytest.mark.anyio
async def test_b6_a_slow_reader_never_sees_freed_memory() -> None:
    """Fails on use after free: freed blocks are poisoned, and the reader of the old generation reads on and on."""
    async with rig() as r:
        key = await r.opened("a")
        await r.round(key, [0, 1, 2, 3])
        old = r.state(key).current
        step, handed = r.kv.begin_step([key])
        assert handed[key].generation == old
        selection = r.selection(key, [0, 2])
        async with anyio.create_task_group() as tasks:

            async def compact() -> None:
                await r.kv.upload(selection, idempotency_key="slow")
                await r.retain(key, selection)

            tasks.start_soon(compact)
            await r.turns(lambda: r.state(key).retain.phase == "COMMITTED")
            for _ in range(50):
                r.read(key, old)
                await anyio.lowlevel.checkpoint()
            assert Holder("view", old) in r.driver.state.ownership.holders(key)
            r.kv.end_step(step)
        assert Holder("view", old) not in r.driver.state.ownership.holders(key)
        r.read(key, r.state(key).current)


@pytest.mark.anyio
async def test_g1_a_table_is_never_seen_half_switched() -> None:
    """One rank has written its new row, the other has not: every step is handed the old generation, whole."""
    async with rig() as r:
        key = await r.opened("a")
        await r.round(key, [0, 1, 2, 3])
        old = r.state(key).current
        r.hold_next(1)
        selection = r.selection(key, [0, 2])
        async with anyio.create_task_group() as tasks:

            async def keep() -> None:
                await r.kv.upload(selection, idempotency_key="half")  # zero bytes: a keep map
                await r.retain(key, selection)

            tasks.start_soon(keep)
            await r.turns(lambda: bool(r.state(key).retain.open and r.state(key).retain.open.outcomes))
            new = r.state(key).retain.open
            assert new is not None
            assert [rank for rank, _ in new.outcomes] == [0]
            r.stack.nodes[0].worker.table(key, new.row, new.generation, 0)  # rank 0 has the new row already
            with pytest.raises(LayoutError):
                r.stack.nodes[1].worker.table(key, new.row, new.generation, 0)
            step, handed = r.kv.begin_step([key])
            assert handed[key].generation == old
            r.read(key, old)
            r.kv.end_step(step)
            r.stack.nodes[1].device.faults.hold.clear()
        assert r.state(key).current == new.generation
        r.read(key, new.generation)


@pytest.mark.anyio
async def test_i_a_source_is_not_freed_while_a_transfer_may_read_it() -> None:
    """The request finishes in the middle of a transfer: its CPU blocks stay leased until every rank is terminal."""
    async with rig() as r:
        key = await r.opened("a")
        await r.round(key, [0, 1])
        r.hold_next(1)
        operation = r.kv.handle(chosen(r.selection(key, [0, 5, 6]))).operation
        assert operation is not None
        await r.turns(lambda: len(r.state(key).upload.open.outcomes) == 1)  # type: ignore[union-attr]
        sources = set(int32_view(r.state(key).source)[[5, 6]].tolist())
        device = r.stack.nodes[1].device
        device.advance(0)
        r.kv.finish(key)
        assert r.state(key).life == "FINISHING"
        lease = r.driver.state.ownership.holders(key)[Holder("src", operation.operation_id)]
        assert sources <= set(int32_view(lease.sources).tolist())
        other = await r.opened("b")  # takes CPU blocks while rank 1 may still read
        assert not sources & set(int32_view(r.state(other).source).tolist())
        device.faults.hold.clear()
        await r.kv.until(lambda: r.state(key).life == "CLOSED")
        await r.round(other, [0, 7])
        r.read(other, r.state(other).current)


@pytest.mark.anyio
async def test_a_silent_rank_ends_in_abort_quarantine_and_a_reason() -> None:
    """A deadline aborts and reports; only the rank's report, or the end of its process, ends the quarantine."""
    async with rig(deadline_s=0.2) as r:
        key = await r.opened("a")
        await r.round(key, [0, 1])
        before = r.state(key).current
        r.hold_next(1)
        with pytest.raises(Aborted, match=r"deadline of 0\.2 s: ranks \[1\] have not reported"):
            await r.kv.upload(r.selection(key, [0, 5]), idempotency_key="silent")
        (settling,) = r.state(key).settling
        assert r.state(key).current == before
        r.read(key, before)
        assert any("settles: ranks [1] are not terminal" in reason for reason in r.driver.pending(key))
        quarantined = r.driver.state.ownership.holders(key)[Holder("dst", settling.operation.operation_id)]
        assert quarantined.areas.size > 0
        r.kv.handle(ProcessLost(rank=1, process_epoch=5))
        assert not r.state(key).settling
        refused = r.kv.handle(ProcessStarted(rank=1, process_epoch=5))
        assert refused.outcome == "refused"
        assert refused.refusal is not None
        assert refused.refusal.reason == "rank 1: process_epoch: expected above 5, got 5"
        r.stack.nodes[1].device.faults.hold.clear()
        r.stack.restart_rank(1)


@pytest.mark.anyio
async def test_f4_a_preempted_request_comes_back_over_the_same_upload_path() -> None:
    async with rig() as r:
        key = await r.opened("a")
        await r.round(key, [0, 1])
        r.kv.handle(Preempt(request=key))
        await r.kv.until(lambda: not r.state(key).tail and not r.state(key).views)
        r.kv.handle(Resume(request=key))
        await r.round(key, [2, 7])
        assert r.state(key).view is not None
        r.read(key, r.state(key).current)


@pytest.mark.anyio
async def test_f2_every_message_twice_and_late_changes_nothing() -> None:
    async with rig(chaos=Chaos(seed=7, duplicate=0.5, delay=5)) as r:
        key = await r.opened("a")
        for wanted in ([0, 1], [1, 5], [2, 3], [0, 7]):
            await r.round(key, wanted)
            r.read(key, r.state(key).current)


def test_the_rig_knows_a_wrong_byte() -> None:
    """The oracle itself: another layer, block or request has another value."""
    values = {value(name, layer, logical) for name in ("a", "b") for layer in range(LAYERS) for logical in range(8)}
    assert len(values) == 2 * LAYERS * 8
