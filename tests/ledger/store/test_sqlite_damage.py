"""The SQLite store meets damage and files that are not its own: it says so, at the position, and changes nothing."""

import bisect
import itertools
import os
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.ledger.store.files import KEY, edit, resumed, write

from kvsweep.ledger.errors import LogCorrupt, LogError, UnknownSchema
from kvsweep.ledger.ids import RequestKey
from kvsweep.ledger.store.codec import SCHEMA, Bodies, list_head
from kvsweep.ledger.store.group import part_of
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


def test_a_missing_file_or_place_is_one_sentence(path: Path) -> None:
    with pytest.raises(LogError, match=r"ledger\.db does not exist$"):
        open_log(f"sqlite:{path}", read_only=True)
    assert not path.exists()
    with pytest.raises(LogError, match="cannot be written: No such file or directory"):
        open_log(f"sqlite:{path.parent / 'nowhere' / 'ledger.db'}")
    for read_only in (True, False):
        with pytest.raises(LogError, match="expected a file, got a directory"):
            open_log(f"sqlite:{path.parent}", read_only=read_only)


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty: expected an SQLite file, got 0 bytes"),
        (b"x" * 4096, "cannot be opened: file is not a database"),
        (None, "is no ledger: expected application id 0x6b767377, got 0x0"),
    ],
)
def test_a_file_that_is_no_ledger_is_refused_and_left_alone(
    path: Path, content: bytes | None, message: str, read_only: bool
) -> None:
    if content is None:
        edit(path, "CREATE TABLE mine (x)")
    else:
        path.write_bytes(content)
    before = path.read_bytes()
    with pytest.raises(LogError, match=message):
        open_log(f"sqlite:{path}", read_only=read_only)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("read_only", [True, False])
def test_another_schema_is_refused_before_its_tables_are_read(full: Path, read_only: bool) -> None:
    edit(full, f"PRAGMA user_version = {SCHEMA + 1}")
    with pytest.raises(UnknownSchema, match="ledger schema: expected 1, which this version reads, got 2"):
        open_log(f"sqlite:{full}", read_only=read_only)


def test_other_rules_are_refused(full: Path) -> None:
    row = (SCHEMA, 7, "9.9", 1)
    edit(full, "UPDATE header SET rules = 7, created_by = '9.9', crc = ?", zlib.crc32(msgspec.msgpack.encode(row)))
    with pytest.raises(UnknownSchema, match="ledger rules: expected 1, which this version reads, got 7"):
        open_log(f"sqlite:{full}", read_only=True)


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE header SET created_by = 'me'", "its header does not have the checksum"),
        ("DELETE FROM header", "its header does not have the checksum"),
        ("DROP VIEW events", "these differ: events"),
        ("CREATE INDEX mine ON groups (time)", "these differ: mine"),
    ],
)
def test_changed_tables_and_header_are_noticed(full: Path, statement: str, message: str) -> None:
    edit(full, statement)
    with pytest.raises(LogError, match=message):
        open_log(f"sqlite:{full}", read_only=True)


@pytest.mark.parametrize(
    ("statement", "position", "message"),
    [
        ("UPDATE groups SET body = zeroblob(length(body)) WHERE first = 4", 4, "the event does not have the checksum"),
        ("UPDATE groups SET body = CAST(x'92' || substr(body, 2) AS BLOB) WHERE first = 4", 4, "or lacks its head"),
        ("UPDATE groups SET body = CAST(body || x'00' AS BLOB) WHERE first = 4", 4, "bytes that belong to no event"),
        ("UPDATE groups SET body = 'text' WHERE first = 4", 4, "its group does not have the checksum"),
        ("UPDATE groups SET plain = replace(plain, 'RequestOpened', 'RequestClosed') WHERE first = 1", 1, "checksum"),
        ("UPDATE groups SET crcs = zeroblob(length(crcs)) WHERE first = 7", 7, "its group does not have the checksum"),
        ("UPDATE groups SET time = time + 1 WHERE first = 10", 10, "its group does not have the checksum"),
        ("UPDATE groups SET events = 2 WHERE first = 13", 13, "its group does not have the checksum"),
        ("UPDATE groups SET first = 6 WHERE first = 7", 7, "the event is missing"),
        ("DELETE FROM groups WHERE first = 7", 7, "the event is missing, the next one stands at 10"),
        ("DELETE FROM groups WHERE first = 52", 52, "the event is missing, the last one stands at 52"),
    ],
)
def test_a_changed_group_is_corrupt_at_its_position(threes: Path, statement: str, position: int, message: str) -> None:
    log = open_log(f"sqlite:{threes}")
    last = log.durable()
    edit(threes, statement)
    with pytest.raises(LogCorrupt, match=message) as corrupt:
        assert sum(1 for _ in log.read()) == last
    assert corrupt.value.position == position
    log.close()


def test_a_flipped_byte_is_corrupt_at_its_own_event(full: Path, written: Any) -> None:
    """One group holds all fifty: the checksums along the way tell which it is."""
    head = list_head(len(written.events))
    body = head + b"".join(msgspec.msgpack.encode(event) for event in written.events)
    sizes = [len(msgspec.msgpack.encode(event)) for event in written.events]
    ends = list(itertools.accumulate(sizes, initial=len(head)))[1:]
    for at in (len(head), ends[0] - 1, ends[0], ends[20] + 1, len(body) - 1):
        edit(full, "UPDATE groups SET body = ?", body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :])
        log = open_log(f"sqlite:{full}", read_only=True)
        with pytest.raises(LogCorrupt, match="the event does not have the checksum that it was written with") as found:
            list(log.read())
        assert found.value.position == 1 + bisect.bisect_right(ends, at)
        log.close()


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("DELETE FROM places WHERE rid = 2 AND seq = 5", r"expected event 5 of .*a-b-c.*, got 7"),
        ("UPDATE places SET seq = 900 WHERE rid = 2 AND seq = 5", r"expected event 5 of .*a-b-c.*, got 7"),
        ("UPDATE places SET offset = offset + 1 WHERE rid = 2 AND seq = 5", "does not have the checksum"),
        (
            "UPDATE places SET events = 9 WHERE rid = 2 AND seq = 5",
            "stands outside its group|does not have the checksum",
        ),
        ("UPDATE places SET first = 0 WHERE rid = 2 AND seq = 5", "stands outside its group"),
        ("UPDATE requests SET id = 'x' || id", None),
    ],
)
def test_a_changed_place_is_noticed_without_reading_the_other_lives(
    threes: Path, statement: str, message: str | None
) -> None:
    edit(threes, statement)
    log = open_log(f"sqlite:{threes}", read_only=True)
    if message is None:
        with pytest.raises(LogCorrupt, match=r"expected event 0 of .*xa-b-c.*, got 0 of .*'a-b-c'"):
            list(log.read(RequestKey("xa-b-c", 1)))
    else:
        with pytest.raises(LogCorrupt, match=message):
            list(log.read(KEY))
    log.close()


def test_a_body_with_a_right_checksum_that_is_no_event_is_corrupt(path: Path) -> None:
    """A checksum says that the bytes are those written, not that they mean something."""
    log = SqliteLog(str(path))
    bodies = Bodies.of([b"\x93\x03\x92\xa5a-b-c\x01\x00", b"\x93\x03\x92\xa5a-b-c\x01\xff"])
    log.append_parts([part_of(resumed(0, 1), bodies)], level="process")
    for request in (None, KEY):
        records = log.read(request)
        with pytest.raises(LogCorrupt, match=r"position 2: RequestResumed\.seq: expected an integer from 0 .*, got -1"):
            list(records)
    log.close()


def test_an_older_event_with_fewer_fields_is_read_one_by_one(path: Path, written: Any) -> None:
    """Fields are only appended, with defaults: a body that lacks them is no damage."""
    event = written.events[0]
    short = msgspec.msgpack.encode(msgspec.msgpack.decode(msgspec.msgpack.encode(event))[:-1])
    log = SqliteLog(str(path))
    log.append_parts([part_of([event], Bodies.of([short]))], level="process")
    assert [record.event for record in log.read()] == [record.event for record in log.read(event.request)] == [event]
    log.close()


def test_a_truncated_file_is_noticed(full: Path) -> None:
    whole = full.read_bytes()
    for size in (1, 99, PAGE_BYTES - 1, PAGE_BYTES, 2 * PAGE_BYTES + 5, len(whole) - PAGE_BYTES, len(whole) - 1):
        full.write_bytes(whole[:size])
        with pytest.raises(LogError):
            list(open_log(f"sqlite:{full}", read_only=True).read())
