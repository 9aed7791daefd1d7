"""What tests of the runtime share: a small core world."""

from collections.abc import Callable

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
