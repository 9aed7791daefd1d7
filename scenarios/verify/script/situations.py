"""Situations: what a run is meant to reach, by name. Each looks at one fact and at what was known before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from kvsweep.ledger import events as e
from kvsweep.ledger.events import Event
from kvsweep.runtime.driver import Driver
from kvsweep.scenarios.verify.script.history import History

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
_situation("duplicate word", "a word that was said before", e.AckIgnored)(lambda h, event: event.verdict == "duplicate")
_situation("stale word", "a word on something closed, or of an older life", e.AckIgnored)(
    lambda h, event: event.verdict == "stale"
)
_situation("word from the future", "a word on what was never begun", e.AckRefused)(
    lambda h, event: event.verdict == "future"
)
_situation("conflicting word", "a word against what is known", e.AckRefused)(
    lambda h, event: event.verdict == "conflict"
)
_situation("word of an older life", "a word that belongs to an earlier life of the id", e.AckIgnored)(
    lambda h, event: event.operation.request.request_epoch < event.request.request_epoch
)
_situation("word after finish", "a rank speaks of a request that has finished", e.TransferSettled, e.AckIgnored)(
    lambda h, event: (
        event.rank >= 0
        and getattr(event, "outcome", "") != "epoch_ended"
        and h.life.get(event.operation.request) in ("FINISHING", "CLOSED")
    )
)
_ABORTS: Final = (e.UploadAborted, e.RetainAborted, e.StoreAborted)
_situation("abort", "an operation is turned back", *_ABORTS)(_always)
_situation("abort after one rank was done", "some ranks had completed, and the old state stands", *_ABORTS)(
    lambda h, event: bool(h.words.get(event.operation.operation_id))
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
_situation("quarantine ends by the end of a process", "no word will come any more", e.TransferSettled)(
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
