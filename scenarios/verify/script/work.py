"""Steps that last: a task each, what it does from its beginning to its end, and how it ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import anyio
import anyio.lowlevel
from msgspec.structs import replace

from kvsweep.ledger import events as e
from kvsweep.ledger.errors import Aborted, KvsweepError
from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import HOLE, Operation, RequestKey
from kvsweep.ledger.messages import BlockSelection, OpenTail, Retain, SealTail, Turn
from kvsweep.scenarios.verify.script import steps as s
from kvsweep.scenarios.verify.script.asks import Asks
from kvsweep.scenarios.verify.script.cluster import Cluster, expect_room
from kvsweep.scenarios.verify.script.content import rank_part
from kvsweep.scenarios.verify.script.readers import Member, Readers

Asked: TypeAlias = tuple[BlockSelection | Retain, str]
"""What was asked, and under which idempotency key."""
STARTS = (e.TransferStarted, e.KeepMapPublished, e.ReadersDrained, e.StoreStarted)


@dataclass
class Job:
    """One lasting step.

    ended  None while it runs, "" when it has done what it was for, else why not
    """

    at: int  # index of the step in the script
    step: s.Lasting
    key: RequestKey | None = None
    ended: str | None = None
    aborted: bool = False
    operation: Operation | None = None  # the last one that it started
    asked: Asked | None = None  # what a retry asks again
    judged: bool = False
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)  # its caller ends with the coordinator

    @property
    def done(self) -> bool:
        return self.ended is not None

    def sees(self, event: Event) -> bool:
        """Whether this fact is the beginning of its operation; it is remembered then."""
        if isinstance(event, STARTS) and event.request == self.key:
            self.operation = event.operation
            return True
        return False

    def cut(self) -> None:
        """The process that it asked has ended."""
        self.aborted, self.ended = True, "the coordinator restarted"

    def fail(self, error: KvsweepError) -> None:
        self.aborted = isinstance(error, Aborted)
        self.ended = " ".join(str(error).split())


def judge(step: s.Step, reason: str, *, aborted: bool = False) -> str | None:
    """What is wrong with how a step ended: reason "" for well, else why it was refused or aborted. None: as written."""
    refused, abort = step.refused, getattr(step, "aborted", "")
    what = "aborted" if aborted else "refused"
    expected = abort if aborted else refused
    if reason and not expected:
        return f"{what}: {reason}"
    if reason and expected not in reason:
        return f"{what}: expected {expected!r} in the reason, got {reason!r}"
    if not reason and (refused or abort):
        return f"expected to be {'aborted' if abort else 'refused'} ({abort or refused!r}), and it was not"
    return None


class Work:
    """Performs lasting steps. Raises the project's errors where one is refused or aborted."""

    def __init__(self, cluster: Cluster, members: dict[str, Member], jobs: dict[str, Job], readers: Readers) -> None:
        self._cluster, self._members, self._jobs, self._readers = cluster, members, jobs, readers
        self.asks = Asks(cluster)
        self._starting: Job | None = None
        self._stored: dict[int, str] = {}  # ended store → "" or why it was aborted
        cluster.watch(self._see)

    def _see(self, event: Event) -> None:
        if self._starting is not None and self._starting.sees(event):
            self._starting = None
        if isinstance(event, e.StoreCompleted):
            self._stored[event.operation.operation_id] = ""
        elif isinstance(event, e.StoreAborted):
            self._stored[event.operation.operation_id] = event.reason

    def of(self, step: s.Lasting) -> Callable[[Job], Awaitable[None]]:
        """What performs this kind of step."""
        work: dict[type, Callable[[Job], Awaitable[None]]] = {
            s.Open: self._open,
            s.Write: self._write,
            s.Seal: self._seal,
            s.Upload: self._upload,
            s.Retain: self._retain,
            s.Round: self._round,
            s.Retry: self._retry,
        }
        return work[type(step)]

    # ---- writing

    async def _open(self, job: Job) -> None:
        step = job.step
        if isinstance(step, s.Open):
            key = job.key = self._cluster.kv.open_request(step.request)
            member = self._members[step.request] = Member(key)
            if step.registered and step.blocks:
                self._cluster.register_new(key, step.blocks)
                member.tokens = step.blocks * self._cluster.world.block_size
            await self._grow(job, member, 0 if step.registered else step.blocks, step.tokens, seal=True)

    async def _write(self, job: Job) -> None:
        step = job.step
        if isinstance(step, s.Write):
            member = self._members[step.request]
            job.key = member.key
            await self._grow(job, member, step.blocks, step.tokens, seal=step.seal)

    async def _seal(self, job: Job) -> None:
        if isinstance(job.step, s.Seal):
            member = self._members[job.step.request]
            job.key = member.key
            await self._store(job, member)

    async def _grow(self, job: Job, member: Member, blocks: int, tokens: int, *, seal: bool) -> None:
        """A serving step writes what the device lacks, up to so many more tokens."""
        kv, size = self._cluster.kv, self._cluster.world.block_size
        target = member.tokens + blocks * size + tokens
        if target:
            expect_room(kv.handle(OpenTail(request=member.key, until=-(-target // size))))
            step = f"write of step {job.at}"
            self._readers.begin(step, [member.key], captured=False)
            self._compute(member, target)
            member.tokens = target
            await anyio.lowlevel.checkpoint()
            if step in self._readers.open:  # the end of the run has not ended it
                self._readers.end(step)
            if seal:
                await self._store(job, member)

    def _compute(self, member: Member, target: int) -> None:
        """Every open tail block gets its tokens, up to `target`, on every living rank."""
        cluster, size = self._cluster, self._cluster.world.block_size
        for block in cluster.state_of(member.key).tail:
            first = block.logical * size
            count = min(target, first + size) - first
            if block.phase != "open" or count <= 0:
                continue
            for layer in cluster.layout.layers:
                area = block.physical[layer.group]
                if area == HOLE:
                    continue
                k, v = cluster.kv_of.tokens(member.tag(block.logical), layer.layer, first, count)
                for rank in range(cluster.world.ranks):
                    if cluster.alive(rank):
                        part = (cluster.layout, layer.layer, rank, cluster.world.ranks)
                        cluster.device(rank).write_rows(layer.layer, area, 0, rank_part(k, *part), rank_part(v, *part))

    async def _store(self, job: Job, member: Member) -> None:
        """Seal all that is written, and store until nothing whole is left dirty."""
        kv, driver = self._cluster.kv, self._cluster.driver
        while True:
            turn = self._start(job, lambda: kv.handle(SealTail(request=member.key, confirmed_tokens=member.tokens)))
            operation = turn.operation
            if operation is None:
                expect_room(turn)
                request = driver.state.request(member.key)
                if request is None or not any(block.phase == "dirty" for block in request.tail):
                    return
                opened = request.store.open  # an earlier store is under way: what it left is stored after it
                if opened is None:
                    raise Aborted(request.key, "no store was started")
                await self._ended(opened.operation)
                continue
            reason = await self._ended(operation)
            if reason:
                raise Aborted(operation, reason)
            return

    async def _ended(self, operation: Operation) -> str:
        await self._cluster.kv.until(lambda: operation.operation_id in self._stored)
        return self._stored[operation.operation_id]

    def _start(self, job: Job, start: Callable[[], Turn]) -> Turn:
        self._starting = job
        try:
            return start()
        finally:
            self._starting = None

    # ---- asking

    async def _upload(self, job: Job) -> None:
        if isinstance(job.step, s.Upload | s.Round):
            member = self._members[job.step.request]
            key = job.step.key if isinstance(job.step, s.Upload) else ""
            await self._ask(job, (self.asks.selection(job.step, member), self.asks.key(key)))

    async def _retain(self, job: Job) -> None:
        if isinstance(job.step, s.Retain | s.Round):
            command = self.asks.retain(job.step, self._members[job.step.request])
            await self._ask(job, (command, command.idempotency_key))

    async def _round(self, job: Job) -> None:
        await self._upload(job)
        await self._retain(job)

    async def _retry(self, job: Job) -> None:
        """Raises Aborted as the first call did, where it was aborted."""
        if isinstance(job.step, s.Retry):
            first = self._jobs[job.step.of]
            if first.asked is None:
                raise Aborted(job.step.of, "it asked nothing")
            what, key = first.asked
            if job.step.fresh:
                key = self.asks.key()
                member = self._members[first.step.request] if not isinstance(first.step, s.Retry) else None
                if isinstance(what, BlockSelection) and member is not None:
                    what = replace(what, selection_revision=self.asks.next_revision(member))
            await self._ask(job, (what, key))

    async def _ask(self, job: Job, asked: Asked) -> None:
        """Ask, and wait for the end. The operation is the job's, also where it was started by an earlier call."""
        what, key = asked
        kv, job.asked = self._cluster.kv, asked
        job.key = what.request
        self._starting = job
        try:
            if isinstance(what, BlockSelection):
                job.operation = (await kv.upload(what, idempotency_key=key)).operation
            else:
                done = await kv.retain(
                    what.request,
                    what.keep,
                    adopt=what.adopt,
                    map_revision=what.map_revision,
                    selection_revision=what.selection_revision,
                    idempotency_key=key,
                    pack=what.pack,
                )
                job.operation = done.operation
        finally:
            if self._starting is job:
                self._starting = None
