"""Illegal facts: whatever the reference refuses the compiled machine declines, and nothing of its state is changed.

Each event of a legal run is offered in forms that are wrong in one place before it is offered as it is.
"""

from collections.abc import Sequence
from types import ModuleType

import numpy as np
import pytest
from msgspec.structs import replace
from tests.histories.test_histories import HISTORIES, events_of
from tests.ledger import (
    test_fold_pool,
    test_fold_retain,
    test_fold_settle,
    test_fold_tail,
    test_fold_upload,
    test_prefix,
    test_stale,
    worlds,
)
from tests.ledger.native.both import Both, expect_taken, walk_both
from tests.ledger.native.recorded import recorded
from tests.ledger.native.variants import variants
from tests.ledger.small_run import Writer
from tests.ledger.worlds import A, B, World
from tests.runtime.storms import Storm

from kvsweep.ledger import compiled
from kvsweep.ledger import events as e
from kvsweep.ledger.errors import LogError
from kvsweep.ledger.events import Event
from kvsweep.ledger.fold import apply
from kvsweep.ledger.ids import POOL, int32_bytes, int32_view
from kvsweep.ledger.state import State
from kvsweep.ledger.store.codec import encode

pytestmark = pytest.mark.skipif(compiled.fold is None, reason="the compiled form is not built here")

SEED = 20260916
EVERY = 10**9
WORLDS: Sequence[ModuleType] = (
    test_fold_pool, test_fold_retain, test_fold_settle, test_fold_tail, test_fold_upload, test_prefix, test_stale,
)  # fmt: skip


def asks_for_gigabytes(event: Event) -> bool:
    """A legal one whose table of sources would have an entry for each of 2**31 blocks."""
    return isinstance(event, e.SourcesRegistered) and bool(np.any(int32_view(event.logical) >= 2**20))


def probe_some(both: Both, event: Event, rng: np.random.Generator, most: int, where: str) -> None:
    wrong = [one for one in variants(event) if not asks_for_gigabytes(one)]
    if len(wrong) > most:
        wrong = [wrong[at] for at in sorted(rng.choice(len(wrong), size=most, replace=False).tolist())]
    for one in wrong:
        both.probe(one, f"{where}, instead of {event}")


def probe_all_along(events: Sequence[Event], seed: int, most: int, name: str) -> Both:
    both, rng = Both(), np.random.default_rng(seed)
    for at, event in enumerate(events, start=1):
        where = f"{name}, seed {seed}, event {at}"
        if not isinstance(event, e.RunConfigured):
            probe_some(both, event, rng, most, where)
        both.offer(event, where)
    expect_taken(both)
    return both


def probe_out_of_turn(events: Sequence[Event], name: str) -> Both:
    """In every state, what was right in another one: the next fact of the same stream there."""
    both = Both()
    for at, event in enumerate(events, start=1):
        where = f"{name}, after event {at}"
        both.offer(event, where)
        known = both.state.requests.get(event.request.request_id)
        seq = both.state.pool.seq if event.request == POOL or known is None else known.seq
        for other in events:
            both.probe(replace(other, request=event.request, seq=seq), where)
    expect_taken(both)
    return both


def stroll(seed: int, batches: int, most: int) -> Both:
    rng = np.random.default_rng(seed)
    both = walk_both(
        seed, batches=batches, spoil=0.0, before=lambda both, event, where: probe_some(both, event, rng, most, where)
    )
    expect_taken(both)
    return both


@pytest.mark.parametrize("seed", [SEED, SEED + 1])
def test_walks_with_a_fault_in_every_fact(seed: int) -> None:
    both = stroll(seed, 300, 16)
    assert sum(both.refused.values()) > 2000


@pytest.mark.full
@pytest.mark.parametrize("seed", range(SEED + 2, SEED + 42))
def test_many_walks_with_every_fault_in_every_fact(seed: int) -> None:
    stroll(seed, 600, EVERY)


def test_every_fault_in_the_small_run(written: Writer) -> None:
    both = probe_all_along(written.events, SEED, EVERY, "small run")
    assert sum(both.refused.values()) > 2000


def test_every_fault_in_a_run_that_meets_what_is_rare() -> None:
    both = probe_all_along(recorded(), SEED, EVERY, "recorded")
    assert sum(both.refused.values()) > 2000


@pytest.mark.parametrize("name", HISTORIES)
def test_every_fault_in_histories(name: str) -> None:
    probe_all_along(events_of(name), SEED, EVERY, name)


def test_every_fact_of_short_runs_out_of_turn(written: Writer) -> None:
    assert sum(probe_out_of_turn(written.events, "small run").refused.values()) > 2000
    probe_out_of_turn(recorded(), "recorded")
    for name in HISTORIES:
        probe_out_of_turn(events_of(name), name)


@pytest.mark.parametrize("most", [4, pytest.param(EVERY, marks=pytest.mark.full)])
def test_faults_in_the_storm_of_a_driver(most: int) -> None:
    events = [event for batch in Storm(SEED).run(200).log.batches for event in batch]
    probe_all_along(events, SEED, most, f"Storm({SEED})")


def test_a_table_that_reaches_too_far_is_left_to_the_reference() -> None:
    """Registered, stored, or taken over from a shared prefix."""
    w = World()
    w.open(B, blocks=0)
    both = Both(w.state)
    fields = {"logical": int32_bytes([2**24]), "source": int32_bytes([11])}
    both.probe(w.event(e.SourcesRegistered, A, fields))
    w.tail(2**24, [0])
    operation = w.store([2**24], [11])
    w.stored(operation)
    both.go_on(w.state)
    stored = w.event(e.StoreCompleted, A, {"operation": operation})
    both.offer(stored)
    both.offer(e.PrefixPublished(request=A, seq=stored.seq + 1, logical=2**24, number=1, key="k"))
    both.offer(w.event(e.PrefixAttached, B, {"logical": 2**24, "number": 1}))
    assert both.declined == {"SourcesRegistered": 1, "StoreCompleted": 1, "PrefixAttached": 1}


# ---- the reference's own tests of legal and illegal facts, once more at a door where both are asked


@pytest.fixture(autouse=True)
def door_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    def apply_both(state: State, event: Event) -> State:
        try:
            encode(event)
        except LogError:  # it cannot be written, so no machine is asked about it
            return apply(state, event)
        both = Both(state)
        both.offer(event)
        expect_taken(both)
        return both.state

    monkeypatch.setattr(worlds, "apply", apply_both)


for _module in WORLDS:
    globals().update({f"{name}_by_both": test for name, test in vars(_module).items() if name.startswith("test_")})
