"""Shared prefix blocks: publish what is whole and clean, attach what is there, evict the oldest references."""

from kvsweep.ledger import events as e
from kvsweep.ledger.ids import HOLE, POOL
from kvsweep.ledger.messages import AttachPrefix, PublishPrefix
from kvsweep.ledger.ownership import Holder
from kvsweep.ledger.state import PREFIXES_KEPT
from kvsweep.runtime.core.batch import Batch
from kvsweep.runtime.core.upload import expect_count


def publish(batch: Batch, command: PublishPrefix) -> None:
    """Blocks that are not clean and whole, or whose name is known, are passed over: sharing is a chance, not a duty."""
    layout = batch.state.pool.layout
    for logical, key in command.keys:
        pool, request = batch.state.pool, batch.request(command.request)
        known = {prefix.key for prefix in pool.prefixes}
        block = next((b for b in request.tail if b.logical == logical and b.phase == "clean"), None)
        if block is None or key in known or HOLE in block.physical or len(known) >= PREFIXES_KEPT:
            continue
        owned = batch.state.ownership.owned(command.request, layout)
        if all(area in owned[group] for group, area in enumerate(block.physical)):
            batch.emit(e.PrefixPublished, command.request, logical=logical, number=pool.next_prefix, key=key)


def attach(batch: Batch, command: AttachPrefix) -> None:
    """From logical block 0 on, up to the first name that is not in the cache."""
    known = {prefix.key: prefix for prefix in batch.state.pool.prefixes}
    for logical, key in enumerate(command.keys):
        prefix = known.get(key)
        if prefix is None or prefix.logical != logical:
            return
        batch.emit(e.PrefixAttached, command.request, logical=logical, number=prefix.number)


def evict(batch: Batch, blocks: int) -> None:
    """Oldest references first. A later request attaches up to the first block that is missing."""
    expect_count(POOL, "EvictPrefix", "the pool", "blocks", blocks)
    for prefix in batch.state.pool.prefixes[:blocks]:
        layout, before = batch.state.pool.layout, batch.state.ownership
        holder = Holder("prefix", prefix.number)
        freed = before.change(POOL, layout, drop=(holder,)).freed_blocks(before, POOL, layout)
        batch.emit(e.PrefixEvicted, POOL, number=prefix.number, freed=freed)
