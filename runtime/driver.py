"""Core + log + pools: synchronous, waits for nothing. A turn's events are appended before its state is adopted."""

import time
from collections import deque
from collections.abc import Callable, Iterable

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from kvsweep.ledger import events as e
from kvsweep.ledger import laws
from kvsweep.ledger.digest import Digest
from kvsweep.ledger.errors import BrokenLaw, HandshakeError, LogError, Refused
from kvsweep.ledger.event_base import Event, Measured, RankEpochs
from kvsweep.ledger.ids import POOL, Operation, RequestKey
from kvsweep.ledger.layout import Layout
from kvsweep.ledger.messages import (
    Abort,
    Effect,
    OpenRequest,
    Release,
    Reserve,
    Turn,
)
from kvsweep.ledger.pool_events import Difference
from kvsweep.ledger.state import Residency, State, residency
from kvsweep.ledger.store import LogStore, open_log
from kvsweep.runtime.clock import Clock, MachineClock
from kvsweep.runtime.core import Core, Message
from kvsweep.runtime.metrics import Metrics
from kvsweep.runtime.settings import Settings
from kvsweep.runtime.steps import HandedOut
from kvsweep.transports.handshake import Capabilities, differences
from kvsweep.transports.pools import CpuPool, DevicePools, Pools


class World(Struct, frozen=True, kw_only=True):
    """Sizes and process epochs that a run starts with."""

    layout: Layout
    ranks: RankEpochs
    producer_epoch: int
    device_blocks: tuple[int, ...]  # a pool size for each group
    cpu_full_blocks: int  # K
    cpu_total_blocks: int  # N


class Driver:
    """One owner thread. Effects leave `poll` only when the log holds what caused them."""

    def __init__(
        self, settings: Settings, log: LogStore, pools: Pools, *, clock: Callable[[], float], deadlines: Clock
    ) -> None:
        self.settings = settings
        self.core = Core(settings)
        self.log = log
        self.pools = pools
        self.metrics = Metrics()
        self.deadlines = deadlines
        self._clock = clock
        self._digest = Digest()
        self._since_digest = 0
        self._outbox: deque[tuple[int, Effect]] = deque()
        self._watchers: list[Callable[[Event], None]] = []
        self._failed: LogError | None = None
        self._deadlines: dict[int, tuple[float, Operation]] = {}  # of what waits for ranks
        self.events = 0  # appended so far
        self.final_digest = ""  # of the whole run, once it is closed

    @classmethod
    def open(
        cls,
        settings: Settings,
        world: World,
        *,
        evidence: str = "{}",
        log: LogStore | None = None,
        clock: Callable[[], float] = time.perf_counter,
        deadlines: Clock | None = None,
    ) -> "Driver":
        """Begin a new ledger with the run's configuration (J1). Raises LogError when the ledger is not empty."""
        if settings.source.kind == "copy" and world.cpu_total_blocks == world.cpu_full_blocks:
            raise LogError("source kind copy needs copy destinations: expected N > K, got N = K (D5)")
        store = log if log is not None else open_log(settings.log.url)
        if store.requests():
            store.close()
            raise LogError(f"{settings.log.url}: expected a new ledger, found one with events; give another path")
        pools = Pools(
            DevicePools(world.layout, world.device_blocks),
            CpuPool(full_blocks=world.cpu_full_blocks, total_blocks=world.cpu_total_blocks),
        )
        driver = cls(settings, store, pools, clock=clock, deadlines=deadlines or MachineClock())
        driver._take(driver.core.fact(_configured(world, evidence)))
        return driver

    # ---- the door

    def handle(self, message: Message) -> Turn:
        """Decide, append, adopt. Raises Refused for an illegal command; a report raises nothing."""
        self._expect_writable()
        started = self._clock()
        turn = self.core.handle(message)
        while turn.outcome == "reserve":
            (ask,) = turn.effects
            if not isinstance(ask, Reserve):
                raise TypeError(f"expected Reserve, got {type(ask).__name__}")
            turn = self.core.handle(self.pools.reserve(ask))
        turn = self._take(turn, plan_s=self._clock() - started)
        if turn.refusal is not None and turn.outcome == "refused" and isinstance(turn.events[0], e.CommandRefused):
            refusal = turn.refusal
            raise Refused(turn.events[0].request, refusal.what, turn.events[0].state, refusal.legal, refusal.reason)
        return turn

    def agree(self, producer: Capabilities, ranks: Iterable[Capabilities]) -> None:
        """Hold the producer's contract against each rank's and record the outcome, before anything else is done.

        Raises HandshakeError naming every differing field with both values; the refusal is recorded too.
        """
        for number, rank in enumerate(ranks):
            found = differences(producer, rank)
            fact: e.HandshakeRefused | e.HandshakeAgreed
            if found:
                fact = e.HandshakeRefused(
                    request=POOL,
                    seq=self.state.pool.seq,
                    peer=f"rank {number}",
                    differences=tuple(
                        Difference(field=field, expected=str(ours), got=str(theirs))
                        for field, (ours, theirs) in found.items()
                    ),
                )
            else:
                theirs = msgspec.json.encode(rank, order="sorted").decode()
                fact = e.HandshakeAgreed(request=POOL, seq=self.state.pool.seq, peer=f"rank {number}", theirs=theirs)
            self._take(self.core.fact(fact))
            if found:
                raise HandshakeError(found)

    def open_request(self, request_id: str) -> RequestKey:
        """A new life of this id; the epoch is the coordinator's to give."""
        return self.handle(OpenRequest(request_id=request_id)).events[0].request

    def begin_step(self, requests: Iterable[RequestKey]) -> tuple[int, dict[RequestKey, HandedOut]]:
        """Number of the step, and per request the committed generation and the tail that it may read."""
        return self.core.begin_step(requests)

    def end_step(self, number: int) -> Turn:
        """Every rank has done the step; in any order, once."""
        self._expect_writable()
        return self._take(self.core.end_step(number))

    def poll(self) -> list[Effect]:
        """Effects whose cause is in the log, in order. `Release` stands among them: the shell gives the blocks back."""
        durable, ready = self.log.durable(), []
        while self._outbox and self._outbox[0][0] <= durable:
            ready.append(self._outbox.popleft()[1])
        return ready

    # ---- deadlines

    def next_deadline(self) -> float | None:
        """Earliest moment, on the driver's clock, at which `expire` has something to do."""
        return min((deadline for deadline, _ in self._deadlines.values()), default=None)

    def expire(self) -> list[Turn]:
        """Abort what has waited too long. A deadline aborts and reports; it frees nothing and settles nothing."""
        now = self.deadlines.now()
        due = [operation for deadline, operation in self._deadlines.values() if deadline <= now]
        limit = self.settings.transfer.deadline_s
        return [
            self.handle(Abort(operation=one, reason=f"deadline of {limit:g} s: {self._silent(one)}")) for one in due
        ]

    def _silent(self, operation: Operation) -> str:
        request = self.state.request(operation.request)
        opened = [o for o in request.open_operations() if o.operation == operation] if request else []
        silent = sorted(
            {rank for o in opened for rank, _ in o.ranks} - {rank for o in opened for rank, _ in o.outcomes}
        )
        return f"ranks {silent} have not reported"

    def _watch_deadline(self, event: Event) -> None:
        match event:
            case e.TransferStarted() | e.ReadersDrained() | e.StoreStarted():
                deadline = self.deadlines.now() + self.settings.transfer.deadline_s
                self._deadlines[event.operation.operation_id] = (deadline, event.operation)
            case (
                e.TransferCompleted()
                | e.AllRanksApplied()
                | e.StoreCompleted()
                | e.UploadAborted()
                | e.RetainAborted()
                | e.StoreAborted()
            ):
                self._deadlines.pop(event.operation.operation_id, None)
            case _:
                pass

    @property
    def idle(self) -> bool:
        """No effect waits to be polled."""
        return not self._outbox

    def release(self, effect: Release) -> None:
        """Give freed blocks back to their pools. The caller has poisoned them by now, where it does."""
        self.pools.release(effect)

    # ---- looking

    @property
    def state(self) -> State:
        return self.core.state

    def residency(self, request: RequestKey) -> Residency:
        """What the request has on the device now. Raises Refused for an unknown life."""
        known = self.state.request(request)
        if known is None:
            raise Refused(request, "residency", "no such request", ("OpenRequest",))
        return residency(self.state, known)

    def pending(self, request: RequestKey | None = None) -> list[str]:
        """Reasons why something is still held; empty when all is settled."""
        return self.core.pending(request)

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

    def close(self) -> None:
        """Record the last digest and close the log."""
        if self._failed is None:
            self.final_digest = self.digest()
            self._record_digest()
        self.log.close()

    # ---- inside

    def _expect_writable(self) -> None:
        if self._failed is not None:
            raise LogError(f"read-only since an append failed: {self._failed}") from self._failed

    def _take(self, turn: Turn, *, plan_s: float = 0.0) -> Turn:
        if not turn.events:
            self.core.adopt(turn)
            self._outbox.extend((self.log.durable(), effect) for effect in turn.effects)
            return turn
        turn = replace(turn, events=tuple(_timed(event, plan_s) for event in turn.events))
        try:
            position = self.log.append(turn.events)
        except LogError as error:
            self.core.discard(turn)
            self._failed = error
            raise
        self.core.adopt(turn)
        self._outbox.extend((position, effect) for effect in turn.effects)
        for event in turn.events:
            self._digest.update(event)
            self.metrics.apply(event)
            self._watch_deadline(event)
            for watcher in self._watchers:
                watcher(event)
        self.events += len(turn.events)
        self._since_digest += len(turn.events)
        if self._since_digest >= self.settings.log.digest_every:
            self._record_digest(position)
        return turn

    def _record_digest(self, position: int | None = None) -> None:
        self._since_digest = 0
        fact = e.DigestRecorded(
            request=POOL,
            seq=self.state.pool.seq,
            position=self.log.durable() if position is None else position,
            digest=self.digest(),
        )
        self._take(self.core.fact(fact))


def _timed(event: Event, plan_s: float) -> Event:
    if isinstance(event, e.UploadPlanned | e.RetainPlanned):
        return replace(event, measured=Measured(plan_s=plan_s))
    return event


def _configured(world: World, evidence: str) -> e.RunConfigured:
    return e.RunConfigured(
        request=POOL,
        seq=0,
        layout=world.layout,
        ranks=world.ranks,
        producer_epoch=world.producer_epoch,
        device_blocks=world.device_blocks,
        cpu_full_blocks=world.cpu_full_blocks,
        cpu_total_blocks=world.cpu_total_blocks,
        evidence=evidence,
    )
