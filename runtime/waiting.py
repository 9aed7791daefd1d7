"""Waiting: for the state to change, for the log, and for the end of one operation with what it comes to."""

import contextlib
import socket
from collections.abc import Hashable

import anyio
from msgspec import Struct

from kvsweep.ledger import events as e
from kvsweep.ledger.errors import Aborted, LogError, PoolExhausted, Refused
from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import Operation, RequestKey
from kvsweep.ledger.messages import Turn
from kvsweep.ledger.state import OpenOperation, Residency
from kvsweep.ledger.store.log import LogStore, Position
from kvsweep.runtime.metrics import Metrics

ANYTHING, IDLE, ROOM = "anything", "idle", "room"
"""What a task may wait for beside the events of one request."""


class Waiters:
    """Waiting tasks by what wakes them. A wake is no promise: whoever waited looks for itself, and waits again."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, set[anyio.Event]] = {}

    async def wait(self, about: Hashable) -> None:
        """Return once somebody has waked `about`, or everybody, since the call."""
        event, waiting = anyio.Event(), self._waiting.setdefault(about, set())
        waiting.add(event)
        try:
            await event.wait()
        finally:
            waiting.discard(event)
            if not waiting and self._waiting.get(about) is waiting:
                del self._waiting[about]

    def wake(self, about: Hashable) -> None:
        for event in self._waiting.get(about, ()):
            event.set()

    def wake_all(self) -> None:
        for waiting in self._waiting.values():
            for event in waiting:
                event.set()

    def __len__(self) -> int:
        """Tasks that wait."""
        return sum(map(len, self._waiting.values()))


class LogBell:
    """Rung by the log's thread, which never waits here; heard by one task."""

    def __init__(self, log: LogStore) -> None:
        self._heard, self._rung = socket.socketpair()
        self._heard.setblocking(False)
        self._rung.setblocking(False)
        self._leave = log.watch(self._ring)

    def _ring(self, position: Position) -> None:
        with contextlib.suppress(OSError):  # full: the task has more than enough to wake for
            self._rung.send(b"\0")

    async def wait(self) -> None:
        """Return once it was rung since the last call."""
        await anyio.wait_readable(self._heard)
        self._heard.recv(4096)

    def close(self) -> None:
        self._leave()
        self._heard.close()
        self._rung.close()


class UploadResult(Struct, frozen=True, kw_only=True):
    """A committed upload, or a published keep map (zero bytes): the residency after it and what it cost."""

    operation: Operation
    residency: Residency
    metrics: Metrics


class RetainResult(Struct, frozen=True, kw_only=True):
    """A committed retain: how it was done, and what it cost and freed (two independent figures)."""

    operation: Operation
    method: str  # "shared" | "layer" | "move" | "pack"
    attention: str  # "same" | "union": the union is not the same selected attention
    residency: Residency
    metrics: Metrics


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
