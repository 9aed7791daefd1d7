"""The sans-I/O core: commands and reports go in, events and effects come out. No thread, clock, I/O or random."""

from collections.abc import Iterable
from typing import Any, Final, TypeAlias

from kvsweep.kernels.table import Kernels, choose_kernels
from kvsweep.ledger import events as e
from kvsweep.ledger import fold, messages
from kvsweep.ledger.errors import Refused, UsageError
from kvsweep.ledger.events import RankEpochs
from kvsweep.ledger.ids import HOLE, POOL, Operation, RequestKey
from kvsweep.ledger.messages import Command, Effect, Refusal, Release, Report, Reserve, Reserved, Turn
from kvsweep.ledger.state import EMPTY, Remembered, RequestState, State
from kvsweep.runtime.core import prefixes, reports, requests, restarts, retain, upload
from kvsweep.runtime.core.batch import Batch
from kvsweep.runtime.core.compiled_core import Standing
from kvsweep.runtime.core.follow import Context, release, settle
from kvsweep.runtime.core.retain import retain_digest
from kvsweep.runtime.core.steps import HandedOut, OpenSteps
from kvsweep.runtime.core.upload import CannotPlan, selection_digest
from kvsweep.runtime.core.well_formed import check_message, expect_key
from kvsweep.runtime.settings import Settings

Message: TypeAlias = Command | Report

_OF_OPERATION: Final = frozenset({messages.Abort, messages.Done, messages.Acknowledged})
_OF_NO_REQUEST: Final = frozenset(
    {messages.OpenRequest, messages.EvictPrefix, messages.ProcessStarted, messages.ProcessLost}
)


class Core:
    """One synchronous object. `handle` stages a turn; `adopt` it once its events are in the log, or `discard` it."""

    def __init__(
        self,
        settings: Settings,
        *,
        state: State = EMPTY,
        kernels: Kernels | None = None,
        compiled: bool | None = None,
    ) -> None:
        """kernels  what ranks and plans; None takes those that the settings name.
        compiled  whether the compiled core decides ordinary words; None: not where the settings name NumPy
        """
        self.settings = settings
        self.steps = OpenSteps(settings.limits.open_steps)
        chosen = kernels or choose_kernels(settings.kernels.choice, threads=settings.kernels.threads)
        takes_compiled = settings.kernels.choice != "numpy" if compiled is None else compiled
        self._standing = Standing(state, settings, self.steps, chosen, compiled=takes_compiled)
        self._context = Context(settings, self.steps, chosen, self._standing)
        self._drafts = upload.Drafts()

    def fork(self) -> "Core":
        """Another core in this state, open steps included; neither sees what the other does from here on.

        Raises UsageError while a turn is staged.
        """
        if self._standing.staged:
            raise UsageError("a turn is staged: adopt or discard it before the core is forked")
        twin = Core(self.settings, kernels=self._context.kernels, compiled=False)
        twin.steps = self.steps.fork()
        twin._standing = self._standing.fork(twin.steps)
        twin._context = Context(self.settings, twin.steps, self._context.kernels, twin._standing)
        return twin

    @property
    def state(self) -> State:
        """The adopted state."""
        return self._standing.state

    # ---- the one door

    def fact(self, fact: e.RunConfigured | e.DigestRecorded | e.HandshakeAgreed | e.HandshakeRefused) -> Turn:
        """A fact of the pool that the driver itself knows: the configuration, a digest."""
        batch = Batch(self.state)
        batch.state = fold.apply(batch.state, fact)
        batch.events.append(fact)
        return self._stage(batch, Turn(outcome="accepted"))

    def recover(self, evidence: str, kernels: str, ranks: RankEpochs, producer_epoch: int) -> Turn:
        """Go on where an earlier process stopped: end all that its ranks had, then let these processes live.

        ranks  every rank with the epoch of its new process, above the one that the state knows
        producer_epoch  of the process that holds the CPU's KV: the known one, or a newer one
        """
        batch = Batch(self._standing.to_decide())
        restarts.recover(batch, evidence, kernels, ranks, producer_epoch)
        everybody = [request.key for request in batch.state.requests.values() if request.life != "CLOSED"]
        return self._finish(batch, Turn(outcome="accepted"), *everybody)

    def handle(self, message: Message) -> Turn:
        """Decide on one message. Nothing changes until `adopt`; a second message waits for that.

        Raises Malformed for a message that has not the types of its declaration.
        """
        if self._standing.staged:
            raise UsageError("a turn is staged: adopt or discard it before the next message")
        check_message(message)
        ordinary = self._standing.handle(message)
        if ordinary is not None:
            return ordinary
        batch = Batch(self._standing.to_decide())
        command, reserved = (message.cause, message) if type(message) is Reserved else (message, None)
        try:
            turn = self._decide(batch, command, reserved)
        except Refused as error:
            return self._refuse(message, error)
        except CannotPlan as error:
            return self._cannot(command, error)
        if turn.outcome == "reserve":
            return turn
        return self._finish(batch, turn, _request_of(command))

    def _finish(self, batch: Batch, turn: Turn, *asked: RequestKey | None) -> Turn:
        """Take every step that follows by itself, say what is free, and stage."""
        for key in dict.fromkeys((*batch.keys(), *asked)):
            if key is not None and batch.state.request(key) is not None:
                settle(batch, self._context, key)
        if batch.events:
            release(batch)
        about = asked[0] if asked else None
        return self._stage(batch, turn, turn.operation.request if turn.operation else about)

    def _decide(self, batch: Batch, message: Message, reserved: Reserved | None) -> Turn:
        if type(message) is messages.Done:
            outcome, verdict = reports.done(batch, message)
            refusal = None
            if outcome == "refused":
                refusal = Refusal(what="Done", reason=f"{verdict.rule}: expected {verdict.expected}, got {verdict.got}")
            return Turn(outcome=outcome, refusal=refusal, operation=message.operation)
        if type(message) is messages.Acknowledged:
            return Turn(outcome=reports.acknowledged(batch, message), operation=message.operation)
        if type(message) is messages.ProcessStarted or type(message) is messages.ProcessLost:
            return self._process(batch, message)
        key = _request_of(message)
        request = batch.state.request(key) if key is not None else None
        if key is not None and request is None:
            raise Refused(key, type(message).__name__, "no such request", ("OpenRequest",))
        repeated = _repeated(request, message) if request is not None else None
        if repeated is not None:
            refusal = Refusal(what="Aborted", reason=repeated.aborted) if repeated.aborted else None
            return Turn(outcome="repeated", operation=repeated.operation, refusal=refusal)
        if request is not None and request.life == "CLOSED":
            raise Refused(request.key, type(message).__name__, request.describe(), (), "the request is closed")
        reply = self._command(batch, message, reserved)
        if reply is None or isinstance(reply, Operation):
            return Turn(outcome="accepted", operation=reply)
        return Turn(outcome="reserve", effects=(reply,))

    def _process(self, batch: Batch, message: messages.ProcessStarted | messages.ProcessLost) -> Turn:
        reason = restarts.process(batch, message)
        if reason is None:
            return Turn(outcome="accepted")
        return Turn(outcome="refused", refusal=Refusal(what=type(message).__name__, reason=reason))

    def _command(self, batch: Batch, message: Message, reserved: Reserved | None) -> Operation | Reserve | None:
        # The types themselves are compared: a struct's type takes long to say no to isinstance.
        if type(message) is messages.Select:
            return upload.select(batch, self._context, self._drafts, message, reserved)
        if type(message) is messages.Retain:
            return retain.retain(batch, self._context, message, reserved)
        if type(message) is messages.OpenTail:
            return requests.open_tail(batch, message, reserved)
        if type(message) is messages.SealTail:
            return requests.seal_tail(batch, self._context, message, reserved)
        match message:
            case messages.PublishPrefix():
                prefixes.publish(batch, message)
            case messages.AttachPrefix():
                prefixes.attach(batch, message)
            case messages.EvictPrefix():
                prefixes.evict(batch, message.blocks)
            case messages.RegisterSources():
                return requests.register(batch, message, reserved)
            case messages.OpenRequest():
                requests.open_request(batch, self._context, message)
            case messages.Abort():
                return requests.abort_operation(batch, message)
            case messages.Preempt():
                return requests.preempt(batch, self._context, message, reserved)
            case messages.Resume():
                requests.resume(batch, message)
            case messages.Finish():
                requests.finish(batch, message)
            case _:
                raise UsageError(f"expected a command or a report, got {type(message).__name__}")
        return None

    def _refuse(self, message: Message, error: Refused) -> Turn:
        """The caller's mistake: recorded, and returned for the driver to raise."""
        batch = Batch(self._standing.to_decide())
        command = message.cause if type(message) is Reserved else message
        key = error.key if isinstance(error.key, RequestKey) else _request_of(command)
        stream = reports.stream_of(self.state, key) if key is not None else POOL
        batch.emit(
            e.CommandRefused,
            stream,
            command=type(command).__name__,
            state=error.state,
            reason=error.reason or str(error),
        )
        batch.effects += _give_back(message)
        refusal = Refusal(what=error.what, reason=error.reason or str(error), legal=error.legal)
        return self._stage(batch, Turn(outcome="refused", refusal=refusal))

    def _cannot(self, command: Message, error: CannotPlan) -> Turn:
        """A named refusal that keeps the old residency and may be tried again."""
        batch = Batch(self._standing.to_decide())
        key = _request_of(command)
        if key is None:
            raise UsageError(f"{type(command).__name__} belongs to no request") from error
        batch.emit(
            e.PlanRefused,
            key,
            lane=error.lane,
            reason=error.reason,
            needed=error.needed,
            vacant=error.vacant,
            free=error.free,
            selection_revision=error.selection_revision,
        )
        return self._stage(batch, Turn(outcome="refused", refusal=Refusal(what=error.reason, reason=str(error))))

    # ---- staging

    def _stage(self, batch: Batch, turn: Turn, key: RequestKey | None = None) -> Turn:
        self._standing.stage(batch.state)
        request = batch.state.request(key) if key is not None else None
        return Turn(
            outcome=turn.outcome,
            refusal=turn.refusal,
            operation=turn.operation,
            events=tuple(batch.events),
            effects=tuple(batch.effects),
            holds_blocks=bool(request and batch.state.ownership.holders(request.key)),
        )

    def adopt(self, turn: Turn) -> None:
        """The turn's events are in the log: its state is the state."""
        if self._standing.staged:
            self._standing.adopt(turn.events)
        elif turn.events:
            raise UsageError("no turn is staged")

    def discard(self, turn: Turn) -> None:
        """The log said no: nothing happened."""
        self._standing.discard()

    # ---- steps

    def begin_step(self, requests: Iterable[RequestKey]) -> tuple[int, dict[RequestKey, HandedOut]]:
        """Hand out each request's current generation and tail; committed generations only."""
        handed = {}
        for key in requests:
            expect_key("begin_step", key)
            handed[key] = self._standing.handed_out(key) or self._handed_out(key)
        return self.steps.begin(handed), handed

    def _handed_out(self, key: RequestKey) -> HandedOut:
        request, lost = self.state.request(key), self.state.pool.lost
        if request is None or request.life != "RUNNING":
            state = request.describe() if request else "no such request"
            raise Refused(key, "begin_step", state, (), "only a running request is stepped")
        if lost:
            raise Refused(key, "begin_step", request.describe(), (), f"ranks {list(lost)} are lost: no step can end")
        view = request.view
        return HandedOut(
            generation=request.current,
            row=view.row if view else HOLE,
            tail=tuple(block.logical for block in request.tail),
        )

    def end_step(self, number: int) -> Turn:
        """Every rank has finished the step: what only it held back is retired."""
        if self._standing.staged:
            raise UsageError("a turn is staged: adopt or discard it before the step ends")
        ended = self.steps.end(number)
        ordinary = self._standing.end_step(ended)
        if ordinary is not None:
            return ordinary
        return self._finish(Batch(self._standing.to_decide()), Turn(outcome="accepted"), *ended)

    def pending(self, key: RequestKey | None = None) -> list[str]:
        """Reasons why something is still held, in words; empty when all is settled."""
        requests = self.state.requests.values() if key is None else filter(None, [self.state.request(key)])
        return [reason for request in requests for reason in _pending(self.state, request, self.steps)]


def _repeated(request: RequestState, message: Message) -> Remembered | None:
    """What this idempotency key already started; the key used for something else is refused."""
    if type(message) is not messages.Select and type(message) is not messages.Retain:
        return None
    for known in request.commands:
        if known.key == message.idempotency_key:
            if known.what != _what(message):
                reason = f"idempotency key {known.key!r} was used for something else"
                raise Refused(request.key, type(message).__name__, request.describe(), (), reason)
            return known
    return None


def _what(message: messages.Select | messages.Retain) -> str:
    """Digest of what is asked."""
    return selection_digest(message.selection) if isinstance(message, messages.Select) else retain_digest(message)


def _request_of(message: Any) -> RequestKey | None:
    kind, key = type(message), None
    if kind is Reserved:
        key = _request_of(message.cause)
    elif kind in _OF_OPERATION:
        key = message.operation.request
    elif kind is messages.Select:
        key = message.selection.request
    elif kind not in _OF_NO_REQUEST:
        key = message.request
    return key


def _give_back(message: Message) -> list[Effect]:
    """Blocks that were reserved for a plan which did not come about."""
    if type(message) is not Reserved or message.device is None:
        return []
    return [Release(device=message.device, cpu=message.cpu_full + message.cpu_copy + message.claimed)]


def _pending(state: State, request: RequestState, steps: OpenSteps) -> list[str]:
    name, reasons = request.key.request_id, []
    for opened in request.open_operations():
        silent = sorted({rank for rank, _ in opened.ranks} - {rank for rank, _ in opened.outcomes})
        waits = f"ranks {silent} have not reported" if silent else "the producer has not acknowledged"
        reasons.append(f"{name}: {opened.lane} operation {opened.operation.operation_id} is open: {waits}")
    for opened in request.settling:
        silent = sorted({rank for rank, _ in opened.ranks} - {rank for rank, _ in opened.outcomes})
        reasons.append(f"{name}: operation {opened.operation.operation_id} settles: ranks {silent} are not terminal")
    for view in request.views:
        if view.generation != request.current:
            reasons.append(f"{name}: view {view.generation} is read by steps {steps.open_numbers(request.key)}")
    reasons += [f"{name}: fence {fence} waits for steps {steps.open_numbers(request.key)}" for fence in request.fences]
    return reasons
