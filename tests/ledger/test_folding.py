"""Folding what is stored: the states and the errors are those of the reference, whichever form of the fold runs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from kvsweep.ledger import compiled
from kvsweep.ledger import events as e
from kvsweep.ledger.errors import KvsweepError, LogCorrupt, SequenceConflict
from kvsweep.ledger.events import Event
from kvsweep.ledger.fold import apply
from kvsweep.ledger.folding import Folding, fold_between, hash_events
from kvsweep.ledger.ids import RequestKey
from kvsweep.ledger.state import EMPTY, State
from kvsweep.ledger.store.digest import Digest
from kvsweep.ledger.store.log import LogStore
from kvsweep.ledger.store.memory import MemoryLog
from kvsweep.ledger.store.open import open_log

KEY = RequestKey("a-b-c", 1)


@pytest.fixture(params=["compiled", "reference"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    form: str = request.param
    if form == "reference":
        monkeypatch.setattr(compiled, "fold", None)
    elif compiled.fold is None:
        pytest.skip("the compiled fold was not built")
    return form


@pytest.fixture(params=["memory", "sqlite"])
def stored(request: pytest.FixtureRequest, tmp_path: Path, written: Any) -> Iterator[LogStore]:
    """The small run in groups of one event and of several."""
    log = open_log("memory:" if request.param == "memory" else f"sqlite:{tmp_path / 'ledger.db'}")
    for start, stop in ((0, 1), (1, 2), (2, 9), (9, 10), (10, 30), (30, 99)):
        log.append(written.events[start:stop])
    yield log
    log.close()


def states_of(events: list[Event]) -> list[State]:
    """After each number of events."""
    states = [EMPTY]
    for event in events:
        states.append(apply(states[-1], event))
    return states


def test_the_state_at_every_position_is_that_of_the_reference(form: str, stored: LogStore, written: Any) -> None:
    states = states_of(written.events)
    for after in range(0, len(states), 7):
        for until in range(after, len(states)):
            assert fold_between(stored, states[after], after=after, until=until) == states[until], (after, until)


def test_a_piece_may_be_taken_bit_by_bit(form: str, stored: LogStore, written: Any) -> None:
    folding, digest, states = Folding(), Digest(), states_of(written.events)
    for piece in stored.pieces():
        for until in range(piece.first, piece.last + 2):
            first = folding.position + 1
            folding.take(piece, until=until)
            assert folding.position == min(until, piece.last)
            assert folding.state == states[folding.position]
            hash_events(digest, piece, first, folding.position)
    assert folding.state == written.state
    assert digest.value(folding.state) == written.digest.value(written.state)


def test_pieces_are_what_is_read(stored: LogStore) -> None:
    for after in (0, 1, 5, 20, 49, 50, 51):
        found = [
            (position, event)
            for piece in stored.pieces(after=after)
            for position, event in enumerate(piece.events(), piece.first)
            if position > after
        ]
        assert found == [(record.position, record.event) for record in stored.read(after=after)]


def test_it_stops_before_a_recorded_digest(form: str, stored: LogStore, written: Any) -> None:
    folding, met = Folding(), []
    for piece in stored.pieces():
        while folding.position < piece.last:
            folding.take(piece, before_digests=True)
            if folding.position < piece.last:
                met.append(folding.position + 1)
                folding.take(piece, until=folding.position + 1)
    assert met == [at for at, event in enumerate(written.events, 1) if isinstance(event, e.DigestRecorded)]
    assert folding.state == written.state


def test_an_illegal_event_is_named_as_the_reference_names_it(form: str, written: Any) -> None:
    for at in range(1, len(written.events)):
        log, events = MemoryLog(), written.events[:at]
        key = events[-1].request
        wrong = e.RequestResumed(request=key, seq=events[-1].seq + 1)
        log.append([*events, wrong])
        states = states_of(events)
        with pytest.raises(KvsweepError) as expected:
            apply(states[-1], wrong)
        folding = Folding()
        [piece] = log.pieces()
        with pytest.raises(type(expected.value)) as raised:
            folding.take(piece)
        assert str(raised.value) == str(expected.value)
        assert folding.position == at
        assert folding.state == states[-1]
        with pytest.raises(LogCorrupt) as told:
            fold_between(log, EMPTY, after=0, until=at + 1)
        assert told.value.position == at + 1
        assert told.value.detail == str(expected.value)
        assert fold_between(log, EMPTY, after=0, until=at) == states[-1]


def test_what_no_reducer_expected_is_named_too(form: str, monkeypatch: pytest.MonkeyPatch, written: Any) -> None:
    log = MemoryLog()
    log.append(written.events[:1])

    def fail(state: State, event: Event) -> State:
        raise LookupError("nowhere")

    monkeypatch.setattr("kvsweep.ledger.folding.apply", fail)
    with pytest.raises(LogCorrupt, match=r"nowhere") as told:
        fold_between(log, EMPTY, after=0, until=1)
    assert told.value.position == 1


def test_it_goes_on_after_an_error(form: str, written: Any) -> None:
    """Nothing was changed, so what is legal can follow."""
    log, other = MemoryLog(), MemoryLog()
    log.append([*written.events[:9], replace(written.events[9], rank=7)])
    other.append(written.events)
    [wrong], [right] = log.pieces(), other.pieces()
    folding = Folding()
    with pytest.raises(KvsweepError):
        folding.take(wrong)
    folding.take(right)
    assert folding.state == written.state


class Reluctant:
    """A compiled fold that takes no event and counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def machine_of(self, state: bytes) -> "Reluctant":
        self.asked += 1
        self._state = state
        return self

    def feed(self, bodies: bytes, start: int, stop: int, pause: int) -> int:
        return start

    def state_bytes(self) -> bytes:
        return self._state


def test_a_fold_that_takes_nothing_is_asked_less_and_less(monkeypatch: pytest.MonkeyPatch, written: Any) -> None:
    reluctant = Reluctant()
    monkeypatch.setattr(compiled, "fold", reluctant)
    log = MemoryLog()
    log.append(written.events)
    assert fold_between(log, EMPTY, after=0, until=len(written.events)) == written.state
    assert reluctant.asked == 6  # before 1, 2, 4, 8, 16, 32 events


def test_the_event_that_does_not_follow_is_found_in_the_middle_of_a_group(form: str, written: Any) -> None:
    """A gap in the numbers, which no store would have taken."""
    log = MemoryLog()
    log.append(written.events)
    del log._bodies[20]
    with pytest.raises(LogCorrupt) as told:
        fold_between(log, EMPTY, after=0, until=len(written.events) - 1)
    assert told.value.position == 21
    assert told.value.detail == str(SequenceConflict(KEY, written.events[20].seq, written.events[21].seq))
