"""Device-written blocks: opened, sealed, stored, adopted, dropped; sources; and the fences that guard their readers."""

import pytest
from tests.ledger.worlds import RANKS, WITH_SLIDING, A, B, K, World, ids_of, rows

from kvsweep.ledger import events as e
from kvsweep.ledger.ids import HOLE, POOL, int32_bytes


def tail_of(w: World) -> list[tuple[int, tuple[int, ...], str]]:
    return [(block.logical, block.physical, block.phase) for block in w.of().tail]


# ---- opening and sealing


def test_a_tail_block_takes_one_new_block_a_group_and_holds_every_area_of_it() -> None:
    w = World(WITH_SLIDING)
    w.tail(4, [2, 5], sealed=False)
    assert (w.owned(), w.owned(group=1)) == ([2], [5])
    assert [w.vacant(layer) for layer in (0, 1, 2)] == [[], [], []]
    assert tail_of(w) == [(4, (2, 5), "open")]
    w.lawful()


@pytest.mark.parametrize(
    ("logical", "blocks", "match"),
    [
        (4, [2], "not after the tail's newest 4"),
        (3, [2], "is stored already"),
        (-1, [2], "not after the tail's newest"),
        (5, [6], "block 6 is not in the pool"),
        (5, [-1], "block -1 is not in the pool"),
        (5, [0], "block 0 of group 0 is owned by a"),  # the tail's own
        (5, [1], "block 1 of group 0 is owned by b"),
        (5, [2, 3], "a block of each of 1 groups"),
        (5, [], "a block of each of 1 groups"),
    ],
)
def test_b6_a_tail_block_is_new_in_the_sequence_and_in_the_pool(logical: int, blocks: list[int], match: str) -> None:
    w = World()
    if logical != 3 and logical != -1:
        w.tail(4, [0], sealed=False)
    w.open(B, first_source=4)
    w.tail(4, [1], B)
    w.refuse(match, e.TailOpened, logical=logical, physical_by_group=int32_bytes(blocks))


def test_a_block_is_sealed_once() -> None:
    w = World()
    w.tail(4, [0])
    w.refuse("is dirty, expected open", e.TailSealed, logical=4)
    w.refuse(r"logical block 5 is not in the tail \[4\]", e.TailSealed, logical=5)


def test_g4_only_a_running_request_opens_a_tail_block() -> None:
    w = World()
    w.emit(e.RequestPreempted)
    w.refuse("only a living request writes: life is PREEMPTED", e.TailOpened, logical=4,
             physical_by_group=int32_bytes([0]))  # fmt: skip


# ---- the store


def test_a_store_reads_only_dirty_blocks_whose_writers_have_ended() -> None:
    w = World()
    w.tail(4, [0], sealed=False)
    fields = {"operation": w.operation(), "source": int32_bytes([4]), "ranks": RANKS}
    w.refuse("logical block 4 is open, expected dirty", e.StoreStarted, **fields, logical=int32_bytes([4]))
    w.emit(e.TailSealed, logical=4)
    w.refuse("logical block 5 is not in the tail", e.StoreStarted, **fields, logical=int32_bytes([5]))
    w.emit(e.StoreStarted, **fields, logical=int32_bytes([4]))
    w.refuse("StoreStarted is illegal", e.StoreStarted, **{**fields, "operation": w.operation()},
             logical=int32_bytes([4]))  # fmt: skip


@pytest.mark.parametrize(
    ("logical", "source", "match"),
    [
        ([4, 5], [4, 4], "one distinct CPU block"),
        ([4, 4], [4, 5], "one distinct CPU block"),
        ([4], [4, 5], "one distinct CPU block"),
        ([], [], "one distinct CPU block"),
        ([4], [K], r"is held or not in \[0, 12\)"),
        ([4], [-1], r"is held or not in \[0, 12\)"),
        ([4], [3], "CPU block 3 is held"),  # its own prompt
        ([4], [9], "CPU block 9 is held"),  # of the other request
    ],
)
def test_a_store_writes_free_distinct_cpu_blocks_of_the_full_part(
    logical: list[int], source: list[int], match: str
) -> None:
    w = World()
    w.open(B, first_source=8)
    w.tail(4, [0])
    w.tail(5, [1])
    w.refuse(match, e.StoreStarted, operation=w.operation(), logical=int32_bytes(logical), source=int32_bytes(source),
             ranks=RANKS)  # fmt: skip


def test_a_cpu_block_is_valid_only_after_every_rank_has_stored() -> None:
    w = World()
    w.tail(4, [0])
    op = w.store([4], [7])
    assert w.sources_held() == [0, 1, 2, 3, 7]
    w.stored(op, 1)
    assert w.of().source_of(4) == HOLE
    w.refuse(r"ranks \[0\] have not completed", e.StoreCompleted, operation=op)
    w.stored(op, 0)
    w.emit(e.StoreCompleted, operation=op)
    assert w.of().source_of(4) == 7
    assert tail_of(w) == [(4, (0,), "clean")]
    assert {h.kind for h in w.state.ownership.holders(A)} == {"owner", "tail"}
    w.lawful()


def test_a_stored_table_has_holes_where_no_block_is_valid() -> None:
    w = World()
    w.clean_tail(6, [0], 7)
    assert ids_of(w.of().source) == [0, 1, 2, 3, HOLE, HOLE, 7]
    assert [w.of().source_of(block) for block in (-1, 3, 4, 6, 7)] == [HOLE, 3, HOLE, 7, HOLE]


def test_a_store_that_is_turned_back_leaves_the_blocks_dirty_and_both_ends_held() -> None:
    w = World()
    w.tail(4, [0])
    op = w.store([4], [7])
    w.stored(op, 0)
    w.emit(e.StoreAborted, operation=op, reason="rank 1 failed")
    assert tail_of(w) == [(4, (0,), "dirty")]
    assert 7 in w.sources_held()
    w.refuse("CPU block 7 is held", e.StoreStarted, operation=w.operation(), logical=int32_bytes([4]),
             source=int32_bytes([7]), ranks=RANKS)  # fmt: skip
    retry = w.store([4], [8])
    w.settle(op, 1, "failed")
    assert 7 not in w.sources_held()
    w.stored(retry)
    w.emit(e.StoreCompleted, operation=retry)
    assert w.of().source_of(4) == 8
    w.lawful()


def test_g3_finish_turns_a_store_back_and_preemption_lets_it_end() -> None:
    w = World()
    w.tail(4, [0])
    op = w.store([4], [7])
    w.refuse("turn back before the life changes: store is MOVING", e.RequestFinished)
    w.emit(e.RequestPreempted)
    w.stored(op)
    w.emit(e.StoreCompleted, operation=op)
    assert w.of().source_of(4) == 7


# ---- adoption


@pytest.mark.parametrize("phase", ["open", "dirty", "lost"])
def test_only_a_clean_block_is_adopted(phase: str) -> None:
    """So a view never holds a dirty block, and retiring one never needs a write-back."""
    w = World()
    w.resident()
    w.tail(4, [5], sealed=phase != "open")
    if phase == "lost":
        w.emit(e.BlockLost, logical=4, reason="store failed")
    adopted = rows({0: [4], 1: [4]})
    w.refuse("is not a clean tail block", e.RetainPlanned, **w.retain_fields({0: [0], 1: [0]}, adopted=adopted))


def test_an_adopted_block_is_one_slot_without_a_copy() -> None:
    w = World()
    w.resident()
    w.clean_tail(4, [5], 4)
    w.retained({0: [0], 1: []}, freed=[1], adopted=rows({0: [4], 1: [4]}))
    assert w.table() == ({0: [0, 4], 1: [4]}, {0: [0, 5], 1: [5]})
    again = w.retain_fields({0: [0, 1], 1: [0]}, row=0, adopted=rows({0: [4], 1: []}))
    w.refuse("layer 0: a logical block would have two slots", e.RetainPlanned, **again)
    w.lawful()


def test_an_upload_adopts_too_and_never_gives_a_block_two_slots() -> None:
    w = World()
    w.resident()
    w.clean_tail(4, [5], 4)
    w.plan({0: [4], 1: [2]})
    to = {0: [2], 1: [2]}
    w.refuse("layer 0: a logical block would have two slots", e.BlocksLeased,
             **w.lease(to, [2], row=1, adopted=rows({0: [4], 1: []})))  # fmt: skip
    w.emit(e.BlocksLeased, **w.lease(to, [2], row=1, adopted=rows({0: [], 1: [4]})))
    op = w.opened("upload")
    w.emit(e.TransferStarted, operation=op, ranks=RANKS)
    w.commit(op)
    assert w.table() == ({0: [0, 1, 4], 1: [0, 1, 4, 2]}, {0: [0, 1, 2], 1: [0, 1, 5, 2]})
    w.lawful()


def test_d7_only_active_layers_adopt() -> None:
    w = World(WITH_SLIDING)
    w.clean_tail(4, [5, 5], 4)
    for layer in (2, 3):
        adopted = rows({0: [4], 1: [4], layer: [4]})
        w.refuse("adopted: expected active layers", e.RetainPlanned, **w.retain_fields(w.none, row=0, adopted=adopted))
    w.drop([4])
    w.refuse("is not a clean tail block", e.RetainPlanned,
             **w.retain_fields(w.none, row=0, adopted=rows({0: [4], 1: []})))  # fmt: skip


@pytest.mark.parametrize("lane", ["upload", "retain"])
def test_b6_an_adopted_area_stays_held_when_its_block_leaves_the_tail_before_the_commit(lane: str) -> None:
    """A transfer in flight refers to it: it is not free, and the view that commits later finds it."""
    w = World()
    w.clean_tail(4, [5], 4)
    adopted = rows({0: [4], 1: [4]})
    if lane == "upload":
        op = w.upload({0: [0], 1: [0]}, {0: [2], 1: [2]}, [2], adopted=adopted)
    else:
        op = w.retain(w.none, row=0, adopted=adopted)
    w.open_fence(w.drop([4]), freed=[])
    assert 5 in w.owned()
    w.open(B, first_source=6)
    w.refuse("block 5 of group 0 is owned by a", e.TailOpened, B, logical=4, physical_by_group=int32_bytes([5]))
    w.commit(op) if lane == "upload" else w.switch(op)
    assert 5 in w.table()[1][0]
    w.lawful()


def test_g3_an_abort_gives_back_the_adopted_areas_that_left_the_tail() -> None:
    w = World()
    w.clean_tail(4, [5], 4)
    op = w.retain(w.none, row=0, adopted=rows({0: [4], 1: [4]}))
    w.open_fence(w.drop([4]), freed=[])
    w.emit(e.RetainAborted, operation=op, reason="deadline")
    w.settle(op, 0)
    w.settle(op, 1)
    assert w.owned() == []


# ---- leaving the tail


@pytest.mark.parametrize("phase", ["open", "dirty"])
def test_a_block_is_stored_or_declared_lost_never_silently_gone(phase: str) -> None:
    w = World()
    w.tail(4, [0], sealed=phase == "dirty")
    drop = {"group": 0, "logical": int32_bytes([4]), "fence": 1}
    w.refuse(f"logical block 4 is {phase}: store it or declare it lost first", e.TailDropped, **drop)
    w.emit(e.BlockLost, logical=4, reason="preempted")
    w.refuse("is lost, expected open or dirty", e.BlockLost, logical=4, reason="twice")
    w.emit(e.TailDropped, **drop)


def test_a_clean_block_cannot_be_declared_lost() -> None:
    w = World()
    w.clean_tail(4, [0], 4)
    w.refuse("is clean, expected open or dirty", e.BlockLost, logical=4, reason="no")


def test_finish_drops_unstored_blocks() -> None:
    w = World()
    w.tail(4, [0], sealed=False)
    w.emit(e.RequestFinished)
    w.open_fence(w.drop([4]), freed=[0])
    w.emit(e.RequestClosed)
    assert w.of().life == "CLOSED"


def test_b6_a_dropped_block_is_held_by_its_fence_until_its_readers_ended() -> None:
    w = World()
    w.clean_tail(4, [0], 4)
    fence = w.drop([4])
    assert w.owned() == [0]
    assert [w.vacant(0), w.vacant(1)] == [[], []], "every area of it is fenced"
    for wrong in ([], [0, 1], [1]):
        w.refuse("said to be freed", e.FenceOpened, fence=fence, freed=w.by_group(wrong))
    w.open_fence(fence, freed=[0])
    assert w.owned() == []
    w.refuse("expected one of the closed fences", e.FenceOpened, fence=fence, freed=w.by_group())


def test_b6_a_fenced_block_that_a_view_adopted_is_not_freed_by_its_fence() -> None:
    """Free only with its last area: layer 1 still reads it, layer 0's area is vacant and placed into again."""
    w = World()
    w.resident()
    w.clean_tail(4, [5], 4)
    w.retained({0: [0], 1: [0]}, freed=[1], adopted=rows({0: [], 1: [4]}))
    w.open_fence(w.drop([4]), freed=[])
    assert (w.owned(), w.vacant(0), w.vacant(1)) == ([0, 5], [5], [])
    w.commit(w.upload({0: [2], 1: []}, {0: [5], 1: []}, row=0))
    assert w.owned() == [0, 5]
    w.lawful()


def test_a_block_leaves_the_tail_group_by_group_and_each_group_once() -> None:
    w = World(WITH_SLIDING)
    w.clean_tail(4, [0, 3], 4)
    w.open_fence(w.drop([4], group=1), freed=[3], group=1)
    assert tail_of(w) == [(4, (0, HOLE), "clean")]
    w.refuse("group 1 has dropped logical block 4 already", e.TailDropped, group=1, logical=int32_bytes([4]), fence=2)
    w.open_fence(w.drop([4]), freed=[0])
    assert tail_of(w) == []
    w.lawful()


@pytest.mark.parametrize(
    ("group", "logical", "fence", "match"),
    [
        (0, [4], 2, "expected fence 1, got 2"),
        (0, [4], 0, "expected fence 1, got 0"),
        (0, [4, 4], 1, "each once"),
        (0, [], 1, "at least one logical block"),
        (0, [5], 1, "logical block 5 is not in the tail"),
        (1, [4], 1, r"expected a group in \[0, 1\), got 1"),
        (-1, [4], 1, r"expected a group in \[0, 1\), got -1"),
    ],
)
def test_a_fence_names_tail_blocks_of_a_group_once(group: int, logical: list[int], fence: int, match: str) -> None:
    w = World()
    w.clean_tail(4, [0], 4)
    w.refuse(match, e.TailDropped, group=group, logical=int32_bytes(logical), fence=fence)


def test_fences_open_in_any_order_and_their_numbers_are_never_reused() -> None:
    w = World()
    w.clean_tail(4, [0], 4)
    w.clean_tail(5, [1], 5)
    first, second = w.drop([4]), w.drop([5])
    w.open_fence(second, freed=[1])
    w.open_fence(first, freed=[0])
    w.clean_tail(6, [2], 6)
    assert (first, second, w.drop([6])) == (1, 2, 3)


# ---- sources


@pytest.mark.parametrize(
    ("logical", "source", "match"),
    [
        ([4, 5], [4], "one distinct CPU block for each distinct"),
        ([4, 5], [4, 4], "one distinct CPU block for each distinct"),
        ([4, 4], [4, 5], "one distinct CPU block for each distinct"),
        ([-1], [4], "logical blocks from 0"),
        ([4], [K], "logical blocks from 0"),
        ([4], [-1], "logical blocks from 0"),
        ([4], [0], "CPU block 0 is held for a"),
        ([4], [9], "CPU block 9 is held for b"),
        ([0], [4], "has a valid CPU block already"),
    ],
)
def test_d1_a_cpu_block_has_one_logical_block_of_one_request(logical: list[int], source: list[int], match: str) -> None:
    w = World()
    w.open(B, first_source=8)
    w.refuse(match, e.SourcesRegistered, logical=int32_bytes(logical), source=int32_bytes(source))


def test_b6_a_request_that_finished_registers_nothing_that_nobody_would_give_back() -> None:
    w = World()
    w.emit(e.RequestFinished)
    fields = {"logical": int32_bytes([4]), "source": int32_bytes([4])}
    w.refuse("only a living request writes: life is FINISHING", e.SourcesRegistered, **fields)
    w.emit(e.RequestClosed)


def test_a_preempted_request_registers_again_after_a_producer_restart() -> None:
    w = World()
    w.emit(e.RequestPreempted)
    w.emit(e.ProducerRestarted, POOL, process_epoch=6)
    w.register([0, 1], [8, 9])
    assert [w.of().source_of(block) for block in (0, 1, 2)] == [8, 9, HOLE]


def test_a_producer_that_holds_nothing_yet_registers_nothing() -> None:
    w = World()
    before = w.sources_held()
    w.register([], [])
    assert (w.sources_held(), w.of().source_of(0)) == (before, 0)
    w.lawful()
