"""What a run has seen so far, as far as situations ask for it."""

from __future__ import annotations

from collections.abc import Callable

from kvsweep.ledger import events as e
from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import RequestKey, int32_view
from kvsweep.runtime.driver import Driver

STARTS = (e.TransferStarted, e.ReadersDrained, e.StoreStarted)
ENDS = (e.UploadAcknowledged, e.RetainAcknowledged, e.StoreCompleted)
ABORTS = (e.UploadAborted, e.RetainAborted, e.StoreAborted)
LIVES = {
    e.RequestOpened: "RUNNING",
    e.RequestResumed: "RUNNING",
    e.RequestPreempted: "PREEMPTED",
    e.RequestFinished: "FINISHING",
    e.RequestClosed: "CLOSED",
}
Area = tuple[int, int]
"""(layer, physical block)."""


class History:
    """A fold over the facts of one run; `see` is told of each after it was adopted."""

    def __init__(self, driver: Callable[[], Driver]) -> None:
        self._driver = driver
        self.life: dict[RequestKey, str] = {}
        self.resumed: set[RequestKey] = set()  # and not yet uploaded
        self.words: dict[int, set[int]] = {}  # open operation → ranks that have completed
        self.settling: dict[int, RequestKey] = {}
        self.without_space: set[RequestKey] = set()  # refused for space, and not planned since
        self._left: dict[int, int] = {}  # settling operation → ranks that are not terminal
        self._ranks: dict[int, int] = {}
        self._open: dict[int, tuple[RequestKey, bool]] = {}  # operation → (request, whether it is a store)
        self._destinations: dict[int, set[Area]] = {}
        self._quarantined: set[Area] = set()
        self._replaced: dict[tuple[RequestKey, int], int] = {}  # view → steps that were open when it was replaced
        self._current: dict[RequestKey, int] = {}
        self._fences: dict[tuple[RequestKey, int], int] = {}  # fence → steps that were open when it began

    def see(self, event: Event) -> None:
        key = event.request
        if type(event) in LIVES:
            self.life[key] = LIVES[type(event)]
        match event:
            case e.RequestResumed():
                self.resumed.add(key)
            case e.RequestPreempted() | e.RequestFinished():
                self._replace(key, 0)
            case e.PlanRefused() if event.reason == "no_space":
                self.without_space.add(key)
            case e.BlocksLeased():
                self.without_space.discard(key)
                self._destinations[event.operation.operation_id] = areas(event)
            case e.TransferStarted() | e.ReadersDrained() | e.StoreStarted():
                number = event.operation.operation_id
                self.words[number], self._ranks[number] = set(), len(event.ranks)
                self._open[number] = (key, isinstance(event, e.StoreStarted))
            case e.RankTransferred() | e.TablesApplied() | e.RankStored():
                self.words.setdefault(event.operation.operation_id, set()).add(event.rank)
            case e.ResidencyCommitted() | e.OwnersCommitted():
                self.resumed.discard(key)
                self._replace(key, event.generation)
            case e.TailDropped():
                self._fences[key, event.fence] = self._step_count()
            case _ if isinstance(event, ABORTS):
                self._settle(event.operation.operation_id, key)
            case _ if isinstance(event, ENDS):
                self._close(event.operation.operation_id)
            case e.TransferSettled():
                self._settled(event.operation.operation_id)
            case _:
                pass

    def _replace(self, key: RequestKey, generation: int) -> None:
        known = self._current.get(key)
        if known:
            self._replaced[key, known] = self._step_count()
        self._current[key] = generation

    def _step_count(self) -> int:
        """Steps that are open on anything now."""
        return len(self._driver().core.steps)

    def _settle(self, number: int, key: RequestKey) -> None:
        left = self._ranks.get(number, 0) - len(self.words.get(number, ()))
        self._open.pop(number, None)
        if left > 0:
            self.settling[number], self._left[number] = key, left

    def _settled(self, number: int) -> None:
        if number in self._left:
            self._left[number] -= 1
            if not self._left[number]:
                self._quarantined |= self._destinations.get(number, set())
                del self._left[number], self.settling[number]
                self._close(number)

    def _close(self, number: int) -> None:
        for table in (self._open, self.words, self._ranks, self._destinations):
            table.pop(number, None)

    # ---- questions

    @property
    def open_operations(self) -> int:
        return len(self._open)

    def settling_of(self, key: RequestKey) -> list[int]:
        """Its operations that settle."""
        return [number for number, owner in self.settling.items() if owner == key]

    def was_quarantined(self, event: e.BlocksLeased) -> bool:
        return bool(areas(event) & self._quarantined)

    def reuses(self, event: e.BlocksLeased) -> bool:
        """Whether an area lies outside the blocks that this plan reserves."""
        new = {block for blocks in event.reserved for block in int32_view(blocks).tolist()}
        return any(block not in new for _, block in areas(event))

    def replaced_before(self, event: e.BlocksRetired) -> bool:
        """Whether a step was open when the view was replaced."""
        return self._replaced.get((event.request, event.generation), 0) > 0

    def fence_waited(self, event: e.FenceOpened) -> bool:
        return self._fences.get((event.request, event.fence), 0) > 0

    def slides(self, event: e.TailDropped) -> bool:
        layout = self._driver().state.pool.layout
        return layout.group_kind(event.group) == "sliding" and self.life.get(event.request) == "RUNNING"

    def leases(self) -> int:
        """Source leases that are held now."""
        held = self._driver().state.ownership.held
        return sum(holder.kind == "src" for holders in held.values() for holder in holders)

    def nothing_lives(self, event: e.RequestClosed) -> bool:
        others = [life for key, life in self.life.items() if key != event.request]
        return all(life == "CLOSED" for life in others)

    def beside(self, event: e.StoreStarted | e.TransferStarted) -> bool:
        """Whether the same request has an operation open in another lane."""
        stores = isinstance(event, e.StoreStarted)
        return any(key == event.request and store != stores for key, store in self._open.values())


def areas(event: e.BlocksLeased) -> set[Area]:
    """The destinations of a plan."""
    return {(layer, block) for layer, blocks in event.destination.items() for block in blocks.tolist()}
