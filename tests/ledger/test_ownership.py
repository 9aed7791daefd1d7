"""The relation (resource, holder) and the one function that changes it: B4, B6 and the rules of areas."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.ledger.relation import change, freed_blocks, freed_sources
from tests.ledger.worlds import TWO_LAYERS, WITH_SLIDING, A, B, World, rows

from kvsweep.ledger import events as e
from kvsweep.ledger.ids import int32_bytes, no_rows
from kvsweep.ledger.ownership import NOTHING_OWNED, Holder, Holding, Ownership, blocks_by_group

VIEW, NEXT, DST, SRC = Holder("view", 1), Holder("view", 2), Holder("dst", 7), Holder("src", 7)


def areas(ids: dict[int, list[int]]) -> Holding:
    return Holding(areas=rows(ids))


def owning(blocks: list[int], **put: Any) -> Ownership:
    """A reserved `blocks` and holds what `put` says (view=…, dst=…)."""
    holders = {Holder(kind, 1): holding for kind, holding in put.items()}  # type: ignore[arg-type]
    return change(NOTHING_OWNED, A, TWO_LAYERS, put=holders, reserve=(int32_bytes(blocks),))


def own(ownership: Ownership, layout: Any = TWO_LAYERS, group: int = 0) -> list[int]:
    return ownership.owned(A, layout)[group].tolist()


def vacant(ownership: Ownership, layer: int) -> list[int]:
    blocks, held = ownership.occupancy(A, 0, TWO_LAYERS)
    return blocks[~held[layer]].tolist()


# ---- B6, areas: vacant by the relation, free only with the last area


def test_b6_an_area_is_vacant_exactly_when_nobody_holds_it_whoever_the_holder() -> None:
    for kind in ("view", "tail", "dst", "src", "fence"):
        ownership = owning([2, 3], **{kind: areas({0: [2, 3], 1: [3]})})
        assert (vacant(ownership, 0), vacant(ownership, 1)) == ([], [2]), kind


def test_b6_a_block_is_free_only_with_its_last_area() -> None:
    ownership = owning([2], view=areas({0: [2], 1: [2]}))
    left = change(ownership, A, TWO_LAYERS, put={NEXT: areas({0: [], 1: [2]})}, drop=(VIEW,))
    assert (own(left), vacant(left, 0), vacant(left, 1)) == ([2], [2], [])
    gone = change(left, A, TWO_LAYERS, drop=(NEXT,))
    assert own(gone) == []
    assert gone.canonical() == NOTHING_OWNED.canonical(), "own is dropped with the block: nothing is left behind"


def test_b6_pairs_are_added_before_they_are_removed() -> None:
    """A commit moves areas from the operation to the view; in between, nothing of them is free."""
    ownership = owning([2], dst=areas({0: [2], 1: [2]}))
    moved = change(ownership, A, TWO_LAYERS, put={VIEW: areas({0: [2], 1: [2]})}, drop=(Holder("dst", 1),))
    assert own(moved) == [2]


def test_b6_an_area_with_two_holders_needs_both_to_go_in_either_order() -> None:
    both = owning([2, 3], view=areas({0: [2], 1: [2]}), tail=areas({0: [2, 3], 1: [2, 3]}))
    for first, second in itertools.permutations((Holder("view", 1), Holder("tail", 1))):
        one = change(both, A, TWO_LAYERS, drop=(first,))
        assert 2 in own(one)
        assert own(change(one, A, TWO_LAYERS, drop=(second,))) == []


def test_b6_replacing_what_a_holder_holds_frees_what_it_held_before() -> None:
    ownership = owning([2, 3], view=areas({0: [2], 1: [3]}))
    assert own(change(ownership, A, TWO_LAYERS, put={VIEW: areas({0: [3], 1: [3]})})) == [3]


def test_groups_have_pools_of_their_own() -> None:
    """Block 2 of one group and block 2 of another are two blocks."""
    ownership = change(
        NOTHING_OWNED, A, WITH_SLIDING, put={VIEW: areas({0: [2], 1: [2], 2: [2]}), NEXT: areas({2: [5]})},
        reserve=(int32_bytes([2]), int32_bytes([2, 5])),
    )  # fmt: skip
    left = change(ownership, A, WITH_SLIDING, put={VIEW: areas({0: [2], 1: []})})
    assert (own(left, WITH_SLIDING), own(left, WITH_SLIDING, 1)) == ([2], [5])
    layers = [found.tolist() for found in blocks_by_group(rows({0: [4, 1], 1: [1], 2: [9, 9]}), WITH_SLIDING)]
    assert layers == [[1, 4], [9]]


def test_what_one_request_drops_leaves_another_requests_own_alone() -> None:
    ownership = owning([2], view=areas({0: [2], 1: [2]}))
    two = change(ownership, B, TWO_LAYERS, put={VIEW: areas({0: [4], 1: []})}, reserve=(int32_bytes([4]),))
    left = change(two, A, TWO_LAYERS, drop=(VIEW,))
    assert [left.owned(key, TWO_LAYERS)[0].tolist() for key in (A, B)] == [[], [4]]


def test_b4_own_gives_no_lifetime() -> None:
    """Reserving holds nothing, only pairs do: a block that nobody holds is free in the same change."""
    ownership = change(NOTHING_OWNED, A, TWO_LAYERS, put={VIEW: areas({0: [2]})}, reserve=(int32_bytes([1, 2]),))
    assert (own(ownership), vacant(ownership, 0), vacant(ownership, 1)) == ([2], [], [2])
    assert change(NOTHING_OWNED, A, TWO_LAYERS, reserve=(int32_bytes([1, 2]),)).holders(A) == {}


def test_the_relation_is_never_changed_only_replaced() -> None:
    before = owning([2], view=areas({0: [2], 1: [2]}))
    kept = repr(before.canonical())
    change(before, A, TWO_LAYERS, put={DST: areas({0: [2], 1: []})}, drop=(VIEW,))
    assert repr(before.canonical()) == kept


def test_a_holder_that_is_not_there_cannot_let_go() -> None:
    before = owning([2], view=areas({0: [2], 1: [2]}))
    kept = repr(before.canonical())
    for holder in (NEXT, Holder("dst", 1), Holder("view", 1, 1)):
        with pytest.raises(KeyError):
            change(before, A, TWO_LAYERS, drop=(holder,))
    with pytest.raises(KeyError):
        change(before, B, TWO_LAYERS, drop=(VIEW,))
    assert repr(before.canonical()) == kept


def test_a_canonical_form_does_not_tell_in_which_order_holders_came() -> None:
    holders = {VIEW: areas({0: [2]}), DST: areas({1: [2]})}
    reserve = (int32_bytes([2]),)
    first = change(NOTHING_OWNED, A, TWO_LAYERS, put=holders, reserve=reserve)
    second = change(NOTHING_OWNED, A, TWO_LAYERS, put={DST: holders[DST]}, reserve=reserve)
    second = change(second, A, TWO_LAYERS, put={VIEW: holders[VIEW]})
    assert list(first.holders(A)) != list(second.holders(A))
    assert first.canonical() == second.canonical()


# ---- sources, rows, and what came back


def test_b6_freed_is_owned_before_less_referenced_after() -> None:
    before = owning([1, 2, 3], view=areas({0: [1, 2], 1: [1, 3]}), src=Holding(sources=int32_bytes([8, 9])))
    after = change(before, A, TWO_LAYERS, put={NEXT: areas({0: [2], 1: []})}, drop=(VIEW, Holder("src", 1)))
    assert freed_blocks(before, after, A, TWO_LAYERS) == [[1, 3]]
    assert freed_sources(before, after) == [8, 9]


def test_a_leased_source_stays_held_when_its_owner_goes() -> None:
    ownership = change(
        NOTHING_OWNED, A, TWO_LAYERS,
        put={Holder("owner"): Holding(sources=int32_bytes([0, 1])), SRC: Holding(sources=int32_bytes([1, 12]))},
    )  # fmt: skip
    assert ownership.sources(A).tolist() == [0, 1, 12]
    left = change(ownership, A, TWO_LAYERS, drop=(Holder("owner"),))
    assert left.sources(A).tolist() == [1, 12]
    assert freed_sources(ownership, left) == [0]
    assert NOTHING_OWNED.sources(A).tolist() == []


def test_rows_are_held_like_blocks() -> None:
    ownership = change(NOTHING_OWNED, A, TWO_LAYERS, put={VIEW: Holding(rows=(0,)), DST: Holding(rows=(1,))})
    assert ownership.rows(A) == {0, 1}
    assert change(ownership, A, TWO_LAYERS, drop=(VIEW,)).rows(A) == {1}
    assert ownership.rows(B) == frozenset()


# ---- against a dict of sets


HOLDERS = [Holder("view", 1), Holder("view", 2), Holder("dst", 1), Holder("tail", 4, 0)]
HELD = st.dictionaries(st.sampled_from([0, 1]), st.sets(st.integers(0, 4), max_size=3).map(sorted), max_size=2)
CHANGES = st.lists(
    st.tuples(st.dictionaries(st.sampled_from(HOLDERS), HELD, max_size=2), st.sets(st.sampled_from(HOLDERS))),
    max_size=8,
)  # fmt: skip


@given(CHANGES)
def test_b6_any_sequence_of_changes_owns_what_a_dict_of_sets_owns(changes: Any) -> None:
    ownership, held, reserved = NOTHING_OWNED, {}, set()
    for put, drop in changes:
        before = {block for pairs in held.values() for _, block in pairs}
        gone = {holder for holder in drop if holder in held and holder not in put}
        new = {block for ids in put.values() for blocks in ids.values() for block in blocks} - reserved
        ownership = change(
            ownership, A, TWO_LAYERS, put={holder: areas(ids) for holder, ids in put.items()}, drop=gone,
            reserve=(int32_bytes(sorted(new)),),
        )  # fmt: skip
        held |= {holder: {(layer, block) for layer in ids for block in ids[layer]} for holder, ids in put.items()}
        reserved |= new
        held = {holder: pairs for holder, pairs in held.items() if holder not in gone}
        after = {block for pairs in held.values() for _, block in pairs}
        reserved = {block for block in reserved if block in after}
        assert own(ownership) == sorted(reserved), (before, after)
        for layer in (0, 1):
            taken = {block for pairs in held.values() for at, block in pairs if at == layer}
            assert vacant(ownership, layer) == sorted(reserved - taken)


# ---- what the fold lets a plan place into (areas)


def two_views() -> World:
    """Layer 0 keeps block 0, layer 1 keeps block 1: blocks 0 and 1 are owned, one area of each is vacant."""
    w = World()
    w.resident()
    w.retained({0: [0], 1: [1]}, freed=[])
    return w


def test_areas_vacant_areas_of_ones_own_blocks_are_filled_without_a_new_block() -> None:
    w = two_views()
    w.commit(w.upload({0: [2], 1: [2]}, {0: [1], 1: [0]}, row=0))
    assert w.owned() == [0, 1]
    assert w.table()[1] == {0: [0, 1], 1: [1, 0]}
    w.lawful()


def test_areas_one_plan_never_hands_out_an_area_twice() -> None:
    w = two_views()
    w.plan({0: [2, 3], 1: [2]})
    w.refuse("layer 0: an area is handed out twice", e.BlocksLeased, **w.lease({0: [1, 1], 1: [0]}, row=0))
    w.refuse("layer 0: an area is handed out twice", e.BlocksLeased, **w.lease({0: [5, 5], 1: [0]}, [5], row=0))


@pytest.mark.parametrize(
    ("to", "reserved", "match"),
    [
        ({0: [0], 1: [0]}, [], "layer 0: area of block 0 is not vacant"),  # the current view
        ({0: [1], 1: [1]}, [], "layer 1: area of block 1 is not vacant"),
        ({0: [5], 1: [0]}, [], "layer 0: area of block 5 is not vacant or not owned"),  # never reserved
        ({0: [3], 1: [0]}, [], "layer 0: area of block 3 is not vacant or not owned"),  # another request's
        ({0: [3], 1: [0]}, [3], "block 3 of group 0 is owned by b"),
        ({0: [1], 1: [0]}, [1], "block 1 of group 0 is owned by a"),  # reserved already
        ({0: [-1], 1: [0]}, [], "layer 0: area of block -1 is not vacant"),
        ({0: [6], 1: [0]}, [6], "not distinct ids in"),
        ({0: [-1], 1: [0]}, [-1], "not distinct ids in"),
        ({0: [5], 1: [0]}, [5, 5], "not distinct ids in"),
        ({0: [1], 1: [0]}, [5], "reserved block 5 of group 0 has no destination area"),
    ],
)
def test_areas_a_destination_is_a_vacant_area_of_ones_own_or_of_a_new_block(
    to: dict[int, list[int]], reserved: list[int], match: str
) -> None:
    w = two_views()
    w.open(B, first_source=4)
    w.upload({0: [0], 1: []}, {0: [2], 1: []}, [2], key=B)
    w.emit(e.UploadAborted, B, operation=w.opened("upload", B), reason="x")
    w.tail(4, [3], B)
    w.plan({0: [2], 1: [2]})
    w.refuse(match, e.BlocksLeased, **w.lease(to, reserved, row=0))
    w.emit(e.BlocksLeased, **w.lease({0: [1], 1: [0]}, row=0))


def test_areas_a_lease_names_reserved_blocks_of_every_group() -> None:
    w = World(WITH_SLIDING)
    w.plan({0: [0], 1: [0]})
    fields = w.lease({0: [1], 1: [1]}, [1])
    w.refuse("reserved blocks of 2 groups, got 1", e.BlocksLeased, **{**fields, "reserved": (int32_bytes([1]),)})
    w.refuse("reserved block 4 of group 1 has no destination area", e.BlocksLeased,
             **{**fields, "reserved": (int32_bytes([1]), int32_bytes([4]))})  # fmt: skip
    w.emit(e.BlocksLeased, **fields)


@pytest.mark.parametrize("state", ["draining", "settling", "fenced", "tail"])
def test_areas_vacancy_is_asked_of_the_relation_never_of_the_current_view(state: str) -> None:
    """Readers or late copies still use areas of a draining generation, a quarantine, a fence, the tail."""
    w = World(opened=False)
    w.open(row_count=3)
    w.resident()
    if state == "draining":
        w.switch(w.retain({0: [1], 1: [1]}))
        w.emit(e.RequestPreempted)
        w.emit(e.RequestResumed)
        w.retire(1, "retain", [0])
        w.emit(e.RetainAcknowledged, operation=w.opened("retain"), process_epoch=5)
        block, row = 1, 0
    elif state == "settling":
        op = w.upload({0: [2], 1: [2]}, {0: [4], 1: [4]}, [4], row=1)
        w.emit(e.UploadAborted, operation=op, reason="x")
        block, row = 4, 2
    else:
        w.clean_tail(4, [4], 4)
        if state == "fenced":
            w.drop([4])
        block, row = 4, 1
    assert block in w.owned()
    w.plan({0: [3], 1: [3]})
    w.refuse("is not vacant or not owned", e.BlocksLeased, **w.lease({0: [block], 1: [block]}, row=row))


def test_occupancy_shapes_and_dtypes() -> None:
    blocks, held = NOTHING_OWNED.occupancy(A, 0, TWO_LAYERS)
    assert (blocks.shape, blocks.dtype, held.shape, held.dtype) == ((0,), np.int32, (2, 0), np.bool_)
    assert no_rows().size == 0
