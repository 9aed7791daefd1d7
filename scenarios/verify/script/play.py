"""The steps of a script, one after the other, and the turns between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, get_args

import anyio.abc
import anyio.lowlevel

from kvsweep.ledger.errors import KvsweepError, LogError, Refused, UsageError
from kvsweep.ledger.ids import Operation, RequestKey
from kvsweep.ledger.messages import (
    Abort,
    AttachPrefix,
    Done,
    EvictPrefix,
    Finish,
    Preempt,
    PublishPrefix,
    Resume,
)
from kvsweep.ledger.sources import leading
from kvsweep.scenarios.verify.script import steps as s
from kvsweep.scenarios.verify.script.cluster import Cluster
from kvsweep.scenarios.verify.script.readers import Member, Readers
from kvsweep.scenarios.verify.script.work import Job, Work, judge

IDLE_TURNS: Final = 70
"""Turns in which nothing moves, before time jumps to the next deadline; a rank probes a lossy link within them."""

WAKING_TURNS: Final = 8
"""Turns that whoever was woken by a deadline has until something moves."""


class Stuck(Exception):
    """A wait of the script outlasts every deadline."""


class Members(dict[str, Member]):
    """Requests by name. One whose `open` was refused is an error of the project, not of the lookup."""

    def __missing__(self, name: str) -> Member:
        raise Refused(RequestKey(name, 0), "step", "no such request", ("Open",), "its open was refused")


class Play:
    """The script's hand on the cluster.

    report      is told (index of the step, what is wrong) of a step that ends otherwise than written
    after_turn  is called after every turn
    """

    def __init__(
        self,
        cluster: Cluster,
        tasks: anyio.abc.TaskGroup,
        *,
        report: Callable[[int, str], None],
        after_turn: Callable[[], None],
    ) -> None:
        self.cluster, self._tasks, self._report, self._after_turn = cluster, tasks, report, after_turn
        self.members: dict[str, Member] = Members()
        self._free = cluster.script.expect.steps == "free"
        self._draining = False
        self.readers = Readers(cluster, self.members)
        self._named: dict[str, Job] = {}
        self._jobs: list[Job] = []
        self._work = Work(cluster, self.members, self._named, self.readers)
        cluster.on_restart(self._coordinator_restarted)
        self._prefixes: dict[str, int] = {}  # name of a shared block → whose tokens it has

    # ---- time

    async def turn(self) -> None:
        """Everybody else gets one turn."""
        self.cluster.timeline.tick()
        await anyio.lowlevel.checkpoint()
        self._after_turn()

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Turns until the condition holds. Raises Stuck where nothing that could make it hold is left."""
        cluster, timeline = self.cluster, self.cluster.timeline
        limit, quiet = 4 * cluster.world.deadline + 1000, 0
        if self._free and not self._draining:
            limit = cluster.world.deadline + IDLE_TURNS
        events, begun, seen = cluster.events, timeline.turn, cluster.activity
        since = begun
        while not condition():
            await self.turn()
            if cluster.events != events:
                events, since = cluster.events, timeline.turn
            quiet = quiet + 1 if cluster.activity == seen else 0
            seen = cluster.activity
            ended = timeline.turn - since > limit or timeline.turn - begun > 20 * limit
            if quiet > IDLE_TURNS and not ended:
                ended, quiet = not timeline.jump(), IDLE_TURNS - WAKING_TURNS
            if ended:
                pending = "; ".join(cluster.driver.pending()) or "nothing is pending"
                raise Stuck(f"turn {timeline.turn}: {what} does not come; {pending}")

    # ---- steps

    async def step(self, at: int, step: s.Step) -> None:
        """Perform one step and hold its end against what is written; a free one that lasts for long is left behind."""
        try:
            await self._step(at, step)
        except Stuck:
            if not self._free:
                raise

    async def _step(self, at: int, step: s.Step) -> None:
        if isinstance(step, get_args(s.Lasting)):
            await self._lasting(at, step)
        elif isinstance(step, s.Await):
            await self._finished(self._named[step.of])
        elif isinstance(step, s.Wait):
            await self._wait(step)
        else:
            reason = ""
            try:
                self._at_once(step)
            except KvsweepError as error:
                reason = " ".join(str(error).split())
            self._judge(at, step, reason)
            await self.turn()

    def _judge(self, at: int, step: s.Step, reason: str, *, aborted: bool = False) -> None:
        wrong = judge(step, reason, aborted=aborted)
        if wrong is not None and not self._free:
            self._report(at, wrong)

    def _at_once(self, step: s.Step) -> None:
        kv, cluster = self.cluster.kv, self.cluster
        match step:
            case s.Register():
                owner = self._key(step.owner) if step.owner is not None else None
                cluster.register_stale(self._key(step.request), owner)
            case s.Select():
                self._work.asks.choose(step, self.members[step.request])
            case s.BeginStep():
                self.readers.begin(step.name, [self._key(name) for name in step.requests], captured=step.captured)
            case s.EndStep():
                self.readers.end(step.of)
            case s.Preempt():
                kv.handle(Preempt(request=self._key(step.request)))
            case s.Resume():
                kv.handle(Resume(request=self._key(step.request)))
            case s.Finish():
                kv.handle(Finish(request=self._key(step.request)))
            case s.Abort():
                self._abort(step)
            case s.Publish():
                self._publish(step)
            case s.Attach():
                self._attach(step)
            case s.Evict():
                kv.handle(EvictPrefix(blocks=step.blocks))
            case s.KillRank():
                cluster.kill(step.rank)
            case s.LoseRank():
                cluster.kill(step.rank)
                cluster.notice(step.rank)
            case s.RestartRank():
                cluster.restart_rank(step.rank)
            case s.RestartProducer():
                cluster.restart_producer(register=step.register)
            case s.RestartCoordinator():
                cluster.restart_coordinator()
            case s.Say():
                self._say(step)
            case _:
                raise TypeError(f"expected a step, got {type(step).__name__}")

    def _key(self, name: str) -> RequestKey:
        return self.members[name].key

    async def _wait(self, step: s.Wait) -> None:
        for _ in range(step.turns):
            await self.turn()
        if step.until is not None:
            gate = self.cluster.timeline.when(step.until)
            await self.until(lambda: gate.is_open, f"{step.until.event}, occurrence {step.until.occurrence},")
        if step.settled:
            cluster = self.cluster
            await self.until(lambda: cluster.driver.idle and not cluster.driver.pending(), "rest")

    def _abort(self, step: s.Abort) -> None:
        key = self._key(step.request)
        request = self.cluster.driver.state.request(key)
        opened = request.lane(step.lane).open if request is not None else None
        nothing = Operation(request=key, operation_id=0, pool_generation=0, map_revision=0)
        self.cluster.kv.handle(
            Abort(operation=opened.operation if opened is not None else nothing, reason="the caller gave up")
        )

    def _say(self, step: s.Say) -> None:
        true = self._named[step.of].operation
        if true is None:
            raise UsageError(f"step {step.of!r} has started no operation to speak of")
        said = Operation(
            request=RequestKey(true.request.request_id, true.request.request_epoch + step.life),
            operation_id=true.operation_id + step.operation,
            pool_generation=true.pool_generation + step.pool_generation,
            map_revision=true.map_revision + step.map_revision,
        )
        epoch = dict(self.cluster.driver.state.pool.ranks)[step.rank] + step.process_epoch
        turn = self.cluster.kv.handle(Done(operation=said, rank=step.rank, process_epoch=epoch, outcome=step.outcome))
        verdicts = {"accepted": "accepted", "repeated": "duplicate", "ignored": "stale"}
        verdict = verdicts.get(turn.outcome) or next((getattr(event, "verdict", "") for event in turn.events), "")
        if step.verdict and verdict != step.verdict:
            raise UsageError(f"expected the verdict {step.verdict}, got {verdict}")

    def _publish(self, step: s.Publish) -> None:
        member, pool = self.members[step.request], self.cluster.driver.state.pool
        names = [f"{step.prefix}/{block}" for block in range(step.blocks)]
        known = {prefix.key for prefix in pool.prefixes}
        self.cluster.kv.handle(PublishPrefix(request=member.key, keys=tuple(enumerate(names))))
        for prefix in self.cluster.driver.state.pool.prefixes:
            if prefix.key not in known:
                self._prefixes[prefix.key] = member.tag(prefix.logical)

    def _attach(self, step: s.Attach) -> None:
        member = self.members[step.request]
        names = tuple(f"{step.prefix}/{block}" for block in range(step.blocks))
        before = leading(self.cluster.state_of(member.key).source)
        self.cluster.kv.handle(AttachPrefix(request=member.key, keys=names))
        for block in range(before, leading(self.cluster.state_of(member.key).source)):
            member.tags[block] = self._prefixes[names[block]]
            member.tokens = max(member.tokens, (block + 1) * self.cluster.world.block_size)

    # ---- steps that last

    async def _lasting(self, at: int, step: s.Lasting) -> None:
        job = Job(at, step)
        self._jobs.append(job)
        if step.name:
            self._named[step.name] = job
        self._tasks.start_soon(self._run, job)
        await self.turn()
        if step.wait:
            await self._finished(job)

    async def _run(self, job: Job) -> None:
        with job.scope:
            try:
                await self._work.of(job.step)(job)
                job.ended = ""
            except LogError as error:
                job.fail(error)
                if self.cluster.crashed:
                    job.cut()
            except KvsweepError as error:
                job.fail(error)
        if job.scope.cancelled_caught:
            job.cut()

    def _coordinator_restarted(self) -> None:
        """Whoever called, and every open serving step, ended with the process."""
        for job in self._jobs:
            if not job.done:
                job.scope.cancel()
        self.readers.open.clear()

    async def _finished(self, job: Job) -> None:
        await self.until(lambda: job.done, f"the end of {job.step.name or f'step {job.at}'}")
        if not job.judged:
            job.judged = True
            self._judge(job.at, job.step, job.ended or "", aborted=job.aborted)

    async def all_finished(self) -> None:
        """Whoever still runs comes to its end: no fault is left that could keep it from that."""
        self._draining = True
        for job in self._jobs:
            await self._finished(job)
