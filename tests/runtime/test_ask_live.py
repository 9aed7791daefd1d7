"""A serving loop asks the ledger that it is writing: in memory, in a file, and in a file that a thread writes."""

from pathlib import Path

import pytest
from tests.runtime.durable import FIRST, SECOND, finish_upload, opened, select, start

from kvsweep.ledger.inspect.replay import Ledger
from kvsweep.ledger.messages import Done
from kvsweep.ledger.store.log import QueueBounds
from kvsweep.ledger.store.open import open_log
from kvsweep.ledger.store.query import Block
from kvsweep.runtime.driver import Driver


@pytest.fixture(params=["memory", "sqlite", "sqlite, written by a thread"])
def driver(request: pytest.FixtureRequest, tmp_path: Path) -> Driver:
    url = "memory:" if request.param == "memory" else f"sqlite:{tmp_path / 'ledger.db'}"
    return start(open_log(url, queue=QueueBounds() if "thread" in request.param else None), log={"url": "memory:"})


def test_f2_a_loop_learns_why_a_report_was_ignored_while_it_runs(driver: Driver) -> None:
    """F2: judged again from what was stored so far."""
    ledger, key = Ledger(driver.log), opened(driver)
    turn = select(driver, key, FIRST)
    finish_upload(driver, turn)
    assert turn.operation is not None
    rank, epoch = driver.state.pool.ranks[0]
    driver.handle(Done(operation=turn.operation, rank=rank, process_epoch=epoch, outcome="completed"))
    found = ledger.explain(next(ledger.events(types=["AckIgnored"])).position)
    assert found.decision is not None
    assert found.decision.verdict == "duplicate"
    assert [fact.type for fact in found.facts].count("RankTransferred") == 2
    assert ledger.state() == driver.state
    assert ledger.state(lives=(key,)).request(key) == driver.state.request(key)

    select(driver, key, SECOND)  # the run goes on, and the same ledger sees it
    assert ledger.state() == driver.state
    assert ledger.explain(ledger.last()).event["type"] == "TransferStarted"
    driver.close()


def test_b6_a_loop_learns_who_holds_a_block_while_it_runs(driver: Driver) -> None:
    """B6: as the state has it at this moment."""
    ledger, key = Ledger(driver.log), opened(driver)
    finish_upload(driver, select(driver, key, FIRST))
    view = driver.state.requests["a"].view
    assert view is not None
    block = int(view.physical.row(0)[0])
    life = ledger.why_block(0, block)
    assert [(owner.request, owner.until) for owner in life.owners] == [("a", None)]
    assert {hold.kind for hold in life.at(ledger.last())} == {"view"}
    assert {hold.logical for hold in life.at(ledger.last()) if hold.layer == 0} == {int(view.logical.row(0)[0])}
    named = [record.event for record in ledger.events(block=Block(0, block))]
    assert [type(event).__name__ for event in named] == ["BlocksLeased"]
    assert ledger.stats().events == ledger.last()
    driver.close()
