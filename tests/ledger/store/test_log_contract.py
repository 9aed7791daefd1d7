"""What every store must do, run against each of them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvsweep.ledger import events as e
from kvsweep.ledger.errors import LayoutError, LogError, SequenceConflict, SettingsError
from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import POOL, RequestKey
from kvsweep.ledger.store import encoding, group
from kvsweep.ledger.store.codec import EVENT_TYPES, RULES, SCHEMA
from kvsweep.ledger.store.log import LogStore, QueueBounds, Record, Stream
from kvsweep.ledger.store.open import open_log

FIRST, SECOND, LATER = RequestKey("a-b-c", 1), RequestKey("a-b", 1), RequestKey("a-b-c", 2)


@pytest.fixture(
    params=["memory", "sqlite", "sqlite, written by a thread", "sqlite, by the reference", "the same, by a thread"]
)
def log(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LogStore]:
    if "reference" in request.param or "same" in request.param:
        monkeypatch.setattr(encoding, "encode_part", group.encode_part)
        monkeypatch.setattr(encoding, "pack_parts", group.pack_parts)
    url = "memory:" if request.param == "memory" else f"sqlite:{tmp_path / 'ledger.db'}"
    store = open_log(url, queue=QueueBounds() if "thread" in request.param else None)
    yield store
    store.close()


def resumed(request: RequestKey, *numbers: int) -> list[Event]:
    return [e.RequestResumed(request=request, seq=seq) for seq in numbers]


def stored(log: LogStore) -> tuple[list[Record], list[Stream], int]:
    return list(log.read()), log.requests(), log.durable()


def test_what_is_appended_is_read_back_in_order(log: LogStore, written: Any) -> None:
    assert log.append(written.events[:7]) == 7
    assert log.append(written.events[7:]) == len(written.events)
    assert [record.event for record in log.read()] == written.events
    assert [record.position for record in log.read()] == list(range(1, len(written.events) + 1))


def test_every_event_type_is_stored(log: LogStore, make_event: Any) -> None:
    rng = np.random.default_rng(20260916)
    batch = [make_event(kind, rng, request=FIRST, seq=seq) for seq, kind in enumerate(EVENT_TYPES.values())]
    log.append(batch)
    assert [record.event for record in log.read(FIRST)] == batch


def test_the_header_names_schema_and_rules(log: LogStore) -> None:
    assert (log.header.schema, log.header.rules) == (SCHEMA, RULES)


def test_a_new_log_is_empty(log: LogStore) -> None:
    assert stored(log) == ([], [], 0)
    assert log.append([]) == 0
    assert log.damage() is None


def test_f5_streams_are_apart_by_whole_id_and_epoch(log: LogStore) -> None:
    """The pool's stream and a request that happens to be called the same are apart too."""
    twin = RequestKey(POOL.request_id, 1)
    log.append([*resumed(FIRST, 0), *resumed(SECOND, 0), *resumed(FIRST, 1), *resumed(POOL, 0), *resumed(twin, 0, 1)])
    log.append([*resumed(LATER, 0), *resumed(FIRST, 2)])
    assert [record.position for record in log.read(FIRST)] == [1, 3, 8]
    assert [record.position for record in log.read(LATER)] == [7]
    assert [record.position for record in log.read(twin)] == [5, 6]
    assert list(log.read(RequestKey("a", 1))) == []
    assert log.requests() == [
        Stream(request=FIRST, events=3, last=8),
        Stream(request=SECOND, events=1, last=2),
        Stream(request=POOL, events=1, last=4),
        Stream(request=twin, events=2, last=6),
        Stream(request=LATER, events=1, last=7),
    ]


def test_reading_after_a_position(log: LogStore) -> None:
    log.append([*resumed(FIRST, 0), *resumed(SECOND, 0), *resumed(FIRST, 1), *resumed(SECOND, 1)])
    assert [record.position for record in log.read(after=2)] == [3, 4]
    assert [record.position for record in log.read(SECOND, after=2)] == [4]
    assert list(log.read(after=4)) == list(log.read(FIRST, after=3)) == []
    with pytest.raises(LayoutError, match="after: expected a position of 0 or more, got -1"):
        log.read(after=-1)


def test_reading_sees_what_was_stored_when_it_was_called(log: LogStore) -> None:
    log.append(resumed(FIRST, *range(600)))  # more than any store fetches at once
    everything, one = log.read(), log.read(FIRST)
    next(everything), next(one)
    log.append(resumed(FIRST, 600))
    assert sum(1 for _ in everything) == sum(1 for _ in one) == 599


@pytest.mark.parametrize(
    ("batch", "expected", "found"),
    [
        (resumed(FIRST, 1), 2, 1),  # a repeated number
        (resumed(FIRST, 3), 2, 3),  # a gap
        (resumed(FIRST, 2, 3, 3), 4, 3),  # within the batch
        ([*resumed(LATER, 0), *resumed(SECOND, 1)], 0, 1),  # a good event before the bad one
    ],
)
def test_a_number_that_is_not_the_next_refuses_the_whole_batch(
    log: LogStore, batch: list[Event], expected: int, found: int
) -> None:
    log.append(resumed(FIRST, 0, 1))
    before = stored(log)
    with pytest.raises(SequenceConflict) as conflict:
        log.append(batch)
    assert (conflict.value.expected, conflict.value.found) == (expected, found)
    assert stored(log) == before
    assert log.append(resumed(FIRST, 2)) == 3  # and the store goes on


def test_the_expected_position_is_checked(log: LogStore) -> None:
    assert log.append(resumed(FIRST, 0, 1), expected=0) == 2
    before = stored(log)
    with pytest.raises(SequenceConflict, match="ledger: expected sequence 1, found 2"):
        log.append(resumed(FIRST, 2), expected=1)
    assert stored(log) == before
    assert log.append(resumed(FIRST, 2), expected=2) == 3


def test_an_event_that_cannot_be_encoded_refuses_the_whole_batch(log: LogStore) -> None:
    log.append(resumed(FIRST, 0))
    before = stored(log)
    wrong: Any = None
    with pytest.raises(LogError, match=r"batch\[1\]: RequestOpened.rows: Expected `int`, got `None`"):
        log.append([*resumed(FIRST, 1), e.RequestOpened(request=LATER, seq=0, pool_generation=1, rows=wrong)])
    assert stored(log) == before


def test_durable_follows_every_append(log: LogStore) -> None:
    seen = [log.durable()]
    for seq in range(3):
        seen.append(log.append(resumed(FIRST, seq)))
        assert log.durable() <= seen[-1]
        assert log.queues or log.durable() == seen[-1]
        log.flush()
        assert log.durable("process") == log.durable("power") == seen[-1]
    assert seen == [0, 1, 2, 3]


def test_a_watcher_is_told_every_durable_position_until_it_leaves(log: LogStore) -> None:
    told: list[int] = []
    leave = log.watch(told.append)
    for seq in range(3):
        log.append(resumed(FIRST, seq))
        log.append([])
        log.flush()
    leave()
    log.append(resumed(FIRST, 3))
    log.flush()
    assert told == [1, 2, 3]


@pytest.mark.parametrize("name", ["a\0b", "a\0c", "", '"', "\n", "ключ", "\U0001f511", "x" * 5000, "[1, 2]"])
def test_f5_any_string_is_an_id(log: LogStore, name: str) -> None:
    """Ids are stored whole, whatever is in them."""
    for number, key in enumerate((RequestKey(name, 1), RequestKey(f"{name}.", 1), RequestKey(name, 2)), 1):
        assert log.append(resumed(key, 0)) == number
    assert [stream.request.request_id for stream in log.requests()] == [name, f"{name}.", name]
    assert [record.position for record in log.read(RequestKey(name, 2))] == [3]


def test_the_largest_numbers_are_stored(log: LogStore) -> None:
    key = RequestKey("a", 2**63 - 1)
    event = e.ProducerRestarted(request=POOL, seq=0, process_epoch=2**63 - 1)
    log.append([*resumed(key, 0), event])
    assert [record.event for record in log.read()] == [*resumed(key, 0), event]


@pytest.mark.parametrize(
    "verb",
    [
        lambda log: log.append(resumed(FIRST, 1)),
        lambda log: log.durable(),
        lambda log: log.read(),
        lambda log: log.requests(),
        lambda log: log.damage(),
    ],
)
def test_a_closed_log_refuses(log: LogStore, verb: Callable[[LogStore], object]) -> None:
    log.append(resumed(FIRST, 0))
    log.close()
    log.close()
    with pytest.raises(LogError, match="is closed"):
        verb(log)


@pytest.mark.parametrize("bad", ["", "sqlite", "sqlite:", "memory", "memory:x", "postgres:x", "ledger.db"])
def test_a_bad_url_is_a_settings_error(bad: str) -> None:
    with pytest.raises(SettingsError, match=f'log.url: expected "memory:" or "sqlite:PATH", got {bad!r}'):
        open_log(bad)


def test_a_memory_log_is_bounded() -> None:
    from kvsweep.ledger.store.memory import MemoryLog

    log = MemoryLog(max_events=3)
    log.append(resumed(FIRST, 0, 1))
    with pytest.raises(LogError, match="full: expected at most 3 events, got 4"):
        log.append(resumed(FIRST, 2, 3))
    assert log.durable() == 2
    assert log.append(resumed(FIRST, 2)) == 3
    with pytest.raises(LogError, match="max_events: expected at least 1, got 0"):
        MemoryLog(max_events=0)
    with pytest.raises(SettingsError, match="a ledger that outlives its process"):
        open_log("memory:", read_only=True)
