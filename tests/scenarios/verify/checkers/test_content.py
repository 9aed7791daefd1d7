"""The byte oracle on an abstract memory: every reader, rank, layer and slot, and every valid CPU block."""

from collections.abc import Callable

import pytest
from tests.scenarios.verify.checkers.story import A, Story

from kvsweep.ledger.ids import RequestKey
from kvsweep.runtime.core.steps import HandedOut
from kvsweep.scenarios.verify.checkers.content import Content, Contents, pattern
from kvsweep.scenarios.verify.checkers.ownership import Ownership

BOTH = {0: [0, 1], 1: [0, 1]}
POISON = "poison"


def truth(rank: int, request: RequestKey, layer: int, logical: int) -> Content:
    return (rank, request.request_id, layer, logical)


class Abstract:
    """What each (rank, layer, block) holds, and which row shows which table."""

    ranks = (0, 1)

    def __init__(self) -> None:
        self.areas: dict[tuple[int, int, int], Content] = {}
        self.sources: dict[tuple[int, int, int], Content] = {}
        self.rows: dict[tuple[int, int], tuple[int, dict[int, list[int]]]] = {}

    def table(self, rank: int, request: RequestKey, row: int, generation: int, layer: int) -> list[int] | None:
        shown, table = self.rows.get((rank, row), (0, {}))
        return table[layer] if shown == generation else None

    def device(self, rank: int, layer: int, block: int) -> Content:
        return self.areas.get((rank, layer, block), POISON)

    def cpu(self, rank: int, layer: int, block: int) -> Content:
        return self.sources.get((rank, layer, block), POISON)


def world() -> tuple[Ownership, Abstract, Contents]:
    """a's generation 1: logical blocks 0 and 1 in blocks 0 and 1, on both ranks; CPU blocks 4 to 7 are right."""
    ownership, memory = Ownership(), Abstract()
    for event in Story().opened().uploaded(1, BOTH, BOTH, new=(0, 1)).events:
        ownership.see(event)
    for rank in memory.ranks:
        memory.rows[rank, 0] = (1, {layer: list(blocks) for layer, blocks in BOTH.items()})
        for layer in range(2):
            for logical in range(2):
                memory.areas[rank, layer, logical] = truth(rank, A, layer, logical)
            for logical in range(4):
                memory.sources[rank, layer, 4 + logical] = truth(rank, A, layer, logical)
    return ownership, memory, Contents(ownership, memory, truth)


def test_c2_what_is_right_passes() -> None:
    """C2: every layer, every rank, every slot."""
    ownership, _, contents = world()
    ownership.began(1, {A: HandedOut(generation=1, row=0, tail=())})
    contents.look()
    assert contents.found == []


def poison_one(memory: Abstract) -> None:
    memory.areas[1, 1, 1] = POISON


def swap(memory: Abstract) -> None:
    memory.areas[0, 0, 0], memory.areas[0, 0, 1] = memory.areas[0, 0, 1], memory.areas[0, 0, 0]


def another_table(memory: Abstract) -> None:
    memory.rows[0, 0][1][1].reverse()


def another_generation(memory: Abstract) -> None:
    memory.rows[1, 0] = (2, {layer: list(blocks) for layer, blocks in BOTH.items()})


def lose_source(memory: Abstract) -> None:
    memory.sources[1, 0, 7] = POISON


@pytest.mark.parametrize(
    ("fault", "detail"),
    [
        (
            poison_one,
            "the current view of a: generation 1, rank 1, layer 1, slot 1 (logical 1, block 1) reads other bytes",
        ),
        (swap, "the current view of a: generation 1, rank 0, layer 0, slot 0 (logical 0, block 0) reads other bytes"),
        (another_table, "the current view of a: rank 0, layer 1: row 0 shows [1, 0], not [(0, 0), (1, 1)]"),
        (
            another_generation,
            "the current view of a: rank 1, layer 0: row 0 shows another generation, not [(0, 0), (1, 1)]",
        ),
        (lose_source, "CPU block 7 of a is called valid: rank 1, layer 0, logical 3 holds other bytes"),
    ],
)
def test_each_fault_is_named(fault: Callable[[Abstract], None], detail: str) -> None:
    _, memory, contents = world()
    fault(memory)
    contents.look()
    assert contents.found[0].detail == detail
    assert contents.found[0].position == 13


def test_a_step_that_was_handed_an_older_generation_is_read_too() -> None:
    ownership, memory, contents = world()
    ownership.began(7, {A: HandedOut(generation=1, row=0, tail=())})
    story = Story().opened().uploaded(1, BOTH, BOTH, new=(0, 1))
    before = len(story.events)
    story.uploaded(2, {0: [2], 1: [2]}, {0: [2], 1: [2]}, new=(2,), row=1, generation=2, revision=1)
    for event in story.events[before:]:
        ownership.see(event)
    for rank in memory.ranks:
        memory.rows[rank, 1] = (2, {layer: [0, 1, 2] for layer in range(2)})
        for layer in range(2):
            memory.areas[rank, layer, 2] = truth(rank, A, layer, 2)
    contents.look()
    assert contents.found == []
    memory.rows[0, 0] = (2, {layer: [0, 1, 2] for layer in range(2)})
    contents.look()
    assert contents.found[0].detail.startswith("step 7: rank 0, layer 0: row 0 shows another generation")


def test_a_generation_that_is_gone_is_a_break() -> None:
    _, _, contents = world()
    contents.read("step 9", {A: HandedOut(generation=3, row=0, tail=())})
    assert contents.found[0].detail == "step 9 was handed generation 3 of a, which is gone"


def test_patterns_differ_wherever_a_block_does() -> None:
    names = [
        (0, RequestKey("a", 1), 0, 0),
        (1, RequestKey("a", 1), 0, 0),
        (0, RequestKey("a", 2), 0, 0),
        (0, RequestKey("b", 1), 0, 0),
        (0, RequestKey("a", 1), 1, 0),
        (0, RequestKey("a", 1), 0, 1),
    ]
    assert len({pattern(*name, 64) for name in names}) == len(names)
    assert len(pattern(0, RequestKey("a", 1), 0, 0, 1000)) == 1000
