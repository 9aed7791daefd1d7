"""Questions to a store: whichever keeps the bytes, the same records as looking at every event."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.ledger.small_run import LAYOUT

from kvsweep.ledger import events as e
from kvsweep.ledger.errors import LayoutError
from kvsweep.ledger.ids import POOL, RequestKey
from kvsweep.ledger.store.codec import EVENT_TYPES
from kvsweep.ledger.store.log import LogStore, QueueBounds
from kvsweep.ledger.store.open import open_log
from kvsweep.ledger.store.query import NAMES_BLOCKS, Block, Where, concerns_rank, matches, reserves, says_of

LIVES = (RequestKey("a-b-c", 1), RequestKey("@pool", 1), POOL, RequestKey("nobody", 1))


@pytest.fixture(params=["memory", "sqlite", "sqlite, written by a thread"])
def log(request: pytest.FixtureRequest, tmp_path: Path, written: Any) -> Iterator[LogStore]:
    url = "memory:" if request.param == "memory" else f"sqlite:{tmp_path / 'ledger.db'}"
    store = open_log(url, queue=QueueBounds() if "thread" in request.param else None)
    store.append(written.events)
    yield store
    store.close()


CONDITIONS: dict[str, list[Any]] = {
    "lives": [None, LIVES[:1], LIVES, ()],
    "types": [None, ("RankTransferred", "TailOpened")],
    "operation": [None, 2],
    "rank": [None, 1, 7],
    "block": [None, Block(0, 1)],
    "after": [0, 7],
    "until": [None, 40],
}


def test_every_combination_of_conditions_finds_what_looking_at_every_event_finds(log: LogStore, written: Any) -> None:
    numbered = list(enumerate(written.events, 1))
    for values in itertools.product(*CONDITIONS.values()):
        where = Where(**dict(zip(CONDITIONS, values, strict=True)))
        expected = [
            position
            for position, event in numbered
            if where.after < position <= (where.until or len(numbered)) and matches(event, where, LAYOUT)
        ]
        found = [record for record in log.find(where) if matches(record.event, where, LAYOUT)]
        assert [record.position for record in found] == expected, where
        assert [record.event for record in found] == [written.events[position - 1] for position in expected]
        back = [record.position for record in log.find(where, newest_first=True)]
        assert back == sorted(back, reverse=True), where
        assert set(expected) <= set(back), where


def test_more_records_than_a_query_takes_are_found_both_ways(tmp_path: Path) -> None:
    life = RequestKey("long", 1)
    with_pool = [
        e.RequestResumed(request=POOL if seq % 5 == 0 else life, seq=seq // 5 if seq % 5 == 0 else seq - seq // 5 - 1)
        for seq in range(3000)
    ]
    log = open_log(f"sqlite:{tmp_path / 'long.db'}")
    log.append(with_pool)
    for where, count in ((Where(), 3000), (Where(lives=(life,)), 2400), (Where(lives=(life, POOL)), 3000)):
        found = [record.position for record in log.find(where)]
        assert (len(found), found) == (count, sorted(found))
        assert [record.position for record in log.find(where, newest_first=True)] == found[::-1]
    log.close()


def test_what_a_rank_saw_is_what_it_said_and_what_it_was_told(written: Any) -> None:
    seen = [type(event).__name__ for event in written.events if concerns_rank(event, 1)]
    assert seen.count("RankTransferred") == 1  # its own of two
    assert {"TransferStarted", "ReadersDrained", "StoreStarted", "UploadAborted", "AckRefused"} <= set(seen)
    assert not any(concerns_rank(event, 9) for event in written.events if type(event).__name__ == "TransferStarted")


def test_an_event_says_of_a_block_what_it_does_to_it(written: Any) -> None:
    leased = next(event for event in written.events if isinstance(event, e.BlocksLeased))
    assert says_of(leased, LAYOUT, Block(0, 1)) == {"reserved", "destination"}
    assert says_of(leased, LAYOUT, Block(1, 1)) == frozenset()
    opened = next(event for event in written.events if isinstance(event, e.TailOpened))
    assert says_of(opened, LAYOUT, Block(1, 1)) == {"reserved"}
    freed = [event for event in written.events if "freed" in says_of(event, LAYOUT, Block(0, 5))]
    assert [type(event).__name__ for event in freed] == ["FenceOpened"]


def test_every_event_type_with_ids_of_device_blocks_is_known(make_event: Any) -> None:
    """Oracle: the types of the fields. A field of device blocks that nobody looks into would hide a block's life."""
    from typing import get_type_hints

    from kvsweep.ledger.events import BlocksByGroup
    from kvsweep.ledger.ids import Physical, Rows

    wanted = {
        name
        for name, kind in EVENT_TYPES.items()
        for field, annotation in get_type_hints(kind).items()
        if annotation in (Rows[Physical], BlocksByGroup) or field == "physical_by_group"
    }
    assert wanted == set(NAMES_BLOCKS)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (Where(types=("rank",)), r"types: expected event types \(RequestOpened, .*\), got 'rank'"),
        (Where(operation=-1), "operation: expected an operation id of 0 or more, got -1"),
        (Where(after=-1), "after: expected a position of 0 or more, got -1"),
        (Where(block=Block(-1, 0)), r"block: expected GROUP:ID with a group from 0 and an id up to 2147483647, got .*"),
    ],
)
def test_a_condition_that_no_event_can_meet_is_refused(where: Where, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        where.check()
    replace(where, types=None, operation=None, after=0, block=None).check()


def test_an_event_reserves_a_block_or_does_not(written: Any) -> None:
    """Oracle: what the event says of it."""
    for event in written.events:
        for block in (Block(group, number) for group in range(3) for number in range(9)):
            assert reserves(event, LAYOUT, block) == ("reserved" in says_of(event, LAYOUT, block))
