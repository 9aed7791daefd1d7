"""The thread that writes a ledger: nobody waits for it, it stores groups, says what is durable and stops for good."""

import itertools
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.ledger.store.gate import Queued

from kvsweep.ledger import events as e
from kvsweep.ledger.errors import LogError, SequenceConflict
from kvsweep.ledger.ids import RequestKey
from kvsweep.ledger.store.commit import Names
from kvsweep.ledger.store.log import Level, QueueBounds
from kvsweep.ledger.store.open import open_log
from kvsweep.ledger.store.queue import GROUP_BYTES, GROUP_EVENTS
from kvsweep.ledger.store.sequences import Sequences
from kvsweep.ledger.store.sqlite import SqliteLog

KEY = RequestKey("a-b-c", 1)


def resumed(*numbers: int, request: RequestKey = KEY) -> list[e.RequestResumed]:
    return [e.RequestResumed(request=request, seq=seq) for seq in numbers]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Queued]]:
    made: list[Queued] = []

    def make(**bounds: int) -> Queued:
        made.append(Queued(tmp_path / "ledger.db", QueueBounds(**bounds)))
        return made[-1]

    yield make
    for one in made:
        one.gate.let_all()
        one.log.close()


# ---- handing over


def test_g3_an_append_waits_for_nothing_and_what_gathers_is_one_group(make: Callable[..., Queued]) -> None:
    queued = make()
    log, gate = queued.log, queued.gate
    assert log.append(resumed(0)) == 1
    gate.wait()
    assert [log.append(resumed(2 * n + 1, 2 * n + 2)) for n in range(50)] == list(range(3, 103, 2))
    assert log.durable() == 0, "the disk has said nothing yet"
    gate.let_all()
    log.flush()
    assert log.durable() == 101
    assert [size for size, _ in gate.groups] == [1, 100]
    assert [record.event for record in log.read()] == resumed(*range(101))


def test_a_large_backlog_is_stored_in_several_groups(make: Callable[..., Queued]) -> None:
    """Acknowledgements keep coming while it is worked off."""
    queued = make()
    queued.log.append(resumed(0))
    queued.gate.wait()
    for start in range(1, 3 * GROUP_EVENTS, 512):
        queued.log.append(resumed(*range(start, start + 512)))
    told: list[int] = []
    queued.log.watch(told.append)
    queued.gate.let_all()
    queued.log.flush()
    assert [size for size, _ in queued.gate.groups] == [1, GROUP_EVENTS, GROUP_EVENTS, GROUP_EVENTS]
    assert told == [1 + GROUP_EVENTS * n for n in range(4)]


def test_a_group_is_one_statement_however_many_rows_it_has(make: Callable[..., Queued]) -> None:
    """Row by row, a serving thread that computes would be asked for Python's lock each time."""
    queued = make()
    log, gate = queued.log, queued.gate
    gate.let_all()
    log.append([*resumed(0), *resumed(0, request=RequestKey("other", 1))])
    log.flush()
    gate.trace()
    for start in range(1, 400, 100):
        log.append(resumed(*range(start, start + 100)))
        log.flush()
    assert [statement.split("(")[0] for statement in top(gate.statements)] == ["INSERT INTO intake VALUES "] * 4
    gate.statements.clear()
    log.append([event for n in range(300) for event in resumed(0, 1, request=RequestKey(f"new {n}", 1))])
    log.flush()
    assert len(top(gate.statements)) == 1, "new request ids go with it"
    gate.statements.clear()
    log.append(resumed(0, request=RequestKey("nul\0inside", 1)))
    log.flush()
    assert [statement.split("(")[0].strip() for statement in top(gate.statements)] == [
        "BEGIN IMMEDIATE",
        "INSERT INTO requests",
        "INSERT INTO intake VALUES",
        "COMMIT",
    ]
    assert gate.damage() is None


def top(statements: list[str]) -> list[str]:
    """Those that Python asked for: a trigger's own are traced as one more of that which set it off."""
    return [statement for statement, _ in itertools.groupby(statements)]


# ---- levels


def test_durable_is_monotone_and_power_is_what_was_synced(make: Callable[..., Queued]) -> None:
    queued = make()
    log = queued.log
    queued.gate.let_all()
    seen = []
    for seq, level in enumerate[Level](("process", "power", "process", "process", "power")):
        log.append(resumed(seq), level=level)
        log.flush()
        seen.append((log.durable("process"), log.durable("power")))
    assert seen == [(1, 0), (2, 2), (3, 2), (4, 2), (5, 5)]


def test_one_batch_that_needs_the_disk_takes_its_group_there(make: Callable[..., Queued]) -> None:
    queued = make()
    log, gate = queued.log, queued.gate
    log.append(resumed(0), level="process")
    gate.wait()
    for seq, level in enumerate[Level](("process", "power", "process"), 1):
        log.append(resumed(seq), level=level)
    gate.let_all()
    log.flush()
    assert gate.groups == [(1, "process"), (3, "power")]
    assert log.durable("power") == 4


def test_a_store_without_a_thread_tells_the_levels_apart_too(tmp_path: Path) -> None:
    log = SqliteLog(str(tmp_path / "ledger.db"))
    seen = []
    for seq, level in enumerate[Level](("process", "power", "process")):
        log.append(resumed(seq), level=level)
        seen.append((log.durable("process"), log.durable("power")))
    assert seen == [(1, 0), (2, 2), (3, 2)]
    log.close()


@pytest.mark.parametrize(("level", "synchronous"), [("process", 1), ("power", 2)])
def test_the_level_is_the_databases_own(tmp_path: Path, level: Level, synchronous: int) -> None:
    """NORMAL leaves the write-ahead file to the kernel, FULL syncs it with every commit."""
    log = SqliteLog(str(tmp_path / "ledger.db"))
    log.append(resumed(0), level=level)
    assert log._files is not None
    assert log._files.active.db.one("PRAGMA synchronous") == synchronous
    log.close()


# ---- bounds


def test_both_bounds_are_reached_and_left_again_and_nothing_is_refused(make: Callable[..., Queued]) -> None:
    queued = make(events=3, bytes=10**6)
    log, gate = queued.log, queued.gate
    log.append(resumed(0, 1))
    assert log.full() is None
    log.append(resumed(2))
    assert log.full() == ("ledger queue, in events,", 3)
    log.append(resumed(3, 4, 5, 6))
    gate.let_all()
    log.flush()
    assert log.full() is None
    assert log.durable() == 7


def test_the_bytes_that_wait_are_bounded(make: Callable[..., Queued]) -> None:
    queued = make(events=10**6, bytes=5000)
    log, gate = queued.log, queued.gate
    for seq in range(5):
        assert log.full() is None
        log.append([e.CommandRefused(request=KEY, seq=seq, command="c", state="s", reason="r" * 1000)])
    assert log.full() == ("ledger queue, in bytes,", 5000)
    gate.let_all()
    log.flush()
    assert log.full() is None


# ---- the end of writing


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (LogError("the disk is full"), "^the disk is full$"),
        (MemoryError("none left"), r"^ledger's writer ended behind position 2: MemoryError\('none left'\)$"),
        (SystemExit(3), r"^ledger's writer ended behind position 2: SystemExit\(3\)$"),
    ],
)
def test_g3_a_failed_group_ends_the_writing_for_good(
    make: Callable[..., Queued], fault: BaseException, message: str
) -> None:
    queued = make()
    log, gate = queued.log, queued.gate
    log.append(resumed(0, 1))
    gate.wait()
    told: list[int] = []
    log.watch(told.append)
    gate.let_one()
    log._drain()
    gate.fault = fault
    gate.let_all()
    log.append(resumed(2))
    log._drain()
    gate.fault = None
    for verb in (log.durable, log.flush, lambda: log.append(resumed(3))):
        with pytest.raises(LogError, match=message):
            verb()
    assert told == [2, 2], "whoever waits is told, and looks"
    assert [record.position for record in log.read()] == [1, 2], "what is stored can be read"
    assert gate.groups == [(2, "power")]
    log.close()


def test_closing_waits_for_the_queue(make: Callable[..., Queued], tmp_path: Path) -> None:
    queued = make()
    for seq in range(30):
        queued.log.append(resumed(seq))
    queued.gate.wait()
    closing = threading.Thread(target=queued.log.close)
    closing.start()
    closing.join(0.2)
    assert closing.is_alive(), "the queue is not stored yet"
    queued.gate.let_all()
    closing.join(30)
    assert not closing.is_alive()
    assert not queued.log._thread.is_alive()
    log = open_log(f"sqlite:{tmp_path / 'ledger.db'}", read_only=True)
    assert [record.event for record in log.read()] == resumed(*range(30))
    log.close()


def test_a_second_writer_is_refused_until_the_first_has_closed(make: Callable[..., Queued], tmp_path: Path) -> None:
    queued = make()
    queued.gate.let_all()
    url = f"sqlite:{tmp_path / 'ledger.db'}"
    for bounds in (None, QueueBounds()):
        with pytest.raises(LogError, match="has a writer already"):
            open_log(url, queue=bounds)
    assert queued.log.append(resumed(0)) == 1
    queued.log.close()
    again = open_log(url, queue=QueueBounds())
    assert again.append(resumed(1), expected=1) == 2
    again.close()


WRITER = """
import sys
from kvsweep.ledger.events import CommandRefused
from kvsweep.ledger.ids import RequestKey
from kvsweep.ledger.store.log import QueueBounds
from kvsweep.ledger.store.open import open_log
log, key, seq = open_log(sys.argv[1], queue=QueueBounds()), RequestKey("a-b-c", 1), 0
log.watch(lambda position: print(position, flush=True))
while True:
    batch = [CommandRefused(request=key, seq=seq + n, command="c", state="s", reason="r" * 999) for n in range(7)]
    seq += 7
    log.append(batch, level=sys.argv[2])
    if log.full():
        log.flush()
"""


@pytest.mark.parametrize("level", ["process", "power"])
@pytest.mark.parametrize("acknowledged", [1, 7])
def test_a_killed_process_loses_nothing_that_its_writer_acknowledged(
    tmp_path: Path, acknowledged: int, level: str
) -> None:
    path = tmp_path / "ledger.db"
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, f"sqlite:{path}", level], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        acks = [int(writer.stdout.readline()) for _ in range(acknowledged)]
        writer.send_signal(signal.SIGKILL)
        acks += [int(line) for line in writer.stdout if line.endswith("\n")]
    reader = open_log(f"sqlite:{path}", read_only=True)
    seen = [record.event.seq for record in reader.read()]
    reader.close()
    assert seen == list(range(len(seen)))
    assert len(seen) >= acks[-1]
    assert len(seen) % 7 == 0, "batches are whole"


# ---- what is remembered is bounded


def test_of_forgotten_streams_the_store_is_asked(tmp_path: Path) -> None:
    log = SqliteLog(str(tmp_path / "ledger.db"))
    keys = [RequestKey(f"r{n}", 1) for n in range(6)]
    asked: list[RequestKey] = []

    def look_up(request: RequestKey) -> int:
        asked.append(request)
        return log.following(request)

    log._sequences = Sequences([], look_up, limit=2)
    for key in keys:
        log.append(resumed(0, request=key))
    assert asked == [], "a stream that begins is nobody's question"
    log.append(resumed(1, request=keys[5]))
    assert asked == []
    log.append(resumed(1, request=keys[0]))
    assert asked == [keys[0]]
    with pytest.raises(SequenceConflict, match="expected sequence 1, found 2"):
        log.append(resumed(2, request=keys[1]))
    with pytest.raises(LogError, match="UNIQUE"):
        log.append(resumed(0, request=keys[2]))  # a beginning that is stored already is the store's own fault to find
    log.close()


def test_of_forgotten_ids_the_file_is_asked(tmp_path: Path) -> None:
    log = SqliteLog(str(tmp_path / "ledger.db"))
    assert log._files is not None
    db = log._files.active.db.raw
    log._names = Names(db, limit=2)
    events = []
    for seq in range(3):
        for name in ("a", "b", "c", "d", "e"):
            events += resumed(seq, request=RequestKey(name, 1))
            log.append(events[-1:])
    assert db.execute("SELECT id, rid FROM requests ORDER BY rid").fetchall() == list(
        zip("abcde", range(1, 6), strict=True)
    )
    assert [record.event for record in log.read()] == events
    log._names = Names(db, limit=2)  # as a later opening would
    log.append(resumed(3, request=RequestKey("a", 1)))
    log.append(resumed(0, request=RequestKey("f", 1)))
    assert [stream.events for stream in log.requests()] == [4, 3, 3, 3, 3, 1]
    log.close()


def test_a_backlog_is_stored_in_groups_of_bounded_bytes(make: Callable[..., Queued]) -> None:
    """A row is read whole: no group is larger than the bound and one batch more."""
    queued = make()
    log, gate = queued.log, queued.gate
    size = GROUP_BYTES // 4
    for seq in range(11):
        log.append([e.CommandRefused(request=KEY, seq=seq, command="c", state="s", reason="r" * size)])
    gate.let_all()
    log.flush()
    assert [count for count, _ in gate.groups if count > 1] in ([4, 4, 2], [4, 4, 3], [4, 4])
    assert sum(count for count, _ in gate.groups) == 11
