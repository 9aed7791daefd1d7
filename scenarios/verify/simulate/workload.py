"""Random steps of a serving loop and of the machines around it: mostly sensible, sometimes not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from msgspec.structs import replace

from kvsweep.ledger.events import LaneName
from kvsweep.scenarios.verify.script import steps as s
from kvsweep.scenarios.verify.script.world import ScenarioWorld

LENGTHS = (0, 1, 2, 3, 4, 5, 6, 6, 6)
"""Whole blocks that a request is opened with."""
LONGEST = max(LENGTHS)
OPEN_AT_ONCE = 4
"""Serving steps that are open at the same time, at most."""


@dataclass(slots=True)
class _Request:
    """What the generator believes of a request. What became of its steps it cannot know."""

    name: str
    blocks: int = 0
    life: str = "new"  # new, running, preempted, finished
    asked: list[str] = field(default_factory=list)  # names of its uploads, retains and rounds


class Workload:
    """Draws steps one after the other. Addresses always fit what earlier steps named, so that the scenario is legal."""

    def __init__(self, random: Random, world: ScenarioWorld, *, requests: int) -> None:
        self._random, self._world = random, world
        self._active = tuple(world.layout().active_layers)
        self._requests = [_Request("abcdefgh"[at]) for at in range(requests)]
        self._reading: list[str] = []
        self._waiting: list[str] = []  # names of steps that nobody has waited for yet
        self._named: list[str] = []
        self._count = 0

    def steps(self, count: int) -> tuple[s.Step, ...]:
        """`count` steps, or a few more."""
        made: list[s.Step] = []
        while len(made) < count:
            made += self._next()
            if self._random.random() < 0.3:
                made.append(s.Wait(turns=self._random.choice((1, 2, 5, 12))))
        return tuple(made)

    # ---- drawing

    def _name(self, kind: str) -> str:
        self._count += 1
        return f"{kind} {self._count}"

    def _lasting(self, kind: str, waits: float) -> tuple[str, bool]:
        """(name, whether the script waits) of a step that takes time."""
        name, wait = self._name(kind), self._random.random() < waits
        self._named.append(name)
        if not wait:
            self._waiting.append(name)
        return name, wait

    def _one(self, *lives: str) -> _Request | None:
        """A request believed to live so; now and then any that was opened."""
        opened = [request for request in self._requests if request.life != "new"]
        fitting = [request for request in opened if request.life in lives]
        if opened and self._random.random() < 0.04:
            return self._random.choice(opened)
        return self._random.choice(fitting) if fitting else None

    def _next(self) -> list[s.Step]:
        new = [request for request in self._requests if request.life in ("new", "finished")]
        running = [request for request in self._requests if request.life == "running"]
        if new and (not running or self._random.random() < 0.12):
            return self._open(self._random.choice(new))
        preempted = any(request.life == "preempted" for request in self._requests)
        makers: tuple[tuple[int, Callable[[], list[s.Step]]], ...] = (
            (10, self._write),
            (20, self._round),
            (10, self._upload),
            (12, self._retain),
            (10, self._begin),
            (12, self._end),
            (4, self._preempt),
            (40 if preempted else 1, self._resume),
            (3, self._finish),
            (1, self._abort),
            (4, self._retry),
            (5, self._share),
            (2, self._evict),
            (3, self._say),
            (5, self._await),
            (1, self._rank),
            (1, self._producer),
        )
        weights = [weight for weight, _ in makers]
        while True:
            made = self._random.choices(makers, weights)[0][1]()
            if made:
                return made

    def _open(self, request: _Request) -> list[s.Step]:
        """Whole blocks of its own, or none at first and those of a shared prefix."""
        request.life, request.asked = "running", []
        shares = self._random.random() < 0.25
        request.blocks = 0 if shares else self._random.choice(LENGTHS)
        name, wait = self._lasting("open", 0.8)
        opened = s.Open(
            request=request.name,
            blocks=request.blocks,
            tokens=0 if shares else self._part(),
            registered=self._random.random() < 0.55,
            name=name,
            wait=wait,
        )
        if shares:
            request.blocks = self._random.randint(1, LONGEST)
            return [opened, s.Attach(request=request.name, blocks=request.blocks)]
        if request.blocks and not opened.registered and self._random.random() < 0.4:
            return [opened, s.Publish(request=request.name, blocks=self._random.randint(1, request.blocks))]
        return [opened]

    def _part(self) -> int:
        """Tokens beside whole blocks: none, one, or one less than a block."""
        size = self._world.block_size
        return self._random.choice((0, min(1, size - 1), size - 1))

    def _write(self) -> list[s.Step]:
        if (request := self._one("running")) is None:
            return []
        if self._random.random() < 0.15:
            name, wait = self._lasting("seal", 0.5)
            return [s.Seal(request=request.name, name=name, wait=wait)]
        blocks = self._random.randint(0, 2)
        request.blocks += blocks
        name, wait = self._lasting("write", 0.6)
        seal = self._random.random() < 0.85
        return [
            s.Write(request=request.name, blocks=blocks, tokens=self._part(), seal=seal, name=name, wait=wait),
        ]

    def _blocks(self, request: _Request) -> s.ByLayer:
        """Logical blocks, ascending: one list for all layers or one a layer."""
        whole = max(request.blocks, 1)

        def some() -> tuple[int, ...]:
            count = self._random.randint(0, whole)
            return tuple(sorted(self._random.sample(range(whole), count)))

        if self._random.random() < 0.3:
            return some()
        return {layer: some() for layer in self._active}

    def _choose(self, request: _Request) -> list[s.Step]:
        return [
            s.Select(
                request=request.name,
                budget=self._random.choice((0.3, 0.5, 0.5, 0.7, 1.0)),
                sink=self._random.randint(0, 1),
                recent=self._random.choice((0, 0, 0, 1, 2)),
                shared=self._random.random() < 0.2,
            )
        ]

    def _round(self) -> list[s.Step]:
        if (request := self._one("running")) is None:
            return []
        name, wait = self._lasting("round", 0.75)
        request.asked.append(name)
        if self._random.random() < 0.7:
            return [*self._choose(request), s.Round(request=request.name, name=name, wait=wait)]
        return [s.Round(request=request.name, want=self._blocks(request), name=name, wait=wait)]

    def _upload(self) -> list[s.Step]:
        if (request := self._one("running")) is None:
            return []
        name, wait = self._lasting("upload", 0.5)
        request.asked.append(name)
        chosen = self._choose(request) if self._random.random() < 0.6 else []
        want = None if chosen else self._blocks(request)
        tail = self._rest(request, want) if want is not None and self._world.tables == "group" else ()
        upload = s.Upload(request=request.name, want=want, tail=tail, name=name, wait=wait)
        return [*chosen, upload, *self._given_up(request, "upload", wait)]

    def _given_up(self, request: _Request, lane: LaneName, wait: bool) -> list[s.Step]:
        """What the script does not wait for may be aborted under way, or lose its producer."""
        draw = self._random.random()
        if wait or draw < 0.7:
            return []
        if draw < 0.78:
            again: list[s.Step] = [s.Wait(turns=self._random.randint(1, 20)), s.Register(request=request.name)]
            return [s.RestartProducer(register=False), *(again if self._random.random() < 0.7 else [])]
        pause = [s.Wait(turns=self._random.randint(1, 6))] if self._random.random() < 0.5 else []
        return [*pause, s.Abort(request=request.name, lane=lane)]

    def _rest(self, request: _Request, want: s.ByLayer) -> s.ByLayer:
        """Some of the blocks that are not wanted, in any order: what one table for all layers may be padded with."""
        rows = {}
        for layer in self._active:
            wanted = want[layer] if isinstance(want, dict) else want
            rest = [block for block in range(request.blocks) if block not in wanted]
            rows[layer] = tuple(self._random.sample(rest, self._random.randint(0, len(rest))))
        return rows

    def _retain(self) -> list[s.Step]:
        if (request := self._one("running")) is None:
            return []
        name, wait = self._lasting("retain", 0.5)
        request.asked.append(name)
        pack = self._random.random() < 0.25
        keep = self._blocks(request) if not pack and self._random.random() < 0.5 else None
        retain = s.Retain(
            request=request.name,
            keep=keep,
            adopt=not pack and self._random.random() < 0.8,
            pack=pack,
            map_revision=self._random.choice((0,) * 12 + (-1, 1)),
            name=name,
            wait=wait,
        )
        return [retain, *self._given_up(request, "retain", wait)]

    def _begin(self) -> list[s.Step]:
        if len(self._reading) >= OPEN_AT_ONCE or (request := self._one("running")) is None:
            return []
        others = [other.name for other in self._requests if other.life == "running" and other is not request]
        handed = (request.name, *self._random.sample(others, self._random.randint(0, min(2, len(others)))))
        name = self._name("step")
        self._reading.append(name)
        return [s.BeginStep(name=name, requests=handed, captured=self._random.random() < 0.4)]

    def _end(self) -> list[s.Step]:
        if not self._reading:
            return []
        return [s.EndStep(of=self._reading.pop(self._random.randrange(len(self._reading))))]

    def _preempt(self) -> list[s.Step]:
        if (request := self._one("running")) is None:
            return []
        request.life = "preempted"
        return [s.Preempt(request=request.name)]

    def _resume(self) -> list[s.Step]:
        if (request := self._one("preempted")) is None:
            return []
        request.life = "running"
        return [s.Resume(request=request.name)]

    def _finish(self) -> list[s.Step]:
        if (request := self._one("running", "preempted")) is None:
            return []
        request.life = "finished"
        return [s.Finish(request=request.name)]

    def _abort(self) -> list[s.Step]:
        if (request := self._one("running")) is None:
            return []
        return [s.Abort(request=request.name, lane=self._random.choice(("upload", "upload", "retain", "store")))]

    def _asked(self) -> str | None:
        asked = [name for request in self._requests for name in request.asked[-3:]]
        under_way = [name for name in asked if name in self._waiting]
        if under_way and self._random.random() < 0.6:
            return self._random.choice(under_way)
        return self._random.choice(asked) if asked else None

    def _retry(self) -> list[s.Step]:
        if (of := self._asked()) is None:
            return []
        name, wait = self._lasting("retry", 0.5)
        return [s.Retry(of=of, fresh=self._random.random() < 0.3, name=name, wait=wait)]

    def _share(self) -> list[s.Step]:
        request = self._one("running")
        if request is None or not request.blocks:
            return []
        return [s.Publish(request=request.name, blocks=self._random.randint(1, request.blocks))]

    def _evict(self) -> list[s.Step]:
        return [s.Evict(blocks=self._random.randint(1, LONGEST))]

    def _say(self) -> list[s.Step]:
        if (of := self._asked()) is None:
            return []
        report = s.Say(
            of=of,
            rank=self._random.randrange(self._world.ranks),
            outcome=self._random.choice(("completed", "failed", "nonsense")),
            operation=self._random.choice((0, 0, 0, -1, 1000)),
            process_epoch=self._random.choice((0, 0, 0, -1, 1)),
            map_revision=self._random.choice((0, 0, 0, 1)),
            pool_generation=self._random.choice((0, 0, 0, 1)),
            life=self._random.choice((0, 0, 0, -1, 1)),
        )
        honest = not (report.process_epoch or report.map_revision or report.pool_generation or report.life)
        if honest and report.operation != 1000 and report.outcome != "nonsense":
            # A rank's own name under reports that it has not sent: nobody could see that this is a lie.
            return [replace(report, operation=1000)]
        return [report]

    def _await(self) -> list[s.Step]:
        if not self._waiting:
            return [s.Wait(settled=True)] if self._random.random() < 0.1 else []
        return [s.Await(of=self._waiting.pop(self._random.randrange(len(self._waiting))))]

    def _rank(self) -> list[s.Step]:
        rank = self._random.randrange(self._world.ranks)
        restart: list[s.Step] = [s.RestartRank(rank=rank)]
        draw = self._random.random()
        if draw < 0.15:
            made: list[s.Step] = [s.RestartCoordinator()]
        elif draw < 0.45:
            made = restart
        else:
            end: s.Step = s.LoseRank(rank=rank) if draw < 0.7 else s.KillRank(rank=rank)
            made = [end, *(self._next() if self._random.random() < 0.5 else []), *restart]
        for request in self._requests:
            if request.life == "running":
                request.life = "preempted"
        return made

    def _producer(self) -> list[s.Step]:
        if self._random.random() < 0.4:
            return [s.RestartProducer()]
        opened = [request.name for request in self._requests if request.life in ("running", "preempted")]
        again: list[s.Step] = [s.Register(request=name) for name in opened]
        meanwhile = self._next() if self._random.random() < 0.5 else []
        asking = self._one("running")
        if asking is not None and self._random.random() < 0.5:
            whole = asking.blocks  # as it was: the choice was made before anybody noticed
            meanwhile.append(s.Upload(request=asking.name, want=self._blocks(asking), whole=whole))
        return [s.RestartProducer(register=False), *meanwhile, *again]
