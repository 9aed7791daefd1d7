"""Random faults of every kind, each addressed to one of the first messages or events of its kind."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final, Literal, get_args

from kvsweep.scenarios.verify.script import faults as f
from kvsweep.scenarios.verify.script.address import Message, Moment, RankMessage
from kvsweep.scenarios.verify.script.world import ScenarioWorld

NEVER: Final = "never"
COMMANDS = ("transfer", "move_blocks", "store_blocks")
PIVOTS = (
    "transfer_started",
    "rank_transferred",
    "transfer_completed",
    "residency_committed",
    "readers_drained",
    "tables_applied",
    "owners_committed",
    "blocks_retired",
    "store_started",
    "rank_stored",
    "tail_sealed",
    "upload_aborted",
    "retain_aborted",
    "request_preempted",
    "request_finished",
    "transfer_settled",
)
"""Events around which things go wrong."""


class RandomFaults:
    """Draws faults. None of them lies about a copy: what a rank says of its own work stays true."""

    def __init__(self, random: Random, world: ScenarioWorld, requests: tuple[str, ...]) -> None:
        self._random, self._world, self._requests = random, world, requests

    def faults(self, count: int) -> tuple[f.Fault, ...]:
        """`count` faults, or one more."""
        makers: tuple[Callable[[], f.Fault | tuple[f.Fault, ...]], ...] = (
            self._delay,
            self._drop,
            self._duplicate,
            self._reorder,
            self._stall,
            self._fail,
            self._partial,
            self._stale,
            self._crash,
            self._late_start,
        )
        weights = (4, 4, 3, 3, 3, 2, 2, 2, 2, 2)
        made: list[f.Fault] = []
        while len(made) < count:
            drawn = self._random.choices(makers, weights)[0]()
            made += drawn if isinstance(drawn, tuple) else (drawn,)
        return tuple(made)

    def _rank(self) -> int | None:
        return self._random.choice((None, self._random.randrange(self._world.ranks)))

    def _message(self, *names: str) -> Message:
        name = self._random.choice(names)
        rank = self._rank() if name in get_args(RankMessage) else None
        return Message(message=name, rank=rank, occurrence=self._random.randint(1, 8))  # type: ignore[arg-type]

    def _moment(self) -> Moment:
        return Moment(event=self._random.choice(PIVOTS), occurrence=self._random.randint(1, 6))

    def _until(self) -> tuple[int, Moment | None]:
        """(turns, event) that something waits for. An event may never come; then it waits till the faults end."""
        if self._random.random() < 0.5:
            return self._random.choice((1, 3, 10, 60)), None
        return self._random.choice((0, 5)), self._moment()

    def _delay(self) -> f.Fault:
        turns, until = self._until()
        on = self._message(*COMMANDS, "cancel", "done", "done", "done", "acknowledge", "acknowledged", "heard")
        return f.Delay(on=on, turns=turns, until=until)

    def _drop(self) -> f.Fault:
        return f.Drop(on=self._message(*COMMANDS, "cancel", "done", "done", "heard", "forget"))

    def _duplicate(self) -> f.Fault:
        on = self._message(*COMMANDS, "cancel", "done", "done", "done", "acknowledged")
        return f.Duplicate(on=on, times=self._random.randint(1, 2), turns=self._random.choice((0, 3, 30)))

    def _reorder(self) -> f.Fault:
        return f.Reorder(on=self._message(*COMMANDS, "cancel", "done", "done"), behind=self._random.randint(1, 3))

    def _stall(self) -> f.Fault:
        turns, until = self._until()
        return f.Stall(on=self._message(*COMMANDS), turns=turns, until=until)

    def _late_start(self) -> tuple[f.Fault, ...]:
        """A command that comes after its cancel was reported: a rank that obeyed would write into others' blocks."""
        rank, name = self._random.randrange(self._world.ranks), self._random.choice(COMMANDS)
        on = Message(message=name, rank=rank, occurrence=self._random.randint(1, 5))  # type: ignore[arg-type]
        delay = f.Delay(on=on, until=Moment(event="transfer_settled", rank=rank))
        if self._random.random() < 0.3:
            return (delay,)
        commit = self._random.choice(("residency_committed", "owners_committed", "store_completed"))
        return delay, f.Stall(on=on, until=Moment(event=commit, occurrence=self._random.randint(1, 6)))

    def _fail(self) -> f.Fault:
        return f.Fail(on=self._message(*COMMANDS))

    def _partial(self) -> f.Fault:
        return f.PartialWrite(on=self._message(*COMMANDS), after=self._random.randint(1, 3))

    def _stale(self) -> f.Fault:
        if self._random.random() < 0.5:
            return f.StaleEpoch(on=self._message("done"))
        return f.WrongOwner(on=self._message("done"), request=self._random.choice(self._requests))

    def _crash(self) -> f.Fault:
        if self._random.random() < 0.3:
            return self._coordinator_crash()
        rank = self._random.choice((None, *range(self._world.ranks)))
        if rank is not None and self._random.random() < 0.5:
            before = Message(message=self._random.choice((*COMMANDS, "done")), rank=rank)  # type: ignore[arg-type]
            return f.Crash(rank=rank, before=before, noticed=self._random.random() < 0.5, restart=self._restart())
        return f.Crash(
            rank=rank,
            after=self._moment(),
            noticed=self._random.random() < 0.5,
            restart=self._restart(),
        )

    def _coordinator_crash(self) -> f.Fault:
        if self._random.random() < 0.3:
            return f.Crash(coordinator=True, before=self._message("done", "acknowledge"))
        return f.Crash(coordinator=True, after=self._moment())

    def _restart(self) -> int | Literal["never"]:
        return self._random.choice((0, 3, 25, NEVER))
