"""Ledgers of every schema that was ever written: they are read, fold by their own rules and can be gone on with.

The files were written by the versions that their headers name, and never change.
"""

import re
import shutil
import sqlite3
from pathlib import Path

import pytest

from kvsweep.ledger import events as e
from kvsweep.ledger.errors import LogCorrupt, LogError, SequenceConflict
from kvsweep.ledger.fold import apply
from kvsweep.ledger.ids import RequestKey
from kvsweep.ledger.inspect.replay import Ledger
from kvsweep.ledger.state import EMPTY
from kvsweep.ledger.store.codec import RULES, SCHEMA
from kvsweep.ledger.store.digest import Digest
from kvsweep.ledger.store.log import LogStore, Stream
from kvsweep.ledger.store.open import open_log
from kvsweep.ledger.store.query import Where

GOLDEN = Path(__file__).parent / "golden"
KEY = RequestKey("a-b-c", 1)

# schema -> digest of the whole history, by the rules that the ledger names
DIGESTS = {
    1: "1ed781cc709bd477d7bb2845c82ea52e6cf13c0904aaf59041b970c75c5c6aae",
    2: "f4c01b7170ec9103386828babaeaeae5fdb5d1a8f801aabe63dcb47ff1a27d6c",
}
SCHEMAS = pytest.mark.parametrize("schema", DIGESTS)


def golden(schema: int, folder: Path) -> Path:
    """A copy of the file of that schema."""
    return Path(shutil.copy(GOLDEN / f"schema{schema}.ledger", folder / "old.ledger"))


def digest_of(log: LogStore) -> str:
    digest, state = Digest(log.header.rules), EMPTY
    for record in log.read():
        state = apply(state, record.event)
        digest.update(record.event)
    return digest.value(state)


def test_there_is_a_golden_file_of_every_schema() -> None:
    assert list(DIGESTS) == list(range(1, SCHEMA + 1))


@SCHEMAS
def test_an_old_ledger_replays_to_the_digest_that_it_had(schema: int, tmp_path: Path) -> None:
    path = golden(schema, tmp_path)
    log = open_log(f"sqlite:{path}", read_only=True)
    assert log.header.schema == schema
    assert [record.position for record in log.read()] == list(range(1, 51))
    assert [record.event.seq for record in log.read(KEY)] == list(range(34))
    assert [record.position for record in log.read(KEY, after=40)] == [46, 47, 48]
    assert log.requests()[1] == Stream(request=KEY, events=34, last=48)
    assert [record.position for record in log.find(Where(types=("PlanRefused",)))] == [36]
    assert digest_of(log) == DIGESTS[schema]
    assert log.damage() is None
    log.close()
    with Ledger.open(f"sqlite:{path}") as ledger:
        verified = ledger.verify()
    assert verified.ok, verified.message
    assert verified.recorded_digest is not None


@SCHEMAS
def test_an_old_ledger_is_gone_on_with_by_its_own_rules(schema: int, tmp_path: Path) -> None:
    path = golden(schema, tmp_path)
    log = open_log(f"sqlite:{path}")
    assert log.header.rules == min(schema, RULES)
    with pytest.raises(SequenceConflict, match="expected sequence 34, found 5"):
        log.append([e.RequestResumed(request=KEY, seq=5)])
    assert log.append([e.RequestPreempted(request=RequestKey("a-b-c", 2), seq=1)], expected=50) == 51
    assert log.requests()[-1] == Stream(request=RequestKey("a-b-c", 2), events=2, last=51)
    log.close()
    again = open_log(f"sqlite:{path}", read_only=True)
    assert (again.header.schema, again.header.rules) == (schema, min(schema, RULES))
    assert [record.position for record in again.read()] == list(range(1, 52))
    assert [record.position for record in again.read(RequestKey("a-b-c", 2))] == [50, 51]
    again.close()


# ---- schema 1 as it was written, a row an event


@pytest.mark.parametrize(
    ("statement", "position", "message"),
    [
        ("UPDATE log SET body = zeroblob(9) WHERE position = 4", 4, "checksum"),
        ("UPDATE log SET rank = 1 WHERE position = 4", 4, "checksum"),
        ("UPDATE log SET operation_id = NULL WHERE position = 6", 6, "checksum"),
        ("UPDATE log SET type = 'X' WHERE position = 1", 1, "checksum"),
        ("UPDATE log SET seq = 500 WHERE position = 5", 5, "checksum"),
        ("UPDATE requests SET id = 'a-b-d' WHERE id = 'a-b-c'", 2, "checksum"),
        ("DELETE FROM requests WHERE id = 'a-b-c'", 2, "checksum"),
        ("UPDATE log SET body = 'text' WHERE position = 9", 9, "checksum"),
        ("DELETE FROM log WHERE position = 8", 8, "the event is missing, the next one stands at 9"),
    ],
)
def test_a_changed_row_of_schema_1_is_corrupt_at_its_position(
    tmp_path: Path, statement: str, position: int, message: str
) -> None:
    path = golden(1, tmp_path)
    db = sqlite3.connect(path)
    db.execute(statement)
    db.commit()
    db.close()
    log = open_log(f"sqlite:{path}", read_only=True)
    records = log.read()
    for _ in range(position - 1):
        next(records)
    with pytest.raises(LogCorrupt, match=message) as corrupt:
        next(records)
    assert corrupt.value.position == position
    log.close()


def test_a_hole_in_one_stream_of_schema_1_is_noticed(tmp_path: Path) -> None:
    path = golden(1, tmp_path)
    db = sqlite3.connect(path)
    db.execute("DELETE FROM log WHERE rid = 2 AND seq = 5")
    db.commit()
    db.close()
    log = open_log(f"sqlite:{path}", read_only=True)
    with pytest.raises(LogCorrupt, match=r"expected event 5 of .*a-b-c.*, got 6"):
        list(log.read(KEY))
    log.close()


@SCHEMAS
def test_a_truncated_file_is_noticed(schema: int, tmp_path: Path) -> None:
    path = golden(schema, tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(LogError, match=re.escape(f"is damaged: expected {len(whole)} bytes, got {len(whole) - 1}")):
        open_log(f"sqlite:{path}", read_only=True)
