"""A ledger over several files: it goes on in another one, old ones go, and everything reads and folds across them."""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.ledger.small_run import LAYOUT, RANKS

from kvsweep.ledger import events as e
from kvsweep.ledger.digest import Digest, state_digest
from kvsweep.ledger.errors import LogCorrupt, LogError, SequenceConflict
from kvsweep.ledger.event_base import Event
from kvsweep.ledger.fold import apply
from kvsweep.ledger.ids import POOL, RequestKey
from kvsweep.ledger.query import Where
from kvsweep.ledger.sqlite import SqliteLog
from kvsweep.ledger.state import EMPTY, State
from kvsweep.ledger.store import LogStore, QueueBounds, Rotation, Snapshot, Stream, open_log
from kvsweep.ledger.store_chain import OPEN_FILES, file_of, files_of
from kvsweep.ledger.store_pace import SNAPSHOT_SHARE, Pace
from kvsweep.ledger.store_snapshot import decode_state, encode_state

NEVER = 10**15
EVERY_SNAPSHOT = Rotation(snapshot_events=1, file_bytes=1, keep_bytes=NEVER, keep_s=NEVER)


class Life:
    """Writes lives of requests, folds them, and keeps a snapshot when it is asked to."""

    def __init__(self, log: LogStore) -> None:
        self.log, self.state, self.digest, self.events = log, EMPTY, Digest(), list[Event]()
        self.emit(
            e.RunConfigured(
                request=POOL, seq=0, layout=LAYOUT, ranks=RANKS, producer_epoch=7, device_blocks=(8, 4),
                cpu_full_blocks=32, cpu_total_blocks=32, evidence="{}",
            )
        )  # fmt: skip

    def emit(self, *events: Event) -> None:
        self.log.append(events)
        for event in events:
            self.state = apply(self.state, event)
            self.digest.update(event)
            self.events.append(event)

    def open(self, name: str) -> None:
        self.emit(e.RequestOpened(request=RequestKey(name, 1), seq=0, pool_generation=1, rows=2))

    def note(self, name: str, count: int = 1) -> None:
        key = RequestKey(name, 1)
        for _ in range(count):
            seq = self.state.requests[name].seq
            self.emit(e.CommandRefused(request=key, seq=seq, command="c", state="s", reason="r" * 200))

    def end(self, name: str) -> None:
        key, seq = RequestKey(name, 1), self.state.requests[name].seq
        self.emit(e.RequestFinished(request=key, seq=seq), e.RequestClosed(request=key, seq=seq + 1))

    def snapshot(self) -> Snapshot:
        return Snapshot(
            position=len(self.events),
            digest=self.digest.value(self.state),
            chain=self.digest.chain,
            state=self.state,
        )

    def keep(self) -> None:
        self.log.keep_snapshot(self.snapshot())


Make = Callable[..., Life]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture(params=["inline", "thread"])
def make(request: pytest.FixtureRequest, path: Path) -> Iterator[Make]:
    made: list[LogStore] = []

    def make(rotation: Rotation = EVERY_SNAPSHOT) -> Life:
        queue = QueueBounds() if request.param == "thread" else None
        made.append(open_log(f"sqlite:{path}", queue=queue, rotation=rotation))
        return Life(made[-1])

    yield make
    for log in made:
        log.close()


def fold(log: LogStore) -> tuple[State, str]:
    """As a reader does who knows nothing but the ledger."""
    snapshot = log.snapshot(max(log.header.first - 1, 0)) if log.header.first > 1 else None
    state = EMPTY if snapshot is None else snapshot.state
    digest = Digest(log.header.rules, b"" if snapshot is None else snapshot.chain)
    for record in log.read(after=0 if snapshot is None else snapshot.position):
        state = apply(state, record.event)
        digest.update(record.event)
    return state, digest.value(state)


def five_files(make: Make, rotation: Rotation = EVERY_SNAPSHOT) -> Life:
    """`long` lives through five files; `a` in the first, `b` from the first to the third."""
    life = make(rotation)
    for name in ("long", "a", "b"):
        life.open(name)
    life.end("a")
    for number in range(4):
        life.note("long", 3)
        if number == 2:
            life.end("b")
        life.keep()
    life.note("long")
    life.log.flush()
    return life


# ---- several files


def test_a_snapshot_begins_another_file_once_the_last_is_large_enough(make: Make, path: Path) -> None:
    life = five_files(make)
    assert files_of(str(path)) == [1, 2, 3, 4, 5]
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == {0o600}
    assert [record.event for record in life.log.read()] == life.events
    assert fold(life.log) == (life.state, life.digest.value(life.state))
    life.log.close()
    assert sorted(os.listdir(path.parent)) == ["ledger.db", *(f"ledger.db.{number}" for number in range(2, 6))]
    with pytest.raises(LogError, match="is closed"):
        life.log.read()


def test_everything_reads_across_the_files(make: Make) -> None:
    life = five_files(make)
    log, numbered = life.log, list(enumerate(life.events, 1))
    for key in (RequestKey("long", 1), RequestKey("a", 1), RequestKey("b", 1), POOL, RequestKey("nobody", 1)):
        expected = [position for position, event in numbered if event.request == key]
        assert [record.position for record in log.read(key)] == expected
        for after in (1, 5, 9, 12):
            assert [r.position for r in log.read(key, after=after)] == [at for at in expected if at > after]
        assert [record.position for record in log.find(Where(lives=(key,)), newest_first=True)] == expected[::-1]
    for after in range(len(numbered)):
        assert [record.position for record in log.read(after=after)] == list(range(after + 1, len(numbered) + 1))
    refused = [position for position, event in numbered if isinstance(event, e.CommandRefused)]
    where = Where(types=("CommandRefused",), after=refused[1], until=refused[-2])
    assert [record.position for record in log.find(where)] == refused[2:-1]
    assert [record.position for record in log.find(where, newest_first=True)] == refused[2:-1][::-1]
    assert log.requests() == [
        Stream(request=POOL, events=1, last=1),
        Stream(request=RequestKey("long", 1), events=14, last=len(numbered)),
        Stream(request=RequestKey("a", 1), events=3, last=6),
        Stream(request=RequestKey("b", 1), events=3, last=17),
    ]
    assert log.damage() is None


def test_a_reader_follows_into_new_files(make: Make, path: Path) -> None:
    life = make()
    life.open("r")
    life.log.flush()
    reader = open_log(f"sqlite:{path}", read_only=True)
    assert reader.durable() == 2
    seen = [record.position for record in reader.read()]
    for _ in range(OPEN_FILES + 3):  # more than stay open
        life.note("r", 2)
        life.keep()
        life.log.flush()
        assert reader.durable() == len(life.events)
        seen += [record.position for record in reader.read(after=seen[-1])]
    assert seen == list(range(1, len(life.events) + 1))
    assert [record.event for record in reader.read()] == life.events
    assert fold(reader) == (life.state, life.digest.value(life.state))
    reader.close()


def test_a_writer_goes_on_behind_the_last_file_and_keeps_every_number(make: Make, path: Path) -> None:
    life = five_files(make)
    life.log.close()
    log = open_log(f"sqlite:{path}")
    assert log.durable() == len(life.events)
    with pytest.raises(SequenceConflict, match="expected sequence 3, found 0"):
        log.append([e.RequestResumed(request=RequestKey("b", 1), seq=0), e.RequestResumed(request=POOL, seq=7)])
    with pytest.raises(SequenceConflict, match="expected sequence 14, found 13"):
        log.append([e.RequestResumed(request=RequestKey("long", 1), seq=13)])
    assert log.append([e.RequestResumed(request=RequestKey("long", 1), seq=14)]) == len(life.events) + 1
    log.close()


def test_a_missing_file_in_the_middle_is_damage_at_its_first_event(make: Make, path: Path) -> None:
    life = five_files(make)
    life.log.close()
    os.unlink(file_of(str(path), 3))
    log = open_log(f"sqlite:{path}", read_only=True)
    with pytest.raises(LogCorrupt, match="position 13: the event is missing, the next file begins with 18"):
        list(log.read())
    assert log.damage() == (13, "the event is missing, the next file begins with 18")
    log.close()


def test_a_file_that_a_killed_writer_only_began_is_no_part_of_the_ledger(make: Make, path: Path) -> None:
    life = five_files(make)
    life.log.close()
    left = path.with_name(f"{path.name}.6-new")
    left.write_bytes(b"half")
    log = open_log(f"sqlite:{path}", rotation=EVERY_SNAPSHOT)
    assert [record.event for record in log.read()] == life.events
    log.append([e.RequestResumed(request=RequestKey("long", 1), seq=14)])
    life.digest.update(e.RequestResumed(request=RequestKey("long", 1), seq=14))
    log.keep_snapshot(
        Snapshot(position=len(life.events) + 1, digest=life.digest.value(life.state), chain=b"", state=life.state)
    )
    assert files_of(str(path)) == [1, 2, 3, 4, 5, 6]
    log.close()


# ---- what may go


def sizes(path: Path) -> int:
    return sum(os.path.getsize(file_of(str(path), number)) for number in files_of(str(path)))


def closed_lives(make: Make, rotation: Rotation, count: int) -> Life:
    """One life a file, each closed before the next snapshot."""
    life = make(rotation)
    for number in range(count):
        life.open(f"r{number}")
        life.note(f"r{number}", 5)
        life.end(f"r{number}")
        life.keep()
    life.log.flush()
    return life


def test_closed_lives_are_dropped_with_their_files_and_the_disk_is_bounded(make: Make, path: Path) -> None:
    first = os.path.getsize(path) if path.exists() else 0
    assert first == 0
    keep = 5 * 200_000
    life = closed_lives(make, Rotation(snapshot_events=1, file_bytes=1, keep_bytes=keep, keep_s=NEVER), 20)
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


def test_an_open_life_keeps_its_file_up_to_twice_the_bytes(make: Make, path: Path) -> None:
    keep = 3 * 150_000
    life = make(Rotation(snapshot_events=1, file_bytes=1, keep_bytes=keep, keep_s=NEVER))
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
    assert log._chain is not None
    log._chain.active.db.raw.execute("UPDATE snapshots SET digest = 'x'")
    life.open("s")
    life.end("s")
    life.keep()
    assert files_of(str(path)) == [3], "the next one has a snapshot of its own"
    log._chain.active.db.raw.execute("UPDATE snapshots SET crc = 0")
    log.append([e.CommandRefused(request=POOL, seq=1, command="c", state="s", reason="r")])
    assert log.snapshot() is None, "what is damaged is no snapshot"
    log.close()


def test_readers_keep_what_they_have_open_when_it_is_removed(make: Make, path: Path) -> None:
    life = make(Rotation(snapshot_events=1, file_bytes=1, keep_bytes=1, keep_s=NEVER))
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


def test_the_newest_snapshot_at_or_before_a_position(make: Make) -> None:
    life = make(Rotation(snapshot_events=1))
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
    assert log._chain is not None
    log._chain.active.db.raw.execute(statement)
    snapshot = log.snapshot()
    assert snapshot is not None
    assert snapshot.position == 2
    log.close()


def test_a_snapshot_of_another_position_is_refused(make: Make) -> None:
    life = make()
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
        assert state_digest(back) == state_digest(state)
        assert list(back.requests) == list(state.requests)
        assert back == state
    assert decode_state(b"\x93\x01") is None
    assert decode_state(encode_state(state)[:-3]) is None
