"""Repair: what is left is a prefix of whole groups, what was there is kept, and the answer says what was dropped."""

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.ledger.lives import EVERY_SNAPSHOT, Life
from tests.ledger.store.files import write

from kvsweep.ledger import events as e
from kvsweep.ledger.errors import LogCorrupt, LogError
from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import POOL, RequestKey
from kvsweep.ledger.store.database import PAGE_BYTES
from kvsweep.ledger.store.log import Rotation
from kvsweep.ledger.store.open import open_log
from kvsweep.ledger.store.repair import REBUILT, WHOLE, repair

KEY = RequestKey("a-b-c", 1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def threes(path: Path, written: Any) -> Path:
    """The small run, three events a group: 18 groups, the last of one."""
    return write(path, written.events, 3)


def edit(path: Path, *statements: str) -> None:
    db = sqlite3.connect(path)
    for statement in statements:
        db.execute(statement)
    db.commit()
    db.close()


def read(path: Path) -> list[Event]:
    log = open_log(f"sqlite:{path}", read_only=True)
    try:
        return [record.event for record in log.read()]
    finally:
        log.close()


def content(path: Path) -> list[Event]:
    log = open_log(f"sqlite:{path}", read_only=True)
    assert log.damage() is None
    found = [record.event for record in log.read()]
    log.close()
    return found


def test_what_is_whole_is_left_alone(threes: Path) -> None:
    before = threes.read_bytes()
    done = repair(str(threes))
    assert (done.changed, done.kept, done.last, done.dropped, done.position, done.fault) == (False, 52, 52, 0, None, "")
    assert (done.safe, done.saved) == (WHOLE, ())
    assert threes.read_bytes() == before
    assert os.listdir(threes.parent) == [threes.name]


@pytest.mark.parametrize(
    ("statement", "position", "kept"),
    [
        ("UPDATE groups SET body = zeroblob(length(body)) WHERE first = 22", 22, 21),
        ("UPDATE groups SET crcs = zeroblob(length(crcs)) WHERE first = 49", 49, 48),
        ("DELETE FROM groups WHERE first = 7", 7, 6),
        ("UPDATE groups SET time = 1 WHERE first = 1", 1, 0),
    ],
)
def test_a_damaged_group_ends_the_ledger_before_it(
    threes: Path, written: Any, statement: str, position: int, kept: int
) -> None:
    edit(threes, statement)
    damaged = threes.read_bytes()
    with pytest.raises(LogCorrupt):
        read(threes)
    told: list[int] = []
    done = repair(str(threes), progress=told.append)
    assert (done.changed, done.kept, done.last, done.dropped) == (True, kept, kept, 52 - kept)
    assert done.position == position
    assert "the event" in done.fault or "its group" in done.fault
    assert f"every group up to event {kept} is whole" in done.safe
    assert "have to be started anew" in done.safe
    assert told == list(range(3, kept + 1, 3))
    assert content(threes) == written.events[:kept]
    assert [Path(saved).read_bytes() for saved in done.saved] == [damaged]
    log = open_log(f"sqlite:{threes}")
    event = written.events[kept]
    assert log.append([event], expected=kept) == kept + 1
    log.close()


def test_a_damage_within_a_group_drops_the_whole_group(threes: Path, written: Any) -> None:
    """Nobody ever saw half of a batch, so a repaired ledger does not end in one."""
    db = sqlite3.connect(threes)
    [body] = db.execute("SELECT body FROM groups WHERE first = 10").fetchone()
    db.execute("UPDATE groups SET body = ? WHERE first = 10", (body[:-1] + bytes([body[-1] ^ 1]),))
    db.commit()
    db.close()
    done = repair(str(threes))
    assert (done.position, done.kept) == (12, 9)
    assert content(threes) == written.events[:9]


def test_places_that_are_wrong_are_written_anew_and_nothing_is_dropped(threes: Path, written: Any) -> None:
    for statement in (
        "DELETE FROM places WHERE rid = 2 AND seq = 5",
        "UPDATE places SET offset = offset + 1 WHERE rid = 2 AND seq = 5",
        "INSERT INTO places SELECT 77, epoch, seq, events, position, first, offset, bytes FROM places LIMIT 1",
        "DELETE FROM requests WHERE id = 'a-b-c'",
    ):
        edit(threes, statement)
        log = open_log(f"sqlite:{threes}", read_only=True)
        assert log.damage() is not None, statement
        log.close()
        done = repair(str(threes))
        assert (done.changed, done.kept, done.dropped, done.safe) == (True, 52, 0, REBUILT), statement
        assert content(threes) == written.events
        log = open_log(f"sqlite:{threes}", read_only=True)
        assert [r.event for r in log.read(KEY)] == [event for event in written.events if event.request == KEY]
        log.close()


def test_a_shortened_file_gives_what_can_be_read_of_it(threes: Path, written: Any) -> None:
    whole = threes.read_bytes()
    seen = set()
    for pages in range(1, len(whole) // PAGE_BYTES):
        threes.write_bytes(whole[: pages * PAGE_BYTES + 7])
        with pytest.raises(LogError):
            read(threes)
        try:
            done = repair(str(threes))
        except LogError:
            seen.add("refused")
            continue
        seen.add("repaired")
        assert content(threes) == written.events[: done.kept]
        for saved in done.saved:
            os.unlink(saved)
    assert "repaired" in seen


def test_a_damaged_write_ahead_file_is_cut_where_it_can_be_read(path: Path, written: Any) -> None:
    log = open_log(f"sqlite:{path}")
    for start in range(0, 30, 3):
        log.append(written.events[start : start + 3])
    killed = path.with_name("killed.db")
    for end in ("", "-wal"):
        shutil.copy(f"{path}{end}", f"{killed}{end}")
    log.close()
    wal = Path(f"{killed}-wal")
    data = bytearray(wal.read_bytes())
    data[len(data) * 2 // 3] ^= 1
    wal.write_bytes(bytes(data))
    with pytest.raises(LogCorrupt, match="a committed batch in the write-ahead file cannot be read"):
        open_log(f"sqlite:{killed}")
    done = repair(str(killed))
    assert 0 < done.kept < 30
    assert done.kept % 3 == 0
    assert (done.dropped, done.position) == (None, done.kept + 1), "how much cannot be read cannot be known"
    assert content(killed) == written.events[: done.kept]
    assert {Path(saved).name for saved in done.saved} == {"killed.db.damaged"}
    assert Path(f"{done.saved[0]}-wal").read_bytes() == bytes(data)


def five(path: Path, rotation: Rotation = EVERY_SNAPSHOT) -> Life:
    life = Life(open_log(f"sqlite:{path}", rotation=rotation))
    for number in range(4):
        life.open(f"r{number}")
        life.note(f"r{number}", 3)
        life.end(f"r{number}")
        life.keep()
    life.open("last")
    life.log.close()
    return life


@pytest.mark.parametrize("fault", ["missing", "damaged", "no file of ours"])
def test_several_files_become_one_up_to_the_damage(path: Path, fault: str) -> None:
    life = five(path)
    third = Path(f"{path}.3")
    if fault == "missing":
        third.unlink()
    elif fault == "damaged":
        edit(third, "UPDATE groups SET body = zeroblob(length(body)) WHERE first = (SELECT max(first) FROM groups)")
    else:
        third.write_bytes(b"x" * 5000)
    done = repair(str(path))
    assert done.kept == {"missing": 13, "damaged": 17, "no file of ours": 13}[fault]
    assert content(path) == life.events[: done.kept]
    left = {f"{name}.damaged" for name in ("ledger.db", "ledger.db.2", "ledger.db.3", "ledger.db.4", "ledger.db.5")}
    if fault == "missing":
        left -= {"ledger.db.3.damaged"}
    assert {Path(saved).name for saved in done.saved} == left
    log = open_log(f"sqlite:{path}", read_only=True)
    snapshot = log.snapshot()
    assert snapshot is not None
    assert snapshot.position <= done.last
    log.close()


def test_a_ledger_whose_first_files_were_dropped_keeps_its_beginning(path: Path) -> None:
    life = five(path, Rotation(snapshot_events=1, file_bytes=1, keep_bytes=1, keep_s=10**9))
    [last] = [file for file in path.parent.iterdir() if "-" not in file.name]
    life = Life(open_log(f"sqlite:{path.parent / 'other.db'}"))
    life.log.close()
    edit(last, "DELETE FROM places")
    done = repair(str(path))
    log = open_log(f"sqlite:{path}", read_only=True)
    assert (log.header.first, done.kept) == (26, 1)
    assert log.snapshot() is not None
    assert [record.position for record in log.read()] == [26]
    log.close()
    edit(path, "DELETE FROM places", "UPDATE snapshots SET crc = 0")
    with pytest.raises(LogError, match="cannot be repaired: the snapshot before its first event is damaged"):
        repair(str(path))


def test_nothing_is_repaired_under_a_writer(threes: Path) -> None:
    log = open_log(f"sqlite:{threes}")
    with pytest.raises(LogError, match="has a writer already"):
        repair(str(threes))
    log.close()
    repair(str(threes))
    assert os.listdir(threes.parent) == [threes.name]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.write_bytes(b""), "is empty: expected an SQLite file, got 0 bytes"),
        (lambda path: path.write_bytes(b"x" * 4096), "file is not a database"),
        (lambda path: path.mkdir(), "expected a file, got a directory"),
        (lambda path: edit(path, "CREATE TABLE mine (x)"), "is no ledger: expected application id"),
    ],
)
def test_what_is_no_ledger_is_refused(path: Path, make: Callable[[Path], object], message: str) -> None:
    make(path)
    before = sorted(os.listdir(path.parent))
    with pytest.raises(LogError, match=message):
        repair(str(path))
    assert sorted(os.listdir(path.parent)) == before


def test_repairing_twice_keeps_both(threes: Path) -> None:
    edit(threes, "DELETE FROM groups WHERE first = 40")
    first = repair(str(threes))
    edit(threes, "DELETE FROM groups WHERE first = 10")
    second = repair(str(threes))
    assert (first.kept, second.kept) == (39, 9)
    assert (*first.saved, *second.saved) == (f"{threes}.damaged", f"{threes}.damaged+")
    assert not any(isinstance(event, e.PlanRefused) for event in content(threes))
    assert content(threes)[0].request == POOL
