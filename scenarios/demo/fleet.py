"""Several requests over one stack: steps in turn, rounds beside them, and what to do when blocks run out.

Relief has an order: give up shared prefixes nobody reads, pack the request with most vacant areas, preempt the youngest
other request. A refused round keeps the old residency and is tried again when it is due.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import anyio
import anyio.abc
import anyio.lowlevel

from kvsweep.ledger.errors import Aborted, NotSettled, PoolExhausted, Refused
from kvsweep.ledger.messages import EvictPrefix, Preempt
from kvsweep.scenarios.demo.loop import Session
from kvsweep.scenarios.demo.stack import Stack

YIELDS_PER_STEP = 8  # turns of the event loop that copies get beside each step
IDLE_TURNS = 20_000
"""Turns without any progress after which the fleet gives up and says what it waits for."""


class Weather(Protocol):
    """What happens to a fleet between steps; the calm one does nothing."""

    def before(self, fleet: Fleet) -> None: ...

    def keeps_open(self) -> bool:
        """Whether the step that has just run is reported as ended only later."""

    def ends(self, open_steps: list[int]) -> list[int]:
        """Which of the open steps end now, in any order."""


class Calm:
    def before(self, fleet: Fleet) -> None:
        return None

    def keeps_open(self) -> bool:
        return False

    def ends(self, open_steps: list[int]) -> list[int]:
        return []


@dataclass
class Member:
    """One session's place in the fleet."""

    session: Session
    limit: int
    running: bool = False  # admitted and fed at least once
    round: anyio.Event | None = None  # the round under way
    finished: bool = False


class Fleet:
    """Decodes every session to its limit (tokens), or all together to a number of rounds."""

    def __init__(
        self,
        stack: Stack,
        sessions: list[tuple[Session, int]],
        *,
        shared_tokens: int = 0,
        rounds: int | None = None,
        weather: Weather | None = None,
        turns_per_step: int = YIELDS_PER_STEP,
        on_step: Callable[[Fleet], None] = lambda fleet: None,
    ) -> None:
        self.stack = stack
        self.turns_per_step = turns_per_step
        self.members = [Member(session, limit) for session, limit in sessions]
        self.shared_tokens = shared_tokens
        self.rounds = rounds
        self.weather: Weather = weather or Calm()
        self.open_steps: list[int] = []
        self._on_step = on_step
        self._published = shared_tokens == 0 or len(sessions) == 1

    @property
    def rounds_done(self) -> int:
        return sum(member.session.progress.rounds for member in self.members)

    def _done(self, member: Member) -> bool:
        if self.rounds is not None and self.rounds_done >= self.rounds:
            return True
        return len(member.session.emitted) >= member.limit

    async def run(self) -> None:
        """Until every session is finished and everything has settled."""
        idle = 0
        async with anyio.create_task_group() as beside:
            while not all(member.finished for member in self.members):
                self.weather.before(self)
                self._publish()
                moved = False
                for member in self.members:
                    if not member.finished:
                        moved = self._advance(member, beside) or moved
                self._end_steps(self.weather.ends(self.open_steps))
                for _ in range(self.turns_per_step):
                    await anyio.lowlevel.checkpoint()
                idle = 0 if moved else idle + 1
                if idle > IDLE_TURNS:
                    raise NotSettled(tuple(self.stack.driver.pending()))
                if not moved and self.open_steps:
                    self._end_steps(self.open_steps[:1])  # nobody else can move: the oldest reader ends
            self._end_steps(list(self.open_steps))
        await self.stack.kv.settled()
        count = len(self.stack.driver.state.pool.prefixes)
        if count:
            self.stack.kv.handle(EvictPrefix(blocks=count))
            await self.stack.kv.settled()

    def _end_steps(self, numbers: list[int]) -> None:
        for number in numbers:
            self.open_steps.remove(number)
            self.stack.kv.end_step(number)

    def _advance(self, member: Member, beside: anyio.abc.TaskGroup) -> bool:
        """One turn of one session. False: it could not move."""
        session = member.session
        if self._done(member):
            if member.round is not None:
                return False
            del session.tokens[session.prompt_tokens + member.limit :]
            session.kv.finish(session.key)
            member.finished = True
            return True
        try:
            if not member.running:
                return self._admit(member)
            if not session.resume():
                return False
            if self._published and session.due and member.round is None and session.mirrored_blocks() > 0:
                session.began_round()
                member.round = anyio.Event()
                beside.start_soon(self._round, member)
            number = session.step(end=not self.weather.keeps_open())
        except PoolExhausted:
            return self._relieve(member)
        if number in self._open_numbers():
            self.open_steps.append(number)
        session.measure()
        self._on_step(self)
        return True

    def _open_numbers(self) -> frozenset[int]:
        return self.stack.driver.core.steps.numbers

    def _admit(self, member: Member) -> bool:
        """The first session computes the shared prefix; the others wait for it and attach."""
        session = member.session
        first = self.members[0]
        if member is not first and not self._published:
            return False
        if session.life == "RUNNING" and session.mirrored_blocks() == 0 and self.shared_tokens and member is not first:
            session.progress.shared_blocks = session.attach(self.shared_tokens)
        member.running = session.resume()
        return member.running

    def _publish(self) -> None:
        """Share the first request's prefix once it is mirrored, before any round lets parts of it go."""
        first = self.members[0]
        if self._published or not (first.finished or first.running):
            return
        if first.finished or first.session.mirrored_blocks() * first.session.layout.block_size >= self.shared_tokens:
            if not first.finished:
                first.session.publish(self.shared_tokens)
            self._published = True

    async def _round(self, member: Member) -> None:
        """A round that cannot go on ends; what it had committed stands, the rest is as before."""
        session, progress = member.session, member.session.progress
        try:
            await session.round()
        except (Aborted, PoolExhausted, Refused) as error:
            reason = error.reason if isinstance(error, Aborted) else type(error).__name__
            progress.refused[reason] = progress.refused.get(reason, 0) + 1
        finally:
            if member.round is not None:
                member.round.set()
            member.round = None

    # ---- relief

    def _relieve(self, member: Member) -> bool:
        """Something that may bring blocks back; True where something was done."""
        kv, driver = self.stack.kv, self.stack.driver
        if driver.state.pool.prefixes and self._published:
            kv.handle(EvictPrefix(blocks=4))
            return True
        others = [
            other
            for other in self.members
            if other is not member and other.running and not other.finished and other.session.life == "RUNNING"
        ]
        if not others or self.members.index(member) > self.members.index(others[-1]):
            return False  # the youngest waits for those before it
        victim = others[-1].session
        victim.progress.preemptions += 1
        kv.handle(Preempt(request=victim.key))
        return True
