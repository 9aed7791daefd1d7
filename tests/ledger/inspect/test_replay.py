"""Looking back: the fold of a stored ledger is the state that was lived, and damage never passes for it."""

import itertools
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from kvsweep.ledger import events as e
from kvsweep.ledger import laws
from kvsweep.ledger.errors import KvsweepError, LayoutError, LogError
from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import POOL, RequestKey
from kvsweep.ledger.inspect.replay import Ledger
from kvsweep.ledger.inspect.verify import Verified
from kvsweep.ledger.state import EMPTY, State
from kvsweep.ledger.store.codec import encode
from kvsweep.ledger.store.memory import MemoryLog
from kvsweep.ledger.store.open import open_log

KEY = RequestKey("a-b-c", 1)
SEED = 20260916


@pytest.fixture
def path(tmp_path: Path, written: Any) -> Path:
    path = tmp_path / "ledger.db"
    log = open_log(f"sqlite:{path}")
    log.append(written.events)
    log.close()
    return path


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    with Ledger.open(f"sqlite:{path}") as opened:
        yield opened


def in_memory(events: list[Event]) -> Ledger:
    log = MemoryLog()
    log.append(events)
    return Ledger(log)


def test_replay_gives_the_state_that_was_lived(ledger: Ledger, written: Any) -> None:
    assert ledger.state() == written.state
    frames = list(ledger.replay())
    assert [frame.event for frame in frames] == written.events
    assert frames[0].before == EMPTY
    assert all(first.after == second.before for first, second in itertools.pairwise(frames))


def test_replay_stops_at_any_event(ledger: Ledger, written: Any) -> None:
    assert ledger.state(until=0) == EMPTY
    states = [frame.after for frame in ledger.replay()]
    for until in (1, 7, len(states)):
        assert ledger.state(until=until) == states[until - 1]
    for until in (-1, len(states) + 1):
        with pytest.raises(LayoutError, match=f"until: expected a position from 0 to {len(states)}, got {until}"):
            ledger.replay(until=until)


def test_f5_one_request_is_followed_through_the_whole_fold(ledger: Ledger, written: Any) -> None:
    twin = RequestKey(POOL.request_id, 1)
    assert ledger.requests() == [KEY, twin, RequestKey("a-b-c", 2)]
    frames = list(ledger.replay(twin))
    assert [frame.event for frame in frames] == [event for event in written.events if event.request == twin]
    assert frames[-1].after.requests[twin.request_id].upload.phase == "IDLE"
    assert KEY.request_id in frames[0].before.requests
    with pytest.raises(LayoutError, match="request: expected one of the 4 streams"):
        ledger.replay(RequestKey("a-b", 1))


def test_events_are_filtered_by_type(ledger: Ledger, written: Any) -> None:
    found = [record.event for record in ledger.events(KEY, types={"RankTransferred", "TablesApplied"}, after=12)]
    expected = [
        event
        for event in written.events[12:]
        if event.request == KEY and isinstance(event, e.RankTransferred | e.TablesApplied)
    ]
    assert found == expected
    assert len(found) == 2
    with pytest.raises(LayoutError, match=r"types: expected event types \(RequestOpened, .*\), got 'rank'"):
        ledger.events(types=["rank"])


# ---- verify


def test_a_whole_ledger_verifies(ledger: Ledger, written: Any) -> None:
    recorded = [event for event in written.events if isinstance(event, e.DigestRecorded)]
    verified = ledger.verify()
    assert verified == Verified(
        ok=True, events=len(written.events), digest=recorded[-1].digest, recorded_digest=recorded[-1].digest
    )


def test_a_ledger_cut_anywhere_verifies_up_to_its_end(written: Any) -> None:
    """A writer may be killed after any batch, with no digest recorded since."""
    for size in range(len(written.events) + 1):
        verified = in_memory(written.events[:size]).verify()
        assert (verified.ok, verified.events) == (True, size), verified
    assert in_memory([]).verify().recorded_digest is None


def test_measured_times_do_not_change_the_verdict(written: Any) -> None:
    slower = [
        replace(event, measured=replace(event.measured, wait_s=9.5)) if hasattr(event, "measured") else event
        for event in written.events
    ]
    assert slower != written.events
    assert in_memory(slower).verify() == in_memory(written.events).verify()


def at(events: list[Event], kind: type[Event], nth: int = 0) -> int:
    return [index for index, event in enumerate(events) if isinstance(event, kind)][nth]


def test_another_history_with_the_same_state_is_noticed(written: Any) -> None:
    """The chain covers what the state forgets."""
    events = list(written.events)
    index = at(events, e.RankTransferred)
    events[index] = replace(events[index], h2d_bytes=1)
    recorded = at(events, e.DigestRecorded)
    verified = in_memory(events).verify()
    assert not verified.ok
    assert verified.position == events[recorded].position
    assert verified.recorded_digest == events[recorded].digest != verified.digest
    assert verified.message == f"the recorded digest is {verified.recorded_digest}, replay gives {verified.digest}"


def test_an_illegal_event_is_noticed_at_its_position(written: Any) -> None:
    events = list(written.events)
    index = at(events, e.ResidencyCommitted)
    events[index] = replace(events[index], generation=9)
    verified = in_memory(events).verify()
    assert (verified.ok, verified.events, verified.position) == (False, index, index + 1)
    assert "expected generation 1, got 9" in verified.message


def test_a_digest_of_the_future_is_noticed(written: Any) -> None:
    events = list(written.events)
    index = at(events, e.DigestRecorded)
    events[index] = replace(events[index], position=index + 1)
    verified = in_memory(events).verify()
    assert (verified.ok, verified.position) == (False, index + 1)
    assert "recorded before that position" in verified.message


def test_broken_laws_are_noticed(written: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(state: State) -> Iterator[str]:
        if "@pool" in state.requests:
            yield "somebody else is here"

    monkeypatch.setattr(laws, "LAWS", (laws.Law("alone", "X", broken),))
    verified = in_memory(written.events).verify()
    assert not verified.ok
    assert verified.position == written.events[at(written.events, e.DigestRecorded)].position
    assert verified.message == "broken law: alone: somebody else is here"
    unrecorded = written.events[: at(written.events, e.DigestRecorded)]
    assert in_memory(unrecorded).verify().position == len(unrecorded)


# ---- damage


def flip(path: Path, whole: bytes, index: int, bit: int) -> None:
    path.write_bytes(whole[:index] + bytes([whole[index] ^ (1 << bit)]) + whole[index + 1 :])


def look(path: Path) -> tuple[Verified | None, str]:
    """What verifying says; an error that opening raised, as a sentence."""
    try:
        with Ledger.open(f"sqlite:{path}") as ledger:
            return ledger.verify(), ""
    except KvsweepError as error:
        return None, str(error)


def test_j1_a_flipped_byte_of_any_event_is_found_at_its_position(path: Path, written: Any) -> None:
    whole = path.read_bytes()
    rng = np.random.default_rng(SEED)
    for position, event in enumerate(written.events, 1):
        body = encode(event)
        assert whole.count(body) == 1, f"event {position} stands once in the file"
        index, bit = whole.index(body) + int(rng.integers(len(body))), int(rng.integers(8))
        flip(path, whole, index, bit)
        verified, error = look(path)
        assert verified is not None, error
        assert (verified.ok, verified.position) == (False, position), f"seed {SEED}: bit {bit} of byte {index}"
        assert verified.events < position  # what is stored together is read whole or not at all


@pytest.mark.parametrize("where", ["anywhere", "used"])
def test_j1_no_flipped_bit_of_the_file_passes_for_another_history(path: Path, written: Any, where: str) -> None:
    """Each is refused, found, or lies in bytes that carry nothing: then events, state and digest are those written."""
    whole = path.read_bytes()
    rng = np.random.default_rng(SEED)
    data = np.frombuffer(whole, dtype=np.uint8)
    places = np.arange(data.size) if where == "anywhere" else np.flatnonzero(data)
    expected = in_memory(written.events).verify()
    found = 0
    for index in rng.choice(places, size=200, replace=False).tolist():
        bit = int(rng.integers(8))
        flip(path, whole, index, bit)
        verified, error = look(path)
        if verified is None or not verified.ok:
            found += 1
            assert error or (verified is not None and verified.message)
            continue
        assert verified == expected, f"seed {SEED}: bit {bit} of byte {index}"
        with Ledger.open(f"sqlite:{path}") as ledger:
            assert [record.event for record in ledger.events()] == written.events
            assert ledger.state() == written.state
    assert found >= (1 if where == "anywhere" else 150)


def test_a_truncated_ledger_is_one_sentence(path: Path) -> None:
    whole = path.read_bytes()
    for size in (len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(LogError, match=r"is damaged: expected \d+ bytes, got \d+$|malformed$"):
            Ledger.open(f"sqlite:{path}")


KILLED_WRITER = """
import os, signal, sys
from kvsweep.ledger.store.open import open_log
from tests.ledger.small_run import small_run
log, events = open_log(sys.argv[1]), small_run().events
for at in range(0, len(events), 5):
    log.append(events[at : at + 5])
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_j1_no_flipped_bit_of_a_killed_writers_files_passes_for_another_history(tmp_path: Path, written: Any) -> None:
    """The last batches are still in the write-ahead file, which SQLite reads only up to the first wrong checksum."""
    path, wal, index = (tmp_path / f"ledger.db{end}" for end in ("", "-wal", "-shm"))
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run([sys.executable, "-c", KILLED_WRITER, f"sqlite:{path}"], cwd=root, check=False)
    assert done.returncode == -signal.SIGKILL
    whole, files = wal.read_bytes(), {file: file.read_bytes() for file in (path, index)}
    expected = in_memory(written.events).verify()
    assert look(path) == (expected, "")
    rng = np.random.default_rng(SEED)
    heads = [32 + frame * (24 + 16384) + byte for frame in range(len(whole) // (24 + 16384)) for byte in range(24)]
    places = [*range(32), *rng.choice(heads, 60).tolist(), *rng.choice(len(whole), 60, replace=False).tolist()]
    found = 0
    for place in places:
        for file, content in files.items():
            file.write_bytes(content)
        bit = int(rng.integers(8))
        flip(wal, whole, place, bit)
        verified, error = look(path)
        if verified is None or not verified.ok:
            found += 1
            assert error or (verified is not None and verified.message and verified.position)
            wal_before = wal.read_bytes()
            with pytest.raises(KvsweepError):
                open_log(f"sqlite:{path}")
            assert wal.read_bytes() == wal_before, "a refused ledger is left as it was"
        else:
            assert verified == expected, f"seed {SEED}: bit {bit} of byte {place}"
    assert found >= 100


def test_a_torn_end_is_no_fault(tmp_path: Path, written: Any) -> None:
    """A kill in the middle of a write leaves a cut frame: that batch was not acknowledged."""
    path, wal = tmp_path / "ledger.db", tmp_path / "ledger.db-wal"
    root = Path(__file__).resolve().parents[3]
    subprocess.run([sys.executable, "-c", KILLED_WRITER, f"sqlite:{path}"], cwd=root, check=False)
    whole = wal.read_bytes()
    frame = 24 + 16384
    for cut in (1, 16384, frame - 1, frame, frame + 1, 2 * frame + 99):
        (tmp_path / "ledger.db-shm").unlink()
        wal.write_bytes(whole[:-cut])
        verified, error = look(path)
        assert verified is not None, error
        assert verified.ok
        assert len(written.events) - 15 <= verified.events < len(written.events)
