"""A legal run that meets what random walks seldom draw: adopted blocks, moved areas, packed tokens, a shared prefix."""

from collections.abc import Sequence
from typing import Any

from tests.ledger.worlds import DEVICE_BLOCKS, WITH_SLIDING, A, B, K, World, rows

from kvsweep.ledger import events as e
from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import Operation, RequestKey, int32_bytes
from kvsweep.ledger.ownership import Holder
from kvsweep.ledger.state import State


class Recorded(World):
    """A world that keeps its facts."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        super().__init__(WITH_SLIDING, opened=False)

    def emit(self, fact: type[Event], key: RequestKey = A, /, **fields: Any) -> State:
        self.events.append(self.event(fact, key, fields))
        return super().emit(fact, key, **fields)

    def retire(self, generation: int, cause: str, freed: Sequence[int] = (), key: RequestKey = A) -> None:
        """It works out itself what becomes free."""
        before, gone = self.state.ownership, (Holder("view", generation),) if generation else ()
        free = before.change(key, self.layout, drop=gone).freed_blocks(before, key, self.layout)
        self.emit(e.BlocksRetired, key, generation=generation, cause=cause, freed=free)


def packed(w: Recorded, row: int) -> Operation:
    """The token method: five tokens of one layer in two blocks, one of the other, from copies."""
    taken = [*w.owned(), *w.shared()]
    reserved = [block for block in range(DEVICE_BLOCKS) if block not in taken][:2]
    logical, to = {0: [0, 1], 1: [0]}, {0: reserved, 1: reserved[:1]}
    operation = w.plan(logical, kind="full", source_kind="copy", valid_tokens=int32_bytes([5, 1]))
    copied = {"source": rows({0: [K, K + 1], 1: [K + 2]}), "copies": int32_bytes([K, K + 1, K + 2])}
    w.emit(e.BlocksLeased, **w.lease(to, reserved, row, **copied))
    w.emit(e.TransferStarted, operation=operation, ranks=w.state.pool.ranks)
    return operation


def recorded() -> list[Event]:
    w = Recorded()
    w.open(row_count=3)
    w.clean_tail(4, [0, 0], 4)
    w.clean_tail(6, [1, 1], 5)
    w.select()  # a keep map where nothing is resident yet
    none = {"operation": w.operation(), "selection_revision": 1, "keep": rows(w.none)}
    w.emit(e.KeepMapPublished, **none)
    w.emit(e.UploadAcknowledged, operation=w.opened("upload"), process_epoch=w.state.pool.producer_epoch)
    w.retained(w.none, [], row=0, adopted=rows({0: [4], 1: []}))  # replaces nothing
    adopted = rows({0: [6], 1: [4, 6]})
    w.commit(w.upload({0: [0, 2], 1: [1]}, {0: [2, 3], 1: [3]}, [2, 3], 1, adopted=adopted))
    w.retire(1, "upload")
    w.drop([4], group=0)
    w.open_fence(1)
    moved = {"moved_from": rows({0: [1], 1: [3]}), "moved_to": rows({0: [4], 1: [2]})}
    w.retained({0: [0, 1, 2], 1: [2]}, [], row=2, mode="move", reserved=w.by_group([4]), **moved)
    w.retained({0: [1], 1: [0]}, [], row=0)
    number = w.publish(6)
    w.open(B, row_count=2, first_source=6, blocks=2)
    w.attach(number)
    w.commit(packed(w, 1))
    w.retire(w.of().current - 1, "upload")
    settling = packed(w, 2)
    w.emit(e.UploadAborted, operation=settling, reason="deadline")
    w.settle(settling, 0, "failed")
    w.settle(settling, 1, "completed")
    w.emit(e.RequestPreempted)
    w.emit(e.RequestResumed)
    return w.events
