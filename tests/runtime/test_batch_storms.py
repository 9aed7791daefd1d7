"""Storms whose messages wait for each other: a batch in one turn comes to what its messages come to one by one."""

import contextlib
import copy
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from tests.runtime.rig import frozen, make_settings
from tests.runtime.storms import WHOLE, WORLD, Batches, Storm

from kvsweep.ledger import laws
from kvsweep.ledger.errors import Busy, KvsweepError, Refused
from kvsweep.ledger.events import Event, Measured
from kvsweep.ledger.ids import int32_bytes, int32_view
from kvsweep.ledger.messages import Effect, OpenRequest, OpenTail, RegisterSources, Release, Turn
from kvsweep.ledger.standing import Standing
from kvsweep.ledger.store.digest import parts_digest
from kvsweep.runtime.core.core import Core, Message, _by_kind
from kvsweep.runtime.driver import Asked, Driver

SEED, STORMS, TURNS, MOST = 20260916, 6, 1500, 12
FAR = 10**6


class Gathered(Storm):
    """Messages wait until some are there; `said` counts what came of them."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.log = Batches()
        settings = make_settings(log={"url": "memory:", "digest_every": FAR}, limits={"open_requests": 3})
        self.driver = Driver.open(settings, WORLD, log=self.log)
        self.driver.watch(self._on_event)
        self.waiting: list[Message] = []
        self.said: Counter[str] = Counter()
        self.seed, self.turns = seed, 0

    @property
    def where(self) -> str:
        return f"seed {self.seed}, turn {self.turns}: {self.waiting}"

    def send(self, message: Message) -> None:
        self.waiting.append(message)
        if self.chance(0.02):
            self.waiting.append(OpenTail(request=self.one(self.waiting), until=-1))  # type: ignore[arg-type]

    def _open(self) -> None:
        name = self.one(("a", "b", "c", "d"))
        known = self.driver.state.requests.get(name)
        self.waiting.append(OpenRequest(request_id=name))
        if known is not None and known.life == "RUNNING":
            free = [at for at in range(48) if at not in int32_view(known.source)][-WHOLE:]
            self.waiting.append(
                RegisterSources(request=known.key, logical=int32_bytes(range(WHOLE)), source=int32_bytes(free))
            )

    def turn(self) -> None:
        if len(self.waiting) >= 1 + int(self.rng.integers(MOST)):
            self.flush()
        with contextlib.suppress(Refused, Busy):
            super().turn()

    def flush(self) -> None:
        self._poll()
        self.turns += 1
        state, where = self.driver.state, self.where
        was, recorded = parts_digest(state), len(self.log.batches)
        apart, events, pools = alone(self.driver.core.fork(), copy.deepcopy(self.driver.pools), self.waiting)
        turns = self.driver.handle_all(self.waiting)
        assert parts_digest(state) == was, where
        assert frozen(self.driver.state) == frozen(apart.state), where
        assert len(self.log.batches) - recorded == bool(events), f"{where}: one append"
        assert sorted_by_stream(self.log.batches[-1] if events else ()) == sorted_by_stream(events), where
        assert laws.check(self.driver.state) == [], where
        self._expect_counted(where)
        self._poll()
        free = [(pools.device.free, pools.cpu.free) for pools in (self.driver.pools, pools)]
        assert free[0] == free[1], where
        self.said.update(f"{type(m).__name__} {turn.outcome}" for m, turn in zip(self.waiting, turns, strict=True))
        self.waiting.clear()

    def _poll(self) -> None:
        for effect in self.driver.poll():
            self._perform(effect)

    def _expect_counted(self, where: str) -> None:
        """What is carried from turn to turn is what the state comes to."""
        ours, fresh = self.driver.core._standing, Standing(self.driver.state)
        assert (ours.index().device, ours.index().cpu) == (fresh.index().device, fresh.index().cpu), where
        assert list(ours.live) == list(fresh.live), where
        assert ours.journalled == 0, where


def alone(core: Core, pools: Any, messages: Sequence[Message]) -> tuple[Core, list[Event], Any]:
    """One by one, in the order in which a batch takes them; what comes free goes back at the end."""
    events: list[Event] = []
    effects: list[Effect] = []
    for at in _by_kind(messages):
        answer = Asked(pools)
        try:
            turn = core.handle(messages[at], answer)
        except KvsweepError:
            answer.give_back()
            turn = Turn(outcome="refused")
        core.adopt(turn)
        events += turn.events
        effects += turn.effects
    for effect in effects:
        if isinstance(effect, Release):
            pools.release(effect)
    return core, events, pools


def sorted_by_stream(events: Sequence[Event]) -> list[Event]:
    """Stream by stream, without what a clock measured."""
    events = [replace(event, measured=Measured()) if hasattr(event, "measured") else event for event in events]
    return sorted(events, key=lambda event: (event.request.request_id, event.request.request_epoch, event.seq))


@pytest.mark.parametrize("number", range(STORMS))
def test_a_batch_comes_to_what_its_messages_come_to_one_by_one(number: int) -> None:
    storm = Gathered(SEED + number)
    storm.run(TURNS)
    assert storm.turns > 40, storm.said
    assert sum(count for what, count in storm.said.items() if what.endswith(" accepted")) > 100, storm.said
    assert sum(count for what, count in storm.said.items() if what.endswith(" refused")) > 30, storm.said


@pytest.mark.parametrize("number", range(2))
def test_no_turn_of_a_storm_changes_a_state_that_was_handed_out_before(number: int) -> None:
    """States and forks that are kept have the digest that they had, after every later turn."""
    storm = Storm(SEED + number)
    kept: list[tuple[Any, str]] = []
    for turn in range(400):
        state = storm.driver.state
        before = parts_digest(state)
        if turn % 40 == 0:
            kept += [(state, before), (storm.driver.core.fork(), before)]
        storm.turn()
        where = f"seed {SEED + number}, turn {turn}"
        assert parts_digest(state) == before, where
        if turn % 20 == 19:
            for one, digest in kept:
                assert parts_digest(one.state if isinstance(one, Core) else one) == digest, where
