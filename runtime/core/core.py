"""The sans-I/O core: commands and reports go in, events and effects come out. No thread, clock, I/O or random."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import GeneratorType
from typing import Any, Final, Protocol, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from kvsweep.kernels.table import Kernels, choose_kernels
from kvsweep.ledger import events as e
from kvsweep.ledger import messages as m
from kvsweep.ledger.draft import Draft
from kvsweep.ledger.errors import KvsweepError, Refused, UsageError
from kvsweep.ledger.events import Event, RankEpochs
from kvsweep.ledger.fold import emit, emit_in, take
from kvsweep.ledger.ids import HOLE, POOL, Operation, RequestKey
from kvsweep.ledger.messages import Command, Effect, Refusal, Release, Report, Reserve, Reserved, Turn
from kvsweep.ledger.standing import Standing
from kvsweep.ledger.state import EMPTY, Remembered, RequestState, State
from kvsweep.runtime.core import prefixes, reports, requests, restarts
from kvsweep.runtime.core.expect import Asking, CannotPlan, Context
from kvsweep.runtime.core.follow import follow, release
from kvsweep.runtime.core.retain import retain, retain_digest
from kvsweep.runtime.core.steps import HandedOut, OpenSteps
from kvsweep.runtime.core.upload import select, selection_digest
from kvsweep.runtime.core.well_formed import check_message, expect_key
from kvsweep.runtime.settings import Settings

Message: TypeAlias = Command | Report


class Answer(Protocol):
    """Asks the pools, which answer at once."""

    def __call__(self, ask: Reserve, /) -> Reserved: ...
    def give_back(self) -> None:
        """Nothing that was given since the last call is used."""


class RefusedLate(Exception):
    """A message was refused after it had changed its draft."""

    def __init__(self, command: Message, reserved: Reserved | None, error: "Refused | CannotPlan") -> None:
        self.command, self.reserved, self.error = command, reserved, error


DECIDE: Final[Mapping[type, Callable[[Draft, Context, Any], Any]]] = {
    m.Select: select,
    m.Retain: retain,
    m.OpenTail: requests.open_tail,
    m.SealTail: requests.seal_tail,
    m.RegisterSources: requests.register,
    m.OpenRequest: requests.open_request,
    m.Abort: requests.abort_operation,
    m.Preempt: requests.preempt,
    m.Resume: requests.resume,
    m.Finish: requests.finish,
    m.PublishPrefix: prefixes.publish,
    m.AttachPrefix: prefixes.attach,
    m.EvictPrefix: prefixes.evict,
}
"""Who decides on what the serving loop asks: each gives the operation that it starts or speaks of, or None."""

_OF_OPERATION: Final = frozenset({m.Abort, m.Done, m.Acknowledged})
_OF_NO_REQUEST: Final = frozenset({m.OpenRequest, m.EvictPrefix, m.ProcessStarted, m.ProcessLost})


class Turns(Struct, frozen=True):
    """What many messages came to. Events and effects stand in the order in which they came about."""

    turns: tuple[Turn, ...]  # one a message, in the order of the messages
    events: tuple[Event, ...]
    effects: tuple[Effect, ...]


_Found: TypeAlias = tuple[list[Turn], tuple[Event, ...], tuple[Effect, ...]]


class Core:
    """One synchronous object. `handle` stages a turn; `adopt` it once its events are in the log, or `discard` it."""

    def __init__(self, settings: Settings, *, state: State = EMPTY, kernels: Kernels | None = None) -> None:
        """kernels  what ranks and plans; None takes those that the settings name."""
        self.settings = settings
        self.steps = OpenSteps(settings.limits.open_steps)
        self._standing = Standing(state)
        chosen = kernels or choose_kernels(settings.kernels.choice, threads=settings.kernels.threads)
        self._context = Context(settings, self.steps, chosen)

    def fork(self) -> "Core":
        """Another core in this state, open steps included; neither sees what the other does from here on.

        Raises UsageError while a turn is staged.
        """
        if self._standing.staged:
            raise UsageError("a turn is staged: adopt or discard it before the core is forked")
        twin = Core.__new__(Core)
        twin.settings, twin.steps, twin._standing = self.settings, self.steps.fork(), self._standing.fork()
        twin._context = Context(self.settings, twin.steps, self._context.kernels)
        return twin

    @property
    def state(self) -> State:
        """The adopted state, a value: it stays what it is."""
        return self._standing.state

    def request(self, key: RequestKey) -> RequestState | None:
        """What is known of exactly this life, or None. Only to be looked at before the next message."""
        return self._standing.request(key)

    # ---- the one door

    def fact(self, fact: e.RunConfigured | e.DigestRecorded | e.HandshakeAgreed | e.HandshakeRefused) -> Turn:
        """A fact of the pool that the driver itself knows: the configuration, a digest."""
        self._expect_nothing_staged()
        draft = self._standing.draft()
        take(draft, fact)
        draft.events.append(fact)
        return self._staged(draft, Turn(outcome="accepted"))

    def recover(self, evidence: str, kernels: str, ranks: RankEpochs, producer_epoch: int) -> Turn:
        """Go on where an earlier process stopped: end all that its ranks had, then let these processes live.

        ranks  every rank with the epoch of its new process, above the one that the state knows
        producer_epoch  of the process that holds the CPU's KV: the known one, or a newer one
        """
        draft = self._standing.draft()
        restarts.recover(draft, evidence, kernels, ranks, producer_epoch)
        for request in draft.everybody():
            if request.life != "CLOSED":
                follow(draft, self._context, draft.own(request))
        return self._staged(draft, Turn(outcome="accepted"))

    def handle(self, message: Message, answer: Answer | None = None) -> Turn:
        """Decide on one message. Nothing changes until `adopt`; a second message waits for that.

        answer  asks the pools. Without it, a turn of outcome "reserve" says what is needed, and `Reserved` is handed in

        Raises Malformed for a message that has not the types of its declaration.
        """
        self._expect_nothing_staged()
        return self._alone(message, answer)

    def handle_all(self, messages: Sequence[Message], answer: Answer) -> Turns:
        """Decide on many messages in one go; they are adopted or discarded together.

        Messages about one request keep their order; beyond that, those of one kind are taken together. One that is
        refused changes nothing for its neighbours. Nothing is raised for one that cannot be meant: its turn says so.
        """
        self._expect_nothing_staged()
        order = _by_kind(messages)
        try:
            try:
                found, events, effects = self._in_one_draft(order, messages, answer)
            except RefusedLate:  # one has changed what the others stand on
                answer.give_back()
                found, events, effects = self._each_alone(order, messages, answer)
        except BaseException:
            self.discard()
            self._standing.forget_index()  # whatever it was in the middle of
            raise
        turns = dict(zip(order, found, strict=True))
        return Turns(turns=tuple([turns[at] for at in range(len(messages))]), events=events, effects=effects)

    def _in_one_draft(self, order: Sequence[int], messages: Sequence[Message], answer: Answer) -> _Found:
        draft, turns = self._standing.draft(), []
        try:
            for at in order:
                events = len(draft.events)
                try:
                    turns.append(self._turn(draft, messages[at], answer))
                except KvsweepError as error:
                    if len(draft.events) > events:
                        raise
                    turns.append(_not_meant(error))
        except RefusedLate:
            draft.drop()
            raise
        release(draft)
        self._stage(draft)
        return turns, tuple(draft.events), tuple(draft.effects)

    def _each_alone(self, order: Sequence[int], messages: Sequence[Message], answer: Answer) -> _Found:
        turns = []
        for at in order:
            try:
                turns.append(self._alone(messages[at], answer))
            except KvsweepError as error:
                turns.append(_not_meant(error))
        events = tuple([event for turn in turns for event in turn.events])
        return turns, events, tuple([effect for turn in turns for effect in turn.effects])

    def _expect_nothing_staged(self) -> None:
        if self._standing.staged:
            raise UsageError("a turn is staged: adopt or discard it before the next message")

    def _alone(self, message: Message, answer: Answer | None) -> Turn:
        """Decide in a draft of its own, and stage it."""
        draft = self._standing.draft()
        try:
            turn = self._turn(draft, message, answer)
        except RefusedLate as late:
            draft.drop()
            draft = self._standing.draft()
            turn = self._refused(draft, late.command, late.reserved, late.error)
        except KvsweepError:
            draft.drop()
            raise
        except BaseException:
            self._standing.forget_index()  # whatever it was in the middle of
            raise
        return self._staged(draft, turn)

    def _turn(self, draft: Draft, message: Message, answer: Answer | None) -> Turn:
        """Decide, and take every step that follows by itself. Raises RefusedLate where the draft has to be dropped."""
        check_message(message)
        command, reserved = (message.cause, message) if type(message) is Reserved else (message, None)
        events, effects = len(draft.events), len(draft.effects)
        try:
            found, given = self._decide(draft, command), reserved
            if isinstance(found, GeneratorType):
                asking, found = found, _next(found, None)
                while isinstance(found, Reserve):
                    if given is None:
                        if answer is None:  # nothing has changed yet: it is decided again with the answer
                            return Turn(outcome="reserve", effects=(found,))
                        reserved = given = answer(found)
                    found, given = _next(asking, given), None
        except (Refused, CannotPlan) as error:
            if len(draft.events) > events:
                raise RefusedLate(command, reserved, error) from error
            return self._refused(draft, command, reserved, error)
        turn = found if isinstance(found, Turn) else Turn(outcome="accepted", operation=found)
        about = self._follow(draft, command)
        return Turn(
            outcome=turn.outcome,
            refusal=turn.refusal,
            operation=turn.operation,
            events=tuple(draft.events[events:]),
            effects=tuple(draft.effects[effects:]),
            holds_blocks=about is not None and bool(draft.holders(about)),
        )

    def _follow(self, draft: Draft, command: Message) -> RequestKey | None:
        """What follows by itself: for the request that the message is about, or for everybody whom it touched."""
        key = _request_of(command)
        if key is None:
            for touched in tuple(draft.requests.values()):
                if touched is not None:
                    follow(draft, self._context, touched)
        elif (known := draft.known(key)) is not None:
            follow(draft, self._context, draft.own(known))
        return key

    def _decide(self, draft: Draft, message: Message) -> Any:
        """The turn, the operation, or a decision that asks for blocks."""
        if type(message) is m.Done:
            outcome, verdict = reports.done(draft, message)
            refusal = None
            if outcome == "refused":
                refusal = Refusal(what="Done", reason=f"{verdict.rule}: expected {verdict.expected}, got {verdict.got}")
            return Turn(outcome=outcome, refusal=refusal, operation=message.operation)
        if type(message) is m.Acknowledged:
            return Turn(outcome=reports.acknowledged(draft, message), operation=message.operation)
        if type(message) is m.ProcessStarted or type(message) is m.ProcessLost:
            reason = restarts.process(draft, message)
            if reason is None:
                return Turn(outcome="accepted")
            return Turn(outcome="refused", refusal=Refusal(what=type(message).__name__, reason=reason))
        key = _request_of(message)
        if key is not None:
            request = draft.known(key)
            if request is None:
                raise Refused(key, type(message).__name__, "no such request", ("OpenRequest",))
            repeated = _repeated(request, message)
            if repeated is not None:
                refusal = Refusal(what="Aborted", reason=repeated.aborted) if repeated.aborted else None
                return Turn(outcome="repeated", operation=repeated.operation, refusal=refusal)
            if request.life == "CLOSED":
                raise Refused(key, type(message).__name__, request.describe(), (), "the request is closed")
        return DECIDE[type(message)](draft, self._context, message)

    def _refused(self, draft: Draft, command: Message, reserved: Reserved | None, error: Refused | CannotPlan) -> Turn:
        """The caller's mistake, or a plan that may be tried again: recorded, and nothing else is changed."""
        events, effects = len(draft.events), len(draft.effects)
        if isinstance(error, CannotPlan):
            refusal = self._cannot(draft, command, error)
        else:
            key = error.key if isinstance(error.key, RequestKey) else _request_of(command)
            stream = reports.stream_of(draft, key) if key is not None else POOL
            reason = error.reason or str(error)
            emit_in(draft, e.CommandRefused, stream, command=type(command).__name__, state=error.state, reason=reason)
            refusal = Refusal(what=error.what, reason=reason, legal=error.legal)
            if reserved is not None and reserved.device is not None:  # for a plan that did not come about
                cpu = reserved.cpu_full + reserved.cpu_copy + reserved.claimed
                draft.effects.append(Release(device=reserved.device, cpu=cpu))
        return Turn(
            outcome="refused",
            refusal=refusal,
            events=tuple(draft.events[events:]),
            effects=tuple(draft.effects[effects:]),
        )

    def _cannot(self, draft: Draft, command: Message, error: CannotPlan) -> Refusal:
        key = _request_of(command)
        if key is None:
            raise UsageError(f"{type(command).__name__} belongs to no request") from error
        emit(
            draft,
            e.PlanRefused,
            draft.mine(key),
            lane=error.lane,
            reason=error.reason,
            needed=error.needed,
            vacant=error.vacant,
            free=error.free,
            selection_revision=error.selection_revision,
        )
        return Refusal(what=error.reason, reason=str(error))

    # ---- staging

    def _stage(self, draft: Draft) -> None:
        if draft.events:
            self._standing.stage(draft)
            self.steps.stage(draft.fences, draft.opened)

    def _staged(self, draft: Draft, turn: Turn) -> Turn:
        """The turn with all that the draft came to, which is staged."""
        release(draft)
        self._stage(draft)
        return replace(
            turn,
            events=tuple(draft.events),
            effects=turn.effects if turn.outcome == "reserve" else tuple(draft.effects),
        )

    def adopt(self, *turns: Turn | Turns) -> None:
        """The events of what is staged are in the log: it is the state. Raises UsageError for turns that are not."""
        if self._standing.staged:
            self._standing.adopt()
            self.steps.adopt()
        elif any(turn.events for turn in turns):
            raise UsageError("no turn is staged")

    def discard(self, *turns: Turn | Turns) -> None:
        """The log said no: nothing happened."""
        self._standing.discard()
        self.steps.discard()

    # ---- steps

    def begin_step(self, keys: Iterable[RequestKey]) -> tuple[int, dict[RequestKey, HandedOut]]:
        """Hand out each request's current generation and tail; committed generations only."""
        handed = {}
        for key in keys:
            expect_key("begin_step", key)
            handed[key] = self._handed_out(key)
        return self.steps.begin(handed), handed

    def _handed_out(self, key: RequestKey) -> HandedOut:
        request, lost = self._standing.request(key), self._standing.pool.lost
        if request is None or request.life != "RUNNING":
            state = request.describe() if request else "no such request"
            raise Refused(key, "begin_step", state, (), "only a running request is stepped")
        if lost:
            raise Refused(key, "begin_step", request.describe(), (), f"ranks {list(lost)} are lost: no step can end")
        view = request.view
        return HandedOut(
            generation=request.current,
            row=view.row if view else HOLE,
            tail=tuple([block.logical for block in request.tail]),
        )

    def end_step(self, number: int) -> Turn:
        """Every rank has finished the step: what only it held back is retired."""
        if self._standing.staged:
            raise UsageError("a turn is staged: adopt or discard it before the step ends")
        draft = self._standing.draft()
        for key in self.steps.end(number):
            if (known := draft.known(key)) is not None:
                follow(draft, self._context, draft.own(known))
        return self._staged(draft, Turn(outcome="accepted"))

    def pending(self, key: RequestKey | None = None) -> list[str]:
        """Reasons why something is still held, in words; empty when all is settled."""
        known = self._standing.requests.values() if key is None else filter(None, [self._standing.request(key)])
        return [reason for request in known for reason in _pending(request, self.steps)]


def _not_meant(error: KvsweepError) -> Turn:
    """What is raised for one message is its own outcome among many."""
    return Turn(outcome="refused", refusal=Refusal(what=type(error).__name__, reason=str(error)))


def _next(asking: Asking, given: Reserved | None) -> Reserve | Operation | None:
    """What the decision asks for next, or what it comes to."""
    try:
        return asking.send(given)  # type: ignore[arg-type]  # None starts it
    except StopIteration as done:
        operation: Operation | None = done.value
        return operation


def _by_kind(messages: Sequence[Message]) -> list[int]:
    """Places of the messages in the order in which they are taken. What is about no request stays where it is."""
    order: list[int] = []
    segment: list[tuple[int, int, int]] = []  # (messages about this request before it, kind, place)
    before: dict[str, int] = {}
    kinds: dict[type, int] = {}
    for at, message in enumerate(messages):
        kind = type(message)
        key = message.request_id if kind is m.OpenRequest else _id_of(message)  # type: ignore[union-attr]
        if key is None:
            order += [place for _, _, place in sorted(segment)] + [at]
            segment.clear()
            before.clear()
            continue
        level = before[key] = before.get(key, -1) + 1
        segment.append((level, kinds.setdefault(kind, len(kinds)), at))
    return order + [place for _, _, place in sorted(segment)]


def _id_of(message: Any) -> str | None:
    try:
        key = _request_of(message)
        return key.request_id if key is not None else None
    except AttributeError:  # malformed: whoever takes it says so
        return None


def _repeated(request: RequestState, message: Message) -> Remembered | None:
    """What this idempotency key already started; the key used for something else is refused."""
    if type(message) is not m.Select and type(message) is not m.Retain:
        return None
    known = request.commands.get(message.idempotency_key)
    if known is not None and known.what != _what(message):
        reason = f"idempotency key {message.idempotency_key!r} was used for something else"
        raise Refused(request.key, type(message).__name__, request.describe(), (), reason)
    return known


def _what(message: m.Select | m.Retain) -> str:
    """Digest of what is asked."""
    return selection_digest(message.selection) if isinstance(message, m.Select) else retain_digest(message)


def _request_of(message: Any) -> RequestKey | None:
    kind = type(message)
    if kind is m.Select:
        found: RequestKey = message.selection.request
    elif kind in _OF_OPERATION:
        found = message.operation.request
    elif kind in _OF_NO_REQUEST:
        return None
    else:
        found = message.request
    return found


def _pending(request: RequestState, steps: OpenSteps) -> list[str]:
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
