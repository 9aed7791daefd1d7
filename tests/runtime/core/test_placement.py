"""Where bytes may go: vacant areas of the request's own blocks, fullest block first, then new blocks."""

import numpy as np
import pytest
from tests.ledger.relation import change
from tests.runtime.rig import make_layout

from kvsweep.ledger.areas import Areas
from kvsweep.ledger.draft import Groups
from kvsweep.ledger.ids import Logical, RequestKey, Rows, int32_bytes, int32_view
from kvsweep.ledger.ownership import NOTHING_OWNED, Holder, HolderKind, Holding, Ownership
from kvsweep.runtime.core.placement import Placement, VacantAreas, place

LAYOUT = make_layout(3, sliding=1)
A, B = RequestKey("a", 1), RequestKey("b", 1)
TABLE = {0: [10, 11, 12], 1: [10, 11], 2: [11]}
"""Block 11 is full; 10 lacks layer 2; 12 has layer 0 only."""


def holding(table: dict[int, list[int]]) -> Holding:
    return Holding(areas=Rows.of(table))


def owned_by(request: RequestKey, holders: dict[Holder, dict[int, list[int]]], before: Ownership) -> Ownership:
    blocks = {block for table in holders.values() for ids in table.values() for block in ids}
    return change(
        before,
        request,
        LAYOUT,
        put={holder: holding(table) for holder, table in holders.items()},
        reserve=(np.asarray(sorted(blocks), dtype="<i4").tobytes(), b""),
    )


VIEW = owned_by(A, {Holder("view", 1): TABLE}, NOTHING_OWNED)


def own(ownership: Ownership, request: RequestKey = A) -> Groups:
    return ownership.areas.get(request, (Areas(), Areas()))


def needed(counts: dict[int, int]) -> Rows[Logical]:
    """Rows with so many blocks a layer."""
    return Rows.of({layer: list(range(count)) for layer, count in counts.items()})


def missing(placement: Placement) -> dict[int, int]:
    return dict(zip(placement.chosen.layers.tolist(), int32_view(placement.missing).tolist(), strict=True))


def chosen(ownership: Ownership, counts: dict[int, int], *, shared_table: bool = False) -> dict[int, list[int]]:
    placement = place(own(ownership), needed(counts), LAYOUT, shared_table=shared_table)
    return {layer: ids.tolist() for layer, ids in placement.chosen.items()}


def test_b6_vacant_areas_of_own_blocks_come_first_and_the_fullest_block_before_the_others() -> None:
    placement = place(own(VIEW), needed({0: 1, 1: 1, 2: 1}), LAYOUT, shared_table=False)
    assert {layer: ids.tolist() for layer, ids in placement.chosen.items()} == {0: [], 1: [12], 2: [10]}
    assert missing(placement) == {0: 1, 1: 0, 2: 0}
    assert placement.new_blocks == (1, 0)
    assert placement.vacant == 3
    assert chosen(VIEW, {2: 2}) == {2: [10, 12]}, "block 10 holds two areas, block 12 one"


def test_b6_equally_full_blocks_go_by_id() -> None:
    ownership = owned_by(A, {Holder("view", 1): {0: [7, 3, 5]}}, NOTHING_OWNED)
    assert chosen(ownership, {1: 2, 2: 3}) == {1: [3, 5], 2: [3, 5, 7]}


def test_b6_new_blocks_are_the_largest_shortfall_of_any_layer_and_each_layer_takes_its_own_area() -> None:
    placement = place(own(VIEW), needed({0: 2, 1: 4, 2: 1}), LAYOUT, shared_table=False)
    assert missing(placement) == {0: 2, 1: 3, 2: 0}
    assert placement.new_blocks == (3, 0)
    areas = placement.areas((int32_bytes([20, 21, 22]), b""), LAYOUT)
    assert areas.as_lists() == {0: [20, 21], 1: [12, 20, 21, 22], 2: [10]}


def test_b6_a_request_without_blocks_gets_new_ones() -> None:
    placement = place(own(NOTHING_OWNED), needed({0: 2, 1: 0, 2: 1}), LAYOUT, shared_table=False)
    assert (placement.new_blocks, placement.vacant) == ((2, 0), 0)
    assert place(own(VIEW), needed({0: 0, 1: 0, 2: 0}), LAYOUT, shared_table=False).new_blocks == (0, 0)


@pytest.mark.parametrize("kind", ["view", "dst", "src", "fence", "tail"])
def test_b6_an_area_that_anybody_holds_is_no_destination(kind: HolderKind) -> None:
    """A draining view, a quarantined or open operation, a tail fence or the tail: vacancy is asked of the relation."""
    held = change(VIEW, A, LAYOUT, put={Holder(kind, 9): holding({1: [12], 2: [10, 12]})})
    placement = place(own(held), needed({1: 1, 2: 1}), LAYOUT, shared_table=False)
    assert {layer: ids.tolist() for layer, ids in placement.chosen.items()} == {1: [], 2: []}
    assert placement.new_blocks == (1, 0)
    freed = change(held, A, LAYOUT, drop=[Holder(kind, 9)])
    assert chosen(freed, {1: 1, 2: 1}) == {1: [12], 2: [10]}, "vacant at once when its last pair is gone"


def test_b6_another_requests_vacant_areas_are_no_destination() -> None:
    both = owned_by(B, {Holder("view", 1): {0: [30]}}, VIEW)
    assert chosen(both, {1: 3, 2: 3}) == {1: [12], 2: [10, 12]}


def test_b1_a_shared_table_takes_only_blocks_that_are_vacant_in_every_layer() -> None:
    ownership = owned_by(A, {Holder("view", 1): {0: [1, 3], 1: [1], 2: [1, 2]}}, NOTHING_OWNED)
    assert chosen(ownership, {0: 1, 1: 1}, shared_table=True) == {0: [2], 1: [2]}
    assert chosen(ownership, {0: 1, 1: 1}) == {0: [2], 1: [2]}
    assert chosen(ownership, {1: 2, 2: 1}, shared_table=True) == {1: [3], 2: [3]}
    placement = place(own(ownership), needed({0: 2, 1: 2, 2: 2}), LAYOUT, shared_table=True)
    assert (placement.new_blocks, placement.vacant) == ((2, 0), 0)


def test_b6_an_area_is_taken_once() -> None:
    areas = VacantAreas(own(VIEW)[0], 0, LAYOUT)
    assert areas.is_vacant(2, 10)
    areas.take(2, 10)
    assert not areas.is_vacant(2, 10)
    assert areas.of_all((1, 2)).tolist() == [12]
    assert not areas.is_vacant(0, 99), "a block that the request does not own"


def test_b6_groups_are_apart() -> None:
    """Block 5 of the sliding group says nothing of block 5 of the full group."""
    ownership = change(
        NOTHING_OWNED,
        A,
        LAYOUT,
        put={Holder("view", 1): holding({0: [5], 3: [5]})},
        reserve=(np.asarray([5], dtype="<i4").tobytes(), np.asarray([5], dtype="<i4").tobytes()),
    )
    assert chosen(ownership, {1: 1, 2: 1}) == {1: [5], 2: [5]}
    placement = place(own(ownership), needed({1: 1, 3: 1}), LAYOUT, shared_table=False)
    assert placement.new_blocks == (0, 1)


def test_b4_scattered_new_blocks_are_another_permutation_in_each_layer_and_vacant_areas_stay_first() -> None:
    placement = place(own(VIEW), needed({0: 3, 1: 4, 2: 1}), LAYOUT, shared_table=False)
    new = (int32_bytes([20, 21, 22]), b"")
    plain = placement.areas(new, LAYOUT).as_lists()
    scattered = placement.areas(new, LAYOUT, scatter=True).as_lists()
    assert plain == {0: [20, 21, 22], 1: [12, 20, 21, 22], 2: [10]}
    assert scattered == {0: [20, 21, 22], 1: [12, 22, 20, 21], 2: [10]}
