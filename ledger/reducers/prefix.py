"""Reducers of shared prefix blocks: references, never written, free with the last one whoever holds it."""

import numpy as np

from kvsweep.ledger.draft import Draft
from kvsweep.ledger.errors import Refused
from kvsweep.ledger.events import PrefixAttached, PrefixEvicted, PrefixPublished
from kvsweep.ledger.ids import HOLE, POOL, int32_view
from kvsweep.ledger.ownership import Holder, Holding
from kvsweep.ledger.reducers.shared import refuse
from kvsweep.ledger.reducers.tail import block_areas
from kvsweep.ledger.sources import blocks_of, with_blocks, without
from kvsweep.ledger.state import PREFIXES_KEPT, Prefix, RequestState, TailBlock


def published(draft: Draft, request: RequestState, event: PrefixPublished) -> None:
    """Only a clean tail block is whole in every layer of every group, and belongs to one request alone."""
    prefixes = draft.pool.prefixes
    if event.number != draft.pool.next_prefix or len(prefixes) >= PREFIXES_KEPT:
        expected = f"expected prefix {draft.pool.next_prefix}, one of at most {PREFIXES_KEPT}"
        refuse(request, event, f"{expected}, got {event.number}")
    if any(prefix.key == event.key for prefix in prefixes):
        refuse(request, event, f"the prefix {event.key!r} is published already")
    found = [block for block in request.tail if block.logical == event.logical and block.phase == "clean"]
    source = request.source_of(event.logical)
    if not found or HOLE in found[0].physical or source == HOLE:
        refuse(request, event, f"logical block {event.logical} is not a clean tail block, whole in every group")
    physical, groups = found[0].physical, draft.groups(request.key)
    if any(block not in int32_view(groups[group].blocks) for group, block in enumerate(physical)):
        refuse(request, event, f"logical block {event.logical} is shared already")
    prefix = Prefix(number=event.number, key=event.key, logical=event.logical, physical=physical, source=source)
    draft.share(request.key, Holder("prefix", event.number), physical, source)
    pool = draft.own_pool()
    pool.prefixes, pool.next_prefix = (*prefixes, prefix), event.number + 1


def attached(draft: Draft, request: RequestState, event: PrefixAttached) -> None:
    """The block stands clean in the tail, as if this request had written and stored it."""
    prefix = next((prefix for prefix in draft.pool.prefixes if prefix.number == event.number), None)
    if prefix is None or prefix.logical != event.logical:
        refuse(request, event, f"prefix {event.number} does not hold logical block {event.logical}")
    newest = max((block.logical for block in request.tail), default=-1)
    if event.logical <= newest or request.source_of(event.logical) != HOLE:
        refuse(request, event, f"logical block {event.logical} is not after the tail's newest {newest}, or is known")
    layout = draft.layout
    logical = np.asarray([event.logical], dtype=np.int32)
    source = with_blocks(request.source, logical, np.asarray([prefix.source], dtype=np.int32))
    stale = without(request.stale, logical)
    put = {Holder("owner"): Holding(sources=blocks_of(source, stale))}
    for group, area in enumerate(prefix.physical):
        put[Holder("tail", event.logical, group)] = Holding(areas=block_areas(layout, group, [area]))
    draft.change(request.key, put=put)
    request.tail = (*request.tail, TailBlock(logical=event.logical, physical=prefix.physical, phase="clean"))
    request.source, request.stale = source, stale


def evicted(draft: Draft, event: PrefixEvicted) -> None:
    """One reference less; readers keep the block."""
    left = tuple(prefix for prefix in draft.pool.prefixes if prefix.number != event.number)
    if len(left) == len(draft.pool.prefixes):
        raise Refused(POOL, "PrefixEvicted", "pool", (), f"there is no prefix {event.number}")
    holder = Holder("prefix", event.number)
    if draft.freed_by(POOL, holder).freed != event.freed:
        raise Refused(POOL, "PrefixEvicted", "pool", (), "the blocks said to be freed are not those that are free")
    draft.change(POOL, drop=(holder,))
    draft.own_pool().prefixes = left
