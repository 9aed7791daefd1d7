"""Situations that random scenarios reach between them: where none gets to one, nothing of it was tested."""

from typing import Final

from kvsweep.scenarios.verify.script.situations import SITUATIONS

SOMETIMES: Final = tuple(SITUATIONS)
"""All that a scenario can name."""
