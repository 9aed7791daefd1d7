"""Core + log + pools: synchronous, waits for nothing. A turn's events are appended before its state is adopted."""

import time
from collections import deque
from collections.abc import Callable, Iterable

from msgspec import Struct
from msgspec.structs import replace

from kvsweep.ledger import events as e
from kvsweep.ledger import laws
from kvsweep.ledger.digest import Digest
from kvsweep.ledger.errors import BrokenLaw, LogError, Refused
from kvsweep.ledger.event_base import Event, Implementation, Measured, RankEpochs
from kvsweep.ledger.ids import POOL, RequestKey
from kvsweep.ledger.layout import Layout
from kvsweep.ledger.messages import (
    Effect,
    OpenRequest,
    Release,
    Reserve,
    Turn,
)
from kvsweep.ledger.state import Residency, State, residency
from kvsweep.ledger.store import LogStore, open_log
from kvsweep.runtime.core import Core, Message
from kvsweep.runtime.metrics import Metrics
from kvsweep.runtime.settings import Settings
from kvsweep.runtime.steps import HandedOut
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

    def __init__(self, settings: Settings, log: LogStore, pools: Pools, *, clock: Callable[[], float]) -> None:
        self.settings = settings
        self.core = Core(settings)
        self.log = log
        self.pools = pools
        self.metrics = Metrics()
        self._clock = clock
        self._digest = Digest()
        self._since_digest = 0
        self._outbox: deque[tuple[int, Effect]] = deque()
        self._watchers: list[Callable[[Event], None]] = []
        self._failed: LogError | None = None
        self.events = 0  # appended so far
        self.final_digest = ""  # of the whole run, once it is closed

    @classmethod
    def open(
        cls,
        settings: Settings,
        world: World,
        *,
        evidence: str = "{}",
        kernels: str = "",
        log: LogStore | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> "Driver":
        """Begin a new ledger with the run's configuration (J1). Raises LogError when the ledger is not empty.

        kernels  what copies, ranks and plans; recorded, and in no digest
        """
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
        driver = cls(settings, store, pools, clock=clock)
        driver._take(driver.core.fact(_configured(world, evidence, kernels)))
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


def _configured(world: World, evidence: str, kernels: str) -> e.RunConfigured:
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
        implementation=Implementation(kernels=kernels),
    )
