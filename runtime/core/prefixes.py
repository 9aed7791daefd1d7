"""Shared prefix blocks: publish what is whole and clean, attach what is there, evict the oldest references."""

from kvsweep.ledger import events as e
from kvsweep.ledger.draft import Draft
from kvsweep.ledger.fold import emit, emit_in
from kvsweep.ledger.ids import HOLE, POOL, int32_view
from kvsweep.ledger.messages import AttachPrefix, EvictPrefix, PublishPrefix
from kvsweep.ledger.ownership import Holder
from kvsweep.ledger.state import PREFIXES_KEPT
from kvsweep.runtime.core.expect import Context, expect_count


def publish(draft: Draft, context: Context, command: PublishPrefix) -> None:
    """Blocks that are not clean and whole, or whose name is known, are passed over: sharing is a chance, not a duty."""
    request, known = draft.mine(command.request), {prefix.key for prefix in draft.pool.prefixes}
    for logical, key in command.keys:
        block = next((b for b in request.tail if b.logical == logical and b.phase == "clean"), None)
        if block is None or key in known or HOLE in block.physical or len(known) >= PREFIXES_KEPT:
            continue
        groups = draft.groups(command.request)
        if all(area in int32_view(groups[group].blocks) for group, area in enumerate(block.physical)):
            number = draft.pool.next_prefix
            emit(draft, e.PrefixPublished, request, logical=logical, number=number, key=key)
            known.add(key)


def attach(draft: Draft, context: Context, command: AttachPrefix) -> None:
    """From logical block 0 on, up to the first name that is not in the cache."""
    request, known = draft.mine(command.request), {prefix.key: prefix for prefix in draft.pool.prefixes}
    for logical, key in enumerate(command.keys):
        prefix = known.get(key)
        if prefix is None or prefix.logical != logical:
            return
        emit(draft, e.PrefixAttached, request, logical=logical, number=prefix.number)


def evict(draft: Draft, context: Context, command: EvictPrefix) -> None:
    expect_count(POOL, "EvictPrefix", "the pool", "blocks", command.blocks)
    evict_oldest(draft, command.blocks)


def evict_oldest(draft: Draft, blocks: int) -> None:
    """Oldest references first. A later request attaches up to the first block that is missing."""
    for prefix in draft.pool.prefixes[:blocks]:
        freed = draft.freed_by(POOL, Holder("prefix", prefix.number)).freed
        emit_in(draft, e.PrefixEvicted, POOL, number=prefix.number, freed=freed)
