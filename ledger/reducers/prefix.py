"""Reducers of shared prefix blocks: references, never written, free with the last one whoever holds it."""

import numpy as np
from msgspec.structs import replace

from kvsweep.ledger.errors import Refused
from kvsweep.ledger.events import PrefixAttached, PrefixEvicted, PrefixPublished
from kvsweep.ledger.ids import HOLE, POOL
from kvsweep.ledger.ownership import Holder, Holding
from kvsweep.ledger.reducers.shared import adopt, refuse
from kvsweep.ledger.reducers.tail import block_areas
from kvsweep.ledger.sources import blocks_of, with_blocks, without
from kvsweep.ledger.state import PREFIXES_KEPT, Prefix, RequestState, State, TailBlock


def published(state: State, request: RequestState, event: PrefixPublished) -> State:
    """Only a clean tail block is whole in every layer of every group, and belongs to one request alone."""
    pool, layout = state.pool, state.pool.layout
    if event.number != pool.next_prefix or len(pool.prefixes) >= PREFIXES_KEPT:
        refuse(
            request, event, f"expected prefix {pool.next_prefix}, one of at most {PREFIXES_KEPT}, got {event.number}"
        )
    if any(prefix.key == event.key for prefix in pool.prefixes):
        refuse(request, event, f"the prefix {event.key!r} is published already")
    found = [block for block in request.tail if block.logical == event.logical and block.phase == "clean"]
    if not found or HOLE in found[0].physical or request.source_of(event.logical) == HOLE:
        refuse(request, event, f"logical block {event.logical} is not a clean tail block, whole in every group")
    block, source = found[0], request.source_of(event.logical)
    owned = state.ownership.owned(request.key, layout)
    if any(area not in owned[group] for group, area in enumerate(block.physical)):
        refuse(request, event, f"logical block {event.logical} is shared already")
    prefix = Prefix(number=event.number, key=event.key, logical=event.logical, physical=block.physical, source=source)
    ownership = state.ownership.publish(request.key, layout, event.number, block.physical, source)
    pool = replace(pool, prefixes=(*pool.prefixes, prefix), next_prefix=event.number + 1)
    return adopt(state, request, ownership=ownership, pool=pool)


def attached(state: State, request: RequestState, event: PrefixAttached) -> State:
    """The block stands clean in the tail, as if this request had written and stored it."""
    prefix = next((prefix for prefix in state.pool.prefixes if prefix.number == event.number), None)
    if prefix is None or prefix.logical != event.logical:
        refuse(request, event, f"prefix {event.number} does not hold logical block {event.logical}")
    newest = max((block.logical for block in request.tail), default=-1)
    if event.logical <= newest or request.source_of(event.logical) != HOLE:
        refuse(request, event, f"logical block {event.logical} is not after the tail's newest {newest}, or is known")
    layout = state.pool.layout
    logical = np.asarray([event.logical], dtype=np.int32)
    source = with_blocks(request.source, logical, np.asarray([prefix.source], dtype=np.int32))
    stale = without(request.stale, logical)
    put = {Holder("owner"): Holding(sources=blocks_of(source, stale))}
    for group, area in enumerate(prefix.physical):
        put[Holder("tail", event.logical, group)] = Holding(areas=block_areas(layout, group, [area]))
    ownership = state.ownership.change(request.key, layout, put=put)
    block = TailBlock(logical=event.logical, physical=prefix.physical, phase="clean")
    return adopt(state, replace(request, tail=(*request.tail, block), source=source, stale=stale), ownership=ownership)


def evicted(state: State, event: PrefixEvicted) -> State:
    """One reference less; readers keep the block."""
    left = tuple(prefix for prefix in state.pool.prefixes if prefix.number != event.number)
    if len(left) == len(state.pool.prefixes):
        raise Refused(POOL, "PrefixEvicted", "pool", (), f"there is no prefix {event.number}")
    layout = state.pool.layout
    ownership = state.ownership.change(POOL, layout, drop=(Holder("prefix", event.number),))
    freed = ownership.freed_blocks(state.ownership, POOL, layout)
    if freed != event.freed:
        raise Refused(POOL, "PrefixEvicted", "pool", (), "the blocks said to be freed are not those that are free")
    return replace(state, pool=replace(state.pool, prefixes=left), ownership=ownership)
