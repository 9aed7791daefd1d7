"""Watchers of a driver: told what is recorded, and nothing that they do undoes it."""

import pytest
from tests.runtime.durable import FIRST, finish_upload, opened, select, start

from kvsweep.ledger import events as e
from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import int32_view
from kvsweep.ledger.inspect.replay import Ledger
from kvsweep.ledger.store.memory import MemoryLog


def test_g3_what_a_watcher_raises_frees_no_block_of_the_turn_that_it_was_told_of() -> None:
    log = MemoryLog()
    driver = start(log)
    first, second = opened(driver, "a"), opened(driver, "b")
    failing = [first]

    def watch(event: Event) -> None:
        if isinstance(event, e.BlocksLeased) and event.request in failing:
            failing.remove(event.request)
            raise RuntimeError("a watcher's own fault")

    driver.watch(watch)
    with pytest.raises(RuntimeError, match=r"^a watcher's own fault$"):
        select(driver, first, FIRST)
    opened_upload = driver.state.requests["a"].upload.open
    assert opened_upload is not None  # it is recorded, and goes on
    held = int32_view(driver.state.ownership.own[first][0]).size
    assert driver.pools.device.free == (16 - held,)
    finish_upload(driver, select(driver, second, FIRST))
    driver.check_laws()
    driver.record_digest()
    verified = Ledger(log).verify()
    assert verified.ok
    assert verified.recorded_digest is not None
