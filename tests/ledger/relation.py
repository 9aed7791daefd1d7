"""The relation changed by hand, as reducers change it, and what came free between two of its values."""

from collections.abc import Iterable, Mapping

import numpy as np

from kvsweep.ledger import events as e
from kvsweep.ledger.ids import POOL, Int32, RequestKey
from kvsweep.ledger.layout import Layout
from kvsweep.ledger.ownership import Holder, Holding, Ownership
from kvsweep.ledger.standing import Standing
from kvsweep.ledger.state import PoolState, State

BLOCKS = 256


def change(
    before: Ownership,
    key: RequestKey,
    layout: Layout,
    *,
    put: Mapping[Holder, Holding] | None = None,
    drop: Iterable[Holder] = (),
    reserve: tuple[bytes, ...] = (),
) -> Ownership:
    run = e.RunConfigured(
        request=POOL,
        seq=0,
        layout=layout,
        ranks=((0, 1),),
        producer_epoch=1,
        device_blocks=(BLOCKS,) * layout.groups,
        cpu_full_blocks=BLOCKS,
        cpu_total_blocks=BLOCKS,
        evidence="{}",
    )
    standing = Standing(State(pool=PoolState(run=run), ownership=before))
    draft = standing.draft()
    draft.change(key, put=put, drop=tuple(drop), reserve=reserve)
    standing.stage(draft)
    standing.adopt()
    return standing.state.ownership


def freed_blocks(before: Ownership, after: Ownership, key: RequestKey, layout: Layout) -> list[list[int]]:
    """Per group: blocks that were the request's own, or shared, and are nobody's any more."""
    found = []
    for group in range(layout.groups):
        was, now = (
            {*state.owned(key, layout)[group].tolist(), *state.shared_blocks(layout)[group].tolist()}
            for state in (before, after)
        )
        found.append(sorted(was - now))
    return found


def freed_sources(before: Ownership, after: Ownership) -> list[int]:
    """CPU blocks that somebody held and nobody holds any more."""

    def held(relation: Ownership) -> Int32:
        parts = [relation.sources(key) for key in relation.held]
        return np.unique(np.concatenate(parts)) if parts else np.empty(0, dtype=np.int32)

    return np.setdiff1d(held(before), held(after)).tolist()
