"""Shared prefix blocks: references, never written, free with the last one whoever holds it (B6)."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from tests.ledger.pairs import pairs_of
from tests.ledger.relation import freed_sources
from tests.ledger.worlds import WITH_SLIDING, A, B, World, ids_of, rows

from kvsweep.ledger import events as e
from kvsweep.ledger.ids import POOL, RequestKey, int32_bytes
from kvsweep.ledger.ownership import Holder
from kvsweep.ledger.state import PREFIXES_KEPT, Prefix

C = RequestKey("c", 1)
BLOCK, SOURCE, LOGICAL = 2, 4, 4


def world(layout: Any = None) -> World:
    """a wrote logical block 4 into block 2 and stored it in CPU block 4; b knows only other blocks."""
    w = World(layout, opened=False) if layout else World(opened=False)
    w.open(row_count=3)
    w.open(B, first_source=8)
    w.clean_tail(LOGICAL, [BLOCK] * w.layout.groups, SOURCE)
    return w


def sharing() -> World:
    w = world()
    w.attach(w.publish(LOGICAL))
    return w


def holders_of(w: World, layer: int = 0, block: int = BLOCK) -> list[tuple[str, str]]:
    """(who, as what) of one area."""
    pairs = pairs_of(w.state)
    return sorted((owner[1].request_id, owner[0]) for resource, owner in pairs if resource == ("area", layer, block))


def freed(w: World, act: Callable[[], Any]) -> list[int]:
    """CPU blocks that nobody holds any more."""
    before = w.state.ownership
    act()
    return freed_sources(before, w.state.ownership)


# ---- publish


def test_b6_a_published_block_leaves_its_owner_and_the_pool_holds_every_area_of_it() -> None:
    w = world()
    assert (w.owned(), w.shared(), w.vacant(0)) == ([BLOCK], [], [])
    assert w.publish(LOGICAL) == 1
    assert (w.owned(), w.shared()) == ([], [BLOCK]), "nobody's block any more, and not free either"
    for layer in (0, 1):
        assert holders_of(w, layer) == [("@pool", "prefix"), ("a", "tail")]
    assert ids_of(w.state.ownership.shared_sources) == [SOURCE]
    assert w.of().tail[0].phase == "clean", "the publisher keeps its reference"
    w.lawful()


def test_a_published_block_is_shared_in_every_group() -> None:
    w = world(WITH_SLIDING)
    w.publish(LOGICAL)
    assert [w.shared(group) for group in (0, 1)] == [[BLOCK], [BLOCK]]
    assert [holders_of(w, layer) for layer in (0, 1, 2)] == [[("@pool", "prefix"), ("a", "tail")]] * 3
    w.lawful()


PublishCase = tuple[str, str, Callable[[World], Any]]
NOT_WHOLE = f"logical block {LOGICAL + 1} is not a clean tail block, whole in every group"
UNPUBLISHABLE: list[PublishCase] = [
    ("open", NOT_WHOLE, lambda w: w.tail(LOGICAL + 1, [3], sealed=False)),
    ("dirty", NOT_WHOLE, lambda w: w.tail(LOGICAL + 1, [3])),
    ("dirty, though the producer names it", NOT_WHOLE,
     lambda w: (w.tail(LOGICAL + 1, [3]), w.register([LOGICAL + 1], [5]))),
    ("lost", NOT_WHOLE, lambda w: (w.tail(LOGICAL + 1, [3]), w.emit(e.BlockLost, logical=LOGICAL + 1, reason="x"))),
    ("unknown", NOT_WHOLE, lambda w: None),
    ("dropped", NOT_WHOLE, lambda w: (w.clean_tail(LOGICAL + 1, [3], 5), w.drop([LOGICAL + 1]))),
    (
        "without a valid CPU block", NOT_WHOLE,
        lambda w: (w.clean_tail(LOGICAL + 1, [3], 5), w.emit(e.ProducerRestarted, POOL, process_epoch=6)),
    ),
    ("preempted", "only a living request writes: life is PREEMPTED",
     lambda w: (w.clean_tail(LOGICAL + 1, [3], 5), w.emit(e.RequestPreempted))),
]  # fmt: skip


@pytest.mark.parametrize(("name", "reason", "prepare"), UNPUBLISHABLE, ids=[case[0] for case in UNPUBLISHABLE])
def test_only_a_whole_clean_block_of_a_running_request_is_published(
    name: str, reason: str, prepare: Callable[[World], Any]
) -> None:
    w = world()
    prepare(w)
    w.refuse(reason, e.PrefixPublished, logical=LOGICAL + 1, number=1, key="other")


def test_a_block_that_one_group_has_dropped_is_not_whole() -> None:
    w = world(WITH_SLIDING)
    w.drop([LOGICAL], group=1)
    w.refuse("whole in every group", e.PrefixPublished, logical=LOGICAL, number=1, key="tokens")


def test_a_prefix_is_published_once_under_the_next_number() -> None:
    w = world()
    w.refuse("expected prefix 1", e.PrefixPublished, logical=LOGICAL, number=2, key="tokens")
    w.publish(LOGICAL)
    w.refuse("is shared already", e.PrefixPublished, logical=LOGICAL, number=2, key="again")
    w.attach(1)
    w.refuse("is shared already", e.PrefixPublished, B, logical=LOGICAL, number=2, key="again")
    w.clean_tail(LOGICAL + 1, [3], 5)
    w.refuse("expected prefix 2", e.PrefixPublished, logical=LOGICAL + 1, number=1, key="more")
    w.refuse("'tokens' is published already", e.PrefixPublished, logical=LOGICAL + 1, number=2, key="tokens")
    assert w.publish(LOGICAL + 1, "more") == 2
    w.evict(1)
    w.clean_tail(LOGICAL + 2, [0], 6)
    assert w.publish(LOGICAL + 2, "tokens") == 3, "a name comes back, a number never"
    w.lawful()


def test_the_cache_is_bounded() -> None:
    w = world()
    full = tuple(Prefix(number=n, key=f"k{n}", logical=0, physical=(0,), source=0) for n in range(1, PREFIXES_KEPT + 1))
    w.state = replace(w.state, pool=replace(w.state.pool, prefixes=full, next_prefix=PREFIXES_KEPT + 1))
    fields = {"logical": LOGICAL, "number": PREFIXES_KEPT + 1, "key": "tokens"}
    w.refuse(f"one of at most {PREFIXES_KEPT}", e.PrefixPublished, **fields)
    w.state = replace(w.state, pool=replace(w.state.pool, prefixes=full[1:]))
    w.emit(e.PrefixPublished, **fields)


# ---- attach


def test_an_attached_block_is_one_reference_more_on_the_device_and_on_the_cpu() -> None:
    w = sharing()
    for layer in (0, 1):
        assert holders_of(w, layer) == [("@pool", "prefix"), ("a", "tail"), ("b", "tail")]
    (block,) = w.of(B).tail
    assert (block.logical, block.physical, block.phase) == (LOGICAL, (BLOCK,), "clean")
    assert w.of(B).source_of(LOGICAL) == SOURCE
    assert SOURCE in w.sources_held(B)
    assert (w.owned(B), w.shared()) == ([], [BLOCK])
    w.lawful()


def test_an_attach_that_does_not_fit_the_request_is_refused() -> None:
    w = world()
    fields = {"logical": LOGICAL, "number": 1}
    w.refuse("prefix 1 does not hold logical block 4", e.PrefixAttached, B, **fields)
    w.publish(LOGICAL)
    w.refuse("prefix 1 does not hold logical block 5", e.PrefixAttached, B, **{**fields, "logical": 5})
    w.refuse("not after the tail's newest 4, or is known", e.PrefixAttached, A, **fields)
    w.emit(e.RequestPreempted, B)
    w.refuse("only a living request writes: life is PREEMPTED", e.PrefixAttached, B, **fields)
    w.emit(e.RequestResumed, B)
    w.tail(LOGICAL + 1, [3], B)
    w.refuse("not after the tail's newest 5", e.PrefixAttached, B, **fields)
    w.open(C, blocks=0)
    w.register([LOGICAL], [5], C)
    w.refuse("or is known", e.PrefixAttached, C, **fields)


def test_after_the_shared_ones_a_request_writes_its_own() -> None:
    w = sharing()
    w.tail(LOGICAL + 1, [3], B)
    assert (w.owned(B), w.shared()) == ([3], [BLOCK])
    w.lawful()


# ---- never written


def churned() -> World:
    """Only b's view still reads the shared block, in layer 0: its area of layer 1 is vacant and the cache is gone."""
    w = sharing()
    w.commit(w.upload({0: [], 1: []}, {0: [], 1: []}, key=B, adopted=rows({0: [LOGICAL], 1: []})))
    w.open_fence(w.drop([LOGICAL], B), key=B)
    w.open_fence(w.drop([LOGICAL]))
    w.evict(1)
    assert (holders_of(w, 0), holders_of(w, 1)) == ([("b", "view")], [])
    assert w.shared() == [BLOCK], "a vacant area does not free the block"
    w.lawful()
    return w


@pytest.mark.parametrize("key", [A, B])
def test_b6_nobody_places_into_vacant_areas_of_a_shared_block(key: RequestKey) -> None:
    """Also the only reader that is left: the block has no owner until it is free again."""
    w = churned()
    wanted: dict[int, list[int]] = {0: [], 1: [1]}
    w.plan(wanted, key)
    to = {0: [], 1: [BLOCK]}
    row = 1
    w.refuse("area of block 2 is not vacant or not owned", e.BlocksLeased, key, **w.lease(to, row=row, key=key))
    w.refuse("block 2 of group 0 is shared", e.BlocksLeased, key, **w.lease(to, [BLOCK], row, key))
    w.emit(e.BlocksLeased, key, **w.lease({0: [], 1: [3]}, [3], row, key))


def test_b6_a_retain_moves_no_bytes_into_a_shared_block() -> None:
    w = churned()
    moved = {"moved_from": rows({0: [BLOCK], 1: []}), "moved_to": rows({0: [], 1: [BLOCK]}), "mode": "move"}
    keep: dict[int, list[int]] = {0: [0], 1: []}
    w.refuse("not vacant or not owned", e.RetainPlanned, B, **w.retain_fields(keep, key=B, **moved))
    reserved = {**moved, "reserved": w.by_group([BLOCK])}
    w.refuse("block 2 of group 0 is shared", e.RetainPlanned, B, **w.retain_fields(keep, key=B, **reserved))


def test_b6_a_shared_block_is_never_a_tail_block_that_is_written() -> None:
    w = sharing()
    new = int32_bytes([BLOCK])
    w.refuse("block 2 of group 0 is shared", e.TailOpened, B, logical=LOGICAL + 1, physical_by_group=new)
    w.refuse("is clean, expected open", e.TailSealed, B, logical=LOGICAL)
    store = {"operation": w.operation(B), "logical": int32_bytes([LOGICAL]), "source": int32_bytes([5])}
    w.refuse("is clean, expected dirty", e.StoreStarted, B, **store, ranks=w.state.pool.ranks)


def test_b6_a_shared_cpu_block_is_nobody_elses_to_store_into() -> None:
    w = sharing()
    w.open(C, blocks=0)
    w.tail(0, [3], C)
    store = {"operation": w.operation(C), "logical": int32_bytes([0]), "source": int32_bytes([SOURCE])}
    w.refuse("CPU block 4 is held", e.StoreStarted, C, **store, ranks=w.state.pool.ranks)
    w.refuse("CPU block 4 is held for", e.SourcesRegistered, C, logical=int32_bytes([3]), source=int32_bytes([SOURCE]))


# ---- the last reference frees


@pytest.mark.parametrize("order", list(itertools.permutations(("cache", "a", "b"))))
def test_b6_three_removals_in_any_order_and_only_the_last_one_frees(order: tuple[str, ...]) -> None:
    w = sharing()
    fences = {"a": w.drop([LOGICAL]), "b": w.drop([LOGICAL], B)}
    keys = {"a": A, "b": B, "cache": POOL}
    for at, who in enumerate(order):
        freed = [BLOCK] if at == 2 else []
        wrong = w.by_group([] if freed else [BLOCK])
        assert w.shared() == [BLOCK]
        if who == "cache":
            w.refuse("said to be freed are not those", e.PrefixEvicted, POOL, number=1, freed=wrong)
            w.evict(1, freed)
        else:
            fence = {"fence": fences[who], "freed": wrong}
            w.refuse("said to be freed are not those", e.FenceOpened, keys[who], **fence)
            w.open_fence(fences[who], freed, keys[who])
        w.lawful()
    assert w.shared() == []
    assert holders_of(w) == []
    w.tail(LOGICAL + 1, [BLOCK], B)  # free for anybody
    assert w.owned(B) == [BLOCK]
    w.lawful()


@pytest.mark.parametrize("order", list(itertools.permutations(("cache", "a", "b"))))
def test_b6_a_shared_cpu_block_goes_back_with_its_last_reference(order: tuple[str, ...]) -> None:
    w = sharing()
    w.open_fence(w.drop([LOGICAL]))
    w.open_fence(w.drop([LOGICAL], B), key=B)
    acts: dict[str, Callable[[], Any]] = {
        "cache": lambda: w.evict(1, [BLOCK]),
        "a": lambda: w.emit(e.RequestFinished),
        "b": lambda: w.emit(e.RequestFinished, B),
    }
    for at, who in enumerate(order):
        gone = freed(w, acts[who])
        assert (SOURCE in gone) == (at == 2), (who, gone)
        w.lawful()
    assert w.state.ownership.shared_sources == b""


def test_b6_a_reader_outlives_the_publisher_and_the_cache() -> None:
    """b reads the block in its view while a closes, lives again, and the cache gives up its reference."""
    w = sharing()
    adopted = rows({0: [LOGICAL], 1: [LOGICAL]})
    w.commit(w.upload({0: [], 1: []}, {0: [], 1: []}, key=B, adopted=adopted))
    w.open_fence(w.drop([LOGICAL], B), key=B)
    w.emit(e.RequestFinished)
    w.open_fence(w.drop([LOGICAL]))
    w.emit(e.RequestClosed)
    second = RequestKey("a", 2)
    w.open(second, blocks=0)
    w.attach(1, second)
    w.evict(1)
    w.emit(e.RequestFinished, second)
    w.open_fence(w.drop([LOGICAL], second), key=second)
    assert holders_of(w) == [("b", "view")]
    assert w.table(B) == ({0: [LOGICAL], 1: [LOGICAL]}, {0: [BLOCK], 1: [BLOCK]})
    assert w.shared() == [BLOCK]
    w.lawful()
    w.emit(e.RequestPreempted, B)
    w.retire(w.of(B).views[0].generation, "preempt", [BLOCK], B)
    assert w.shared() == []
    w.lawful()


def test_b6_a_lease_that_settles_keeps_a_shared_block() -> None:
    """The adopted areas are held by the operation until each rank is terminal, whatever the cache and the tail do."""
    w = sharing()
    op = w.upload({0: [], 1: []}, {0: [], 1: []}, key=B, adopted=rows({0: [LOGICAL], 1: [LOGICAL]}))
    w.open_fence(w.drop([LOGICAL], B), key=B)
    w.open_fence(w.drop([LOGICAL]))
    w.emit(e.UploadAborted, B, operation=op, reason="deadline")
    w.evict(1)
    w.settle(op, 1)
    assert (holders_of(w), w.shared()) == ([("b", "src")], [BLOCK])
    w.settle(op, 0)
    assert (holders_of(w), w.shared()) == ([], [])
    w.lawful()


def test_two_prefixes_go_one_by_one() -> None:
    w = sharing()
    w.clean_tail(LOGICAL + 1, [3], 5)
    w.attach(w.publish(LOGICAL + 1, "more"))
    for logical in (LOGICAL, LOGICAL + 1):
        w.open_fence(w.drop([logical]))
        w.open_fence(w.drop([logical], B), key=B)
    w.evict(2, [3])
    assert (w.shared(), [p.number for p in w.state.pool.prefixes]) == ([BLOCK], [1])
    assert {holder.number for holder in w.state.ownership.holders(POOL)} == {1}
    w.evict(1, [BLOCK])
    assert (w.shared(), dict(w.state.ownership.holders(POOL))) == ([], {})


def test_an_eviction_names_a_prefix_that_is_there() -> None:
    w = sharing()
    w.refuse("there is no prefix 2", e.PrefixEvicted, POOL, number=2, freed=w.by_group())
    w.evict(1)
    w.refuse("there is no prefix 1", e.PrefixEvicted, POOL, number=1, freed=w.by_group())
    w.refuse("prefix 1 does not hold", e.PrefixAttached, A, logical=LOGICAL + 1, number=1)


# ---- restarts


def test_a_process_that_ends_takes_the_prefixes_with_it() -> None:
    """Its part of every shared block is gone: they are evicted before anybody can attach to half a block."""
    w = sharing()
    lost = {"rank": 1, "process_epoch": 11, "pool_generation": 2}
    w.refuse("evict them first", e.RankLost, POOL, **lost)
    w.refuse("evict them first", e.RankRestarted, POOL, **{**lost, "process_epoch": 12})
    w.refuse("evict them first", e.ProducerRestarted, POOL, process_epoch=6)
    w.evict(1)
    w.emit(e.RankLost, POOL, **lost)
    w.emit(e.RankRestarted, POOL, rank=1, process_epoch=12, pool_generation=3)
    w.emit(e.ProducerRestarted, POOL, process_epoch=6)
    w.lawful()


def test_i_after_a_producer_restart_each_reader_registers_a_shared_block_again_for_itself() -> None:
    w = sharing()
    w.evict(1)
    w.emit(e.ProducerRestarted, POOL, process_epoch=6)
    again = {"logical": int32_bytes([LOGICAL]), "source": int32_bytes([SOURCE])}
    w.emit(e.SourcesRegistered, B, **again)
    assert (w.of(B).source_of(LOGICAL), w.of(A).source_of(LOGICAL)) == (SOURCE, -1)
    w.lawful()
    w.open(C, blocks=0)
    w.refuse("CPU block 4 is held for", e.SourcesRegistered, C, **again)
    w.emit(e.SourcesRegistered, A, **again)
    w.lawful()
    assert freed(w, lambda: w.emit(e.RequestFinished)) == [0, 1, 2, 3]
    assert SOURCE in freed(w, lambda: w.emit(e.RequestFinished, B))


def test_i_an_attached_block_replaces_the_stale_one_of_the_same_place() -> None:
    """b knew logical block 4 before the restart under another CPU block: that one is given back, not forgotten."""
    w = World(opened=False)
    w.open()
    w.open(B, blocks=0)
    w.register([LOGICAL], [9], B)
    w.emit(e.ProducerRestarted, POOL, process_epoch=6)
    w.clean_tail(LOGICAL, [BLOCK], SOURCE)
    number = w.publish(LOGICAL)
    assert freed(w, lambda: w.attach(number)) == [9]
    assert w.sources_held(B) == [SOURCE]
    w.lawful()
    w.evict(number)
    w.emit(e.ProducerRestarted, POOL, process_epoch=7)
    w.lawful()


def test_the_pool_holds_prefixes_and_nothing_else() -> None:
    w = sharing()
    assert set(w.state.ownership.holders(POOL)) == {Holder("prefix", 1)}
    w.refuse("a fact of the pool, not of a request", e.PrefixEvicted, A, number=1, freed=w.by_group())
    w.refuse("illegal in the pool stream", e.PrefixAttached, POOL, logical=LOGICAL, number=1)
