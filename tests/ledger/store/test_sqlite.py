"""The SQLite store where it is more than the contract: durability, one writer, readers, damage, strangers' files."""

import os
import signal
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.ledger.store.files import KEY, resumed, write

from kvsweep.ledger import events as e
from kvsweep.ledger.errors import LogError, SequenceConflict
from kvsweep.ledger.ids import RequestKey
from kvsweep.ledger.store.open import open_log
from kvsweep.ledger.store.sqlite import PAGE_BYTES, SqliteLog


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def full(path: Path, written: Any) -> Path:
    """A closed ledger that holds the whole small run."""
    return write(path, written.events, len(written.events))


@pytest.fixture
def threes(path: Path, written: Any) -> Path:
    """The same run, appended three events at a time."""
    return write(path, written.events, 3)


# ---- the file


def test_a_closed_ledger_is_one_file_for_its_owner_alone(full: Path, written: Any) -> None:
    assert os.listdir(full.parent) == [full.name]
    assert stat.S_IMODE(full.stat().st_mode) == 0o600
    log = open_log(f"sqlite:{full}", read_only=True)
    assert [record.event for record in log.read()] == written.events
    log.close()
    assert os.listdir(full.parent) == [full.name]


def test_files_beside_an_open_ledger_are_private_too(path: Path) -> None:
    log = open_log(f"sqlite:{path}")
    log.append(resumed(0))
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == {0o600}
    log.close()


def test_what_a_killed_beginning_left_is_no_hindrance(path: Path) -> None:
    left = path.with_name(f"{path.name}-new")
    left.write_bytes(b"half")
    open_log(f"sqlite:{path}").close()
    assert os.listdir(path.parent) == [path.name]


def test_any_sqlite_tool_reads_the_view(full: Path, written: Any) -> None:
    db = sqlite3.connect(full)
    rows = db.execute("SELECT position, request, epoch, seq, type, operation_id, rank, bytes FROM events").fetchall()
    db.close()
    expected = [
        (
            at,
            event.request.request_id,
            event.request.request_epoch,
            event.seq,
            type(event).__name__,
            event.operation.operation_id if hasattr(event, "operation") else None,
            getattr(event, "rank", None),
            len(msgspec.msgpack.encode(event)),
        )
        for at, event in enumerate(written.events, 1)
    ]
    assert rows == expected


def test_a_ledger_goes_on_where_it_was_left(path: Path) -> None:
    for seq in range(3):
        log = open_log(f"sqlite:{path}")
        assert log.durable() == seq
        assert log.append(resumed(seq), expected=seq) == seq + 1
        log.close()
    log = open_log(f"sqlite:{path}")
    assert [record.event for record in log.read()] == resumed(0, 1, 2)
    log.close()


def test_the_settings_that_were_measured_are_in_force(path: Path) -> None:
    log = SqliteLog(str(path))
    log.append(resumed(0))
    assert log._files is not None
    names = ("journal_mode", "synchronous", "page_size", "wal_autocheckpoint")
    found = {name: log._files.active.db.raw.execute(f"PRAGMA {name}").fetchone()[0] for name in names}
    log.close()
    assert found == {"journal_mode": "wal", "synchronous": 2, "page_size": PAGE_BYTES, "wal_autocheckpoint": 8000}


# ---- writers and readers


def test_a_second_writer_is_refused_and_the_first_goes_on(path: Path) -> None:
    log = open_log(f"sqlite:{path}")
    with pytest.raises(LogError, match="has a writer already"):
        open_log(f"sqlite:{path}")
    link = path.with_name("link.db")
    link.symlink_to(path)
    with pytest.raises(LogError, match="has a writer already"):
        open_log(f"sqlite:{link}")
    assert log.append(resumed(0)) == 1
    log.close()
    open_log(f"sqlite:{path}").close()


def test_a_second_writer_in_another_process_is_refused(path: Path) -> None:
    log = open_log(f"sqlite:{path}")
    code = f"from kvsweep.ledger.store.open import open_log; open_log({f'sqlite:{path}'!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    log.close()
    assert done.returncode == 1
    assert "has a writer already: expected one, got a second" in done.stderr


def test_a_reader_beside_a_live_writer_sees_whole_batches(path: Path) -> None:
    log = open_log(f"sqlite:{path}")
    log.append(resumed(0, 1))
    reader = open_log(f"sqlite:{path}", read_only=True)
    assert [record.position for record in reader.read()] == [1, 2]
    log.append(resumed(2, 3))
    assert reader.durable() == 4
    assert [record.position for record in reader.read(KEY)] == [1, 2, 3, 4]
    with pytest.raises(LogError, match="read only"):
        reader.append(resumed(4))
    log.close()  # beside the reader: the write-ahead file stays
    assert [record.position for record in reader.read()] == [1, 2, 3, 4]
    reader.close()
    again = open_log(f"sqlite:{path}")
    assert again.append(resumed(4)) == 5
    again.close()
    assert os.listdir(path.parent) == [path.name]


def test_an_interrupted_commit_stops_the_writer(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed write nobody knows what is stored: nothing is acknowledged any more."""
    log = SqliteLog(str(path))
    log.append(resumed(0))
    assert log._files is not None
    log._files.active.db.raw.execute("PRAGMA max_page_count = 8")  # the disk is full
    event = e.CommandRefused(request=KEY, seq=1, command="x", state="y", reason="z" * (20 * PAGE_BYTES))
    with pytest.raises(LogError, match=r"failed at position 2: .*full"):
        log.append([event])
    for verb in (log.durable, lambda: log.append(resumed(1))):
        with pytest.raises(LogError, match="failed at position 2"):
            verb()
    assert [record.position for record in log.read()] == [1]
    log.close()
    again = open_log(f"sqlite:{path}")
    assert again.append(resumed(1)) == 2
    again.close()


def test_a_refused_batch_leaves_no_name_behind(path: Path) -> None:
    log = open_log(f"sqlite:{path}")
    with pytest.raises(SequenceConflict):
        log.append([e.RequestResumed(request=RequestKey("new", 1), seq=0), *resumed(7)])
    log.close()
    db = sqlite3.connect(path)
    assert db.execute("SELECT count(*) FROM requests").fetchone() == (0,)
    db.close()


WRITER = """
import sys
from kvsweep.ledger.events import CommandRefused
from kvsweep.ledger.ids import RequestKey
from kvsweep.ledger.store.open import open_log
log, key, seq = open_log(sys.argv[1]), RequestKey("a-b-c", 1), 0
while True:
    batch = [CommandRefused(request=key, seq=seq + n, command="c", state="s", reason="r" * 999) for n in range(7)]
    seq += 7
    print(log.append(batch), flush=True)
"""


@pytest.mark.parametrize("acknowledged", [1, 2, 5, 11, 23])
def test_a_killed_writer_loses_nothing_that_it_acknowledged(path: Path, acknowledged: int) -> None:
    """SIGKILL arrives while it appends: what was printed is there, batches are whole, and a new writer goes on."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, f"sqlite:{path}"], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        acks = [int(writer.stdout.readline()) for _ in range(acknowledged)]
        writer.send_signal(signal.SIGKILL)
        acks += [int(line) for line in writer.stdout if line.endswith("\n")]
    assert writer.returncode == -signal.SIGKILL
    reader = open_log(f"sqlite:{path}", read_only=True)
    seen = [record.event.seq for record in reader.read()]
    reader.close()
    assert seen == list(range(len(seen)))
    assert len(seen) >= acks[-1]
    assert len(seen) % 7 == 0
    log = open_log(f"sqlite:{path}")
    assert log.append(resumed(len(seen)), expected=len(seen)) == len(seen) + 1
    assert log.damage() is None
    log.close()
