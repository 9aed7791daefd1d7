"""A ledger that has events already: the state they give, the pools as they were, and what the ended processes left.

Recovery is the fold alone. Whatever an earlier process had in hand beside the ledger (steps, effects, blocks reserved
for a plan that was never recorded) ended with it, and so did every rank's memory.
"""

import numpy as np
from msgspec import Struct

from kvsweep.ledger import events as e
from kvsweep.ledger.errors import LogError
from kvsweep.ledger.ids import POOL, Int32
from kvsweep.ledger.phases import PASSED_THROUGH
from kvsweep.ledger.state import PoolState, State
from kvsweep.ledger.store.digest import Digest
from kvsweep.ledger.store.folding import Folding, hash_events
from kvsweep.ledger.store.log import LogStore
from kvsweep.runtime.run_config import RunConfig
from kvsweep.transports.pools import Pools

NONE: Int32 = np.empty(0, dtype=np.int32)


class Folded(Struct, frozen=True, kw_only=True):
    """A ledger's content: the state after its last event and the running digest over all of them."""

    state: State
    digest: Digest


def fold_log(log: LogStore) -> Folded:
    """Fold what is stored behind the newest snapshot, or all of it.

    Raises LogCorrupt with the position of the first event that is illegal there.
    """
    snapshot = log.snapshot()
    folding = Folding() if snapshot is None else Folding(snapshot.state, snapshot.position)
    digest = Digest(b"" if snapshot is None else snapshot.chain)
    for piece in log.pieces(after=folding.position):
        first = folding.position + 1
        folding.follow(piece)
        hash_events(digest, piece, first, folding.position)
    return Folded(state=folding.state, digest=digest)


def newer(world: RunConfig, log: LogStore) -> RunConfig:
    """The world in processes that began after all that the ledger knows; as it is for a ledger without events."""
    ranks: dict[int, int] = {}
    producer_epoch = 0
    for record in log.read(POOL) if log.durable() else ():
        match record.event:
            case e.RunConfigured(ranks=configured, producer_epoch=producer_epoch):
                ranks.update(configured)
            case e.RankRestarted(rank=rank, process_epoch=process_epoch):
                ranks[rank] = process_epoch
            case e.ProducerRestarted(process_epoch=producer_epoch):
                pass
            case _:
                pass
    return world.newer_than(PoolState(ranks=tuple(sorted(ranks.items())), producer_epoch=producer_epoch))


def recovered(log: LogStore, world: RunConfig) -> Folded:
    """What the ledger gives, once it is known that `world` may go on with it. Raises LogError."""
    folded = fold_log(log)
    world.expect_continues(folded.state.pool)
    _expect_whole(folded.state)
    return folded


def _expect_whole(state: State) -> None:
    """Raise LogError where the last batch is not whole: no process could have seen such a state, so none can go on."""
    for name, request in state.requests.items():
        if request.upload.phase in PASSED_THROUGH:
            where = f"the upload of {name} is {request.upload.phase.lower()}"
            raise LogError(f"the ledger ends inside a batch and has to be repaired first: {where}")


def pools_of(world: RunConfig, state: State) -> Pools:
    """Free lists that have given away just what the relation says is held. Raises LogError where that cannot be."""
    pools, ownership, layout = world.pools(), state.ownership, world.layout
    for group, pool in enumerate(pools.device.groups):
        held = [ownership.owned(key, layout)[group] for key in ownership.own] + [ownership.shared_blocks(layout)[group]]
        for blocks in held:
            if not pool.claim(blocks):
                raise LogError(f"{pool.name}: the ledger says that {blocks.tolist()} are held, which cannot be")
    sources = np.unique(np.concatenate([ownership.sources(key) for key in ownership.held] or [NONE]))
    full = sources < world.cpu_full_blocks
    for pool, blocks in ((pools.cpu.full, sources[full]), (pools.cpu.copies, sources[~full])):
        if not pool.claim(blocks):
            raise LogError(f"{pool.name}: the ledger says that {blocks.tolist()} are held, which cannot be")
    return pools
