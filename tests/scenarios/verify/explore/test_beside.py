"""The compiled core is asked in every state, and whatever it makes otherwise than the one in Python is found."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from tests.scenarios.verify.explore.small import SMALL, only, small

from kvsweep.ledger import compiled, fold
from kvsweep.ledger import events as e
from kvsweep.ledger.errors import UsageError
from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import POOL
from kvsweep.ledger.state import State
from kvsweep.ledger.store.codec import encode
from kvsweep.runtime.core import core
from kvsweep.runtime.core.steps import OpenSteps
from kvsweep.scenarios.verify.explore import beside
from kvsweep.scenarios.verify.explore.beside import Beside, Grown
from kvsweep.scenarios.verify.explore.search import explore
from kvsweep.scenarios.verify.explore.world import Ask

pytestmark = pytest.mark.skipif(compiled.fold is None, reason="the compiled fold was not built")


@pytest.mark.parametrize("name", SMALL)
def test_both_cores_are_one_in_a_small_world(name: str) -> None:
    found = explore(SMALL[name], compiled=True)
    assert found.broken == (), "\n".join((*found.broken, *found.trail))
    asked = found.compiled
    assert asked is not None
    assert 0 < asked.words_taken < asked.words
    assert 0 < asked.events_taken <= asked.events
    assert 0 < asked.tried_taken < asked.tried
    restarts = SMALL[name].faults.rank_restarts + SMALL[name].faults.producer_restarts
    assert (asked.events_taken == asked.events) == (not restarts), "events that the machine leaves to Python"


def test_asking_the_compiled_core_changes_nothing() -> None:
    found = explore(SMALL["fence"], compiled=True)
    assert replace(found, compiled=None) == explore(SMALL["fence"])


def test_where_it_was_not_built_it_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "fold", None)
    with pytest.raises(UsageError, match="the compiled core cannot be asked"):
        explore(small(), compiled=True)


# ---- each difference, planted in one of the two


def test_effects_that_differ_are_found_by_the_shortest_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "release", lambda batch: None)  # Python keeps what is free
    world = small(Ask("select", ((0, 1), (0, 1))), Ask("retain", ((0,), (0,))), ranks=1)
    found = explore(world, compiled=True)
    assert only(found).startswith("both cores are one: loaded: Done(")
    assert "Release(device=" in only(found)
    assert found.trail[-1] == "completed of #2 arrives from rank 0"


def test_states_that_differ_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    reducer = fold.REDUCE[e.BlocksSelected]

    def otherwise(state: State, request: Any, event: Any) -> State:
        after = reducer(state, request, event)
        at = event.request.request_id
        changed = replace(after.requests[at], whole_blocks=7)
        return replace(after, requests={**after.requests, at: changed})

    monkeypatch.setitem(fold.REDUCE, e.BlocksSelected, otherwise)
    found = explore(small(), compiled=True)
    assert only(found).startswith("both cores are one: loaded: a.whole_blocks: 8\nin Python\n  7")
    assert found.trail == ("a asks: select [[0], [1]]",)


def test_a_legal_event_that_is_not_taken_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "LEFT", frozenset())
    found = explore(SMALL["producer"], compiled=True)
    assert only(found).startswith("both folds are one: a legal event is not taken: ProducerRestarted(")
    assert found.trail == ("the producer restarts",)


def test_an_illegal_event_that_is_taken_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search has nothing to ask it with while it goes on: the event is one that came elsewhere."""

    def stricter(state: State, event: Event) -> State:
        if type(event) is e.BlocksSelected and state.requests["a"].current:
            raise UsageError("not where there is a view")
        return fold.apply(state, event)

    monkeypatch.setattr(beside, "apply", stricter)
    found = explore(small(), compiled=True)
    assert only(found).startswith("both folds are one: an illegal event is taken: BlocksSelected(")
    assert found.trail[-1] == "the producer acknowledges #1"


CORE_OF = Beside._core


class Leaves:
    """A core that leaves every word to Python, after it has given the machine an event or has been torn."""

    def __init__(self, machine: Any, held: Any, *, body: bytes = b"", torn: bool = False) -> None:
        self._machine, self._held, self._body, self._torn = machine, held, body, torn

    def handle(self, message: object) -> None:
        self._machine.apply(self._body)

    def torn(self) -> bool:
        return self._torn

    def taken(self) -> Any:
        return self._held


def leaving(*, nothing_held: bool = False, **how: Any) -> Callable[..., tuple[Any, Leaves]]:
    def core_of(self: Beside, grown: Grown, steps: OpenSteps) -> tuple[Any, Leaves]:
        machine, core = CORE_OF(self, grown, steps)
        return machine, Leaves(machine, ((b"",), b"") if nothing_held else core.taken(), **how)

    return core_of


def test_a_turn_that_is_given_up_halfway_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Beside, "_core", leaving(torn=True))
    law = only(explore(small(), compiled=True))
    assert law.startswith("both cores are one: loaded: given up halfway: OpenRequest(")


def test_a_word_that_is_left_to_python_and_changes_the_state_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = encode(e.CommandRefused(request=POOL, seq=1, command="Finish", state="", reason=""))
    monkeypatch.setattr(Beside, "_core", leaving(body=noted))
    law = only(explore(small(), compiled=True))
    assert law.startswith("both cores are one: loaded: a word that is not taken changes the state: OpenRequest(")


def test_two_machines_in_one_state_take_the_same_words(monkeypatch: pytest.MonkeyPatch) -> None:
    made = iter(range(1_000))
    monkeypatch.setattr(Beside, "_core", lambda *asked: (leaving() if next(made) % 2 else CORE_OF)(*asked))
    found = explore(small(), compiled=True)
    assert only(found).startswith("both cores are one: one takes what the other leaves: [Select(")


def test_blocks_that_are_held_otherwise_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Beside, "_core", leaving(nothing_held=True))
    law = only(explore(small(), compiled=True))
    assert law == "both cores are one: loaded: blocks [] are held, in Python [0, 1, 2, 3]"


def test_a_search_in_which_the_compiled_core_takes_no_word_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Beside, "_core", leaving())
    found = explore(small(), compiled=True)
    assert found.sometimes_missing == ("a word is taken by the compiled core",)
