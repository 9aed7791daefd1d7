"""Snapshots as the driver takes them: opening begins there, the digest goes on, and files of closed lives go."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.runtime.recovered import NEWER, expect_drained
from tests.runtime.rig import Ids, free_sources, frozen, make_settings, selection
from tests.runtime.storms import LAYOUT, WHOLE, WORLD

from kvsweep.ledger.errors import LogCorrupt
from kvsweep.ledger.fold import apply
from kvsweep.ledger.ids import RequestKey, int32_bytes
from kvsweep.ledger.inspect.replay import Ledger
from kvsweep.ledger.messages import (
    Acknowledge,
    Acknowledged,
    Done,
    Finish,
    PublishKeepMap,
    RegisterSources,
    Release,
    Select,
)
from kvsweep.ledger.state import EMPTY
from kvsweep.ledger.store.digest import Digest
from kvsweep.ledger.store.files import files_of
from kvsweep.ledger.store.open import open_log
from kvsweep.runtime.driver import Driver
from kvsweep.runtime.recovery import fold_log
from kvsweep.runtime.settings import Settings

WANT: Ids = {0: [0, 2], 1: [1, 2]}


def settings(path: Path, **log: Any) -> Settings:
    given = {"url": f"sqlite:{path}", "writer": "inline", "digest_every": 5, "snapshot_events": 10, **log}
    return make_settings(log=given)


def live(driver: Driver, name: str) -> None:
    """One request's whole life: an upload that every rank completes, its acknowledgement, the end."""
    key = driver.open_request(name)
    source = int32_bytes(free_sources(driver.pools, WHOLE))
    driver.handle(RegisterSources(request=key, logical=int32_bytes(range(WHOLE)), source=source))
    wanted = selection(LAYOUT, key, 1, WANT, whole=WHOLE)
    operation = driver.handle(Select(selection=wanted, idempotency_key="")).operation
    assert operation is not None
    for rank, epoch in driver.state.pool.ranks:
        driver.handle(Done(operation=operation, rank=rank, process_epoch=epoch, outcome="completed"))
    serve(driver)
    driver.handle(Finish(request=key))
    serve(driver)
    known = driver.state.request(key)
    assert known is not None
    assert known.life == "CLOSED"


def serve(driver: Driver) -> None:
    driver.log.flush()
    while effects := driver.poll():
        for effect in effects:
            if isinstance(effect, Release):
                driver.release(effect)
            if isinstance(effect, PublishKeepMap | Acknowledge):
                epoch = driver.state.pool.producer_epoch
                driver.handle(Acknowledged(operation=effect.operation, process_epoch=epoch))
        driver.log.flush()


def begun(path: Path, lives: int, **log: Any) -> Driver:
    driver = Driver.open(settings(path, **log), WORLD, clock=lambda: 0.0)
    for number in range(lives):
        live(driver, f"r{number}")
    return driver


@pytest.mark.parametrize("writer", ["inline", "thread"])
def test_opening_folds_only_what_stands_behind_the_newest_snapshot(tmp_path: Path, writer: str) -> None:
    driver = begun(tmp_path / "ledger.db", 6, writer=writer)
    driver.close()
    log = open_log(f"sqlite:{tmp_path / 'ledger.db'}", read_only=True)
    snapshot = log.snapshot()
    assert snapshot is not None
    assert 10 <= snapshot.position < log.durable()
    state, digest = EMPTY, Digest()
    for record in log.read():
        state = apply(state, record.event)
        digest.update(record.event)
        if record.position == snapshot.position:
            assert (snapshot.digest, frozen(snapshot.state)) == (digest.value(state), frozen(state))
    folded = fold_log(log)
    assert frozen(folded.state) == frozen(state)
    assert folded.digest.value(folded.state) == digest.value(state)
    log.close()


def test_a_run_that_is_gone_on_with_from_a_snapshot_has_the_digest_of_the_whole(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    begun(path, 4).close()
    again = Driver.open(settings(path), NEWER, clock=lambda: 0.0)
    live(again, "later")
    expect_drained(again, "after all lives")
    again.close()
    with Ledger.open(f"sqlite:{path}") as ledger:
        verified = ledger.verify()
    assert (verified.ok, verified.message) == (True, "")
    assert verified.recorded_digest == again.final_digest


def test_files_of_closed_lives_go_and_the_rest_is_gone_on_with(tmp_path: Path) -> None:
    """The first events are gone for good: what they gave stands in the snapshot before the first one kept."""
    path = tmp_path / "ledger.db"
    bounds = {"file_bytes": 1, "keep_bytes": 400_000}
    driver = begun(path, 12, **bounds)
    driver.close()
    assert files_of(str(path))[0] > 1
    again = Driver.open(settings(path, **bounds), NEWER, clock=lambda: 0.0)
    assert again.state.pool.run == driver.state.pool.run
    live(again, "later")
    key = again.open_request("r3")
    assert key == RequestKey("r3", 2), "the number of its first life is remembered"
    again.close()
    with Ledger.open(f"sqlite:{path}") as ledger:
        assert ledger.header.first > 1
        verified = ledger.verify()
        assert (verified.ok, verified.message) == (True, "")
        assert verified.recorded_digest == again.final_digest
        assert RequestKey("r0", 1) not in ledger.requests()


def test_an_event_behind_the_snapshot_that_does_not_fold_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    driver = begun(path, 3)
    last = driver.log.durable()
    run = driver.state.pool.run
    assert run is not None
    driver.log.append([replace(run, seq=driver.state.pool.seq)])
    driver.log.close()
    with pytest.raises(LogCorrupt, match=f"position {last + 1}: .*RunConfigured"):
        Driver.open(settings(path), NEWER, clock=lambda: 0.0)
