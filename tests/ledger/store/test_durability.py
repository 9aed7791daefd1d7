"""Disks that fail while a ledger is written: nothing acknowledged is lost, and nothing more is acknowledged."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvsweep.ledger import events as e
from kvsweep.ledger.errors import LogError
from kvsweep.ledger.ids import RequestKey
from kvsweep.ledger.store.log import LogStore, QueueBounds
from kvsweep.ledger.store.open import open_log

KEY = RequestKey("a-b-c", 1)
WRITERS = pytest.mark.parametrize("queue", [None, QueueBounds()], ids=["inline", "thread"])
TMPFS_BYTES = 2 * 2**20
ENOUGH = 10_000  # batches of a few kB: no disk of this size takes them


def fat(seq: int) -> list[e.CommandRefused]:
    return [e.CommandRefused(request=KEY, seq=seq, command="c", state="s", reason="r" * 4000)]


def append_until_it_fails(log: LogStore, acknowledged: list[int]) -> LogError:

    def heard(position: int) -> None:
        if not acknowledged or position > acknowledged[-1]:  # a failure is told with the last position again
            acknowledged.append(position)

    log.watch(heard)
    for seq in range(ENOUGH):
        try:
            log.append(fat(seq))
            log.flush()
        except LogError as error:
            return error
    raise AssertionError("nothing failed")


def expect_stopped(log: LogStore, why: LogError, acknowledged: list[int], path: Path) -> None:
    """It goes on failing with the same reason; what was acknowledged is there, then and after it is opened again."""
    for verb in (log.durable, log.flush, lambda: log.append(fat(acknowledged[-1]))):
        with pytest.raises(LogError) as again:
            verb()
        assert str(again.value) == str(why)
    assert [record.position for record in log.read()][: acknowledged[-1]] == acknowledged
    log.close()
    reader = open_log(f"sqlite:{path}", read_only=True)
    assert [record.position for record in reader.read()][: acknowledged[-1]] == acknowledged
    assert reader.damage() is None
    reader.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={TMPFS_BYTES},mode=700", "tmpfs", str(place)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no mount command: a full disk is not shown here")
    if done.returncode:
        pytest.skip(f"a small file system cannot be mounted, a full disk is not shown here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@WRITERS
def test_g3_a_full_disk_stops_the_writer_and_loses_nothing(disk: Path, queue: QueueBounds | None) -> None:
    path = disk / "ledger.db"
    log = open_log(f"sqlite:{path}", queue=queue)
    acknowledged: list[int] = []
    error = append_until_it_fails(log, acknowledged)
    assert "full" in str(error) or "disk I/O error" in str(error)
    assert f"failed at position {acknowledged[-1] + 1}" in str(error)
    assert len(acknowledged) > 20
    expect_stopped(log, error, acknowledged, path)


LIMITED = """
import resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from tests.ledger.store.test_durability import append_until_it_fails, expect_stopped
from kvsweep.ledger.store.log import QueueBounds
from kvsweep.ledger.store.open import open_log
path = Path(sys.argv[1])
log = open_log(f"sqlite:{path}", queue=QueueBounds() if sys.argv[2] == "thread" else None)
resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, resource.RLIM_INFINITY))
acknowledged = []
error = append_until_it_fails(log, acknowledged)
assert f"failed at position {acknowledged[-1] + 1}" in str(error), error
assert len(acknowledged) > 20, acknowledged
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
expect_stopped(log, error, acknowledged, path)
print(acknowledged[-1])
"""


@pytest.mark.parametrize("writer", ["inline", "thread"])
def test_g3_a_file_that_may_not_grow_stops_the_writer_and_loses_nothing(tmp_path: Path, writer: str) -> None:
    path, root = tmp_path / "ledger.db", Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(path), writer, str(root)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    log = open_log(f"sqlite:{path}")
    last = log.durable()
    assert last >= int(done.stdout)
    assert log.append(fat(last)) == last + 1, "with room again, a new writer goes on"
    log.close()


FORBIDDEN = """
import os, sys
from kvsweep.ledger.errors import LogError
from kvsweep.ledger.store.log import QueueBounds
from kvsweep.ledger.store.open import open_log
import kvsweep.ledger.store.queue, kvsweep.ledger.store.sqlite
if not os.geteuid():
    os.seteuid(65534)  # root may write anywhere
try:
    open_log(sys.argv[1], queue=QueueBounds() if sys.argv[2] == "thread" else None)
except LogError as error:
    print(error)
"""


@pytest.mark.parametrize("writer", ["inline", "thread"])
def test_a_place_that_may_not_be_written_is_refused_at_once(tmp_path: Path, writer: str) -> None:
    path = tmp_path / "ledger.db"
    open_log(f"sqlite:{path}").close()
    path.chmod(0o444)
    tmp_path.chmod(0o555)
    done = subprocess.run(
        [sys.executable, "-c", FORBIDDEN, f"sqlite:{path}", writer], capture_output=True, text=True, check=False
    )
    tmp_path.chmod(0o755)
    assert done.stdout == f"ledger {path} cannot be written: Permission denied\n", done.stderr


def removed(path: Path) -> None:
    path.unlink()


def replaced(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    other.rename(path)


def shortened(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def append_one(log: LogStore, seq: int) -> None:
    log.append(fat(seq))
    log.flush()


@WRITERS
@pytest.mark.parametrize("part", ["", "-wal"], ids=["ledger", "write-ahead file"])
@pytest.mark.parametrize("harm", [removed, replaced, shortened])
def test_g3_a_file_that_is_taken_away_under_its_writer_is_noticed(
    tmp_path: Path, queue: QueueBounds | None, part: str, harm: Callable[[Path], None]
) -> None:
    """SQLite would go on into a file that nobody can open any more, and every acknowledgement would be a lie."""
    path = tmp_path / "ledger.db"
    log = open_log(f"sqlite:{path}", queue=queue)
    for seq in range(40):
        log.append(fat(seq))
    log.flush()
    harm(Path(f"{path}{part}"))
    with pytest.raises(LogError, match=r"failed at position 41: .*under its writer"):
        append_one(log, 40)
    for verb in (log.durable, log.flush, lambda: log.append(fat(41))):
        with pytest.raises(LogError, match="failed at position 41"):
            verb()
    log.close()
