"""A ledger that was written once and never changes: it is read, folds to its digest and can be gone on with."""

import re
import shutil
from pathlib import Path

import pytest

from kvsweep.ledger import events as e
from kvsweep.ledger.errors import LogError, SequenceConflict
from kvsweep.ledger.fold import apply
from kvsweep.ledger.ids import RequestKey
from kvsweep.ledger.inspect.replay import Ledger
from kvsweep.ledger.state import EMPTY
from kvsweep.ledger.store.codec import RULES, SCHEMA
from kvsweep.ledger.store.digest import Digest
from kvsweep.ledger.store.log import LogStore, Stream
from kvsweep.ledger.store.open import open_log
from kvsweep.ledger.store.query import Where

GOLDEN = Path(__file__).parent / "golden" / f"schema{SCHEMA}.ledger"
KEY = RequestKey("a-b-c", 1)
DIGEST = "84ac0773a39daaeee281a834e1cc39ab94a95c0e6818e5119d1dd4b476420595"
"""Of the whole history."""


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    return Path(shutil.copy(GOLDEN, tmp_path / "old.ledger"))


def digest_of(log: LogStore) -> str:
    digest, state = Digest(), EMPTY
    for record in log.read():
        state = apply(state, record.event)
        digest.update(record.event)
    return digest.value(state)


def test_an_old_ledger_replays_to_the_digest_that_it_had(golden: Path) -> None:
    log = open_log(f"sqlite:{golden}", read_only=True)
    assert (log.header.schema, log.header.rules) == (SCHEMA, RULES)
    assert [record.position for record in log.read()] == list(range(1, 53))
    assert [record.event.seq for record in log.read(KEY)] == list(range(35))
    assert [record.position for record in log.read(KEY, after=40)] == [48, 49, 50]
    assert log.requests()[1] == Stream(request=KEY, events=35, last=50)
    assert [record.position for record in log.find(Where(types=("PlanRefused",)))] == [37]
    assert digest_of(log) == DIGEST
    assert log.damage() is None
    log.close()
    with Ledger.open(f"sqlite:{golden}") as ledger:
        verified = ledger.verify()
    assert verified.ok, verified.message
    assert verified.recorded_digest is not None


def test_an_old_ledger_is_gone_on_with(golden: Path) -> None:
    log = open_log(f"sqlite:{golden}")
    with pytest.raises(SequenceConflict, match="expected sequence 35, found 5"):
        log.append([e.RequestResumed(request=KEY, seq=5)])
    assert log.append([e.RequestPreempted(request=RequestKey("a-b-c", 2), seq=1)], expected=52) == 53
    assert log.requests()[-1] == Stream(request=RequestKey("a-b-c", 2), events=2, last=53)
    log.close()
    again = open_log(f"sqlite:{golden}", read_only=True)
    assert [record.position for record in again.read()] == list(range(1, 54))
    assert [record.position for record in again.read(RequestKey("a-b-c", 2))] == [52, 53]
    again.close()


def test_a_truncated_file_is_noticed(golden: Path) -> None:
    whole = golden.read_bytes()
    golden.write_bytes(whole[:-1])
    with pytest.raises(LogError, match=re.escape(f"is damaged: expected {len(whole)} bytes, got {len(whole) - 1}")):
        open_log(f"sqlite:{golden}", read_only=True)
