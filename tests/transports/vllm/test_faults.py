"""The faulty way back: seeded, and every report either arrives, is lost, repeated or late."""

import pytest

from kvsweep.ledger.ids import Operation, RequestKey
from kvsweep.ledger.messages import Done
from kvsweep.transports.vllm.faults import FaultSettings, FaultyWay
from kvsweep.transports.vllm.messages import Ack, Completion


def report(number: int, digest: str = "") -> Completion:
    operation = Operation(request=RequestKey("r", 1), operation_id=number, pool_generation=1, map_revision=0)
    done = Done(operation=operation, rank=0, process_epoch=3, outcome="completed", h2d_bytes=8)
    return Completion(done=done, digest=digest)


def carried(settings: FaultSettings, turns: int = 60) -> tuple[list[int], FaultyWay]:
    way, out = FaultyWay(settings, rank=0), []
    for number in range(turns):
        out += [one.done.operation.operation_id for one in way.carry([report(number)])]
    return out, way


def test_without_faults_reports_pass() -> None:
    assert carried(FaultSettings())[0] == list(range(60))


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        (FaultSettings(drop=0.5), "dropped"),
        (FaultSettings(duplicate=0.5), "duplicated"),
        (FaultSettings(delay=0.5, delay_steps=2), "delayed"),
    ],
)
def test_each_fault_happens_and_a_seed_repeats(settings: FaultSettings, count: str) -> None:
    out, way = carried(settings)
    assert getattr(way, count) > 10
    assert out == carried(settings)[0]
    assert out != list(range(60))
    if count == "dropped":
        assert len(out) == 60 - way.dropped
    if count == "duplicated":
        assert set(out) == set(range(60))


def test_joining_answers_keeps_every_identity() -> None:
    one, other = report(1, "aa"), report(1, "bb")
    joined = Ack(steps=((0, 4),), completions=(one, one)).aggregate(Ack(steps=((1, 4),), completions=(other,)))
    assert joined.steps == ((0, 4), (1, 4))
    assert [report.identity for report in joined.completions if isinstance(report, Completion)] == [
        (1, 0, 3, 8, "aa"),
        (1, 0, 3, 8, "aa"),
        (1, 0, 3, 8, "bb"),
    ]
    assert joined.aggregate(object()) is joined
