"""Device-written blocks: opened, sealed, stored, adopted or dropped into a fence, lost on preemption; windows slide."""

from collections.abc import Callable

import pytest
from tests.runtime.rig import RANKS, CoreRig, Ids, make_layout, selection

from kvsweep.ledger import events as e
from kvsweep.ledger.ids import HOLE, RequestKey, int32_view
from kvsweep.ledger.messages import (
    Abort,
    Cancel,
    Finish,
    OpenTail,
    Preempt,
    Release,
    Resume,
    SealTail,
    Select,
    StoreBlocks,
    Transfer,
    Turn,
)

MakeRig = Callable[..., CoreRig]
VIEW: Ids = {0: [0, 2], 1: [1, 2]}


@pytest.fixture
def key(rig: CoreRig) -> RequestKey:
    found = rig.open()
    rig.upload(found, VIEW)
    return found


def room(rig: CoreRig, key: RequestKey, until: int) -> Turn:
    return rig.send(OpenTail(request=key, until=until))


def seal(rig: CoreRig, key: RequestKey, tokens: int) -> Turn:
    return rig.send(SealTail(request=key, confirmed_tokens=tokens))


def phases(rig: CoreRig, key: RequestKey) -> dict[int, str]:
    return {block.logical: block.phase for block in rig.request(key).tail}


def test_g4_room_is_one_block_a_group_for_each_missing_logical_block() -> None:
    rig = CoreRig(make_layout(2, sliding=1))
    key = rig.open()
    room(rig, key, 10)
    assert phases(rig, key) == {8: "open", 9: "open"}
    assert (rig.free(0), rig.free(1)) == (14, 14)
    assert room(rig, key, 10).events == (), "there is room already"
    assert room(rig, key, 3).events == (), "those are on the CPU"
    room(rig, key, 11)
    assert (rig.free(0), rig.free(1)) == (13, 13)
    rig.lawful()


def test_g3_room_that_the_pool_cannot_give_changes_nothing(make_rig: MakeRig) -> None:
    rig = make_rig(device_blocks=3)
    key = rig.open()
    turn = room(rig, key, 12)
    assert turn.outcome == "refused"
    (refused,) = turn.events
    assert isinstance(refused, e.PlanRefused)
    assert (refused.lane, refused.reason, refused.needed, refused.free) == ("store", "no_space", 4, 3)
    assert rig.request(key).tail == ()
    assert rig.free() == 3


def test_g4_only_confirmed_whole_blocks_are_sealed_and_stored_with_every_layer_of_every_group() -> None:
    """Thirty-nine tokens are nine whole blocks of four: block 9 stays open."""
    rig = CoreRig(make_layout(2, sliding=1))
    key = rig.open()
    room(rig, key, 10)
    operation = rig.started(seal(rig, key, 39))
    assert phases(rig, key) == {8: "dirty", 9: "open"}
    work = rig.last(StoreBlocks)
    (physical,) = {block.physical for block in rig.request(key).tail if block.logical == 8}
    assert work.source.as_lists() == {0: [physical[0]], 1: [physical[0]], 2: [physical[1]]}
    (target,) = int32_view(rig.last(e.StoreStarted).source).tolist()
    assert work.destination.as_lists() == {0: [target], 1: [target], 2: [target]}
    assert rig.request(key).source_of(8) == HOLE, "valid only when every rank has stored it"
    rig.done(operation, 0)
    assert rig.request(key).source_of(8) == HOLE
    rig.done(operation, 1)
    assert rig.request(key).source_of(8) == target
    assert phases(rig, key) == {8: "clean", 9: "open"}
    rig.lawful()


def test_g4_what_is_sealed_while_a_store_runs_is_stored_with_the_next_seal(rig: CoreRig, key: RequestKey) -> None:
    room(rig, key, 10)
    first = rig.started(seal(rig, key, 36))
    turn = seal(rig, key, 40)
    assert (turn.outcome, turn.operation) == ("accepted", None)
    assert phases(rig, key) == {8: "dirty", 9: "dirty"}
    rig.all_done(first)
    rig.all_done(rig.started(seal(rig, key, 40)))
    assert phases(rig, key) == {8: "clean", 9: "clean"}
    rig.lawful()


def test_g3_a_full_cpu_pool_leaves_the_block_dirty_and_names_the_reason(make_rig: MakeRig) -> None:
    rig = make_rig(cpu=(8, 8))
    key = rig.open()
    room(rig, key, 9)
    turn = seal(rig, key, 36)
    assert turn.outcome == "accepted"
    refused = rig.last(e.PlanRefused)
    assert (refused.lane, refused.reason, refused.needed, refused.free) == ("store", "no_space", 1, 0)
    assert phases(rig, key) == {8: "dirty"}
    rig.lawful()


@pytest.mark.parametrize("how", ["failed", "abort"])
def test_g3_a_store_that_fails_leaves_the_blocks_dirty_and_gives_its_cpu_blocks_back(
    rig: CoreRig, key: RequestKey, how: str
) -> None:
    room(rig, key, 9)
    full = rig.pools.cpu.free
    operation = rig.started(seal(rig, key, 36))
    if how == "failed":
        rig.done(operation, 1, "failed")
    else:
        rig.send(Abort(operation=operation, reason="x"))
        rig.done(operation, 1, "cancelled")
    assert rig.last(Cancel).operation == operation
    assert rig.pools.cpu.free != full, "rank 0 may still write them"
    rig.done(operation, 0, "cancelled")
    assert rig.pools.cpu.free == full
    assert phases(rig, key) == {8: "dirty"}
    rig.all_done(rig.started(seal(rig, key, 36)))
    assert phases(rig, key) == {8: "clean"}
    rig.lawful()


# ---- leaving the tail


def test_g4_a_wanted_clean_block_becomes_a_slot_without_a_copy_and_leaves_the_tail(
    rig: CoreRig, key: RequestKey
) -> None:
    rig.clean_tail(key, 9)
    (block,) = rig.request(key).tail
    rig.upload(key, {0: [0, 5, 8], 1: [1, 8]}, whole=9)
    assert rig.last(Transfer).source.counts.tolist() == [1, 0]
    assert rig.view(key).logical.as_lists() == {0: [0, 2, 8, 5], 1: [1, 2, 8]}
    assert rig.view(key).physical.row(1)[-1] == block.physical[0]
    assert rig.request(key).tail == ()
    rig.lawful()


def test_f1_a_plan_of_adoptions_only_is_published_and_the_block_rides_on_the_next_retain(
    rig: CoreRig, key: RequestKey
) -> None:
    """Zero bytes and a table change: the keep map goes out, the slot comes with the next new generation."""
    rig.clean_tail(key, 9)
    operation = rig.started(rig.select(key, {0: [0, 8], 1: [1, 8]}, whole=9))
    assert rig.request(key).upload.phase == "PUBLISHED"
    rig.acknowledge(operation)
    assert phases(rig, key) == {8: "clean"}
    rig.retain(key, {0: [0], 1: [1]}, adopt={0: [8], 1: [8]})
    assert rig.view(key).logical.as_lists() == {0: [0, 8], 1: [1, 8]}
    assert rig.request(key).tail == ()
    rig.lawful()


def test_g4_recent_partial_and_unseen_blocks_are_in_no_clear(rig: CoreRig, key: RequestKey) -> None:
    """A commit drops clean blocks that the selection has seen, and nothing else of the tail."""
    rig.clean_tail(key, 10)
    room(rig, key, 12)
    seal(rig, key, 44)  # block 10 sealed: being stored; block 11 open
    rig.upload(key, {0: [0, 3], 1: [1, 2]}, whole=9)
    assert phases(rig, key) == {9: "clean", 10: "dirty", 11: "open"}
    rig.lawful()


def test_g4_sliding_window_blocks_are_in_no_clear_and_leave_when_no_query_can_see_them() -> None:
    """With 42 tokens and a window of 8, the next query sees tokens from 35 on: the last one of block 8."""
    rig = CoreRig(make_layout(2, sliding=1))
    key = rig.open()
    rig.upload(key, VIEW)
    rig.clean_tail(key, 10)
    rig.upload(key, {0: [0, 3], 1: [1, 2]}, whole=10)
    tail = {block.logical: block.physical for block in rig.request(key).tail}
    assert [physical[0] for physical in tail.values()] == [HOLE, HOLE], "gone from the full group"
    assert (rig.free(1), sorted(tail)) == (14, [8, 9])
    seal(rig, key, 42)
    assert rig.free(1) == 14
    seal(rig, key, 43)
    assert rig.free(1) == 15
    assert [block.logical for block in rig.request(key).tail] == [9]
    rig.lawful()


def test_g4_a_block_that_is_not_stored_does_not_leave_its_window() -> None:
    rig = CoreRig(make_layout(2, sliding=1))
    key = rig.open()
    room(rig, key, 13)
    operation = rig.started(seal(rig, key, 36))
    seal(rig, key, 52)
    assert [block.logical for block in rig.request(key).tail] == [8, 9, 10, 11, 12]
    rig.all_done(operation)
    seal(rig, key, 52)
    assert [block.physical[1] for block in rig.request(key).tail][:1] == [HOLE]
    rig.lawful()


def test_b6_a_block_leaves_the_tail_into_a_fence_of_every_step_that_was_handed_it(
    rig: CoreRig, key: RequestKey
) -> None:
    rig.clean_tail(key, 9)
    first, second = rig.begin_step(key), rig.begin_step(key)
    free = rig.free()
    rig.upload(key, {0: [0, 3], 1: [1, 2]}, whole=9)  # block 8 is not wanted: the CPU keeps it
    assert rig.request(key).tail == ()
    later = rig.begin_step(key)
    rig.end_step(second)
    rig.end_step(later)
    assert len(rig.request(key).fences) == 1
    assert rig.free() == free - 1
    rig.end_step(first)
    assert rig.request(key).fences == ()
    assert rig.free() == free, "block 8 went back"
    rig.lawful()


def test_b6_a_step_begun_after_the_drop_does_not_hold_the_fence(rig: CoreRig, key: RequestKey) -> None:
    rig.clean_tail(key, 9)
    first = rig.begin_step(key)
    rig.upload(key, {0: [0, 3], 1: [1, 2]}, whole=9)
    rig.begin_step(key)
    rig.end_step(first)
    assert rig.request(key).fences == ()


def test_b6_areas_of_a_fenced_block_are_no_destination(rig: CoreRig, key: RequestKey) -> None:
    """The adopted block stays in the view for layer 0; its area of layer 1 is still read by the step."""
    rig.clean_tail(key, 9)
    (block,) = rig.request(key).tail
    step = rig.begin_step(key)
    rig.upload(key, {0: [0, 8], 1: [1, 4]}, whole=9)
    assert block.physical[0] in rig.view(key).physical.row(0)
    wide: Ids = {0: [0, 8], 1: [1, 2, 3, 4, 5, 6]}
    rig.upload(key, wide, whole=9)
    assert block.physical[0] not in rig.view(key).physical.row(1)
    rig.end_step(step)
    rig.upload(key, {0: [0, 8], 1: [0, 1, 2, 3, 4, 5, 6, 7]}, whole=9)
    assert block.physical[0] in rig.view(key).physical.row(1)
    rig.lawful()


# ---- preempt and finish


def test_g4_preemption_declares_open_blocks_lost_and_holds_dirty_ones_until_they_are_stored(
    rig: CoreRig, key: RequestKey
) -> None:
    room(rig, key, 10)
    operation = rig.started(seal(rig, key, 36))
    rig.send(Preempt(request=key))
    assert [event.logical for event in rig.events if isinstance(event, e.BlockLost)] == [9]
    assert phases(rig, key) == {8: "dirty"}
    assert rig.free() == 15
    rig.all_done(operation)
    assert rig.request(key).tail == ()
    assert rig.free() == 16
    rig.send(Resume(request=key))
    rig.upload(key, {0: [8], 1: [8]}, whole=9)
    room(rig, key, 10)
    assert phases(rig, key) == {9: "open"}, "computed again"
    rig.lawful()


def test_g4_preemption_stores_what_was_sealed_and_is_in_no_store_yet(make_rig: MakeRig) -> None:
    """Sealed while the CPU pool was full; another request has given its blocks back since."""
    rig = make_rig(cpu=(8, 8))
    other, key = rig.open("b", blocks=4), rig.open(blocks=4)
    room(rig, key, 5)
    assert seal(rig, key, 20).operation is None
    rig.send(Finish(request=other))
    mark = len(rig.events)
    rig.send(Preempt(request=key))
    assert rig.since(mark) == ["RequestPreempted", "StoreStarted"]
    assert rig.free() == 15, "held until it is stored"
    store = rig.request(key).store.open
    assert store is not None
    rig.all_done(store.operation)
    assert rig.request(key).source_of(4) >= 0
    assert rig.free() == 16
    rig.lawful()


def test_g4_preemption_declares_lost_what_cannot_be_stored(make_rig: MakeRig) -> None:
    """Nothing is silently gone, and nothing is held for ever."""
    rig = make_rig(cpu=(8, 8))
    key = rig.open()
    room(rig, key, 9)
    seal(rig, key, 36)
    rig.send(Preempt(request=key))
    assert (rig.last(e.BlockLost).logical, rig.last(e.BlockLost).reason) == (8, "preempted and not stored")
    assert rig.request(key).tail == ()
    assert rig.free() == 16
    rig.lawful()


def test_g4_a_store_that_fails_under_preemption_leaves_its_blocks_lost(rig: CoreRig, key: RequestKey) -> None:
    room(rig, key, 10)
    operation = rig.started(seal(rig, key, 36))
    seal(rig, key, 40)  # block 9 waits for the next store
    rig.send(Preempt(request=key))
    assert phases(rig, key) == {8: "dirty", 9: "dirty"}
    rig.done(operation, 0, "failed")
    assert [event.logical for event in rig.events if isinstance(event, e.BlockLost)] == [8, 9]
    assert rig.free() == 15, "rank 1 may still read block 8"
    rig.done(operation, 1, "cancelled")
    assert rig.free() == 16
    rig.lawful()


def test_b6_preemption_under_an_open_step_keeps_what_the_step_reads(rig: CoreRig, key: RequestKey) -> None:
    room(rig, key, 9)
    step = rig.begin_step(key)
    free = rig.free()
    rig.send(Preempt(request=key))
    assert rig.free() == free
    assert rig.request(key).view is None
    rig.end_step(step)
    assert rig.free() == 16
    rig.lawful()


def test_g3_finish_drops_the_tail_without_a_store_and_a_running_store_settles_first(
    rig: CoreRig, key: RequestKey
) -> None:
    room(rig, key, 10)
    operation = rig.started(seal(rig, key, 36))
    rig.send(Finish(request=key))
    assert rig.request(key).life == "FINISHING"
    assert rig.free() == 15, "block 8 may still be read by the copy down"
    assert rig.pools.cpu.free == (31, 8)
    for rank, _ in RANKS:
        rig.done(operation, rank, "completed")
    assert rig.request(key).life == "CLOSED"
    assert (rig.free(), rig.pools.cpu.free) == (16, (32, 8))
    rig.lawful()


def test_g4_a_store_that_completes_after_the_finish_makes_no_source(rig: CoreRig, key: RequestKey) -> None:
    room(rig, key, 9)
    operation = rig.started(seal(rig, key, 36))
    rig.send(Finish(request=key))
    rig.done(operation, 0, "completed")
    assert rig.request(key).source == b""
    rig.done(operation, 1, "completed")
    assert rig.request(key).source == b""
    rig.lawful()


def test_b6_without_adoption_a_wanted_tail_block_is_copied_and_its_own_block_goes_back(
    rig: CoreRig, key: RequestKey
) -> None:
    """For tails that are only lent: the view keeps none of their blocks, and nothing is written into them."""
    rig.clean_tail(key, 10)
    lent = [block.physical[0] for block in rig.request(key).tail]
    revision = rig.request(key).selection_revision + 1
    chosen = selection(rig.layout, key, revision, {0: [0, 8, 9], 1: [1, 8, 9]}, whole=10)
    operation = rig.started(rig.send(Select(selection=chosen, idempotency_key="copy", adopt=False)))
    assert rig.last(Transfer).source.counts.tolist() == [2, 2]
    rig.all_done(operation)
    view = rig.view(key)
    assert view.logical.as_lists() == {0: [0, 2, 8, 9], 1: [1, 2, 8, 9]}
    assert not {*view.physical.ids.tolist()} & {*lent}
    assert rig.request(key).tail == ()
    assert {*lent} <= {*int32_view(rig.last(Release).device[0]).tolist()}
    rig.lawful()
