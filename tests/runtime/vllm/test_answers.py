"""What a rank says is judged item by item: what is said wrong is neither raised into vLLM nor believed."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from tests.runtime.vllm.engine import BLOCK, Engine
from tests.runtime.vllm.test_engine import QUEST, settled

from kvsweep.transports.vllm.messages import Ack

Bad = Callable[[Any], object]

WORDS: dict[str, Bad] = {
    "no done": lambda one: replace(one, done=None),
    "digest": lambda one: replace(one, digest=["x"]),
    "rank": lambda one: replace(one, done=replace(one.done, rank=[1])),
    "operation": lambda one: replace(one, done=replace(one.done, operation=None)),
    "bytes": lambda one: replace(one, done=replace(one.done, h2d_bytes="x")),
    "operation id": lambda one: replace(one, done=replace(one.done, operation=replace(one.done.operation, request=3))),
}
SCORES: dict[str, Bad] = {
    "report": lambda one: "report",
    "no request": lambda one: replace(one, request=None),
    "list": lambda one: replace(one, request=["x"]),
    "rank": lambda one: replace(one, rank=[0]),
    "no block": lambda one: replace(one, blocks=0),
    "odd bytes": lambda one: replace(one, values=one.values[:-1]),
    "a layer less": lambda one: replace(one, values=one.values[: len(one.values) // 3]),
    "no bytes": lambda one: replace(one, values=None),
}


def served(engine: Engine) -> int:
    """Run one request to its end. Returns how many items were refused."""
    engine.add("r", prompt=8 * BLOCK, output=12)
    engine.run()
    settled(engine)
    return engine.half.counts.acks["refused"]


@pytest.mark.parametrize("bad", WORDS.values(), ids=WORDS)
def test_a_report_of_another_shape_is_refused(bad: Bad) -> None:
    said: list[object] = []

    def twice(ack: Ack) -> Ack:
        more = tuple(map(bad, ack.completions))
        said.extend(more)
        return replace(ack, completions=ack.completions + more)

    assert served(Engine(blocks=60, ranks=2, prefix=False, lost=twice)) == len(said) > 0


@pytest.mark.parametrize("bad", SCORES.values(), ids=SCORES)
def test_scores_of_another_shape_are_refused_and_that_round_waits(bad: Bad) -> None:
    said: list[object] = []

    def first_rank(ack: Ack) -> Ack:
        if not ack.scores:
            return ack
        said.append(bad(ack.scores[0]))
        return replace(ack, scores=(said[-1], *ack.scores[1:]))

    engine = Engine(blocks=60, ranks=2, prefix=False, extra=QUEST, lost=first_rank)
    assert served(engine) == len(said) > 0
    assert engine.half.counts.commits == 0


@pytest.mark.parametrize("bad", [(0, "x"), 3, (0, 1, 2), ([], 1), (0, None)], ids=str)
def test_a_step_of_another_shape_is_refused(bad: object) -> None:
    def more(ack: Ack) -> Ack:
        return replace(ack, steps=(*ack.steps, bad))

    assert served(Engine(blocks=60, ranks=1, prefix=False, lost=more)) > 0


@pytest.mark.parametrize("bad", [(0, 3), 3, (0, (("a",),)), ([], ()), (0, (("a", "b"),))], ids=str)
def test_counts_of_another_shape_are_refused(bad: object) -> None:
    def more(ack: Ack) -> Ack:
        return replace(ack, counts=(*ack.counts, bad))

    engine = Engine(blocks=60, ranks=1, prefix=False, lost=more)
    assert served(engine) > 0
    assert engine.half.summary()["checksums"]["checked"] > 0


def test_fields_that_are_not_there_are_refused_and_joining_them_raises_nothing() -> None:
    nothing: dict[str, Any] = dict.fromkeys(("steps", "completions", "scores", "counts"))
    engine = Engine(blocks=60, ranks=1, lost=lambda ack: replace(ack.aggregate(Ack(**nothing)), counts=None))
    assert served(engine) == engine.half.counts.steps
    engine.half.update(Ack(**nothing))
    assert engine.half.counts.acks["refused"] == engine.half.counts.steps + 4


def test_a_step_that_has_not_begun_is_not_done_and_another_engines_rank_counts_nothing() -> None:
    """What the running step still reads stays held, whatever is claimed of steps to come."""
    engine = Engine(blocks=40, ranks=2)
    engine.add("r", prompt=3 * BLOCK, output=20)
    engine.lost = lambda ack: Ack(
        steps=((0, 10**6), (1, 10**6), (7, 1)), completions=ack.completions, counts=((7, (("wrong", 9),)),)
    )
    for _ in range(4):
        engine.step()
    assert len(engine.half.driver.core.steps.numbers) == 4
    assert engine.half.counts.released_blocks == 0
    assert engine.half.counts.of_ranks("wrong") == 0
    engine.lost = lambda ack: ack
    engine.run()
    settled(engine)


@pytest.mark.parametrize("frame", ["text", 3, None])
def test_a_frame_that_is_not_bytes_is_noted_and_not_performed(frame: object) -> None:
    engine = Engine(blocks=40, ranks=1)
    node = engine.nodes[0].half
    begin = node.begin
    node.begin = lambda meta: begin(replace(meta, frames=(*meta.frames, frame)))  # type: ignore[method-assign]
    served(engine)
    assert f"expected bytes, got {type(frame).__name__}" in node.notes
