"""Random walks through the fold (F2, G3, B6): laws hold after each fact taken, a refusal leaves no trace, and the
relation is the brute-force one, pair by pair, with all that is counted of it."""

from collections import Counter

import numpy as np
import pytest
from tests.ledger.pairs import counts_of, own_of, pairs_of, shared_of, stale_of, totals_of
from tests.ledger.walks import Walk, refused_in_a_draft
from tests.ledger.worlds import DEVICE_BLOCKS, TWO_LAYERS, WITH_SLIDING, N, frozen, whole

from kvsweep.ledger import laws
from kvsweep.ledger.fold import REDUCE, REDUCE_POOL
from kvsweep.ledger.standing import Standing

SEED, WALKS, BATCHES = 20260916, 16, 600
NEVER_DRAWN = {
    "AckIgnored", "AckRefused", "PlanRefused", "CommandRefused", "DigestRecorded", "RunConfigured", "HandshakeAgreed",
    "HandshakeRefused", "CoordinatorRestarted",
}  # fmt: skip
WALKED: set[int] = set()
TAKEN: Counter[str] = Counter()
REFUSED: Counter[str] = Counter()


def expect_counted(walk: Walk, where: str) -> None:
    """What is counted, carried from change to change, is what the pairs come to."""
    pairs, index = walk.pairs, walk.standing.index()
    for group in range(walk.layout.groups):
        held = {block for of, block in (*pairs.own, *pairs.shared) if of == group}
        assert list(index.device[group]) == [block in held for block in range(DEVICE_BLOCKS)], f"{where}: {group}"
    cpu = Counter(resource[1] for resource, _ in pairs.hold if resource[0] == "cpu")
    assert np.frombuffer(index.cpu, dtype="<u2").tolist() == [cpu[block] for block in range(N)], where
    assert counts_of(walk.state) == pairs.counts(), where
    assert totals_of(walk.state) == pairs.totals(), where
    assert list(walk.standing.live) == list(Standing(walk.state).live), where


def stroll(number: int) -> None:
    layout = WITH_SLIDING if number % 4 == 3 else TWO_LAYERS
    walk = Walk(SEED + number, layout, spoil=0.15)
    for at in range(BATCHES):
        where = f"seed {SEED + number}, batch {at}"
        batch = walk.batch()
        before, kept = walk.state, frozen(walk.state)
        outcome = walk.take(batch)
        assert frozen(before) == kept, f"{where}: the state before was changed by {batch}"
        assert whole(walk.standing.state) == whole(walk.state), f"{where}: what stands is another state: {batch}"
        expect_counted(walk, where)
        if outcome == "refused":
            assert walk.state is before, where
            with_it, without_it = refused_in_a_draft(walk.standing, batch)
            assert with_it == without_it, f"{where}: {batch}"
            continue
        assert laws.check(walk.state) == [], f"{where}: {batch}"
        assert pairs_of(walk.state) == walk.pairs.hold, f"{where}: {batch}"
        assert own_of(walk.state) == walk.pairs.own, f"{where}: {batch}"
        assert shared_of(walk.state) == (walk.pairs.shared, walk.pairs.shared_cpu), f"{where}: {batch}"
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
