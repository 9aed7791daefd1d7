"""Random walks through the fold (F2, G3, B6): laws hold after each fact taken, a refusal leaves no trace, and the
relation is the brute-force one, pair by pair."""

from collections import Counter

import numpy as np
import pytest
from tests.ledger.pairs import own_of, pairs_of, shared_of, stale_of
from tests.ledger.walks import Walk
from tests.ledger.worlds import DEVICE_BLOCKS, TWO_LAYERS, WITH_SLIDING, N, frozen

from kvsweep.ledger import laws
from kvsweep.ledger.fold import REDUCE, REDUCE_POOL

SEED, WALKS, BATCHES = 20260916, 16, 600
NEVER_DRAWN = {
    "AckIgnored", "AckRefused", "PlanRefused", "CommandRefused", "DigestRecorded", "RunConfigured", "HandshakeAgreed",
    "HandshakeRefused", "CoordinatorRestarted",
}  # fmt: skip
WALKED: set[int] = set()
TAKEN: Counter[str] = Counter()
REFUSED: Counter[str] = Counter()


def expect_taken(walk: Walk, where: str) -> None:
    """The index over all requests, carried from change to change, says of every block what the pairs say."""
    taken = walk.state.ownership.taken(walk.layout)
    for group in range(walk.layout.groups):
        said = np.flatnonzero(taken.device_blocks(group, np.arange(DEVICE_BLOCKS)))
        held = {block for of, block in (*walk.pairs.own, *walk.pairs.shared) if of == group}
        assert {*said.tolist()} == held, f"{where}: group {group}"
    cpu = {resource[1] for resource, _ in walk.pairs.hold if resource[0] == "cpu"}
    assert {*np.flatnonzero(taken.cpu_blocks(np.arange(N))).tolist()} == cpu, where


def stroll(number: int) -> None:
    layout = WITH_SLIDING if number % 4 == 3 else TWO_LAYERS
    walk = Walk(SEED + number, layout, spoil=0.15)
    for at in range(BATCHES):
        where = f"seed {SEED + number}, batch {at}"
        batch = walk.batch()
        before, kept = walk.state, frozen(walk.state)
        outcome = walk.take(batch)
        assert frozen(before) == kept, f"{where}: the state before was changed by {batch}"
        if outcome == "refused":
            assert walk.state is before, where
            continue
        assert laws.check(walk.state) == [], f"{where}: {batch}"
        assert pairs_of(walk.state) == walk.pairs.hold, f"{where}: {batch}"
        assert own_of(walk.state) == walk.pairs.own, f"{where}: {batch}"
        assert shared_of(walk.state) == (walk.pairs.shared, walk.pairs.shared_cpu), f"{where}: {batch}"
        expect_taken(walk, where)
        held = {key: known for key, known in walk.pairs.stale.items() if known}
        assert {key: known for key, known in stale_of(walk.state).items() if known} == held, f"{where}: {batch}"
        for key, table in walk.pairs.views.items():
            view = walk.state.requests[key.request_id].view
            assert view is not None, where
            physical = view.physical.as_lists()
            slots = {
                layer: list(zip(ids, physical[layer], strict=True)) for layer, ids in view.logical.as_lists().items()
            }
            assert slots == table, where
    WALKED.add(number)
    TAKEN.update(walk.taken)
    REFUSED.update(walk.refused)


@pytest.mark.parametrize("number", range(WALKS))
def test_laws_and_brute_force_agree_after_every_fact_and_refusals_leave_no_trace(number: int) -> None:
    stroll(number)


def test_the_walks_took_and_refused_every_fact_there_is() -> None:
    """Together the walks are no empty sweep. Draws depend on the seed alone, so the counts do not vary."""
    for number in {*range(WALKS)} - WALKED:  # this process ran some of them, or none
        stroll(number)
    drawn = {kind.__name__ for kind in (*REDUCE, *REDUCE_POOL)} - NEVER_DRAWN
    assert drawn - set(TAKEN) == set()
    assert drawn - set(REFUSED) == set()
    assert min(TAKEN[name] for name in ("ResidencyCommitted", "OwnersCommitted", "TransferSettled")) > 50
