"""F2: the ACK oracle on reports and event lists written by hand; every verdict, and every way to record it wrongly."""

from typing import Any

import pytest
from tests.scenarios.verify.checkers.story import PRODUCER, A, Story, operation

from kvsweep.ledger import events as e
from kvsweep.ledger.ids import POOL, Operation, RequestKey
from kvsweep.ledger.messages import Acknowledged, Done
from kvsweep.scenarios.verify.checkers.acks import LIVES_KEPT, Acks

BOTH = {0: [0, 1], 1: [0, 1]}


def oracle(story: Story) -> Acks:
    """Has seen the story; that nothing had arrived for its reports is forgotten."""
    acks = Acks()
    for event in story.events:
        acks.see(event)
    acks.found.clear()
    return acks


def moving() -> Story:
    return Story().opened().leased(1, BOTH, BOTH, new=(0, 1))


def report(number: int = 1, rank: int = 0, outcome: str = "completed", **fields: Any) -> Done:
    epoch = fields.pop("process_epoch", {0: 10, 1: 11}.get(rank, 0))
    op: Operation = fields.pop("operation", operation(number))
    return Done(operation=op, rank=rank, process_epoch=epoch, outcome=outcome)


def changed(**fields: Any) -> Operation:
    base = {"request": A, "operation_id": 1, "pool_generation": 1, "map_revision": 0}
    return Operation(**{**base, **fields})


@pytest.mark.parametrize(
    ("story", "done", "expected"),
    [
        (moving(), report(), "applied"),
        (moving(), report(outcome="failed"), "applied"),
        (moving().moved(1, ranks=(0,)), report(), "duplicate"),
        (moving().moved(1, ranks=(0,)), report(outcome="failed"), "conflict"),
        (moving().moved(1, ranks=(0,)), report(rank=1), "applied"),
        (moving(), report(rank=2), "conflict"),
        (moving(), report(outcome="done"), "conflict"),
        (moving(), report(outcome="epoch_ended"), "conflict"),
        (moving(), report(operation=changed(map_revision=1)), "conflict"),
        (moving(), report(operation=changed(pool_generation=2)), "conflict"),
        (moving(), report(number=2), "future"),
        (moving(), report(operation=changed(request=RequestKey("a", 2))), "future"),
        (moving(), report(operation=changed(request=RequestKey("nobody", 1))), "future"),
        (moving(), report(process_epoch=12), "future"),
        (moving(), report(process_epoch=9), "stale"),
        (moving().add(e.UploadAborted, operation=operation(1), reason="r"), report(outcome="cancelled"), "applied"),
        (
            moving().add(e.UploadAborted, operation=operation(1), reason="r").settled(1, 0).settled(1, 1),
            report(outcome="cancelled"),
            "duplicate",
        ),
        (
            moving().add(e.UploadAborted, operation=operation(1), reason="r").settled(1, 0).settled(1, 1),
            report(outcome="completed"),
            "stale",
        ),
        (moving().moved(1).committed(1), report(), "duplicate"),
        (moving().moved(1).committed(1).acknowledged(1), report(), "duplicate"),
        (
            moving().moved(1).committed(1).acknowledged(1)
            .uploaded(2, {0: [2], 1: []}, {0: [2], 1: []}, new=(2,), row=1, generation=2, revision=1),
            report(),
            "stale",
        ),
        (moving().add(e.RequestFinished).add(e.RequestClosed), report(), "stale"),
    ],
)  # fmt: skip
def test_f2_each_row_of_the_table(story: Story, done: Done, expected: str) -> None:
    assert oracle(story).arrived(done) == expected


def test_f2_a_lost_rank_and_a_new_process() -> None:
    acks = oracle(moving().add(e.RankLost, POOL, rank=0, process_epoch=10, pool_generation=2))
    assert acks.arrived(report()) == "stale"
    acks = oracle(moving().add(e.RankRestarted, POOL, rank=0, process_epoch=12, pool_generation=2))
    assert acks.arrived(report()) == "stale"
    assert acks.arrived(report(process_epoch=12)) == "conflict"


@pytest.mark.parametrize(
    ("story", "number", "epoch", "expected"),
    [
        (moving(), 1, PRODUCER, "stale"),
        (moving().moved(1).committed(1), 1, PRODUCER, "applied"),
        (moving().moved(1).committed(1), 1, PRODUCER - 1, "stale"),
        (moving().moved(1).committed(1), 1, PRODUCER + 1, "future"),
        (moving().moved(1).committed(1), 2, PRODUCER, "future"),
        (moving().moved(1).committed(1).acknowledged(1), 1, PRODUCER, "duplicate"),
    ],
)
def test_f2_the_producers_report_has_the_same_table(story: Story, number: int, epoch: int, expected: str) -> None:
    assert oracle(story).arrived(Acknowledged(operation=operation(number), process_epoch=epoch)) == expected


def heard(story: Story, done: Done, record: type[e.Event] | None = None, **fields: Any) -> list[str]:
    """The report arrives after the story, and this is recorded of it."""
    acks = oracle(story)
    acks.arrived(done)
    if record is not None:
        same = {"operation": done.operation, "rank": done.rank, "process_epoch": done.process_epoch, **fields}
        acks.see(record(request=A, seq=0, **same))
    acks.answered()
    return [one.detail for one in acks.found]


MOVED = {"h2d_bytes": 0, "unpack_bytes": 0, "table_updates": 0}
REFUSED = {"outcome": "completed", "rule": "r", "expected": "", "got": ""}


def test_f2_what_is_recorded_rightly_passes() -> None:
    assert heard(moving(), report(), e.RankTransferred, **MOVED) == []
    assert heard(moving(), report(number=2), e.AckRefused, verdict="future", **REFUSED) == []


def test_f2_every_wrong_record_is_a_break() -> None:
    who = "completed of rank 0, process epoch {}, on operation {}"
    assert heard(moving(), report()) == [f"nothing was recorded for {who.format(10, 1)}, expected applied"]
    stale = heard(moving(), report(process_epoch=9), e.RankTransferred, **MOVED)
    assert stale == [f"{who.format(9, 1)} is applied, expected stale"]
    other = heard(moving(), report(), e.RankTransferred, **{**MOVED, "rank": 1})
    assert other[0].startswith(f"{who.format(10, 1)} arrived, recorded is (")
    refused = heard(moving(), report(number=2), e.AckRefused, verdict="conflict", **REFUSED)
    assert refused == [f"{who.format(10, 2)} is conflict, expected future"]


def test_f2_a_report_that_nobody_sent_is_a_break() -> None:
    acks = Acks()
    for event in moving().moved(1, ranks=(0,)).events:
        acks.see(event)
    assert [one.detail for one in acks.found] == ["RankTransferred is recorded and nothing had arrived"]


@pytest.mark.parametrize(
    ("story", "detail"),
    [
        (moving().moved(1, ranks=(0,)).committed(1), "TransferCompleted while ranks [1] of [0, 1] have not completed"),
        (moving().moved(1, ranks=(0, 0)), "rank 0 is recorded twice for operation 1"),
        (
            Story().opened().leased(3, BOTH, BOTH, new=(0, 1)),
            "operation 3 begins, expected the next number 1",
        ),
        (moving().moved(2), f"RankTransferred names {operation(2)}, which is not open"),
    ],
)  # fmt: skip
def test_f1_ranks_are_recounted(story: Story, detail: str) -> None:
    """F1: an operation is complete with every distinct rank, whoever says so."""
    acks = Acks()
    for event in story.events:
        acks.see(event)
    assert detail in [one.detail for one in acks.found]


def test_closed_lives_are_forgotten_and_open_ones_are_not() -> None:
    story, acks = Story(), Acks()
    story.opened()
    for number in range(LIVES_KEPT + 8):
        key = RequestKey(f"r{number}", 3)
        story.add(e.RequestOpened, key, pool_generation=1, rows=2).add(e.RequestClosed, key)
    for event in story.events:
        acks.see(event)
    assert len(acks._books) == LIVES_KEPT
    assert acks.arrived(report(operation=changed(request=RequestKey("r0", 3), operation_id=0))) == "stale"
    assert acks.arrived(report(operation=changed(request=RequestKey("r0", 4), operation_id=0))) == "future"
    assert "a" in acks._books
