"""Questions to a ledger of several files, with snapshots, and with its first files gone: the whole one answers so."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from tests.ledger.inspect.test_lives import Apart, walked
from tests.ledger.inspect.test_why_block import answered, recounted
from tests.ledger.lives import Life
from tests.ledger.small_run import small_run
from tests.ledger.walks import Walk

from kvsweep.ledger import events as e
from kvsweep.ledger.errors import LayoutError
from kvsweep.ledger.events import DigestRecorded, Event
from kvsweep.ledger.fold import apply
from kvsweep.ledger.ids import RequestKey
from kvsweep.ledger.inspect.explain import explain_frame
from kvsweep.ledger.inspect.lives import Frame, open_lives, operations_begun
from kvsweep.ledger.inspect.replay import Ledger
from kvsweep.ledger.state import EMPTY
from kvsweep.ledger.store.digest import Digest
from kvsweep.ledger.store.log import Rotation, Snapshot
from kvsweep.ledger.store.open import open_log
from kvsweep.ledger.store.query import Block

SEED, NEVER = 20260916, 10**15
EVENTS = 75  # a file
TWO_FILES = 300_000  # bytes

Make = Callable[[type[Walk], int], tuple[Ledger, list[Frame]]]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """(kind of walk, bytes to keep) -> a ledger of several files, and the frames of the whole history."""
    opened: list[Ledger] = []

    def make(kind: type[Walk], keep_bytes: int) -> tuple[Ledger, list[Frame]]:
        url = f"sqlite:{tmp_path / f'{kind.__name__}-{keep_bytes}.db'}"
        rotation = Rotation(snapshot_events=1, file_bytes=1, keep_bytes=keep_bytes, keep_s=NEVER)
        log, state, digest, frames = open_log(url, rotation=rotation), EMPTY, Digest(), list[Frame]()
        records, group = list(walked(kind, SEED).read()), list[Event]()
        for record in records:
            before, state = state, apply(state, record.event)
            digest.update(record.event)
            frames.append(Frame(position=record.position, event=record.event, before=before, after=state))
            group.append(record.event)
            if record.position % EVENTS == 0 or record is records[-1]:
                log.append(group, level="process")
                group = []
            if record.position % EVENTS == 0:
                value = digest.value(state)
                snapshot = Snapshot(position=record.position, digest=value, chain=digest.chain, state=state)
                log.keep_snapshot(snapshot)
        log.close()
        opened.append(Ledger.open(url))
        return opened[-1], frames

    yield make
    for ledger in opened:
        ledger.close()


@pytest.mark.parametrize("kind", [Apart, Walk])
@pytest.mark.parametrize("keep_bytes", [NEVER, TWO_FILES])
def test_every_question_has_the_answer_of_the_whole_history(make: Make, kind: type[Walk], keep_bytes: int) -> None:
    ledger, frames = make(kind, keep_bytes)
    first, last = ledger.header.first, ledger.last()
    assert len(ledger.log.files()) > 1
    assert (first > 1) == (keep_bytes == TWO_FILES)
    kept = frames[first - 1 :]

    rng = np.random.default_rng(SEED)
    for frame in (kept[at] for at in sorted({*rng.integers(0, len(kept), size=20).tolist(), 0, len(kept) - 1})):
        found = replace(ledger.explain(frame.position), facts=())
        assert found == explain_frame(frame), f"position {frame.position}"
        assert ledger.state(frame.position) == frame.after
        assert operations_begun(ledger.log, until=frame.position) == frame.after.pool.next_operation_id
        alive = {one.key for one in frame.after.requests.values() if one.life != "CLOSED"}
        assert set(open_lives(ledger.log, until=frame.position)) == alive

    for number in range(0, 6, 2):
        life = ledger.why_block(0, number, lives=10**6, events=10**9)
        for frame in kept[::9]:
            expected = recounted(frame.after, Block(0, number))
            assert answered(life, frame.position) == expected, f"block {number} at {frame.position}"

    assert ledger.verify().ok
    checked, state = ledger.check()
    assert (checked.ok, checked.events, state) == (True, last, frames[-1].after)
    assert checked.since == last // EVENTS * EVENTS
    assert checked.digest == ledger.verify().digest
    assert not ledger.diff(ledger).parted
    assert not ledger.diff(ledger, every_event=True).parted
    assert list(ledger.replay())[-1].after == frames[-1].after


def test_what_was_dropped_cannot_be_asked_for(make: Make) -> None:
    ledger, frames = make(Apart, TWO_FILES)
    first, last = ledger.header.first, ledger.last()
    with pytest.raises(LayoutError, match=f"position: expected a position from {first} to {last}, got {first - 1}"):
        ledger.explain(first - 1)
    with pytest.raises(LayoutError, match=f"until: expected a position from {first - 1} to {last}, got {first - 2}"):
        ledger.state(first - 2)
    assert ledger.state(first - 1) == frames[first - 2].after
    with pytest.raises(LayoutError, match=f"until: expected a position from {first - 1} to {last}, got 1"):
        ledger.why_block(0, 0, until=1)


def test_a_life_that_began_in_a_file_that_is_gone_is_folded_from_the_snapshot(make: Make) -> None:
    ledger, frames = make(Apart, TWO_FILES)
    first = ledger.header.first
    state = frames[first - 2].after
    begun = [one.key for one in state.requests.values() if one.life != "CLOSED"]
    assert begun
    for life in begun:
        own = [frame for frame in frames[first - 1 :] if frame.event.request == life]
        if own:
            last = own[-1].position
            assert ledger.state(last, lives=(life,)).request(life) == frames[last - 1].after.request(life)
    assert ledger.figures(first, lives=(RequestKey("nobody", 1),)) == []


def test_j1_a_digest_of_before_the_snapshot_is_taken_on_trust_and_one_behind_it_is_not(tmp_path: Path) -> None:
    """J1: `check` begins at the snapshot, `verify` at the first event."""
    events: list[Any] = list(small_run().events)
    recorded = next(at for at, event in enumerate(events) if isinstance(event, DigestRecorded))
    events[recorded], events[recorded + 1] = events[recorded + 1], events[recorded]
    url, state, digest = f"sqlite:{tmp_path / 'ledger.db'}", EMPTY, Digest()
    log = open_log(url)
    for event in events[: recorded + 1]:
        state = apply(state, event)
        digest.update(event)
    log.append(events[: recorded + 1])
    value = digest.value(state)
    log.keep_snapshot(Snapshot(position=recorded + 1, digest=value, chain=digest.chain, state=state))
    log.append(events[recorded + 1 : recorded + 2])
    with Ledger.open(url) as ledger:
        checked, _ = ledger.check()
        assert (checked.ok, checked.since, checked.recorded_digest) == (True, recorded + 1, None)
        assert ledger.verify().recorded_digest == events[recorded + 1].digest
    forged = replace(events[recorded + 1], seq=2, position=recorded + 2, digest="another")
    log.append([forged])
    log.close()
    with Ledger.open(url) as ledger:
        checked, _ = ledger.check()
        assert (checked.ok, checked.position, checked.recorded_digest) == (False, recorded + 2, "another")


def test_a_time_is_the_first_event_stored_then_or_later(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'ledger.db'}"
    log = open_log(url)
    for event in small_run().events:
        log.append([event])
    log.close()
    with Ledger.open(url) as ledger:
        times = [record.time for record in ledger.events()]
        for time in times:
            assert ledger.position_at(time / 1e6) == times.index(time) + 1
            assert ledger.position_at((time + 1) / 1e6) == sum(other <= time for other in times) + 1
    with pytest.raises(LayoutError, match=r"time: expected a ledger file that keeps times .*, got one that does not"):
        Ledger(walked(Apart, SEED)).position_at(0.0)


def test_a_life_closes_after_a_snapshot_of_as_many_closed_ones_as_are_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest of them is forgotten then; it is not among the lives that are folded."""
    monkeypatch.setattr("kvsweep.ledger.reducers.life.CLOSED_KEPT", 2)
    log = open_log(f"sqlite:{tmp_path / 'ledger.db'}")
    life, begun = Life(log), 0
    for begun, name in enumerate("abcd", 1):
        key = RequestKey(name, life.state.pool.epoch_floor + 1)
        life.emit(e.RequestOpened(request=key, seq=0, pool_generation=1, rows=2))
        life.emit(e.RequestFinished(request=key, seq=1), e.RequestClosed(request=key, seq=2))
        if begun == 2:
            life.keep()
    ledger = Ledger(log)
    for frame in list(ledger.replay()):
        assert replace(ledger.explain(frame.position), facts=()) == explain_frame(frame)
    log.close()
