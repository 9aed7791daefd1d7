"""A coordinator over the device rig, and how tests let its tasks run without a clock."""

from collections.abc import Callable

import anyio
import anyio.lowlevel
import numpy as np
from tests.runtime.device_rig import DeviceRig
from tests.runtime.rig import Ids, make_layout, rows

from kvsweep.ledger.ids import RequestKey, no_rows
from kvsweep.ledger.messages import BlockSelection
from kvsweep.runtime.coordinator import Coordinator, RetainResult
from kvsweep.runtime.upload_plan import keep_slots

FAST = {"transfer": {"deadline_s": 0.02}}
FIRST: Ids = {0: [0, 2, 5], 1: [1, 2, 7]}
SECOND: Ids = {0: [0, 2, 6], 1: [1, 2, 3]}


class Shell:
    """A coordinator over the device rig."""

    def __init__(self, **fields: object) -> None:
        self.rig = DeviceRig(make_layout(2, block_size=2), whole=8, **fields)  # type: ignore[arg-type]
        self.kv = Coordinator(
            self.rig.driver, workers=self.rig.workers, devices=self.rig.devices, producer=self.rig.producer
        )

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
        self.kv.open_request(f"poke-{self.next_operation()}-{len(self.rig.events)}")  # wakes the pump

    async def upload(self, key: RequestKey, want: Ids, idempotency_key: str = "") -> None:
        await self.kv.upload(self.selection(key, want), idempotency_key=idempotency_key)
        self.rig.check_bytes(key)

    async def retain(self, key: RequestKey, want: Ids, idempotency_key: str = "", pack: bool = False) -> RetainResult:
        request = self.rig.request(key)
        return await self.kv.retain(
            key,
            keep_slots(request, rows(want)),
            adopt=no_rows(self.rig.layout.active_layers),
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
