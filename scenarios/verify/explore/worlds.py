"""The worlds that ship. Each asks one question of the protocol and says what has to come up on the way."""

from typing import Final

from kvsweep.scenarios.verify.explore.world import World
from kvsweep.scenarios.verify.explore.worlds_of_tails import TAILS
from kvsweep.scenarios.verify.explore.worlds_of_views import VIEWS

WORLDS: Final[tuple[World, ...]] = (*VIEWS, *TAILS)
