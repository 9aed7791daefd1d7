"""What tests of the runtime share: a small core world."""

from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.rig import CoreRig

from kvsweep.ledger.events import Event
from kvsweep.ledger.store.log import LogStore
from kvsweep.ledger.store.memory import MemoryLog
from kvsweep.ledger.store.open import open_log

MakeRig = Callable[..., CoreRig]
Stored = Callable[[Sequence[Event]], LogStore]


@pytest.fixture
def make_rig() -> MakeRig:
    return CoreRig


@pytest.fixture
def rig() -> CoreRig:
    """Two full layers, two ranks, sixteen device blocks."""
    return CoreRig()


@pytest.fixture
async def shell(tmp_path: Path, anyio_backend: Any) -> AsyncIterator[Any]:
    from tests.runtime.durable import Shell  # loads torch

    made = Shell(tmp_path / "ledger.db")
    yield made
    made.gate.let_all()
    made.queued.log.close()


@pytest.fixture(params=["memory", "sqlite"])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Stored:
    """A store of either kind that holds these events, opened as a new process opens it."""

    def make(events: Sequence[Event]) -> LogStore:
        if request.param == "memory":
            log: LogStore = MemoryLog()
            log.append(events)
            return log
        path = tmp_path / "ledger.db"
        for old in tmp_path.glob("ledger.db*"):
            old.unlink()
        written = open_log(f"sqlite:{path}")
        written.append(events, level="process")
        written.close()
        return open_log(f"sqlite:{path}")

    return make
