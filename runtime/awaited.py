"""One operation that somebody awaits: what it has cost so far, and how it ends."""

import anyio

from kvsweep.ledger import events as e
from kvsweep.ledger.errors import Aborted, LogError, PoolExhausted, Refused
from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import Operation, RequestKey
from kvsweep.ledger.messages import Turn
from kvsweep.ledger.state import OpenOperation
from kvsweep.runtime.metrics import Metrics


class Awaited:
    """Its own metrics and its end. Kept as long as somebody waits for it."""

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        self.waiting = 0
        self.metrics = Metrics()
        self.method = ""
        self.attention = "same"
        self.ended = anyio.Event()
        self._aborted: str | None = None
        self._cut: LogError | None = None

    def join(self, opened: OpenOperation) -> None:
        """An operation that was started before anybody waited for it."""
        if opened.lane == "retain":
            self.method, self.attention = opened.mode, opened.attention

    def apply(self, event: Event) -> None:
        self.metrics.apply(event)
        match event:
            case e.RetainPlanned():
                self.method, self.attention = event.mode, event.attention
            case e.UploadAcknowledged() | e.RetainAcknowledged():
                self.ended.set()
            case e.UploadAborted() | e.RetainAborted():
                self._aborted = event.reason
                self.ended.set()
            case _:
                pass

    def cut(self, reason: LogError) -> None:
        """Nothing is recorded any more: how it ends will not be known."""
        if not self.ended.is_set():
            self._cut = reason
            self.ended.set()

    def expect_committed(self) -> None:
        """Raise Aborted or LogError where it ended otherwise."""
        if self._aborted is not None:
            raise Aborted(self.operation, self._aborted)
        if self._cut is not None:
            raise LogError(str(self._cut))


def operation_of(turn: Turn) -> Operation:
    """What the turn started or joined. Raises LookupError where that is nothing."""
    if turn.operation is None:
        raise LookupError("the turn started no operation")
    return turn.operation


def not_started(turn: Turn, request: RequestKey) -> Exception:
    """Why the turn started nothing, to be raised."""
    refused = turn.events[0] if turn.events else None
    if isinstance(refused, e.PlanRefused) and refused.reason == "no_space":
        return PoolExhausted(f"{refused.lane} of {request.request_id}", refused.needed, refused.free)
    reason = turn.refusal.reason if turn.refusal else "nothing was started"
    return Refused(request, refused.reason if isinstance(refused, e.PlanRefused) else "plan", "this state", (), reason)
