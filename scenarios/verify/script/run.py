"""What a run of a scenario comes to."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import anyio
import anyio.abc
import anyio.lowlevel
from msgspec import Struct

from kvsweep.ledger import events as e
from kvsweep.ledger import laws
from kvsweep.ledger.errors import LogError, NotSettled
from kvsweep.ledger.events import Event
from kvsweep.ledger.inspect.replay import Ledger
from kvsweep.ledger.messages import EvictPrefix, Finish
from kvsweep.scenarios.verify.checkers.checked_driver import CheckedDriver
from kvsweep.scenarios.verify.script.address import EVENTS
from kvsweep.scenarios.verify.script.cluster import Cluster
from kvsweep.scenarios.verify.script.expectations import (
    AS_WRITTEN,
    BYTES,
    DRAINS,
    MOVES,
    NO_ERROR,
    REPLAYS,
    Situations,
    figures,
)
from kvsweep.scenarios.verify.script.format import Script
from kvsweep.scenarios.verify.script.load import check
from kvsweep.scenarios.verify.script.play import Play, Stuck


class Verdict(Struct, frozen=True, kw_only=True):
    """Passed when no law is broken, every step ended as written, every figure is as expected and nothing is missing.

    broken   "law: what is wrong", the first of each law with the turn at which it was seen
    missing  situations that were expected and not reached
    ledger   where the facts are kept; None: only in memory, and gone
    unseed   one more draw of the run's generator at its end: equal runs have equal ones
    """

    title: str
    seed: int
    passed: bool
    broken: list[str]
    missing: list[str]
    ledger: str | None
    digest: str
    unseed: int
    events: int
    turns: int
    reached: list[str]  # situations
    figures: dict[str, int]


BROKEN_KEPT: Final = 20
"""Of one run: what follows the first is a consequence more often than news."""


def run_script(script: Script, seed: int | None = None, ledger: Path | None = None) -> Verdict:
    """Run the scenario once, in virtual time; the same script and seed give the same digest and unseed.

    seed    of links, devices and choices; None takes the script's
    ledger  a new file for the facts; None keeps them in memory only
    Raises SettingsError for a script that cannot be meant, LogError where the file cannot be begun.
    """
    check(script)
    run = _Run(script, script.seed if seed is None else seed, ledger)
    return anyio.run(run.play)


class _Run:
    def __init__(self, script: Script, seed: int, ledger: Path | None) -> None:
        self.script, self.seed, self.ledger = script, seed, ledger
        self.broken: list[str] = []
        self._counts: dict[str, int] = {}
        self._verdicts: dict[str, int] = {}
        self._checked = 0  # facts that the laws were checked after
        self._read: object = None  # activity that the readers have read after

    async def play(self) -> Verdict:
        self.cluster = Cluster(self.script, self.seed, "memory:" if self.ledger is None else f"sqlite:{self.ledger}")
        self.situations = Situations(lambda: self.driver)
        for record in self.driver.log.read():  # from before anybody could watch
            self._see(record.event)
        self.cluster.watch(self._see)
        try:
            async with anyio.create_task_group() as tasks:
                self.cluster.start(tasks)
                await self._script(tasks)
                self.cluster.leave()
                while not self.cluster.left:
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
        except ExceptionGroup as group:
            error = _leaf(group)
            law = DRAINS if isinstance(error, NotSettled) else NO_ERROR
            self._break(law, f"{type(error).__name__}{_raised_in(error)}: {error}")
        return self._verdict()

    @property
    def driver(self) -> CheckedDriver:
        """Of the coordinator that lives now."""
        return self.cluster.driver

    def _see(self, event: Event) -> None:
        name = _NAMES[type(event)]
        self._counts[name] = self._counts.get(name, 0) + 1
        if isinstance(event, e.AckIgnored | e.AckRefused):
            self._verdicts[event.verdict] = self._verdicts.get(event.verdict, 0) + 1
        self.situations.see(event)

    # ---- the run

    async def _script(self, tasks: anyio.abc.TaskGroup) -> None:
        self.steps = Play(self.cluster, tasks, report=self._misstep, after_turn=self._look)
        for step in self.script.step:
            until = getattr(step, "until", None)
            if until is not None:
                self.cluster.timeline.when(until)
        try:
            for at, step in enumerate(self.script.step):
                await self.steps.step(at, step)
            if self.script.expect.steps == "judged":
                for path, what in self.cluster.injector.idle():
                    self._break(AS_WRITTEN, f"{path}: {what}")
            await self._drain()
        except Stuck as error:
            self._break(MOVES, str(error))

    def _misstep(self, at: int, wrong: str) -> None:
        self._break(AS_WRITTEN, f"$.step[{at}] ({type(self.script.step[at]).__name__.lower()}): {wrong}")

    async def _drain(self) -> None:
        """No more faults: whatever was begun ends, every request finishes, and nothing may be left."""
        play = self.steps
        self.cluster.timeline.stop_faults()
        for node in self.cluster.stack.nodes:
            node.device.faults.hold.clear()
        await play.turn()
        for name in list(play.readers.open):
            play.readers.end(name)
        for rank in sorted(self.cluster.dead):
            self.cluster.restart_rank(rank)
        await play.all_finished()
        driver = self.driver
        self._check_sources()
        play.readers.oracle_reads()
        driver.checks.look()
        for request in list(driver.state.requests.values()):
            if request.life in ("RUNNING", "PREEMPTED"):
                self.cluster.kv.handle(Finish(request=request.key))
        if driver.state.pool.prefixes:
            self.cluster.kv.handle(EvictPrefix(blocks=len(driver.state.pool.prefixes)))
        await play.until(lambda: driver.idle and not driver.pending(), "rest after the faults stopped")
        await play.turn()
        self._at_rest()

    def _look(self) -> None:
        """After each turn in which something moved: the readers read, the laws hold."""
        if self.cluster.events != self._checked:
            self._checked = self.cluster.events
            for broken in laws.check(self.driver.state):
                name, _, detail = broken.partition(": ")
                self._break(name, detail)
            self._found()
        if self.cluster.activity != self._read:
            self._read = self.cluster.activity
            for wrong in self.steps.readers.wrong():
                self._break(BYTES, wrong)

    def _found(self) -> None:
        """What the independent checkers have found."""
        for found in (found for checks in self.cluster.checks for found in checks.broken):
            self._break(found.law, f"event {found.position}: {found.detail}")

    def _check_sources(self) -> None:
        for wrong in self.steps.readers.wrong_sources():
            self._break(BYTES, wrong)

    def _at_rest(self) -> None:
        driver = self.driver
        driver.checks.at_rest(driver.pools)
        self._found()
        for request in driver.state.requests.values():
            if request.life != "CLOSED":
                self._break(DRAINS, f"{request.key.request_id} is {request.life.lower()} ({request.describe()})")
        held = [str(key) for key, holders in driver.state.ownership.held.items() if holders]
        if held:
            self._break(DRAINS, f"something is held for {held}")
        run = driver.state.pool.run
        whole = (run.cpu_full_blocks, run.cpu_total_blocks - run.cpu_full_blocks) if run else ()
        if run and (driver.pools.device.free != run.device_blocks or driver.pools.cpu.free != whole):
            self._break(
                DRAINS,
                f"free device blocks {driver.pools.device.free} of {run.device_blocks}, "
                f"free CPU blocks {driver.pools.cpu.free} of {whole}",
            )

    def _break(self, law: str, detail: str) -> None:
        known = {broken.partition(" (turn ")[0] for broken in self.broken}
        if len(self.broken) < BROKEN_KEPT and (law == AS_WRITTEN or law not in known):
            self.broken.append(f"{law} (turn {self.cluster.timeline.turn}): {detail}")

    # ---- the verdict

    def _verdict(self) -> Verdict:
        driver, expect = self.driver, self.script.expect
        digest = driver.digest()
        cost = figures(self.cluster.metrics)
        for path, wanted, counted in (
            ("events", expect.events, self._counts),
            ("verdicts", expect.verdicts, self._verdicts),
            ("final", expect.final, cost),
        ):
            for name, value in wanted.items():
                if counted.get(name, 0) != value:
                    self._break(AS_WRITTEN, f"$.expect.{path}.{name}: expected {value}, got {counted.get(name, 0)}")
        replayed = Ledger(self.cluster.store).verify() if self.ledger is None else None
        try:
            driver.close()
        except LogError as error:
            self._break(NO_ERROR, str(error))
        if self.ledger is not None:
            with Ledger.open(f"sqlite:{self.ledger}") as written:
                replayed = written.verify()
        if replayed is not None and not (replayed.ok and replayed.digest == digest):
            self._break(REPLAYS, f"{replayed}, the run had {digest}")
        reached = self.situations.reached
        missing = [name for name in expect.sometimes if name not in reached]
        return Verdict(
            title=self.script.title,
            seed=self.seed,
            passed=not self.broken and not missing,
            broken=self.broken,
            missing=missing,
            ledger=None if self.ledger is None else str(self.ledger),
            digest=digest,
            unseed=self.cluster.chance.getrandbits(32),
            events=self.cluster.events,
            turns=self.cluster.timeline.turn,
            reached=sorted(reached),
            figures=cost,
        )


_NAMES: Final = {kind: name for name, kind in EVENTS.items()}


def _leaf(group: BaseException) -> BaseException:
    """The first error inside."""
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group


def _raised_in(error: BaseException) -> str:
    """Name of the function that raised it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f" in {trace.tb_frame.f_code.co_name}" if trace is not None else ""
