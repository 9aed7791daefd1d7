"""What tests of the runtime share: a small core world."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.rig import CoreRig

MakeRig = Callable[..., CoreRig]


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
