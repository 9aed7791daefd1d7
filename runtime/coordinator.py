"""The anyio shell: one task pumps effects out and reports in; callers await the end of their operation.

Everything runs on one event loop. A step loop never waits for a copy; `upload`, `retain`, `until` and `settled` wait.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

import anyio
import anyio.abc
import anyio.lowlevel

from kvsweep.ledger import events as e
from kvsweep.ledger.errors import Aborted, Busy, LogError, NotSettled
from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import Logical, Operation, RequestKey, Rows, Slot
from kvsweep.ledger.messages import (
    Abort,
    Acknowledge,
    BlockSelection,
    Done,
    Finish,
    Forget,
    Gather,
    Heard,
    PackTokens,
    PublishKeepMap,
    RankWork,
    Release,
    Retain,
    Select,
    Turn,
)
from kvsweep.ledger.state import OpenOperation, Residency
from kvsweep.runtime.core.core import Message
from kvsweep.runtime.core.steps import HandedOut
from kvsweep.runtime.driver import Driver
from kvsweep.runtime.outbox import SendQueues
from kvsweep.runtime.waiting import ANYTHING, IDLE, ROOM, Awaited, LogBell, Waiters, not_started, operation_of
from kvsweep.runtime.waiting import RetainResult as RetainResult
from kvsweep.runtime.waiting import UploadResult as UploadResult
from kvsweep.transports.links import RankLink
from kvsweep.transports.producer import Producer
from kvsweep.transports.wire import BadFrame, decode_from_rank

BAD_FRAMES_KEPT = 64
RESULTS_KEPT = 256


class Coordinator:
    """Driver, links to ranks, and producer in one task group. An async context manager, usable inside only.

    on_release is called with every `Release` before the blocks are free again: the place to poison them.

    Leaving it waits until all is settled, for the deadline of a transfer at most; then it raises NotSettled.

    Once an append has failed it is read-only: steps still begin and end, what is resident is still handed out, whoever
    waits gets LogError with the reason, and what peers say is not recorded.
    """

    def __init__(
        self,
        driver: Driver,
        *,
        links: Mapping[int, RankLink],
        producer: Producer,
        on_release: Callable[[Release], None] = lambda effect: None,
    ) -> None:
        self.driver = driver
        self.producer = producer
        self.bad_frames: deque[str] = deque(maxlen=BAD_FRAMES_KEPT)
        self._links = dict(links)
        self._on_release = on_release
        self._watches: dict[int, Awaited] = {}
        self._outgoing = SendQueues(self._links, note=self.bad_frames.append)
        self._results: dict[int, Awaited] = {}
        self._for_producer: list[PublishKeepMap | Acknowledge] = []
        self._wake = anyio.Event()
        self._waiters = Waiters()
        self._stack = AsyncExitStack()
        self._read_only = False
        driver.watch(self._on_event)

    async def __aenter__(self) -> Self:
        self._tasks = await self._stack.enter_async_context(anyio.create_task_group())
        self._tasks.start_soon(self._pump)
        if self.driver.log.queues:
            self._tasks.start_soon(self._hear_log)
        for rank, link in self._links.items():
            self._serve(rank, link)
        for request in self.driver.state.requests.values():
            if request.life == "CLOSED":  # in an earlier process, or while its ledger was opened
                self.producer.forget(request.key)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        try:
            if error is None:
                with anyio.move_on_after(self.driver.settings.transfer.deadline_s), contextlib.suppress(LogError):
                    await self.settled()
                if left := self.driver.pending():
                    raise NotSettled(tuple(left))
        finally:
            with anyio.CancelScope(shield=True):
                for link in self._links.values():
                    await link.aclose()
            self._tasks.cancel_scope.cancel()
            await self._stack.__aexit__(kind, error, traceback)
        return None

    def connect(self, rank: int, link: RankLink) -> None:
        """A rank came back over a new link; what is still on the old one may arrive late, or never."""
        self._links[rank] = link
        self._outgoing.connect(rank)
        self._serve(rank, link)

    def _serve(self, rank: int, link: RankLink) -> None:
        self._tasks.start_soon(self._receive, rank, link)
        self._tasks.start_soon(self._outgoing.send, rank, link)

    # ---- what never waits

    def handle(self, message: Message) -> Turn:
        """The driver's door; what it starts is pumped from here on. Raises as `Driver.handle` does."""
        try:
            return self.driver.handle(message)
        finally:
            self._wake.set()

    def open_request(self, request_id: str) -> RequestKey:
        key = self.driver.open_request(request_id)
        self._wake.set()
        return key

    def begin_step(self, requests: Iterable[RequestKey]) -> tuple[int, dict[RequestKey, HandedOut]]:
        return self.driver.begin_step(requests)

    def end_step(self, number: int) -> None:
        self.driver.end_step(number)
        self._wake.set()

    def finish(self, request: RequestKey) -> None:
        """Blocks go back when the last fence opens, not here."""
        self.handle(Finish(request=request))

    def residency(self, request: RequestKey) -> Residency:
        return self.driver.residency(request)

    @property
    def awaited(self) -> int:
        """Operations that somebody waits for."""
        return len(self._watches)

    @property
    def outgoing(self) -> int:
        """Frames that wait to be sent to ranks."""
        return len(self._outgoing)

    # ---- what waits

    async def upload(self, selection: BlockSelection, *, idempotency_key: str) -> UploadResult:
        """Upload what the selection lacks and wait for the commit; first for room where the log is behind.

        Leaving early (cancellation or the deadline) aborts this operation at once; the old residency is whole and
        still read. Raises Refused, PoolExhausted (no space: the old residency is kept), Aborted, and LogError where an
        append fails.
        """
        await self._room()
        turn = self.handle(Select(selection=selection, idempotency_key=idempotency_key))
        watch = await self._ended(turn, selection.request)
        return UploadResult(
            operation=operation_of(turn), residency=self.residency(selection.request), metrics=watch.metrics
        )

    async def retain(
        self,
        request: RequestKey,
        keep: Rows[Slot],
        *,
        adopt: Rows[Logical],
        map_revision: int,
        selection_revision: int,
        idempotency_key: str,
        pack: bool = False,
    ) -> RetainResult:
        """Keep these slots (and adopt these clean tail blocks) and wait until the replaced view is retired.

        map_revision is that of the residency whose slots `keep` names. Raises as `upload` does.
        """
        await self._room()
        turn = self.handle(
            Retain(
                request=request,
                keep=keep,
                adopt=adopt,
                map_revision=map_revision,
                selection_revision=selection_revision,
                idempotency_key=idempotency_key,
                pack=pack,
            )
        )
        watch = await self._ended(turn, request)
        return RetainResult(
            operation=operation_of(turn),
            method=watch.method,
            attention=watch.attention,
            residency=self.residency(request),
            metrics=watch.metrics,
        )

    async def until(self, condition: Callable[[], bool], about: RequestKey | None = None) -> None:
        """Wait for a condition of the adopted state. Raises LogError once an append has failed: it will not change.

        about  the request that the condition asks about, if it is one: events of others do not wake this task then
        """
        await self._until(condition, ANYTHING if about is None else about)

    async def settled(self, request: RequestKey | None = None) -> None:
        """No operation open or settling, no replaced view and no fence left; freed blocks are back in their pools."""
        about = ANYTHING if request is None else request
        while not self.driver.idle or self.driver.pending(request):
            await self._until(lambda: not self.driver.pending(request), about)
            await self._until(lambda: self.driver.idle, IDLE)

    async def _room(self) -> None:
        await self._until(lambda: self.driver.log.full() is None, ROOM)

    async def _until(self, condition: Callable[[], bool], about: Hashable) -> None:
        while not condition():
            self.driver.expect_writable()
            await self._waiters.wait(about)

    async def _ended(self, turn: Turn, request: RequestKey) -> Awaited:
        operation = turn.operation
        if operation is None:
            raise not_started(turn, request)
        if turn.outcome == "repeated" and turn.refusal is not None:
            raise Aborted(operation, turn.refusal.reason)
        watch = self._watches.get(operation.operation_id) or Awaited(operation)
        if turn.outcome == "repeated":
            opened = self._open(operation)
            if opened is None:
                return self._results.get(operation.operation_id, watch)
            watch.join(opened)
        self._watches[operation.operation_id] = watch
        for event in turn.events:
            watch.apply(event)
        watch.waiting += 1
        try:
            await watch.ended.wait()
        except BaseException:
            self._abort(operation, "the caller left")
            raise
        finally:
            watch.waiting -= 1
            if not watch.waiting:
                self._remember(self._watches.pop(operation.operation_id))
        watch.expect_committed()
        return watch

    def _remember(self, watch: Awaited) -> None:
        """Results of the last operations, for calls that are repeated after the end."""
        self._results[watch.operation.operation_id] = watch
        if len(self._results) > RESULTS_KEPT:
            del self._results[next(iter(self._results))]

    def _open(self, operation: Operation) -> OpenOperation | None:
        request = self.driver.state.request(operation.request)
        opened = request.open_operations() if request else ()
        return next((found for found in opened if found.operation == operation), None)

    def _abort(self, operation: Operation, reason: str) -> None:
        """Synchronous: nothing may be awaited in a cancelled scope. A commit already recorded stands."""
        request = self.driver.state.request(operation.request)
        lanes = (request.upload, request.retain) if request else ()
        if any(
            lane.open and lane.open.operation == operation and lane.phase in ("MOVING", "MOVED", "APPLYING", "APPLIED")
            for lane in lanes
        ):
            with contextlib.suppress(LogError):  # read-only: nothing moves on any more, nor can that be recorded
                self.handle(Abort(operation=operation, reason=reason))

    # ---- the pump

    def _on_event(self, event: Event) -> None:
        watch = self._watch_of(event)
        if watch is not None:
            watch.apply(event)
        if isinstance(event, e.RequestClosed):
            self.producer.forget(event.request)
            for rank in self._links:
                self._outgoing.post(rank, Forget(request=event.request))
        self._waiters.wake(event.request)
        self._waiters.wake(ANYTHING)

    def _watch_of(self, event: Event) -> Awaited | None:
        """Who waits for the operation that the event belongs to. A retirement names none: it is the open retain's."""
        operation: Operation | None = getattr(event, "operation", None)
        if isinstance(event, e.BlocksRetired) and event.cause == "retain":
            request = self.driver.state.request(event.request)
            operation = request.retain.open.operation if request and request.retain.open else None
        watch = self._watches.get(operation.operation_id) if operation is not None else None
        return watch if watch is not None and watch.operation == operation else None

    async def _pump(self) -> None:
        while True:
            self._wake = anyio.Event()
            if self._turn():
                self._waiters.wake(ANYTHING)
                if self.driver.idle:
                    self._waiters.wake(IDLE)
                await anyio.lowlevel.checkpoint()
            await self.driver.deadlines.wait(self._wake, self.driver.next_deadline())

    def _turn(self) -> bool:
        """One round of the pump: effects out, the producer's reports and expired deadlines in.

        Frames are only queued here, so a gather has copied before any rank hears of the transfer that reads the copies.
        """
        if (reason := self.driver.read_only) is not None:
            first, self._read_only = not self._read_only, True
            for watch in self._watches.values():
                watch.cut(reason)
            if first:
                self._waiters.wake_all()
            return first
        expired = self.driver.expire()
        effects = self.driver.poll()
        for effect in effects:
            if isinstance(effect, Release):
                self._on_release(effect)
                self.driver.release(effect)
            elif isinstance(effect, RankWork):
                for rank, _ in effect.ranks:
                    self._outgoing.post(rank, effect)
            elif isinstance(effect, Gather | PackTokens):
                self.producer.perform([effect])
            elif isinstance(effect, PublishKeepMap | Acknowledge):
                self._for_producer.append(effect)
        self._tell_producer()
        reports = self.producer.poll()
        for report in reports:
            self.handle(report)
        return bool(expired or effects or reports)

    def _tell_producer(self) -> None:
        """What it has no room for now stays, and what follows for the same request; both are told in a later turn."""
        waiting: dict[RequestKey, list[PublishKeepMap | Acknowledge]] = {}
        for effect in self._for_producer:
            request = effect.operation.request
            try:
                if request not in waiting:
                    self.producer.perform([effect])
                    continue
            except Busy:
                pass
            waiting.setdefault(request, []).append(effect)
        self._for_producer = [effect for left in waiting.values() for effect in left]

    async def _hear_log(self) -> None:
        """What became durable lets effects go, and makes room."""
        bell = LogBell(self.driver.log)
        try:
            while True:
                await bell.wait()
                self._wake.set()
                self._waiters.wake(ROOM)
                if self.driver.read_only is not None:
                    self._waiters.wake_all()
        finally:
            bell.close()

    # ---- links

    async def _receive(self, rank: int, link: RankLink) -> None:
        try:
            while True:
                try:
                    message = decode_from_rank(await link.receive())
                except BadFrame as error:
                    self.bad_frames.append(str(error))  # one bad message never ends the process
                    continue
                if message.rank != rank:  # nobody speaks for another rank, or for the producer
                    self.bad_frames.append(f"rank {rank}: expected its own word, got one of rank {message.rank}")
                    continue
                self.handle(message)
                if isinstance(message, Done) and self.driver.read_only is None:
                    self._outgoing.post(message.rank, Heard(operation_id=message.operation.operation_id))
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            return
