"""Hostile weather for a fleet, from one seed: what a demo with --chaos goes through, and is repeated by."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from msgspec.structs import replace

from kvsweep.ledger import events as e
from kvsweep.ledger.errors import Refused
from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import Operation
from kvsweep.ledger.messages import Abort, Done, Preempt
from kvsweep.ledger.phases import ABORTABLE
from kvsweep.scenarios.demo.fleet import Fleet
from kvsweep.scenarios.demo.stack import Stack
from kvsweep.transports.links import Chaos


def links(seed: int) -> Chaos:
    """Late, in any order, and one frame in eight twice."""
    return Chaos(seed=seed, duplicate=0.125, delay=6)


@dataclass
class Storm:
    """Fails and holds operations, aborts, preempts, forges acknowledgements, restarts one rank and the producer."""

    stack: Stack
    seed: int
    turn: int = 0
    done: dict[str, int] = field(default_factory=dict)  # what happened, counted
    _held: list[tuple[int, int, int]] = field(default_factory=list)  # (turn to let go, rank, operation)
    _last: Operation | None = None

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        ranks = len(self.stack.nodes)
        self._rank_restart = (self._random.randint(3, 8), self._random.randrange(ranks))
        self._producer_restart = self._random.randint(3, 8)
        self.stack.driver.watch(self._on_event)

    def _count(self, what: str) -> None:
        self.done[what] = self.done.get(what, 0) + 1

    def _on_event(self, event: Event) -> None:
        """Each operation that is sent may fail on a rank, or be held back there for a while."""
        if not isinstance(event, e.TransferStarted | e.ReadersDrained | e.StoreStarted):
            return
        self._last = event.operation
        number, rank = event.operation.operation_id, self._random.randrange(len(self.stack.nodes))
        draw = self._random.random()
        if draw < 0.06:
            self.stack.nodes[rank].device.faults.fail.add(number)
            self._count("failed operations")
        elif draw < 0.2:
            self.stack.nodes[rank].device.faults.hold.add(number)
            self._held.append((self.turn + self._random.randint(1, 4), rank, number))
            self._count("held operations")

    def before(self, fleet: Fleet) -> None:
        self.turn += 1
        for until, rank, number in list(self._held):
            if until <= self.turn:
                self._held.remove((until, rank, number))
                self.stack.nodes[rank].device.faults.hold.discard(number)
        if self.turn >= self._rank_restart[0] and "rank restarts" not in self.done:
            self._count("rank restarts")
            self.stack.restart_rank(self._rank_restart[1])
        if self.turn >= self._producer_restart and "producer restarts" not in self.done:
            self._count("producer restarts")
            self.stack.restart_producer()
        draw = self._random.random()
        if draw < 0.05:
            self._abort()
        elif draw < 0.08:
            self._preempt(fleet)
        elif draw < 0.3:
            self._forge()

    def _abort(self) -> None:
        for request in self.stack.driver.state.requests.values():
            for opened in (request.upload.open, request.retain.open):
                lane = request.upload if opened is request.upload.open else request.retain
                if opened is not None and lane.phase in ABORTABLE[opened.lane]:
                    self._count("aborts")
                    self.stack.kv.handle(Abort(operation=opened.operation, reason="the storm"))
                    return

    def _preempt(self, fleet: Fleet) -> None:
        running = [member for member in fleet.members if member.running and not member.finished]
        if running:
            session = self._random.choice(running).session
            if session.life == "RUNNING":
                self._count("preemptions")
                session.progress.preemptions += 1
                self.stack.kv.handle(Preempt(request=session.key))

    def _forge(self) -> None:
        """An acknowledgement from the future, one that contradicts its operation, or one long past."""
        if self._last is None:
            return
        rank = self._random.randrange(len(self.stack.nodes))
        epoch = dict(self.stack.driver.state.pool.ranks)[rank]
        operation, kind = self._last, self._random.choice(("future", "conflict", "stale"))
        if kind == "future":
            operation = replace(operation, operation_id=operation.operation_id + 1_000_000)
        elif kind == "conflict":
            requests = self.stack.driver.state.requests.values()
            open_now = [opened.operation for request in requests for opened in request.open_operations()]
            if not open_now:
                return
            operation = replace(open_now[0], map_revision=open_now[0].map_revision + 7)
        else:
            operation = replace(operation, operation_id=1)
        self._count(f"forged acknowledgements: {kind}")
        try:
            self.stack.kv.handle(Done(operation=operation, rank=rank, process_epoch=epoch, outcome="completed"))
        except Refused:
            raise AssertionError("a peer's report never raises") from None

    def keeps_open(self) -> bool:
        """One step in three ends late."""
        return self._random.random() < 0.34

    def ends(self, open_steps: list[int]) -> list[int]:
        """Late steps end in any order; at most four stay open."""
        ending = [number for number in open_steps if self._random.random() < 0.4]
        left = [number for number in open_steps if number not in ending]
        ending += left[:-4] if len(left) > 4 else []
        self._random.shuffle(ending)
        return ending
