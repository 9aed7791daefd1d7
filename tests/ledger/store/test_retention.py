"""Which files of a ledger go, when, and what snapshots make of it."""

import os
from pathlib import Path
from typing import Any

import pytest
from tests.ledger.lives import NEVER, Life, Make, fold

from kvsweep.ledger import events as e
from kvsweep.ledger.errors import LogError, SequenceConflict
from kvsweep.ledger.fold import apply
from kvsweep.ledger.ids import POOL, RequestKey
from kvsweep.ledger.state import EMPTY
from kvsweep.ledger.store.digest import parts_digest
from kvsweep.ledger.store.files import file_of, files_of
from kvsweep.ledger.store.log import Rotation
from kvsweep.ledger.store.open import open_log
from kvsweep.ledger.store.rotation import SNAPSHOT_SHARE, Pace
from kvsweep.ledger.store.snapshot import decode_state, encode_state
from kvsweep.ledger.store.sqlite import SqliteLog


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


# ---- what may go


def sizes(path: Path) -> int:
    return sum(os.path.getsize(file_of(str(path), number)) for number in files_of(str(path)))


def closed_lives(make_life: Make, rotation: Rotation, count: int) -> Life:
    """One life a file, each closed before the next snapshot."""
    life = make_life(rotation)
    for number in range(count):
        life.open(f"r{number}")
        life.note(f"r{number}", 5)
        life.end(f"r{number}")
        life.keep()
    life.log.flush()
    return life


def test_closed_lives_are_dropped_with_their_files_and_the_disk_is_bounded(make_life: Make, path: Path) -> None:
    first = os.path.getsize(path) if path.exists() else 0
    assert first == 0
    keep = 5 * 200_000
    life = closed_lives(make_life, Rotation(snapshot_events=1, file_bytes=1, keep_bytes=keep, keep_s=NEVER), 20)
    kept = files_of(str(path))
    assert kept[0] > 5, "old files are gone"
    assert sizes(path) <= keep + 200_000
    log = life.log
    first = log.header.first
    assert first > 1
    assert [record.position for record in log.read()] == list(range(first, len(life.events) + 1))
    assert [record.event for record in log.read()] == life.events[first - 1 :]
    assert list(log.read(RequestKey("r0", 1))) == []
    assert fold(log) == (life.state, life.digest.value(life.state))
    assert log.damage() is None
    log.close()
    again = open_log(f"sqlite:{path}")
    assert (again.header.first, again.durable()) == (first, len(life.events))
    assert fold(again) == (life.state, life.digest.value(life.state))
    with pytest.raises(SequenceConflict, match="expected sequence 1, found 0"):
        again.append([e.ProducerRestarted(request=POOL, seq=0, process_epoch=9)])  # by the snapshot: its file is gone
    again.close()


def test_an_open_life_keeps_its_file_up_to_twice_the_bytes(make_life: Make, path: Path) -> None:
    keep = 3 * 150_000
    life = make_life(Rotation(snapshot_events=1, file_bytes=1, keep_bytes=keep, keep_s=NEVER))
    life.open("long")
    most = 0
    for number in range(14):
        life.open(f"r{number}")
        life.end(f"r{number}")
        life.keep()
        life.log.flush()
        if files_of(str(path))[0] == 1:
            most = max(most, sizes(path))
    assert keep < most <= 2 * keep + 150_000, "the open life's file stayed beyond the bytes"
    assert files_of(str(path))[0] > 1, "but not for ever"
    assert sizes(path) <= 2 * keep + 150_000
    assert fold(life.log) == (life.state, life.digest.value(life.state))
    life.log.append([e.CommandRefused(request=RequestKey("long", 1), seq=1, command="c", state="s", reason="r")])
    life.log.flush()
    assert [record.event.seq for record in life.log.read(RequestKey("long", 1))] == [1], "its beginning is gone"


def test_files_go_by_age_too(path: Path) -> None:
    log = SqliteLog(str(path), rotation=Rotation(snapshot_events=1, file_bytes=1, keep_bytes=NEVER, keep_s=3600))
    life = Life(log)
    for number in range(4):
        life.open(f"r{number}")
        life.end(f"r{number}")
        life.keep()
    assert files_of(str(path)) == [1, 2, 3, 4, 5], "an hour has not passed"
    log.pace = Pace(log.pace.rotation, now=lambda: 2**33)
    life.open("late")
    life.end("late")
    life.keep()
    assert files_of(str(path)) == [6], "what was stored long ago has gone"
    log.close()


def test_a_file_without_a_snapshot_behind_it_never_goes(path: Path) -> None:
    """The rest could not be folded."""
    log = SqliteLog(str(path), rotation=Rotation(snapshot_events=1, file_bytes=1, keep_bytes=1, keep_s=NEVER))
    life = Life(log)
    life.open("r")
    life.end("r")
    life.keep()
    assert files_of(str(path)) == [2]
    assert log._files is not None
    log._files.active.db.raw.execute("UPDATE snapshots SET digest = 'x'")
    life.open("s")
    life.end("s")
    life.keep()
    assert files_of(str(path)) == [3], "the next one has a snapshot of its own"
    log._files.active.db.raw.execute("UPDATE snapshots SET crc = 0")
    log.append([e.CommandRefused(request=POOL, seq=1, command="c", state="s", reason="r")])
    assert log.snapshot() is None, "what is damaged is no snapshot"
    log.close()


def test_readers_keep_what_they_have_open_when_it_is_removed(make_life: Make, path: Path) -> None:
    life = make_life(Rotation(snapshot_events=1, file_bytes=1, keep_bytes=1, keep_s=NEVER))
    life.open("r")
    life.note("r", 600)
    life.end("r")
    life.log.flush()
    reader = open_log(f"sqlite:{path}", read_only=True)
    records = reader.read()
    next(records)
    life.keep()
    life.log.flush()
    assert not path.exists()
    assert sum(1 for _ in records) == len(life.events) - 1
    life.open("s")
    life.log.flush()
    assert reader.durable() == len(life.events)
    assert [record.position for record in reader.read(after=len(life.events) - 1)] == [len(life.events)]
    reader.close()


# ---- snapshots


def test_the_newest_snapshot_at_or_before_a_position(make_life: Make) -> None:
    life = make_life(Rotation(snapshot_events=1))
    kept = []
    assert life.log.snapshot() is None
    for number in range(3):
        life.open(f"r{number}")
        life.keep()
        kept.append(life.snapshot())
    life.note("r0")
    life.log.flush()
    assert life.log.snapshot() == kept[2]
    for until, expected in ((1, None), (2, kept[0]), (3, kept[1]), (4, kept[2]), (5, kept[2])):
        assert life.log.snapshot(until) == expected


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE snapshots SET state = CAST(state || x'00' AS BLOB) WHERE position = 3",
        "UPDATE snapshots SET chain = x'00' WHERE position = 3",
        "DELETE FROM snapshots WHERE position = 3",
    ],
)
def test_a_damaged_snapshot_costs_time_and_no_fact(path: Path, statement: str) -> None:
    log = SqliteLog(str(path))
    life = Life(log)
    for name in ("a", "b"):
        life.open(name)
        life.keep()
    assert log._files is not None
    log._files.active.db.raw.execute(statement)
    snapshot = log.snapshot()
    assert snapshot is not None
    assert snapshot.position == 2
    log.close()


def test_a_snapshot_of_another_position_is_refused(make_life: Make) -> None:
    life = make_life()
    early = life.snapshot()
    life.open("r")
    with pytest.raises(SequenceConflict, match=r"expected sequence 2, found 1|expected sequence 1, found 2"):
        life.log.keep_snapshot(early)
    life.log.flush()
    assert life.log.durable() == 2


def test_snapshots_are_due_after_events_and_ten_times_their_own_bytes() -> None:
    pace = Pace(Rotation(snapshot_events=10), now=lambda: 0.0)
    assert not pace.snapshot_due()
    pace.added(9, 9 * 500)
    assert not pace.snapshot_due()
    pace.added(1, 500)
    assert pace.snapshot_due()
    pace.kept(10_000)
    pace.added(100, SNAPSHOT_SHARE * 10_000 - 1)
    assert not pace.snapshot_due(), "a large snapshot is worth many events"
    pace.added(1, 1)
    assert pace.snapshot_due()
    pace.asked()
    assert not pace.snapshot_due()


def test_a_file_that_is_old_enough_makes_a_snapshot_due(tmp_path: Path) -> None:
    now = [0.0]
    pace = Pace(Rotation(snapshot_events=10**6, file_s=60), now=lambda: now[0])
    (tmp_path / "file").write_bytes(b"")
    pace.began(str(tmp_path / "file"), 0, 0)
    now[0] = 61.0
    assert not pace.snapshot_due(), "nothing was appended"
    pace.added(1, 1)
    assert pace.snapshot_due()


def test_only_a_ledger_that_is_written_has_snapshots_due(path: Path) -> None:
    log = SqliteLog(str(path), rotation=Rotation(snapshot_events=1))
    life = Life(log)
    assert log.snapshot_due()
    reader = SqliteLog(str(path), read_only=True, rotation=Rotation(snapshot_events=1))
    assert not reader.snapshot_due()
    with pytest.raises(LogError, match="read only"):
        reader.keep_snapshot(life.snapshot())
    reader.close()
    log.close()


def test_every_state_of_a_run_comes_back_from_its_bytes(written: Any) -> None:
    state = EMPTY
    for event in written.events:
        state = apply(state, event)
        back = decode_state(encode_state(state))
        assert back is not None
        assert parts_digest(back) == parts_digest(state)
        assert list(back.requests) == list(state.requests)
        assert back == state
    assert decode_state(b"\x93\x01") is None
    assert decode_state(encode_state(state)[:-3]) is None
