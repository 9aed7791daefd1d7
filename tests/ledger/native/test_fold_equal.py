"""The compiled fold beside the reference: after every event of every kind of run both have the same state."""

from collections import Counter
from pathlib import Path

import pytest
from tests.histories.test_histories import HISTORIES, events_of
from tests.ledger.native.both import LEFT_TO_THE_REFERENCE, Both, expect_taken, fold_both, walk_both
from tests.ledger.native.recorded import recorded
from tests.ledger.small_run import Writer
from tests.ledger.store.test_golden import SCHEMAS, golden
from tests.ledger.worlds import A, World
from tests.runtime.storms import Storm
from tests.scenarios.demo.test_chaos import storm

from kvsweep.ledger import compiled, phases
from kvsweep.ledger import events as e
from kvsweep.ledger.errors import KvsweepError
from kvsweep.ledger.fold import REDUCE, REDUCE_POOL
from kvsweep.ledger.ids import POOL, RequestKey
from kvsweep.ledger.inspect.replay import Ledger
from kvsweep.ledger.state import CLOSED_KEPT
from kvsweep.ledger.store.codec import EVENT_TYPES
from kvsweep.ledger.store.open import open_log

pytestmark = pytest.mark.skipif(compiled.fold is None, reason="the compiled form is not built here")

SEED, BATCHES = 20260916, 600
WALKED: Counter[str] = Counter()


def stroll(seed: int) -> Counter[str]:
    both = walk_both(seed, batches=BATCHES, spoil=0.15)
    expect_taken(both)
    return both.taken


def test_the_tables_are_those_of_the_reference() -> None:
    names = {kind.__struct_config__.tag: name for name, kind in EVENT_TYPES.items()}
    tables = {
        machine: {(phase, names[tag]): after for (phase, tag), after in table.items()}
        for machine, table in compiled.fold.tables().items()  # type: ignore[union-attr]
    }
    assert tables == phases.TABLES


@pytest.mark.parametrize("seed", range(SEED, SEED + 4))
def test_walks(seed: int) -> None:
    WALKED.update(stroll(seed))


@pytest.mark.full
@pytest.mark.parametrize("seed", range(SEED + 4, SEED + 100))
def test_many_walks(seed: int) -> None:
    stroll(seed)


def test_the_machine_takes_every_fact_that_is_not_left_to_the_reference(written: Writer) -> None:
    """Walks and the small run together are no empty sweep."""
    for seed in range(SEED, SEED + 4) if not WALKED else ():  # another process ran them
        WALKED.update(stroll(seed))
    taken = WALKED + fold_both(written.events).taken
    noted = {"HandshakeAgreed", "HandshakeRefused", "CoordinatorRestarted"}
    left = {kind.__name__ for kind in LEFT_TO_THE_REFERENCE}
    assert {kind.__name__ for kind in (*REDUCE, *REDUCE_POOL)} - noted - left == set(taken) - noted


def test_a_run_that_meets_what_is_rare() -> None:
    fold_both(recorded())


@pytest.mark.parametrize("name", HISTORIES)
def test_histories(name: str) -> None:
    fold_both(events_of(name))


@SCHEMAS
def test_old_ledgers(schema: int, tmp_path: Path) -> None:
    log = open_log(f"sqlite:{golden(schema, tmp_path)}", read_only=True)
    fold_both(record.event for record in log.read())
    log.close()


def test_storms_of_a_driver() -> None:
    for seed in range(SEED, SEED + 4):
        fold_both(event for batch in Storm(seed).run(200).log.batches for event in batch)


@pytest.mark.parametrize("seed", [3, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(4, 20))])
def test_a_demo_in_a_storm_of_three_ranks(seed: int, tmp_path: Path) -> None:
    path = f"sqlite:{tmp_path / 'storm.ledger'}"
    storm.__wrapped__(seed, path)
    with Ledger.open(path) as ledger:
        fold_both(record.event for record in ledger.events())


def test_the_oldest_closed_request_is_forgotten_and_its_epoch_raises_the_floor() -> None:
    world = World(opened=False)
    lives = [RequestKey("again", epoch) for epoch in (1, 2, 3)]
    lives += [RequestKey(f"r{number}", 1) for number in range(CLOSED_KEPT)]
    lives += [RequestKey("later", 4), RequestKey("r3", 2)]
    for at, key in enumerate(lives):
        steps = ((e.RequestOpened, {"pool_generation": 1, "rows": 2}), (e.RequestFinished, {}), (e.RequestClosed, {}))
        for seq, (fact, fields) in enumerate(steps):
            event = fact(request=key, seq=seq, **fields)
            if at in (2, CLOSED_KEPT + 2, CLOSED_KEPT + 4):  # so large a state takes its time to be compared
                if seq == 0:
                    both = Both(world.state)
                both.offer(event)
                expect_taken(both)
            world.emit(fact, key, **fields)
    assert world.state.pool.epoch_floor == 3
    assert both.state == world.state


def test_a_state_without_a_configured_pool_is_no_machine_yet() -> None:
    both = Both()
    with pytest.raises(KvsweepError, match="an unconfigured pool"):
        both.offer(e.RequestFinished(request=A, seq=0))
    with pytest.raises(KvsweepError, match="an unconfigured pool"):
        both.offer(e.HandshakeAgreed(request=POOL, seq=0, peer="p", theirs="{}"))
