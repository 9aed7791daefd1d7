"""Which events a question is about: conditions that stores narrow by plain columns, and that hold for any event."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from kvsweep.ledger import events as e
from kvsweep.ledger.errors import LayoutError
from kvsweep.ledger.events import BlocksByGroup, Event
from kvsweep.ledger.ids import Physical, RequestKey, Rows, int32_view
from kvsweep.ledger.layout import Layout
from kvsweep.ledger.store.codec import EVENT_TYPES

LARGEST_ID: Final = 2**31 - 1
"""Ids of blocks are int32."""


class Block(Struct, frozen=True, order=True):
    """A block of the device pool of one KV-cache group."""

    group: int
    block: int


class Where(Struct, frozen=True, kw_only=True):
    """Conditions on events; all that are given hold. Positions: `after` < position <= `until`.

    rank  what the rank said, and what went to it
    block  events that name this block of the device pool; a transfer's later events name its operation only
    """

    lives: tuple[RequestKey, ...] | None = None
    types: tuple[str, ...] | None = None
    operation: int | None = None
    rank: int | None = None
    block: Block | None = None
    after: int = 0
    until: int | None = None

    def check(self) -> None:
        """Raise LayoutError naming the condition that no event can meet."""
        for name in self.types or ():
            if name not in EVENT_TYPES:
                raise LayoutError("types", f"event types ({', '.join(EVENT_TYPES)})", repr(name))
        if self.operation is not None and self.operation < 0:
            raise LayoutError("operation", "an operation id of 0 or more", str(self.operation))
        if self.after < 0:
            raise LayoutError("after", "a position of 0 or more", str(self.after))
        if self.block is not None and not (self.block.group >= 0 and 0 <= self.block.block <= LARGEST_ID):
            raise LayoutError("block", f"GROUP:ID with a group from 0 and an id up to {LARGEST_ID}", str(self.block))


SENT_TO_RANKS: Final = frozenset({"TransferStarted", "ReadersDrained", "StoreStarted"})
"""Each names the ranks that were sent the operation."""

TURNED_BACK: Final = frozenset({"UploadAborted", "RetainAborted", "StoreAborted"})
"""Every rank that has not spoken is told to stop."""


def concerns_rank(event: Event, rank: int) -> bool:
    """Whether the rank said it, or was told."""
    name = type(event).__name__
    if name in SENT_TO_RANKS:
        return rank in dict(getattr(event, "ranks"))  # noqa: B009 - of those types alone
    return name in TURNED_BACK or getattr(event, "rank", None) == rank


# ---- blocks

_Said = Iterator[tuple[str, bool]]
"""(what an event may say of a block, whether it does)"""


def _in_rows(rows: Rows[Physical], layout: Layout, block: Block) -> bool:
    at = np.flatnonzero(rows.ids == block.block)
    if not at.size:
        return False
    layers = rows.layers[np.searchsorted(rows.row_ptr, at, side="right") - 1]
    return any(layout.layers[layer].group == block.group for layer in layers if layer < len(layout.layers))


def _in_groups(blocks: BlocksByGroup, block: Block) -> bool:
    return block.group < len(blocks) and bool((int32_view(blocks[block.group]) == block.block).any())


def _leased(event: e.BlocksLeased, layout: Layout, block: Block) -> _Said:
    yield "reserved", _in_groups(event.reserved, block)
    yield "destination", _in_rows(event.destination, layout, block)


def _planned(event: e.RetainPlanned, layout: Layout, block: Block) -> _Said:
    yield "reserved", _in_groups(event.reserved, block)
    yield "moved from", _in_rows(event.moved_from, layout, block)
    yield "moved to", _in_rows(event.moved_to, layout, block)


def _opened(event: e.TailOpened, layout: Layout, block: Block) -> _Said:
    physical = int32_view(event.physical_by_group)
    yield "reserved", block.group < physical.size and int(physical[block.group]) == block.block


def _freed(event: e.BlocksRetired | e.FenceOpened | e.PrefixEvicted, layout: Layout, block: Block) -> _Said:
    yield "freed", _in_groups(event.freed, block)


NAMES_BLOCKS: Final[Mapping[str, Callable[[Any, Layout, Block], _Said]]] = {
    "BlocksLeased": _leased,
    "RetainPlanned": _planned,
    "TailOpened": _opened,
    "BlocksRetired": _freed,
    "FenceOpened": _freed,
    "PrefixEvicted": _freed,
}
"""Events that name blocks of the device pool by their ids, and what they say of one."""

RESERVES: Final = ("BlocksLeased", "RetainPlanned", "TailOpened")
"""Events by which a request comes to own blocks."""


def says_of(event: Event, layout: Layout, block: Block) -> frozenset[str]:
    """What the event says of one block: reserved, destination, moved from, moved to, freed; empty if not named."""
    named = NAMES_BLOCKS.get(type(event).__name__)
    return frozenset(what for what, said in named(event, layout, block) if said) if named else frozenset()


def reserves(event: Event, layout: Layout, block: Block) -> bool:
    """Whether the event newly reserves this block. It is the first thing that such events say."""
    name = type(event).__name__
    return name in RESERVES and next(NAMES_BLOCKS[name](event, layout, block))[1]


def matches(event: Event, where: Where, layout: Layout | None) -> bool:
    """Whether an event meets every condition but those on positions. `layout` is needed for a block only."""
    if where.lives is not None and event.request not in where.lives:
        return False
    if where.types is not None and type(event).__name__ not in where.types:
        return False
    if where.operation is not None:
        operation = getattr(event, "operation", None)
        if operation is None or operation.operation_id != where.operation:
            return False
    if where.rank is not None and not concerns_rank(event, where.rank):
        return False
    return where.block is None or (layout is not None and bool(says_of(event, layout, where.block)))


def may_match(event: Event, where: Where) -> bool:
    """As `matches`, for one who does not know the layout: of a block it only says whether the event names blocks."""
    bare = where if where.block is None else replace(where, block=None)
    return matches(event, bare, None) and (where.block is None or type(event).__name__ in NAMES_BLOCKS)
