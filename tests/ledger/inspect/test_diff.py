"""Where two ledgers part: held against a comparison of every event, and of the whole states there."""

import itertools
from typing import Any

import pytest
from msgspec.structs import replace
from tests.ledger.inspect.test_lives import walked
from tests.ledger.small_run import small_run
from tests.ledger.walks import Walk

from kvsweep.ledger import events as e
from kvsweep.ledger.events import Event, Measured
from kvsweep.ledger.ids import POOL, RequestKey
from kvsweep.ledger.inspect.as_data import state_values
from kvsweep.ledger.inspect.diff import Differing, LedgerDiff, diff
from kvsweep.ledger.inspect.replay import Ledger
from kvsweep.ledger.store.memory import MemoryLog

FIRST = RequestKey("a-b-c", 1)


def stored(events: list[Event]) -> MemoryLog:
    log = MemoryLog()
    log.append(events)
    return log


def parted(first: list[Event], second: list[Event], **options: Any) -> LedgerDiff:
    return diff(stored(first), stored(second), **options)


def test_equal_ledgers_do_not_part(written: Any) -> None:
    found = parted(written.events, written.events)
    assert (found.parted, found.common) == (False, len(written.events))
    assert (found.first, found.second, found.fields, found.states, found.evidence) == (None, None, (), (), ())


def test_j1_measured_times_do_not_part_two_runs(written: Any) -> None:
    slower = [
        replace(event, measured=Measured(wait_s=9.5)) if hasattr(event, "measured") else event
        for event in written.events
    ]
    assert slower != written.events
    assert not parted(written.events, slower, every_event=True).parted


def test_what_the_runs_were_begun_with_is_told_and_parts_nothing(written: Any) -> None:
    other = [replace(written.events[0], evidence='{"seed":7,"active":{"cuda":"no"}}'), *written.events[1:]]
    found = parted(written.events, other)
    assert not found.parted
    assert found.evidence == (
        Differing(what="seed", first="-", second="7"),
        Differing(what="active.cuda", first="-", second="no"),
    )
    strange = [replace(written.events[0], evidence="{"), *written.events[1:]]
    assert parted(written.events, strange).evidence == (Differing(what="evidence", first="-", second="{"),)


def test_a_shorter_ledger_parts_at_its_end(written: Any) -> None:
    found = parted(written.events[:20], written.events)
    assert (found.parted, found.common, found.first) == (True, 20, None)
    assert found.second is not None
    assert found.second.type == type(written.events[20]).__name__
    assert found.fields == ()
    assert parted(written.events, []).common == 0


def test_the_events_that_differ_are_told_field_by_field(written: Any) -> None:
    events: list[Any] = list(written.events)
    index = next(at for at, event in enumerate(events) if isinstance(event, e.RankTransferred))
    events[index] = replace(events[index], h2d_bytes=1, measured=Measured(wait_s=3.0))
    found = parted(written.events, events, every_event=True)
    assert found.common == index
    assert found.fields == (Differing(what="h2d_bytes", first="4096", second="1"),)
    assert [fact.position for fact in found.before] == list(range(index - 4, index + 1))
    assert found.states == ()


def test_a_shared_digest_is_trusted_unless_every_event_is_asked_for() -> None:
    one, other = small_run(), small_run()
    index = next(at for at, event in enumerate(other.events) if isinstance(event, e.RankTransferred))
    forged: list[Any] = list(other.events)
    forged[index] = replace(forged[index], h2d_bytes=1)
    recorded = [at for at, event in enumerate(one.events, 1) if isinstance(event, e.DigestRecorded)]
    assert recorded[0] > index
    assert not parted(one.events, forged).parted
    assert parted(one.events, forged, every_event=True).common == index


def test_digests_that_differ_are_not_trusted(written: Any) -> None:
    events: list[Any] = list(written.events)
    recorded = next(at for at, event in enumerate(events) if isinstance(event, e.DigestRecorded))
    events[recorded] = replace(events[recorded], digest="another")
    index = next(at for at, event in enumerate(events) if isinstance(event, e.RankTransferred))
    events[index] = replace(events[index], h2d_bytes=1)
    assert parted(written.events, events).common == index


def whole_difference(first: MemoryLog, second: MemoryLog, found: LedgerDiff) -> set[tuple[str, str, str]]:
    """What the states of whole folds have apart, for the lives of the two next events."""
    sides = []
    for log in (first, second):
        frames = list(itertools.islice(Ledger(log).replay(), found.common + 1))
        following = frames[found.common].event
        sides.append((frames[found.common].after, following.request))
    lives = {request for _, request in sides if request != POOL}
    told = []
    for state, _ in sides:
        said: dict[str, str] = {}
        for life in lives:
            said |= {f"{life.request_id} {what}": text for what, text in state_values(state, life).items()}
        told.append(said)
    keys = {*told[0], *told[1]}
    return {
        (what, told[0].get(what, "-"), told[1].get(what, "-"))
        for what in keys
        if told[0].get(what) != told[1].get(what)
    }


@pytest.mark.parametrize("seed", [20260916, 20260917, 20260920])
@pytest.mark.parametrize("cut", [30, 150, 300])
def test_the_states_apart_are_those_of_whole_folds(seed: int, cut: int) -> None:
    """Two histories that are one up to a point: another legal event stands there."""
    log = walked(Walk, seed)
    events = [record.event for record in log.read()]
    at = next(
        n for n in range(cut, len(events)) if events[n].request != POOL and not isinstance(events[n], e.RequestOpened)
    )
    first = stored(events[: at + 1])
    noted = e.CommandRefused(request=events[at].request, seq=events[at].seq, command="Select", state="x", reason="y")
    second = stored([*events[:at], noted])
    found = diff(first, second)
    assert (found.parted, found.common) == (True, at), f"seed {seed}"
    expected = whole_difference(first, second, found)
    told = {
        (apart.what.replace(f" #{events[at].request.request_epoch}", ""), apart.first, apart.second)
        for apart in found.states
    }
    pool = {"next operation", "prefixes", "shared blocks", "pool generation", "ranks", "lost ranks", "producer epoch"}
    name = events[at].request.request_id
    assert {(f"{name} {what}" if what in pool else what, one, two) for what, one, two in told} == expected, (
        f"seed {seed}"
    )


def test_progress_is_told(written: Any) -> None:
    told: list[int] = []
    events = [replace(small_run().events[0])]
    events += [e.HandshakeAgreed(request=POOL, seq=1 + n, peer="rank 0", theirs="{}") for n in range(2500)]
    parted(events, events, progress=told.append)
    assert told == [1000, 2000]
