"""What an area can hold: one byte that names the text of one logical block, or nothing."""

from typing import Final

from kvsweep.ledger.ids import RequestKey
from kvsweep.scenarios.verify.explore.world import LOGICAL_BLOCKS, World

NOTHING: Final = 0
UNCONFIRMED: Final = 0x80
"""Added to a label while decoding still writes the block."""

LIVES: Final = 2
"""Lives of one request id that are told apart."""


def label(world: World, request: RequestKey, logical: int) -> int:
    """The content of one logical block, in 1 … 127. A text that requests share has one label."""
    if logical < world.shared_text:
        return 1 + logical
    names = [asker.name for asker in world.askers]
    text = 1 + names.index(request.request_id) * LIVES + (request.request_epoch - 1) % LIVES
    return 1 + text * LOGICAL_BLOCKS + logical


def say(content: int) -> str:
    """A label for people."""
    if content == NOTHING:
        return "nothing"
    text, logical = divmod((content & ~UNCONFIRMED) - 1, LOGICAL_BLOCKS)
    which = "the shared text" if text == 0 else f"text {text}"
    return f"block {logical} of {which}{', unconfirmed' if content & UNCONFIRMED else ''}"
