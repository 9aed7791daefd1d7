"""The ownership oracle on event lists written by hand: what is right passes, and each fault is named."""

from collections.abc import Callable

import pytest
from tests.scenarios.verify.checkers.story import A, B, Story, ids, operation

from kvsweep.ledger import events as e
from kvsweep.ledger.ids import POOL
from kvsweep.runtime.core.steps import HandedOut
from kvsweep.scenarios.verify.checkers.breaks import BREAKS_KEPT
from kvsweep.scenarios.verify.checkers.ownership import Ownership

BOTH = {0: [0, 1], 1: [0, 1]}
NONE: dict[int, list[int]] = {0: [], 1: []}


def judged(story: Story) -> list[str]:
    oracle = Ownership()
    for event in story.events:
        oracle.see(event)
    return [f"{one.position}: {one.detail}" for one in oracle.found]


def uploaded() -> Story:
    """12 events: blocks 0 and 1 hold logical blocks 0 and 1 of a, generation 1, row 0."""
    return Story().opened().uploaded(1, BOTH, BOTH, new=(0, 1))


def test_a_whole_life_is_right() -> None:
    """Upload, retain with a byte move, a tail block stored and adopted by nobody, finish, close."""
    story = uploaded().planned_retain(2, {0: [1], 1: [1]}, moved=({0: [], 1: []}, {0: [], 1: []}))
    story.applied(2).retired(1, (0,))
    story.add(e.RetainAcknowledged, operation=operation(2, revision=1), process_epoch=5)
    story.add(e.TailOpened, logical=4, physical_by_group=ids(0)).add(e.TailSealed, logical=4)
    story.add(
        e.StoreStarted,
        operation=operation(3, revision=2),
        logical=ids(4),
        source=ids(8),
        ranks=((0, 10), (1, 11)),
    )
    for rank, epoch in ((0, 10), (1, 11)):
        story.add(e.RankStored, operation=operation(3, revision=2), rank=rank, process_epoch=epoch, d2h_bytes=0)
    story.add(e.StoreCompleted, operation=operation(3, revision=2))
    story.add(e.TailDropped, group=0, logical=ids(4), fence=1).add(e.FenceOpened, fence=1, freed=(ids(0),))
    story.add(e.RequestFinished).retired(2, (1,), "finish").add(e.RequestClosed)
    assert judged(story) == []


FAULTS: dict[str, tuple[Callable[[], Story], str]] = {
    "a block of another request": (
        lambda: uploaded().opened(B, sources={0: [8]}).leased(2, {0: [0], 1: []}, {0: [1], 1: []}, key=B, new=(1,),
                                                              source={0: [8], 1: []}),
        "19: block 1 of group 0 is handed out to b while held by view 1 of a",
    ),
    "an area that is still read": (
        lambda: uploaded().leased(2, {0: [2], 1: []}, {0: [0], 1: []}, row=1, generation=2, revision=1),
        "17: area (layer 0, block 0) is handed out to a while held by view 1 of a",
    ),
    "an area twice in one plan": (
        lambda: Story().opened().leased(1, BOTH, {0: [0, 0], 1: [0, 1]}, new=(0, 1)),
        "7: area (layer 0, block 0) is handed out twice in one plan",
    ),
    "an area of a quarantined attempt": (
        lambda: Story().opened().leased(1, BOTH, BOTH, new=(0, 1))
        .add(e.UploadAborted, operation=operation(1), reason="r").settled(1, 0)
        .leased(2, BOTH, BOTH, row=1, generation=2),
        "14: area (layer 0, block 0) is handed out to a while held by dst 1 of a",
    ),
    "a row that is still read": (
        lambda: uploaded().leased(2, {0: [2], 1: []}, {0: [2], 1: []}, new=(2,), generation=2, revision=1),
        "16: table row 0 of a is handed out while held by view 1 of a",
    ),
    "a new block while there is room": (
        lambda: uploaded().planned_retain(2, {0: [0], 1: [0]}, moved=NONE_MOVED).applied(2).retired(1, (1,))
        .add(e.RetainAcknowledged, operation=operation(2, revision=1), process_epoch=5)
        .leased(3, {0: [2, 3], 1: [2]}, {0: [1, 2], 1: [1]}, new=(1, 2), generation=3, revision=2)
        .moved(3, revision=2).committed(3, generation=3, revision=2).acknowledged(3, revision=2)
        .retired(2, (), "upload")
        .leased(4, {0: [], 1: [3]}, {0: [], 1: [3]}, row=1, new=(3,), generation=4, revision=3),
        "36: group 0: new blocks are reserved while every layer has vacant areas",
    ),
    "a block freed that is read": (
        lambda: uploaded().planned_retain(2, {0: [0], 1: [0, 1]}).applied(2).retired(1, (1,)),
        "20: BlocksRetired: block 1 of group 0 is freed while held by view 2 of a",
    ),
    "a block freed twice in one list": (
        lambda: uploaded().planned_retain(2, {0: [0], 1: [0]}).applied(2).retired(1, (1, 1)),
        "20: BlocksRetired: block 1 of group 0 is freed twice in one list",
    ),
    "a block that nobody calls free": (
        lambda: uploaded().planned_retain(2, {0: [0], 1: [0]}).applied(2).retired(1, ()),
        "20: BlocksRetired: block 1 of group 0 lost the last holder and is not called free",
    ),
    "a generation retired twice": (
        lambda: uploaded().planned_retain(2, {0: [0], 1: [0]}).applied(2).retired(1, (1,)).retired(1, (1,)),
        "21: view 1 of a is let go of twice, or held nothing",
    ),
    "the current generation retired": (
        lambda: uploaded().retired(1, (0, 1), "upload"),
        "14: generation 1 of a is retired while it is current",
    ),
    "a source of somebody else": (
        lambda: Story().opened().leased(1, BOTH, BOTH, new=(0, 1), source={0: [4, 9], 1: [4, 5]}),
        "7: layer 0: sources [4, 9] are not the request's own CPU blocks [4, 5] of [0, 1]",
    ),
    "a copy destination that is read": (
        lambda: Story().opened().opened(B, sources={0: [8]}).leased(1, BOTH, BOTH, new=(0, 1), copies=(12, 13),
                                                                    source={0: [12, 13], 1: [12, 13]})
        .leased(2, {0: [0], 1: []}, {0: [2], 1: []}, key=B, new=(2,), copies=(13,), source={0: [13], 1: []}),
        "14: CPU block 13 is handed out to b while held by src 1 of a",
    ),
    "a CPU block registered for two": (
        lambda: Story().opened().opened(B, sources={0: [7]}),
        "5: CPU block 7 is handed out to b while held by owner 0 of a",
    ),
    "a commit after another one": (
        lambda: uploaded().leased(2, NONE, NONE, row=1, generation=2, revision=1).add(e.RequestPreempted)
        .committed(2, generation=2, revision=1),
        "21: generation 2 builds on 1, current is 0",
    ),
    "a tail block that leaves unstored": (
        lambda: Story().opened().add(e.TailOpened, logical=4, physical_by_group=ids(0))
        .add(e.TailSealed, logical=4).add(e.TailDropped, group=0, logical=ids(4), fence=1),
        "6: tail block 4 leaves while it is dirty: neither stored nor declared lost",
    ),
    "a tail block over a view": (
        lambda: uploaded().add(e.TailOpened, logical=4, physical_by_group=ids(1)),
        "14: block 1 of group 0 is handed out to a while held by view 1 of a",
    ),
    "a closed life that holds": (
        lambda: uploaded().add(e.RequestFinished).add(e.RequestClosed),
        "15: a is closed and view 1 of a holds resources",
    ),
    "a shared block that was not stored": (
        lambda: Story().opened().add(e.TailOpened, logical=4, physical_by_group=ids(0))
        .add(e.PrefixPublished, logical=4, number=1, key="k"),
        "5: block 4 is shared and not a clean tail block, whole in every group",
    ),
    "a settled rank that settles again": (
        lambda: Story().opened().leased(1, BOTH, BOTH, new=(0, 1))
        .add(e.UploadAborted, operation=operation(1), reason="r").settled(1, 0).settled(1, 0),
        f"11: rank 0 settles {operation(1)}, which does not wait for it",
    ),
}  # fmt: skip
NONE_MOVED = (NONE, NONE)


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_named_with_its_holder_and_position(name: str) -> None:
    story, expected = FAULTS[name]
    assert judged(story())[:1] == [expected]


def shared() -> Story:
    """a's tail block 4 in block 0 is stored in CPU block 8, shared as prefix 1 and attached by b."""
    story = Story().add(e.RequestOpened, pool_generation=1, rows=2)
    story.add(e.TailOpened, logical=0, physical_by_group=ids(0)).add(e.TailSealed, logical=0)
    story.add(e.StoreStarted, operation=operation(1), logical=ids(0), source=ids(8), ranks=((0, 10), (1, 11)))
    for rank, epoch in ((0, 10), (1, 11)):
        story.add(e.RankStored, operation=operation(1), rank=rank, process_epoch=epoch, d2h_bytes=0)
    story.add(e.StoreCompleted, operation=operation(1)).add(e.PrefixPublished, logical=0, number=1, key="k")
    story.add(e.RequestOpened, B, pool_generation=1, rows=2)
    return story.add(e.PrefixAttached, B, logical=0, number=1)


def test_a_shared_block_is_free_with_its_last_reference_whoever_holds_it() -> None:
    story = shared()
    story.add(e.RequestFinished).add(e.TailDropped, group=0, logical=ids(0), fence=1)
    story.add(e.FenceOpened, fence=1, freed=(b"",)).add(e.RequestClosed)
    story.add(e.PrefixEvicted, POOL, number=1, freed=(b"",))
    story.add(e.RequestFinished, B).add(e.TailDropped, B, group=0, logical=ids(0), fence=1)
    story.add(e.FenceOpened, B, fence=1, freed=(ids(0),)).add(e.RequestClosed, B)
    assert judged(story) == []


def test_a_shared_block_freed_by_one_reader_is_a_break() -> None:
    story = shared().add(e.PrefixEvicted, POOL, number=1, freed=(ids(0),))
    assert judged(story) == ["12: PrefixEvicted: block 0 of group 0 is freed while held by tail 0 of a"]


def test_nothing_is_placed_into_a_shared_block() -> None:
    story = shared().leased(2, {0: [1], 1: []}, {0: [0], 1: []}, source={0: [8], 1: []})
    assert "15: area (layer 0, block 0) is handed out and its block is shared" in judged(story)


def test_g2_a_step_holds_what_it_was_handed_until_it_ends() -> None:
    """G2: steps are no events; a retirement that a step's reading forbids is a break all the same."""
    oracle = Ownership()
    for event in uploaded().events:
        oracle.see(event)
    oracle.began(1, {A: HandedOut(generation=1, row=0, tail=())})
    for event in uploaded().planned_retain(2, {0: [0], 1: [0]}).applied(2).retired(1, (1,)).events[13:]:
        oracle.see(event)
    assert [one.detail for one in oracle.found] == [
        "generation 1 is retired while step 1 reads it",
        "BlocksRetired: block 1 of group 0 is freed while held by step 1 of a",
    ]
    oracle.ended(1)
    assert oracle.found[-1].detail == "block 1 of group 0 had no holder left but step 1"


def test_g2_a_fence_waits_for_the_steps_that_were_handed_its_blocks() -> None:
    oracle = Ownership()
    story = (
        Story().opened().add(e.TailOpened, logical=4, physical_by_group=ids(0)).add(e.BlockLost, logical=4, reason="r")
    )
    for event in story.events:
        oracle.see(event)
    oracle.began(1, {A: HandedOut(generation=0, row=-1, tail=(4,))})
    before = len(story.events)
    story.add(e.TailDropped, group=0, logical=ids(4), fence=1).add(e.FenceOpened, fence=1, freed=(ids(0),))
    for event in story.events[before:]:
        oracle.see(event)
    assert oracle.found[0].detail == "fence 1 opens while step 1 may touch its blocks"


@pytest.mark.parametrize(
    ("story", "left"),
    [
        (lambda: Story().opened().leased(1, BOTH, BOTH, new=(0, 1)), "operation 1 of a is open or settles"),
        (
            lambda: Story().opened().add(e.TailOpened, logical=4, physical_by_group=ids(0))
            .add(e.BlockLost, logical=4, reason="r").add(e.TailDropped, group=0, logical=ids(4), fence=1),
            "fence 1 of a is closed",
        ),
        (
            lambda: uploaded().planned_retain(2, {0: [0], 1: [0]}).applied(2),
            "a: generations [1] were replaced and not retired",
        ),
    ],
)  # fmt: skip
def test_what_is_left_at_rest_is_named(story: Callable[[], Story], left: str) -> None:
    oracle = Ownership()
    for event in story().events:
        oracle.see(event)
    assert oracle.found == []
    oracle.at_rest()
    assert left in [one.detail for one in oracle.found]


def test_a_checker_keeps_a_bounded_list() -> None:
    oracle = Ownership()
    for _ in range(BREAKS_KEPT + 5):
        oracle.add("ownership", "again")
    assert len(oracle.found) == BREAKS_KEPT == 64
