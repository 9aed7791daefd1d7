"""A coordinator over the device rig, and how tests let its tasks run without a clock."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.lowlevel
import numpy as np
from tests.runtime.device_rig import DeviceRig
from tests.runtime.rig import Ids, make_layout, rows

from kvsweep.ledger.ids import RequestKey, no_rows
from kvsweep.ledger.messages import BlockSelection
from kvsweep.runtime.clock import TurnClock
from kvsweep.runtime.coordinator import Coordinator, RetainResult
from kvsweep.runtime.core.upload_plan import keep_slots
from kvsweep.transports.links import Chaos, RankLink, in_process_link
from kvsweep.transports.rank_server import serve_rank

FIRST: Ids = {0: [0, 2, 5], 1: [1, 2, 7]}
SECOND: Ids = {0: [0, 2, 6], 1: [1, 2, 3]}


def fast(turns: int = 20) -> dict[str, Any]:
    """A deadline of so many turns of the pump: it comes at the same turn in every run."""
    return {"transfer": {"deadline_s": turns / 1000.0}, "deadlines": TurnClock()}


class Shell:
    """A coordinator over the device rig, its ranks served behind links. An async context manager."""

    def __init__(self, *, chaos: Chaos | None = None, **fields: Any) -> None:
        self.rig = DeviceRig(make_layout(2, block_size=2), whole=8, **fields)
        self.chaos = chaos
        self.ends: list[RankLink] = []
        self.processes = [anyio.CancelScope() for _ in self.rig.workers]
        links = {}
        for rank in range(len(self.rig.workers)):
            links[rank], end = in_process_link(chaos=chaos)
            self.ends.append(end)
        self.kv = Coordinator(
            self.rig.driver, links=links, producer=self.rig.producer, on_release=self.rig.poison_released
        )
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self.tasks = await self._stack.enter_async_context(anyio.create_task_group())
        for rank, end in enumerate(self.ends):
            self.tasks.start_soon(self._serve, rank, end)
        await self._stack.enter_async_context(self.kv)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, traceback)

    async def _serve(self, rank: int, end: RankLink) -> None:
        with self.processes[rank]:
            await serve_rank(self.rig.workers[rank], self.rig.devices[rank], end)

    def kill(self, rank: int) -> None:
        """The rank's process ends; nobody has noticed yet."""
        self.processes[rank].cancel()

    def connect(self, rank: int, process_epoch: int) -> None:
        """A new process of the rank, on empty memory, over a new link; it announces itself."""
        self.rig.restart(rank, process_epoch)
        self.processes[rank] = anyio.CancelScope()
        ours, end = in_process_link(chaos=self.chaos)
        self.kv.connect(rank, ours)
        self.tasks.start_soon(self._serve, rank, end)

    def selection(self, key: RequestKey, want: Ids) -> BlockSelection:
        return self.rig.selection(key, {layer: np.asarray(ids, dtype=np.int32) for layer, ids in want.items()})

    def next_operation(self) -> int:
        return self.rig.driver.state.pool.next_operation_id

    def hold_next(self, *ranks: int) -> int:
        """The next operation does not run on these ranks until `let_go`."""
        number = self.next_operation()
        for rank in ranks or range(len(self.rig.devices)):
            self.rig.devices[rank].faults.hold.add(number)
        return number

    def let_go(self) -> None:
        for device in self.rig.devices:
            device.faults.hold.clear()

    async def upload(self, key: RequestKey, want: Ids, idempotency_key: str = "") -> None:
        await self.kv.upload(self.selection(key, want), idempotency_key=idempotency_key)
        self.rig.check_bytes(key)

    async def retain(self, key: RequestKey, want: Ids, idempotency_key: str = "", pack: bool = False) -> RetainResult:
        request = self.rig.request(key)
        return await self.kv.retain(
            key,
            keep_slots(request, rows(want)),
            adopt=no_rows(self.rig.layout.active_layers),
            map_revision=request.map_revision,
            selection_revision=request.selection_revision,
            idempotency_key=idempotency_key,
            pack=pack,
        )


async def soon(condition: Callable[[], bool]) -> None:
    """Give the other tasks turns until the condition holds."""
    for _ in range(2000):
        if condition():
            return
        await anyio.lowlevel.checkpoint()
    raise AssertionError("the condition did not come about")


def fail_fast() -> anyio.CancelScope:
    """A hang is a failure, not a stuck run."""
    return anyio.fail_after(5)  # type: ignore[return-value]
