"""The scheduler half: vLLM's scheduler calls it, the coordinator decides, the ranks get their plans with the step.

Every call returns at once, and none of them raises for what a rank says or does not say. vLLM computes and writes as it
always does; what is whole is mirrored to the CPU tier, uploaded to blocks of ours, and, once every rank has said so and
the steps that read it have ended, vLLM's own block goes back to vLLM's pool.
"""

import contextlib
from collections.abc import Mapping, MutableMapping
from typing import Any

from msgspec.structs import replace

from kvsweep.ledger import events as e
from kvsweep.ledger.errors import KvsweepError, LogError, UsageError
from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import RequestKey, int32_view
from kvsweep.ledger.messages import (
    Acknowledge,
    Acknowledged,
    Finish,
    OpenTail,
    Preempt,
    PublishKeepMap,
    RankWork,
    Release,
    SealTail,
    StoreBlocks,
)
from kvsweep.runtime.driver import Driver
from kvsweep.runtime.vllm.answers import Answers
from kvsweep.runtime.vllm.counts import Counts
from kvsweep.runtime.vllm.pools import EngineBlock, EnginePools, Unrecorded, named
from kvsweep.runtime.vllm.rounds import DRAIN_STEPS, EngineRequest, Managed, Rounds
from kvsweep.runtime.vllm.settings import ConnectorSettings
from kvsweep.transports.vllm.messages import Ack, Completion, Handed, StepMeta
from kvsweep.transports.wire import encode

DIGESTS_KEPT = 1024

NEVER_HASHED = 2**31
"""More blocks than a request has: vLLM then takes all of them for hashed already."""


class SchedulerHalf:
    """One thread: vLLM's scheduler.

    tables  vLLM's own: request id -> the request's list of blocks
    hashed  vLLM's own: request id -> leading blocks of it that are in the prefix cache
    counts  what the run came to so far
    digest  of the ledger, as it was last recorded: at rest, and at the end
    """

    def __init__(
        self,
        settings: ConnectorSettings,
        driver: Driver,
        pools: EnginePools,
        tables: Mapping[str, list[EngineBlock]],
        hashed: MutableMapping[str, int],
    ) -> None:
        self.settings, self.driver, self.pools = settings, driver, pools
        self.counts = Counts()
        self._layout = driver.state.pool.layout
        self._ranks = frozenset(rank for rank, _ in driver.state.pool.ranks)
        self._tables, self._hashed = tables, hashed
        self._rounds = Rounds(settings, driver, pools, self._layout, self.counts)
        self._unrecorded = Unrecorded(pools, self._ranks)
        self._requests: dict[str, Managed] = {}
        self._of_key: dict[RequestKey, Managed] = {}
        self._frames: list[bytes] = []
        self._heard: list[tuple[int, int]] = []
        self._forget: list[RequestKey] = []
        self._sealed: list[tuple[RequestKey, int, int]] = []
        self._done: dict[int, set[int]] = {}  # step -> ranks that have done it
        self._digests: dict[tuple[int, int, int], tuple[int, str]] = {}
        self._step = 0
        self._passed = -1  # step in which vLLM last asked whether blocks come back
        self._passes = 0  # steps running in which it has asked
        self._left: list[str] | None = None  # what was pending when the ledger was closed
        self._rested = 0  # events when the digest was last recorded
        self.digest = ""  # as it was last recorded, at rest or at the end
        driver.watch(self.counts)
        driver.watch(self._on_event)

    # ---- vLLM's scheduler calls these

    def on_new_request(self, request: EngineRequest) -> None:
        """A request has come. Its life begins with its first step: what only waits holds nothing."""
        self._requests[request.request_id] = Managed(request)

    def build(self, scheduled: Mapping[str, int]) -> StepMeta:
        """What the ranks have to do and read in the step that vLLM is about to run.

        scheduled  request id -> tokens of this step
        """
        self._leave()
        self._pump()
        for request_id in scheduled:
            managed = self._requests.get(request_id)
            if managed is not None and self.driver.read_only is None:
                self._grow(managed)
                if managed.key is not None:
                    self._rounds.advance(managed, self._step + 1)
        self._pump()
        live = {request_id: one for request_id in scheduled if (one := self._running(request_id)) is not None}
        self._step, handed = self.driver.begin_step(one.key for one in live.values() if one.key is not None)
        self.counts.steps += 1
        if (reason := self.driver.read_only) is not None:
            self._unrecorded.note(self._read(), self._step, reason)
        meta = StepMeta(
            step=self._step,
            score=tuple(self._rounds.to_score(live, scheduled, self._step)),
            sealed=tuple(self._sealed),
            poison=self.pools.take_poison(),
            frames=tuple(self._frames),
            heard=tuple(self._heard),
            forget=tuple(self._forget),
            handed=tuple(
                Handed(
                    request=one.key,
                    row=handed[one.key].row,
                    generation=handed[one.key].generation,
                    replaced=one.replaced,
                    last_block=one.last_block(scheduled[request_id], self._layout.block_size),
                )
                for request_id, one in live.items()
                if one.key is not None and handed[one.key].generation
            ),
        )
        self._frames, self._heard, self._forget, self._sealed = [], [], [], []
        return meta

    def update(self, ack: object) -> None:
        """What the ranks said with a step's output. Late, repeated, foreign: judged and recorded, never raised."""
        if isinstance(ack, Ack):
            answers = Answers(ack, ranks=self._ranks, layers=len(self._layout.active_layers))
            for completion in answers.completions:
                self._hear(completion)
            for request, rank, values in answers.scores:
                if (managed := self._of_key.get(request)) is not None:
                    managed.scores[rank] = values
            for rank, step in answers.steps(self._step):
                self._end(rank, step)
            for rank, counts in answers.counts:
                self.counts.ranks[rank] = counts
            self.counts.acks["refused"] += answers.refused
            self._unrecorded.give_back()
        self._pump()

    def finish(self, request_id: str) -> None:
        """vLLM is about to drop its references of this request. Ours go when nothing can read or write any more."""
        managed = self._requests.pop(request_id, None)
        if managed is None or managed.key is None:
            return
        self._of_key.pop(managed.key, None)
        self._handle(Finish(request=managed.key))
        self._pump()

    def frees_soon(self) -> bool:
        """vLLM finds no free block and is about to preempt: whether to let this step pass instead.

        True only where blocks have come back in this very call, or an upload will return what it replaces within a few
        steps: and that a few times running at most, so that vLLM never waits for a rank that is silent.
        """
        before = self.pools.engine.get_num_free_blocks()
        self._leave()
        self._settle_log()
        if self.pools.engine.get_num_free_blocks() > before:
            return True
        if self._passed != self._step:  # once a step
            self._passes = self._passes + 1 if self._passed == self._step - 1 else 1
            self._passed = self._step
        step = self._step + 1
        if self._passes > DRAIN_STEPS:
            return False
        if self.driver.read_only is not None:
            return self._unrecorded.waiting
        return any(self._rounds.in_flight(one, step) for one in self._requests.values())

    def pending(self) -> list[str]:
        """Reasons to go on stepping although no request is left: what is still held, and for whom."""
        if self.driver.read_only is not None:
            left = len(self.pools.ours - self._read())
            return [f"{left} blocks wait for a step of every rank: nothing is recorded any more"] if left else []
        reasons = self.driver.pending()
        if not reasons:
            self._settle_log()  # blocks may wait for nothing but this
        return reasons

    def rest(self) -> bool:
        """Nothing is left to do: record the digest, once for each time. False where nothing has happened since.

        vLLM ends its processes without a word where they take long to end; the ledger and the counts are whole then.
        """
        if self.driver.events == self._rested or self.driver.read_only is not None:
            return False
        with contextlib.suppress(LogError):
            self.digest = self.driver.record_digest()
        self._rested = self.driver.events
        return True

    def close(self) -> None:
        """Record the last digest and close the ledger. What is open is aborted when the ledger is opened again.

        Raises nothing: that the end could not be stored is a reason of the summary's `pending`.
        """
        self._pump()
        self._left = self.driver.pending()
        try:
            self.driver.close()
        except LogError as error:
            self._left = list(dict.fromkeys((*self._left, str(error))))
        self.digest = self.driver.final_digest or self.digest

    def summary(self) -> dict[str, Any]:
        """The counts, what is still held, and the ledger's digest."""
        engine = self.pools.engine
        return {
            **self.counts.summary(),
            "pending": self.driver.pending() if self._left is None else self._left,
            "held_blocks": self.pools.held,
            "pool": {"blocks": engine.num_gpu_blocks, "free": engine.get_num_free_blocks()},
            "ledger": self.settings.ledger,
            "read_only": "" if self.driver.read_only is None else str(self.driver.read_only),
            "digest": self.digest,
            "events": self.driver.events,
            "metrics": {name: value for name, value in vars(self.driver.metrics).items() if not name.startswith("_")},
        }

    # ---- requests

    def _running(self, request_id: str) -> Managed | None:
        managed = self._requests.get(request_id)
        if managed is None or managed.key is None:
            return None
        state = self.driver.state.request(managed.key)
        return managed if state is not None and state.life == "RUNNING" else None

    def _read(self) -> set[int]:
        """Blocks that the views of running requests name."""
        keys = (one.key for name in self._requests if (one := self._running(name)) is not None)
        states = (self.driver.state.request(key) for key in keys if key is not None)
        return named(state.view.physical for state in states if state is not None and state.view is not None)

    def _leave(self) -> None:
        """Requests whose list of blocks vLLM has given up: preempted."""
        for managed in self._requests.values():
            if managed.key is None or managed.table is None:
                continue
            if self._tables.get(managed.request.request_id) is not managed.table:
                managed.table = None
                self._handle(Preempt(request=managed.key))
                if self.driver.read_only is not None:  # the ledger's life runs on for ever; what it had is read no more
                    self._of_key.pop(managed.key, None)
                    managed.key = None

    def _grow(self, managed: Managed) -> None:
        """vLLM has given the request blocks, and finished others: they are lent, sealed and mirrored."""
        table, new = self._tables.get(managed.request.request_id), managed.table is None
        if table is None or not self._alive(managed, table):
            return
        key, whole = managed.key, managed.request.num_computed_tokens // self._layout.block_size
        if key is None:
            return
        try:
            if len(table) > managed.opened:
                self.pools.offer(table[managed.opened :])
                if self.driver.handle(OpenTail(request=key, until=len(table))).outcome == "accepted":
                    managed.opened = len(table)
            # What counts as computed in a first step are hits, and another request may write those in this very step.
            if not new:
                self._seal(managed, key, whole)
        except KvsweepError as error:
            self.counts.note(error)  # later, or never: what vLLM computes is in its own blocks all the same

    def _alive(self, managed: Managed, table: list[EngineBlock]) -> bool:
        """A life to go on with. One that was preempted ends here: vLLM computes everything again, in another life."""
        if managed.key is not None and managed.table is not None:
            return True
        if managed.alone:
            return False
        request_id = managed.request.request_id
        try:
            if managed.key is not None:
                self._of_key.pop(managed.key, None)
                ended, managed.key = managed.key, None
                self.driver.handle(Finish(request=ended))
            known = self.driver.state.requests.get(request_id)
            if known is not None and known.life != "CLOSED":
                return False  # something of the earlier life is not quiet yet: until then vLLM serves this one alone
            key = self.driver.open_request(request_id)
        except KvsweepError as error:
            self.counts.note(error)
            managed.alone = isinstance(error, UsageError)  # an id that no ledger takes: nor will it the next time
            return False
        managed.begin(key, table)
        self._of_key[key] = managed
        return True

    def _seal(self, managed: Managed, key: RequestKey, whole: int) -> None:
        """Seal and store what is whole, as far as the CPU tier has room for it and no store is under way."""
        state, free = self.driver.state.request(key), self.pools.cpu.full.free
        if state is None or state.store.phase != "IDLE" or not free:
            return
        dirty = sum(block.phase == "dirty" for block in state.tail)  # sealed before, by a store that was aborted
        fits = min(whole, managed.sealed + free - dirty)
        if fits < managed.sealed or not (dirty or fits > managed.sealed):
            return
        self.driver.handle(SealTail(request=key, confirmed_tokens=fits * self._layout.block_size))
        if self._rounds.needs_scores and managed.table is not None:
            self._sealed += [(key, at, managed.table[at].block_id) for at in range(managed.sealed, fits)]
        managed.sealed = fits

    # ---- ranks

    def _hear(self, completion: Completion) -> None:
        number, rank, epoch, copied, digest = completion.identity
        known = self._digests.setdefault((number, rank, epoch), (copied, digest))
        if known != (copied, digest):
            self.counts.contradicting += 1
        if len(self._digests) > DIGESTS_KEPT:
            del self._digests[next(iter(self._digests))]
        turn = self.driver.handle(completion.done)
        self.counts.acks[turn.outcome] += 1
        self._heard.append((rank, number))

    def _end(self, rank: int, step: int) -> None:
        """One rank has done a step, and every one before it: a worker takes them in turn. The last rank ends a step."""
        self._unrecorded.end(rank, step)
        for number in sorted(number for number in self.driver.core.steps.numbers if number <= step):
            done = self._done.setdefault(number, set())
            done.add(rank)
            if self._ranks <= done:
                del self._done[number]
                self.driver.end_step(number)

    def _pump(self) -> None:
        """Effects out, the producer's reports and expired deadlines in, until nothing follows any more."""
        if self.driver.read_only is not None:
            return
        with contextlib.suppress(LogError):
            if (due := self.driver.next_deadline()) is not None and due <= self.driver.deadlines.now():
                self.driver.expire()
            while effects := self.driver.poll():
                for effect in effects:
                    self._perform(effect)

    def _settle_log(self) -> None:
        """Wait until the ledger has stored what blocks wait for. Milliseconds, and nothing else can be done."""
        if not self.driver.idle and self.driver.read_only is None:
            with contextlib.suppress(LogError):
                self.driver.log.flush()
        self._pump()

    def _perform(self, effect: object) -> None:
        if isinstance(effect, Release):
            self.driver.release(effect)
        elif isinstance(effect, StoreBlocks):
            self._frames.append(encode(replace(effect, source=self.pools.real(effect.source))))
        elif isinstance(effect, RankWork):
            self._frames.append(encode(effect))
        elif isinstance(effect, PublishKeepMap | Acknowledge):
            # The full tier is the ranks' own memory: whoever holds it has nothing of its own to do for an answer.
            epoch = self.driver.state.pool.producer_epoch
            self.driver.handle(Acknowledged(operation=effect.operation, process_epoch=epoch))

    def _handle(self, message: Preempt | Finish) -> None:
        """What vLLM has already done is recorded while the ledger can be written."""
        try:
            self.driver.handle(message)
        except KvsweepError as error:
            self.counts.note(error)

    # ---- events

    def _on_event(self, event: Event) -> None:
        if isinstance(event, e.TailDropped):
            managed = self._of_key.get(event.request)
            state = self.driver.state.request(event.request)
            if managed is not None and managed.table is not None and state is not None and state.life == "RUNNING":
                self._replace(managed, managed.table, int32_view(event.logical).tolist())
        elif isinstance(event, e.RequestClosed):
            self._forget.append(event.request)
        elif isinstance(event, e.ResidencyCommitted | e.OwnersCommitted):
            self.counts.measure(self.driver.state, event.request, kept=isinstance(event, e.OwnersCommitted))
            if not self._rounds.everything and event.request.request_id in self._hashed:
                # From here on it attends to a part: what it computes is for no other request to hit.
                self._hashed[event.request.request_id] = NEVER_HASHED

    def _replace(self, managed: Managed, table: list[EngineBlock], logical: list[int]) -> None:
        """The view stands for these blocks now."""
        self.pools.let_go(table, logical)
        managed.replaced = max(managed.replaced, *(at + 1 for at in logical))
