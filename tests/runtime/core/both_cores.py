"""Two cores in one: the compiled one answers, the one in Python decides the same, and they have to agree in all."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from kvsweep.kernels.table import Kernels
from kvsweep.ledger.events import RankEpochs
from kvsweep.ledger.ids import RequestKey
from kvsweep.ledger.messages import Turn
from kvsweep.ledger.ownership import Ownership
from kvsweep.ledger.state import EMPTY, State
from kvsweep.ledger.store.digest import parts_digest
from kvsweep.runtime.core.compiled_core import Standing
from kvsweep.runtime.core.core import Core, Message
from kvsweep.runtime.core.steps import HandedOut
from kvsweep.runtime.settings import Settings

LOOK = 3
"""Turns between two looks at the states: what is made of several turns at once has to be right too."""

compiled: Counter[str] = Counter()
"""Turns that the compiled core decided, by what was asked."""

in_python: Counter[str] = Counter()
"""The others."""


class BothCores(Core):
    """Stands for a core wherever there is one."""

    def __init__(
        self, settings: Settings, *, state: State = EMPTY, kernels: Kernels | None = None, compiled: bool | None = None
    ) -> None:
        super().__init__(settings, state=state, kernels=kernels, compiled=compiled is not False)
        self.reference = Core(settings, state=state, kernels=kernels, compiled=False)
        self._adopted = 0

    def fork(self) -> Core:
        raise NotImplementedError("a search decides in Python alone")

    def fact(self, fact: Any) -> Turn:
        turn: Turn = _same(super().fact, self.reference.fact, fact)
        return turn

    def recover(self, evidence: str, kernels: str, ranks: RankEpochs, producer_epoch: int) -> Turn:
        turn: Turn = _same(super().recover, self.reference.recover, evidence, kernels, ranks, producer_epoch)
        return turn

    def handle(self, message: Message) -> Turn:
        turn: Turn = _same(super().handle, self.reference.handle, message)
        self._count(type(message).__name__, turn)
        return turn

    def begin_step(self, requests: Iterable[RequestKey]) -> tuple[int, dict[RequestKey, HandedOut]]:
        begun: tuple[int, dict[RequestKey, HandedOut]]
        begun = _same(super().begin_step, self.reference.begin_step, list(requests))
        return begun

    def end_step(self, number: int) -> Turn:
        turn: Turn = _same(super().end_step, self.reference.end_step, number)
        self._count("end_step", turn)
        return turn

    def adopt(self, turn: Turn) -> None:
        super().adopt(turn)
        self.reference.adopt(turn)
        self._adopted += 1
        if self._adopted % LOOK == 0:
            self.agree()

    def discard(self, turn: Turn) -> None:
        super().discard(turn)
        self.reference.discard(turn)
        self.agree()

    def _count(self, what: str, turn: Turn) -> None:
        if turn.outcome != "reserve":
            (compiled if self._standing._ahead else in_python)[what] += 1

    def agree(self) -> None:
        """Raise AssertionError where the two do not stand in one state."""
        ours, theirs = self._standing.to_decide(), self.reference.state
        assert ours == theirs, _first_difference(ours, theirs)
        assert parts_digest(ours) == parts_digest(theirs)
        assert self.steps.described() == self.reference.steps.described()
        number = theirs.pool.next_operation_id
        assert self._standing.floor(number) == self.reference._standing.floor(number)
        if theirs.pool.run is not None:
            _same_taken(ours)


def _same(one: Callable[..., Any], other: Callable[..., Any], *arguments: Any) -> Any:
    """What both answer; raises what both raise."""
    ours, theirs = _answer(one, arguments), _answer(other, arguments)
    if isinstance(ours, Exception) or isinstance(theirs, Exception):
        assert repr(ours) == repr(theirs), f"{arguments}: {ours!r}, in Python {theirs!r}"
        raise ours
    assert ours == theirs, f"{arguments}:\n  {ours}\nin Python\n  {theirs}"
    return ours


def _answer(ask: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    try:
        return ask(*arguments)
    except Exception as error:  # noqa: BLE001 - whatever it is, the other has to raise it too
        return error


def _first_difference(ours: State, theirs: State) -> str:
    for name in ("pool", "ownership"):
        if getattr(ours, name) != getattr(theirs, name):
            return f"{name}: {getattr(ours, name)}\nin Python\n  {getattr(theirs, name)}"
    for name, request in theirs.requests.items():
        for field in request.__struct_fields__:
            found, expected = getattr(ours.requests[name], field), getattr(request, field)
            if found != expected:
                return f"{name}.{field}: {found}\nin Python\n  {expected}"
    return "the requests"


def _same_taken(state: State) -> None:
    """The index of what is held, however it came about, against one that is counted now."""
    relation, layout = state.ownership, state.pool.layout
    fresh = Ownership(relation.held, relation.own, relation.shared, relation.shared_sources).taken(layout)
    kept = relation.taken(layout)
    for found, expected in zip((*kept.device, kept.cpu), (*fresh.device, fresh.cpu), strict=True):
        assert found.nonzero()[0].tolist() == expected.nonzero()[0].tolist()


def never_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on the rig's cores are two, and a word that the compiled one gives up midway is an error."""
    monkeypatch.setattr("tests.runtime.rig.Core", BothCores)
    leave = Standing._leave

    def never_torn(self: Standing) -> None:
        assert self._core is None or not self._core.torn(), "a word that is not ordinary was given up midway"
        leave(self)

    monkeypatch.setattr(Standing, "_leave", never_torn)
