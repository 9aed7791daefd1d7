"""A CPU tier with less room than there are whole blocks: what fits is stored, and nothing else is asked for."""

from tests.runtime.vllm.engine import BLOCK, Engine
from tests.runtime.vllm.test_engine import settled, watched

from kvsweep.ledger import events as e
from kvsweep.ledger.ids import int32_view


def stored(seen: list[object]) -> list[int]:
    return [int32_view(event.logical).size for event in seen if isinstance(event, e.StoreStarted)]


def test_of_a_long_prompt_what_fits_is_stored_and_uploaded() -> None:
    engine = Engine(blocks=80, ranks=1, chunk=200, prefix=False, extra={"cpu_blocks": 10})
    seen = watched(engine)
    engine.add("r", prompt=20 * BLOCK, output=40)
    for _ in range(30):
        engine.step()
    assert stored([*seen]) == [10]
    assert engine.half.counts.commits > 0
    assert not engine.half.counts.refused
    engine.run()
    settled(engine)


def test_what_one_request_leaves_in_the_tier_another_stores() -> None:
    engine = Engine(blocks=80, ranks=1, chunk=200, prefix=False, extra={"cpu_blocks": 10})
    seen = watched(engine)
    engine.add("short", prompt=6 * BLOCK, output=4)
    engine.add("long", prompt=20 * BLOCK, output=40)
    engine.run()
    settled(engine)
    assert sum(stored([*seen])[:2]) == 10
    assert sum(stored([*seen])) > 10, "the room of the first that ended is used"
    assert not engine.half.counts.refused
