"""Core + log + pools: synchronous, waits for nothing. A turn's events are appended before its state is adopted."""

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias, get_args

from kvsweep.ledger import events as e
from kvsweep.ledger import laws
from kvsweep.ledger.errors import (
    BrokenLaw,
    Busy,
    HandshakeError,
    KvsweepError,
    LogError,
    Malformed,
    Refused,
    SequenceConflict,
    SettingsError,
    Unencodable,
    UsageError,
)
from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import POOL, RequestKey
from kvsweep.ledger.messages import (
    REPORTS,
    STARTS_WORK,
    Abort,
    Cancel,
    Effect,
    OpenRequest,
    Refusal,
    Release,
    Reserve,
    Reserved,
    Turn,
)
from kvsweep.ledger.state import EMPTY, Residency, State, residency
from kvsweep.ledger.store.codec import EVENT_TYPES
from kvsweep.ledger.store.digest import ByParts, Digest
from kvsweep.ledger.store.log import LogStore, Position, Snapshot
from kvsweep.runtime.clock import BOUNDS, Clock, Deadlines, MachineClock, TurnClock, settling, silent
from kvsweep.runtime.core.core import Core, Message
from kvsweep.runtime.core.steps import HandedOut
from kvsweep.runtime.core.well_formed import expect_key
from kvsweep.runtime.metrics import Metrics, stamp
from kvsweep.runtime.outbox import Outbox
from kvsweep.runtime.recovery import Folded, pools_of, recovered
from kvsweep.runtime.run_config import RunConfig
from kvsweep.runtime.settings import Settings
from kvsweep.runtime.stores import open_store
from kvsweep.transports.handshake import Capabilities, differences, handshake_fact
from kvsweep.transports.pools import Pools

Ended: TypeAlias = e.UploadAborted | e.RetainAborted | e.StoreAborted | e.TransferSettled
ENDED: frozenset[type[Event]] = frozenset(get_args(Ended))


PARTS_A_TURN: Final = 2
"""Parts of a state that are hashed in one turn while a digest is worked out."""

EVENTS_A_PART: Final = 8
"""A turn of many messages hashes a part more for so many of its events."""


class Driver:
    """One owner thread. Effects leave `poll` only when what caused them survives what they need it to survive.

    Once an append has failed, nothing is written and no effect leaves any more; what is resident is still handed out.
    """

    def __init__(
        self,
        settings: Settings,
        log: LogStore,
        pools: Pools,
        *,
        clock: Callable[[], float],
        deadlines: Clock,
        folded: Folded | None = None,
    ) -> None:
        self.settings = settings
        self.core = Core(settings, state=folded.state if folded else EMPTY)
        self.log = log
        self.pools = pools
        self.metrics = Metrics()
        self.deadlines = deadlines
        self._clock = clock
        self._digest = folded.digest if folded else Digest()
        self._since_digest = 0
        self._hashing: tuple[Position, ByParts] | None = None  # the digest that is being worked out, and of where
        self._outbox = Outbox(settings.log.ack)
        self._watchers: list[Callable[[Event], None]] = []
        self._failed: LogError | None = None
        self._position = log.durable()  # of the last appended event
        self._deadlines = Deadlines(deadlines, settings.transfer.deadline_s)
        looks = self.metrics.figures(), dict.fromkeys(BOUNDS, self._deadlines.apply), dict.fromkeys(ENDED, self._follow)
        self._told: dict[object, list[Callable[[Any], None]]] = {
            kind: [look[kind] for look in looks if kind in look] for kind in EVENT_TYPES.values()
        }
        self.events = 0  # appended so far
        self.final_digest = ""  # of the whole run, once it is closed

    @classmethod
    def open(
        cls,
        settings: Settings,
        world: RunConfig,
        *,
        evidence: str = "{}",
        kernels: str = "",
        log: LogStore | None = None,
        clock: Callable[[], float] = time.perf_counter,
        deadlines: Clock | None = None,
    ) -> "Driver":
        """Begin a new ledger with the run's configuration (J1), or go on with one that an earlier process has left.

        Going on, everything that ended with that process is aborted and settled in one batch before this returns.
        Raises LogError where the ledger cannot be folded or began in another world, and for a rank whose process epoch
        is not above the one that the ledger knows.

        log  a store that is open already, instead of the one that the settings name
        kernels  what copies, ranks and plans; recorded, and in no digest
        """
        if settings.source.kind == "copy" and world.cpu_total_blocks == world.cpu_full_blocks:
            raise LogError("source kind copy needs copy destinations: expected N > K, got N = K (D5)")
        store = log if log is not None else open_store(settings)
        try:
            if store.queues and isinstance(deadlines, TurnClock):
                raise SettingsError(
                    "$.log.writer", "inline with a clock that counts turns: a thread does not", "thread"
                )
            folded = recovered(store, world) if store.durable() else None
            pools = pools_of(world, folded.state) if folded else world.pools()
            driver = cls(settings, store, pools, clock=clock, deadlines=deadlines or MachineClock(), folded=folded)
            if folded is None:
                driver._take(driver.core.fact(world.configured(evidence, kernels)))
            else:
                driver._take(driver.core.recover(evidence, kernels, world.ranks, world.producer_epoch))
        except BaseException:
            store.close()
            raise
        return driver

    # ---- the door

    def handle(self, message: Message) -> Turn:
        """Decide, append, adopt. A report raises nothing.

        Raises Refused for an illegal command, Malformed for one that has not the types of its declaration, Busy for one
        that starts work while the log is behind by its bound, and LogError for any command once an append has failed.
        """
        if type(message) in REPORTS:
            return self._report(message)
        self.expect_writable()
        if type(message) in STARTS_WORK and (bound := self.log.full()) is not None:
            raise Busy(*bound)
        return self._handle(message)

    def _report(self, message: Message) -> Turn:
        try:
            self.expect_writable()
            return self._handle(message)
        except LogError as error:
            return _refused(type(message).__name__, error)

    def _handle(self, message: Message) -> Turn:
        started, asked = self._clock(), Asked(self.pools)
        try:
            turn = self.core.handle(message, asked)
            turn = self._record(turn, plan_s=self._clock() - started)
        except Exception as error:
            asked.give_back()
            if type(message) in REPORTS and isinstance(error, Malformed | Unencodable):
                return _refused(type(message).__name__, error)
            if isinstance(error, Unencodable):
                raise UsageError(f"{type(message).__name__}: {error}") from error
            raise
        self._tell(turn)
        if turn.refusal is not None and turn.outcome == "refused" and isinstance(turn.events[0], e.CommandRefused):
            refusal = turn.refusal
            raise Refused(turn.events[0].request, refusal.what, turn.events[0].state, refusal.legal, refusal.reason)
        return turn

    def handle_all(self, messages: Sequence[Message]) -> tuple[Turn, ...]:
        """Decide on many messages, append once, adopt. A turn for each, in their order: none touches its neighbours.

        What `handle` raises for one message is its refused turn here. Messages about one request keep their order;
        beyond that, those of one kind are taken together. Raises what a kernel or a watcher raises, and no message
        came about then, or all have.
        """
        turns: dict[int, Turn] = {}
        for at, message in enumerate(messages):
            reason = self._not_now(message)
            if reason is not None:
                turns[at] = _refused(type(reason).__name__, reason)
        left = [at for at in range(len(messages)) if at not in turns]
        try:
            turns.update(zip(left, self._together([messages[at] for at in left]), strict=True))
        except Unencodable:  # something that one of them says: each for itself, so that only that one is refused
            turns.update((at, self._alone(messages[at])) for at in left)
        except LogError as error:
            turns.update((at, _refused(type(messages[at]).__name__, error)) for at in left)
        return tuple([turns[at] for at in range(len(messages))])

    def _not_now(self, message: Message) -> KvsweepError | None:
        """Why the message is not even looked at; None where it is."""
        if self.read_only is not None:
            return self.read_only
        if type(message) in STARTS_WORK and (bound := self.log.full()) is not None:
            return Busy(*bound)
        return None

    def _together(self, messages: Sequence[Message]) -> tuple[Turn, ...]:
        started, asked = self._clock(), Asked(self.pools)
        try:
            found = self.core.handle_all(messages, asked)
            turn = Turn(outcome="accepted", events=found.events, effects=found.effects)
            turn = self._record(turn, plan_s=self._clock() - started)
        except Exception:
            self.core.discard()
            asked.give_back()
            raise
        self._tell(turn)
        return found.turns

    def _alone(self, message: Message) -> Turn:
        try:
            return self.handle(message)
        except KvsweepError as error:
            return _refused(type(error).__name__, error)

    def agree(self, producer: Capabilities, ranks: Iterable[Capabilities]) -> None:
        """Hold the producer's contract against each rank's and record the outcome, before anything else is done.

        Raises HandshakeError naming every differing field with both values; the refusal is recorded too.
        """
        for number, rank in enumerate(ranks):
            found = differences(producer, rank)
            self._take(self.core.fact(handshake_fact(self.state.pool.seq, number, rank, found)))
            if found:
                raise HandshakeError(found)

    def open_request(self, request_id: str) -> RequestKey:
        """A new life of this id; the epoch is the coordinator's to give."""
        return self.handle(OpenRequest(request_id=request_id)).events[0].request

    def begin_step(self, requests: Iterable[RequestKey]) -> tuple[int, dict[RequestKey, HandedOut]]:
        """Number of the step, and per request the committed generation and the tail that it may read."""
        return self.core.begin_step(requests)

    def end_step(self, number: int) -> Turn:
        """Every rank has done the step; in any order, once. Once an append has failed, nothing is freed by it."""
        turn = self.core.end_step(number)
        try:
            self.expect_writable()
            return self._take(turn)
        except LogError:
            self.core.discard(turn)
            return Turn(outcome="accepted")

    def poll(self) -> list[Effect]:
        """Effects whose need is met for their cause, those of one need in order; none once an append has failed.

        `Release` stands among them: the shell gives the blocks back.
        """
        if not self._outbox or self.read_only is not None:
            return []
        return self._outbox.take(process=self.log.durable(), power=self.log.durable("power"))

    # ---- deadlines

    def next_deadline(self) -> float | None:
        """Earliest moment, on the driver's clock, at which `expire` has something to do."""
        return self._deadlines.next() if self._failed is None else None

    def expire(self) -> list[Turn]:
        """Abort what has waited too long. A deadline aborts and reports; it frees nothing and settles nothing."""
        limit = self.settings.transfer.deadline_s
        turns = []
        for one in self._deadlines.due():
            if self.read_only is not None:
                break
            turns.append(
                self.handle(Abort(operation=one, reason=f"deadline of {limit:g} s: {silent(self.state, one)}"))
            )
        for one in self._deadlines.to_ask_again():
            left = settling(self.state, one)
            if left is not None and self.read_only is None:
                # The cancel may have been lost, or met a full rank; it may come any number of times.
                self._outbox.put(self._position, (Cancel(operation=one, ranks=left.ranks),))
                self._deadlines.settle_again(one)
        return turns

    def _follow(self, event: Ended) -> None:
        """An aborted operation is asked after until every rank is terminal."""
        left = settling(self.state, event.operation)
        if isinstance(event, e.TransferSettled):
            if left is None:
                self._deadlines.settled(event.operation)
        elif left is not None:
            self._deadlines.settle_again(event.operation)

    @property
    def idle(self) -> bool:
        """No effect waits to be polled."""
        return not self._outbox

    def release(self, effect: Release) -> None:
        """Give freed blocks back to their pools. The caller has poisoned them by now, where it does."""
        self.pools.release(effect)

    # ---- looking

    @property
    def read_only(self) -> LogError | None:
        """Why nothing can be recorded any more; None while all is well."""
        if self._failed is None:
            try:
                self.log.durable()
            except LogError as error:
                self._failed = LogError(f"read-only since an append failed: {error}")
        return self._failed

    def expect_writable(self) -> None:
        """Raise LogError with the reason once an append has failed."""
        failed = self.read_only
        if failed is not None:
            raise LogError(str(failed)) from failed

    @property
    def state(self) -> State:
        return self.core.state

    def residency(self, request: RequestKey) -> Residency:
        """What the request has on the device now. Raises Refused for an unknown life."""
        expect_key("residency", request)
        known = self.state.request(request)
        if known is None:
            raise Refused(request, "residency", "no such request", ("OpenRequest",))
        return residency(self.state, known)

    def pending(self, request: RequestKey | None = None) -> list[str]:
        """Reasons why something is still held; empty when all is settled. A failed append is one, and stands first."""
        reasons = self.core.pending(request)
        return reasons if self.read_only is None else [str(self.read_only), *reasons]

    def watch(self, watcher: Callable[[Event], None]) -> None:
        """Call back with every event after it was appended, in order."""
        self._watchers.append(watcher)

    def check_laws(self) -> None:
        """Raise BrokenLaw for the first broken law of the state. For tests and ends of runs; it recounts everything."""
        broken = laws.check(self.state)
        if broken:
            name, _, detail = broken[0].partition(": ")
            raise BrokenLaw(name, detail)

    def digest(self) -> str:
        """Digest over all events so far and the state they gave."""
        return self._digest.value(self.state)

    def record_digest(self) -> str:
        """Record the digest of the state as it is, and wait until all of it is stored. Returns the digest.

        For moments of rest of a process that may be ended without a word. Raises LogError.
        """
        self.expect_writable()
        digest = self.digest()
        self._record_digest()
        self.log.flush()
        return digest

    def close(self) -> None:
        """Record the last digest, wait until everything is stored, and close the log.

        Raises LogError where something that was not known to have failed could not be stored.
        """
        try:
            if self._failed is None:
                self.final_digest = self.digest()
                self._record_digest()
                self.log.flush()
        finally:
            self.log.close()

    # ---- inside

    def _take(self, turn: Turn) -> Turn:
        turn = self._record(turn)
        self._tell(turn)
        return turn

    def _record(self, turn: Turn, *, plan_s: float = 0.0) -> Turn:
        """Append and adopt, or neither. Whatever it raises, the turn did not come about."""
        if not turn.events:
            self.core.adopt(turn)
            self._outbox.put(self._position, turn.effects)
            return turn
        stamp(turn.events, plan_s)
        try:
            position = self.log.append(turn.events, level=self._outbox.level(turn.effects))
        except Unencodable:
            self.core.discard(turn)
            raise
        except BaseException as error:  # whether it is stored nobody knows: nothing may follow it
            self.core.discard(turn)
            self._failed = LogError(f"read-only since an append failed: {str(error) or type(error).__name__}")
            if isinstance(error, LogError | SequenceConflict):
                raise self._failed from error
            raise
        self.core.adopt(turn)
        self._position = position
        self._outbox.put(position, turn.effects)
        self._digest.update_all(turn.events)
        for event in turn.events:
            for look in self._told[type(event)]:
                look(event)
        self.events += len(turn.events)
        self._since_digest += len(turn.events)
        return turn

    def _tell(self, turn: Turn) -> None:
        """Watchers hear of what is recorded. What one of them raises goes to the caller, and undoes nothing."""
        if self._watchers:
            for event in turn.events:
                for watcher in self._watchers:
                    watcher(event)
        with contextlib.suppress(LogError):  # the turn itself is recorded: the next command says what failed
            self._go_on_hashing(len(turn.events))

    def _go_on_hashing(self, events: int) -> None:
        """A digest is worked out over the turns that follow its position: the state is a value, and hashed by parts."""
        if self._hashing is None:
            if self._since_digest < self.settings.log.digest_every:
                return
            if self.log.snapshot_due():
                self._record_digest()
                return
            self._since_digest = 0
            self._hashing = self._position, self._digest.by_parts(self.state)
        position, digest = self._hashing
        found = digest.go_on(PARTS_A_TURN + events // EVENTS_A_PART)
        if found is not None:
            self._hashing = None
            self._take_digest(position, found)

    def _record_digest(self) -> None:
        """Of the state as it is now, at once."""
        self._since_digest, self._hashing = 0, None
        position, digest = self._position, self.digest()
        if self.log.snapshot_due():
            state, chain = self.state, self._digest.chain
            self.log.keep_snapshot(Snapshot(position=position, digest=digest, chain=chain, state=state))
        self._take_digest(position, digest)

    def _take_digest(self, position: Position, digest: str) -> None:
        seq = self.state.pool.seq
        self._take(self.core.fact(e.DigestRecorded(request=POOL, seq=seq, position=position, digest=digest)))


def _refused(what: str, reason: object) -> Turn:
    return Turn(outcome="refused", refusal=Refusal(what=what, reason=str(reason)))


class Asked:
    """Asks the pools for one turn, and remembers what they gave."""

    __slots__ = ("_given", "_pools")

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self._given: list[Reserved] = []

    def __call__(self, ask: Reserve) -> Reserved:
        reserved = self._pools.reserve(ask)
        self._given.append(reserved)
        return reserved

    def give_back(self) -> None:
        """The turn did not come about."""
        for one in self._given:
            if one.device is not None:
                self._pools.release(Release(device=one.device, cpu=one.cpu_full + one.cpu_copy + one.claimed))
        self._given.clear()
