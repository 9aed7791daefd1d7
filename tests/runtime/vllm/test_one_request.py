"""What goes wrong with one request ends its round, or its life under us, and nothing else."""

from msgspec.structs import replace
from tests.runtime.vllm.engine import BLOCK, Engine
from tests.runtime.vllm.test_engine import QUEST, settled

from kvsweep.transports.vllm.messages import Ack

NAN = b"\x00\x00\xc0\x7f"


def test_a_score_that_is_no_number_ends_the_round_of_its_request_only() -> None:
    def of_the_first(ack: Ack) -> Ack:
        scores = (
            replace(one, values=NAN * (len(one.values) // 4)) if one.request.request_id == "bad" else one
            for one in ack.scores
        )
        return replace(ack, scores=tuple(scores))

    engine = Engine(blocks=90, ranks=1, prefix=False, extra=QUEST, lost=of_the_first)
    engine.add("bad", prompt=16 * BLOCK, output=20)
    engine.add("good", prompt=16 * BLOCK, output=20)
    engine.run()
    settled(engine)
    assert engine.half.summary()["refused"]["NonFiniteScore"] > 0
    assert engine.half.counts.commits > 0


def test_an_id_that_no_ledger_takes_is_served_by_vllm_alone_and_asked_for_once() -> None:
    engine = Engine(blocks=60, ranks=1)
    engine.add("\ud800", prompt=2 * BLOCK, output=9)
    engine.add("r", prompt=2 * BLOCK, output=9)
    engine.run()
    settled(engine)
    assert engine.half.summary()["refused"]["UsageError"] == 1
    assert engine.half.counts.commits > 0
