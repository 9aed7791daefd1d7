"""What a script may expect by name: laws, situations that the run is meant to reach, and figures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from kvsweep.ledger import events as e
from kvsweep.ledger import laws
from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import RequestKey, int32_view
from kvsweep.runtime.driver import Driver
from kvsweep.runtime.metrics import Metrics
from kvsweep.scenarios.verify.checkers import acks, conservation, content, ownership

BYTES: Final = content.LAW
DRAINS: Final = "everything drains"
REPLAYS: Final = "a replay gives the same state"
MOVES: Final = "nothing stands still"
AS_WRITTEN: Final = "steps end as the script says"
NO_ERROR: Final = "no error but ours"
LAWS: Final[dict[str, str]] = {
    BYTES: "whoever reads a generation, a tail or a valid CPU block sees the bytes that were written there",
    ownership.LAW: "no block, row or CPU block is handed out while held, freed twice or freed while held",
    acks.LAW: "every report of a rank or the producer gets the verdict that the contract gives it",
    conservation.LAW: "free and held blocks make up each pool after every fact",
    DRAINS: "after the faults stop, leases, fences and quarantine end, and every block is free again",
    REPLAYS: "folding the ledger anew gives the state and digest of the run",
    MOVES: "no wait of the script outlasts every deadline",
    AS_WRITTEN: "no step is refused or aborted that the script does not say so of, and each that it says so of is",
    NO_ERROR: "nothing raises what is not an error of the project",
    **{law.name: f"recounted from the state (clause {law.clause})" for law in laws.LAWS},
}
LAW_NAMES: Final = tuple(LAWS)
VERDICTS: Final = ("duplicate", "stale", "future", "conflict")


def figures(metrics: Metrics) -> dict[str, int]:
    """What a run cost, counted; no seconds, which a clock measures."""
    counted = {
        name: value
        for name, value in vars(metrics).items()
        if isinstance(value, int) and not isinstance(value, bool) and not name.startswith("_")
    }
    return counted | {f"remap_{mode}": count for mode, count in metrics.remap.items()}


FIGURES: Final = tuple(figures(Metrics()))


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
        self.reports: dict[int, set[int]] = {}  # open operation → ranks that have completed
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
                self.reports[number], self._ranks[number] = set(), len(event.ranks)
                self._open[number] = (key, isinstance(event, e.StoreStarted))
            case e.RankTransferred() | e.TablesApplied() | e.RankStored():
                self.reports.setdefault(event.operation.operation_id, set()).add(event.rank)
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
        left = self._ranks.get(number, 0) - len(self.reports.get(number, ()))
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
        for table in (self._open, self.reports, self._ranks, self._destinations):
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


Test = Callable[[History, Any], bool]
_TESTS: Final[dict[type[Event], list[tuple[str, Test]]]] = {}
SITUATIONS: Final[dict[str, str]] = {}
"""Name → one line for readers, in the order in which they are written here."""


def _situation(name: str, what: str, *kinds: type[Event]) -> Callable[[Test], Test]:
    def add(test: Test) -> Test:
        SITUATIONS[name] = what
        for kind in kinds:
            _TESTS.setdefault(kind, []).append((name, test))
        return test

    return add


class Situations:
    """Those that one run has reached."""

    def __init__(self, driver: Callable[[], Driver]) -> None:
        self.reached: set[str] = set()
        self._history = History(driver)

    def see(self, event: Event) -> None:
        """The next fact, after it was adopted."""
        for name, test in _TESTS.get(type(event), ()):
            if name not in self.reached and test(self._history, event):
                self.reached.add(name)
        self._history.see(event)


def _always(history: History, event: Event) -> bool:
    return True


_situation("tail blocks are adopted", "a view takes blocks over that decoding wrote", e.RetainPlanned)(
    lambda h, event: event.adopted.size > 0
)
_situation("shared remap", "one table serves all layers of a group", e.RetainPlanned)(
    lambda h, event: event.mode == "shared"
)
_situation("layer remap", "each layer keeps its own list; nothing moves", e.RetainPlanned)(
    lambda h, event: event.mode == "layer"
)
_situation("byte move", "kept blocks are copied out of place", e.RetainPlanned)(lambda h, event: event.mode == "move")
_situation("pack", "scattered areas are gathered", e.RetainPlanned)(lambda h, event: event.mode == "pack")
_situation("union under its label", "a table keeps what any layer wants, and says so", e.RetainPlanned)(
    lambda h, event: event.attention == "union"
)
_situation("zero-byte plan", "a selection that moves nothing publishes its keep map", e.KeepMapPublished)(_always)
_situation("full plan", "what is held is disregarded, because a layer had nothing to pad with", e.UploadPlanned)(
    lambda h, event: event.kind == "full"
)
_situation("padding", "a block that nobody asked for makes layers equal", e.UploadPlanned)(
    lambda h, event: event.pad is not None and event.pad.size > 0
)
_situation("vacant areas are reused", "an upload writes areas of blocks that its request owned", e.BlocksLeased)(
    lambda h, event: event.destination.size > 0 and h.reuses(event)
)
_situation("CPU copies", "the CPU gathers rows into copy destinations first", e.BlocksLeased)(
    lambda h, event: len(event.copies) > 0
)
_situation("no space", "a plan finds too few free blocks", e.PlanRefused)(lambda h, event: event.reason == "no_space")
_situation("no table row", "a plan finds every table row taken", e.PlanRefused)(
    lambda h, event: event.reason == "no_row"
)
_situation("no valid source", "a plan names a block that the CPU does not hold", e.PlanRefused)(
    lambda h, event: event.reason == "invalid_source"
)
_situation("a rank is lost", "a plan is refused because nobody would answer for a rank", e.PlanRefused)(
    lambda h, event: event.reason == "rank_lost"
)
_situation("refused for space, then tried again", "a plan comes about that was refused before", e.BlocksLeased)(
    lambda h, event: event.request in h.without_space
)
_situation("duplicate report", "a report that was sent before", e.AckIgnored)(
    lambda h, event: event.verdict == "duplicate"
)
_situation("stale report", "a report on something closed, or of an older life", e.AckIgnored)(
    lambda h, event: event.verdict == "stale"
)
_situation("report from the future", "a report on what was never begun", e.AckRefused)(
    lambda h, event: event.verdict == "future"
)
_situation("conflicting report", "a report against what is known", e.AckRefused)(
    lambda h, event: event.verdict == "conflict"
)
_situation("report of an older life", "a report that belongs to an earlier life of the id", e.AckIgnored)(
    lambda h, event: event.operation.request.request_epoch < event.request.request_epoch
)
_situation("report after finish", "a rank speaks of a request that has finished", e.TransferSettled, e.AckIgnored)(
    lambda h, event: (
        event.rank >= 0
        and getattr(event, "outcome", "") != "epoch_ended"
        and h.life.get(event.operation.request) in ("FINISHING", "CLOSED")
    )
)
_ABORTS: Final = (e.UploadAborted, e.RetainAborted, e.StoreAborted)
_situation("abort", "an operation is turned back", *_ABORTS)(_always)
_situation("abort after one rank was done", "some ranks had completed, and the old state stands", *_ABORTS)(
    lambda h, event: bool(h.reports.get(event.operation.operation_id))
)
_situation("abort by deadline", "a rank said nothing for too long", *_ABORTS)(
    lambda h, event: event.reason.startswith("deadline")
)
_situation("a copy fails", "a rank says failed", *_ABORTS)(lambda h, event: event.reason.endswith("failed"))
_situation("preempted under an operation", "what moved is turned back with the residency", *_ABORTS)(
    lambda h, event: event.reason == "preempted"
)
_situation("finished under an operation", "what moved is turned back by the end of the request", *_ABORTS)(
    lambda h, event: event.reason == "finished"
)
_situation("quarantine", "destinations stay held after an abort, until every rank is quiet", e.TransferSettled)(
    lambda h, event: event.operation.operation_id in h.settling
)
_situation("quarantine ends by the end of a process", "no report will come any more", e.TransferSettled)(
    lambda h, event: event.outcome == "epoch_ended"
)
_situation("quarantined blocks are used again", "a later plan gets what settled", e.BlocksLeased)(
    lambda h, event: h.was_quarantined(event)
)
_situation("a new attempt while the old one settles", "a retry has destinations of its own", e.TransferStarted)(
    lambda h, event: bool(h.settling_of(event.request))
)
_situation("a view is read after it was replaced", "it retires when its last reader ends", e.BlocksRetired)(
    lambda h, event: h.replaced_before(event)
)
_situation("a fence waits for a step", "tail blocks stay held for a step that was handed them", e.FenceOpened)(
    lambda h, event: h.fence_waited(event)
)
_situation("a tail block is lost", "decoding wrote it and no CPU block has it", e.BlockLost)(_always)
_situation("a window slides", "a sliding-window group lets go of a stored block", e.TailDropped)(
    lambda h, event: h.slides(event)
)
_situation("a prefix is shared", "a request refers to blocks that another one wrote", e.PrefixAttached)(_always)
_situation("a prefix is evicted under its readers", "nothing is freed by it", e.PrefixEvicted)(
    lambda h, event: not any(len(blocks) for blocks in event.freed)
)
_situation("a rank restarts", "its memory is gone", e.RankRestarted)(_always)
_situation("a rank restarts under a transfer", "the old process may have written a part", e.RankRestarted, e.RankLost)(
    lambda h, event: bool(h.settling)
)
_situation("the producer restarts", "every CPU block has to be named again", e.ProducerRestarted)(_always)
_situation("the producer restarts under a lease", "ranks may still read the old mapping", e.ProducerRestarted)(
    lambda h, event: h.leases() > 0
)
_situation("the coordinator restarts", "a new process goes on with the ledger", e.CoordinatorRestarted)(_always)
_situation("the coordinator restarts under an operation", "it is aborted and settles at once", e.CoordinatorRestarted)(
    lambda h, event: h.open_operations > 0
)
_situation("preempted and resumed", "a request comes back without a view", e.RequestResumed)(_always)
_situation("upload after resume", "the same path as any upload", e.ResidencyCommitted)(
    lambda h, event: event.request in h.resumed
)
_situation("a second life", "an id is opened again", e.RequestOpened)(lambda h, event: event.request.request_epoch > 1)
_situation("the last request ends", "nothing runs any more, and everything is given back", e.RequestClosed)(
    lambda h, event: h.nothing_lives(event)
)
_situation("two operations at once", "a store runs beside an upload or retain", e.StoreStarted, e.TransferStarted)(
    lambda h, event: h.beside(event)
)
_situation("a command is refused", "the serving loop asked for something illegal", e.CommandRefused)(_always)
_situation("handshake refused", "a process says what it cannot be", e.HandshakeRefused)(_always)
