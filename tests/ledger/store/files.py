"""What tests of ledger files share: a few facts to append, and edits behind the store's back."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from kvsweep.ledger import events as e
from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import RequestKey
from kvsweep.ledger.store.open import open_log

KEY = RequestKey("a-b-c", 1)


def resumed(*numbers: int) -> list[e.RequestResumed]:
    return [e.RequestResumed(request=KEY, seq=seq) for seq in numbers]


def edit(path: Path, statement: str, *arguments: object) -> None:
    db = sqlite3.connect(path)
    db.execute(statement, arguments)
    db.commit()
    db.close()


def write(path: Path, events: Sequence[Event], at_a_time: int) -> Path:
    """A closed ledger of these events, appended so many at a time."""
    log = open_log(f"sqlite:{path}")
    for start in range(0, len(events), at_a_time):
        log.append(events[start : start + at_a_time])
    log.close()
    return path
