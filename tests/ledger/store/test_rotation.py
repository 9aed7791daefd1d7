"""A ledger over several files: it goes on in another one, and everything reads and folds across them."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from tests.ledger.lives import EVERY_SNAPSHOT, Life, Make, fold

from kvsweep.ledger import events as e
from kvsweep.ledger.errors import LogCorrupt, LogError, SequenceConflict
from kvsweep.ledger.ids import POOL, RequestKey
from kvsweep.ledger.store.files import OPEN_FILES, file_of, files_of
from kvsweep.ledger.store.log import Rotation, Snapshot, Stream
from kvsweep.ledger.store.open import open_log
from kvsweep.ledger.store.query import Where
from kvsweep.ledger.store.segment import CHUNK


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def five_files(make_life: Make, rotation: Rotation = EVERY_SNAPSHOT) -> Life:
    """`long` lives through five files; `a` in the first, `b` from the first to the third."""
    life = make_life(rotation)
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


def test_a_snapshot_begins_another_file_once_the_last_is_large_enough(make_life: Make, path: Path) -> None:
    life = five_files(make_life)
    assert files_of(str(path)) == [1, 2, 3, 4, 5]
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == {0o600}
    assert [record.event for record in life.log.read()] == life.events
    assert fold(life.log) == (life.state, life.digest.value(life.state))
    life.log.close()
    assert sorted(os.listdir(path.parent)) == ["ledger.db", *(f"ledger.db.{number}" for number in range(2, 6))]
    with pytest.raises(LogError, match="is closed"):
        life.log.read()


def test_everything_reads_across_the_files(make_life: Make) -> None:
    life = five_files(make_life)
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


def test_a_reader_follows_into_new_files(make_life: Make, path: Path) -> None:
    life = make_life()
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


FOLLOWER = """
import sys
from kvsweep.ledger.store.open import open_log
log, last, digest = open_log(sys.argv[1], read_only=True), 0, 0
print("open", flush=True)
while last < int(sys.argv[2]):
    for record in log.read(after=last):
        assert record.position == last + 1, (record.position, last)
        last, digest = record.position, hash((digest, record.position, record.event.seq))
print(last, len(list(log.read())), flush=True)
"""


def test_another_process_follows_while_it_is_written(make_life: Make, path: Path) -> None:
    """Over several files, without a gap and without holding the writer up."""
    life = make_life()
    life.open("r")
    life.log.flush()
    count = 2 + 40 * 5
    with subprocess.Popen(
        [sys.executable, "-c", FOLLOWER, f"sqlite:{path}", str(count)], stdout=subprocess.PIPE, text=True
    ) as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline() == "open\n"
        for number in range(40):
            life.note("r", 5)
            if number % 10 == 9:
                life.keep()
        life.log.flush()
        assert follower.stdout.readline().split() == [str(count), str(count)]
    assert follower.returncode == 0
    assert len(files_of(str(path))) == 5


def test_a_writer_goes_on_behind_the_last_file_and_keeps_every_number(make_life: Make, path: Path) -> None:
    life = five_files(make_life)
    life.log.close()
    log = open_log(f"sqlite:{path}")
    assert log.durable() == len(life.events)
    with pytest.raises(SequenceConflict, match="expected sequence 3, found 0"):
        log.append([e.RequestResumed(request=RequestKey("b", 1), seq=0), e.RequestResumed(request=POOL, seq=7)])
    with pytest.raises(SequenceConflict, match="expected sequence 14, found 13"):
        log.append([e.RequestResumed(request=RequestKey("long", 1), seq=13)])
    assert log.append([e.RequestResumed(request=RequestKey("long", 1), seq=14)]) == len(life.events) + 1
    log.close()


def test_what_a_reader_kept_in_two_parts_is_one_file_after_the_next_opening(path: Path) -> None:
    life = Life(open_log(f"sqlite:{path}", rotation=EVERY_SNAPSHOT))
    life.open("r")
    reader = open_log(f"sqlite:{path}", read_only=True)
    assert len(list(reader.read())) == 2
    life.keep()
    life.note("r")
    life.log.close()
    reader.close()
    assert path.with_name("ledger.db-wal").exists()
    log = open_log(f"sqlite:{path}")
    assert [record.event for record in log.read()] == life.events
    log.close()
    assert sorted(os.listdir(path.parent)) == ["ledger.db", "ledger.db.2"]


def test_a_missing_file_in_the_middle_is_damage_at_its_first_event(make_life: Make, path: Path) -> None:
    life = five_files(make_life)
    life.log.close()
    os.unlink(file_of(str(path), 3))
    log = open_log(f"sqlite:{path}", read_only=True)
    with pytest.raises(LogCorrupt, match="position 13: the event is missing, the next file begins with 18"):
        list(log.read())
    assert log.damage() == (13, "the event is missing, the next file begins with 18")
    log.close()


def test_a_file_that_a_killed_writer_only_began_is_no_part_of_the_ledger(make_life: Make, path: Path) -> None:
    life = five_files(make_life)
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


def test_other_names_beside_it_are_no_files_of_a_ledger(path: Path) -> None:
    open_log(f"sqlite:{path}").close()
    for name in ("ledger.db.1", "ledger.db.02", "ledger.db.2x", "ledger.db.damaged", "xledger.db.2", "ledgerxdb.2"):
        path.with_name(name).write_bytes(b"x")
    assert files_of(str(path)) == [1]
    open_log(f"sqlite:{path}").close()


def test_more_groups_than_a_query_takes_are_read_every_way(path: Path) -> None:
    log = open_log(f"sqlite:{path}")
    one, other = RequestKey("one", 1), RequestKey("other", 1)
    count = 5 * CHUNK + 3
    for seq in range(count):
        log.append([e.RequestResumed(request=key, seq=2 * seq + n) for key in (one, other) for n in range(2)])
    positions = list(range(1, 4 * count + 1))
    ours = [position for position in positions if (position - 1) % 4 < 2]
    for after in (0, 1, 4 * CHUNK - 1, 4 * CHUNK, 4 * CHUNK + 1, 4 * count - 1):
        later = [position for position in positions if position > after]
        assert [record.position for record in log.read(after=after)] == later
        assert [record.position for record in log.read(one, after=after)] == [at for at in ours if at > after]
        for newest_first in (False, True):
            where = Where(types=("RequestResumed",), after=after, until=4 * count - 5)
            found = [record.position for record in log.find(where, newest_first=newest_first)]
            assert sorted(found) == [at for at in later if at <= 4 * count - 5]
            assert found == sorted(found, reverse=newest_first)
    assert log.damage() is None
    log.close()
