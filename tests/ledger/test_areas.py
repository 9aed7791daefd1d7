"""Counts of who holds what, in both forms, each against dicts."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsweep.ledger import areas as a
from kvsweep.ledger import compiled
from kvsweep.ledger.areas import MOST_HOLDERS, MOST_SOURCES, Areas, Shared
from kvsweep.ledger.ids import Rows, int32_bytes, int32_view

ROW_OF_LAYER = int32_bytes([0, -1, 1])
"""Layers 0 and 2 are the group's, layer 1 is another's."""
ROWS = {0: 0, 2: 1}

Pair = tuple[int, int]
"""(layer, block)"""
Named = dict[int, list[int]]
BLOCK = st.integers(0, 9)
NAMED = st.dictionaries(st.sampled_from([0, 1, 2]), st.lists(BLOCK, max_size=5), max_size=3)
HELD = st.dictionaries(st.tuples(st.sampled_from([0, 2]), BLOCK), st.integers(1, 3), max_size=8)
BLOCKS = st.lists(BLOCK, max_size=3)


@pytest.fixture(autouse=True, scope="module", params=["numpy", "compiled"])
def _form(request: pytest.FixtureRequest) -> Iterator[None]:
    built = compiled.sets
    if request.param == "compiled" and built is None:
        pytest.skip("the compiled form is not built here")
    compiled.sets = built if request.param == "compiled" else None
    yield
    compiled.sets = built


def of(held: dict[Pair, int], blocks: set[int] | None = None) -> Areas:
    """Own blocks, those that are held where none are named."""
    own = sorted({block for _, block in held} if blocks is None else blocks)
    counts = [[held.get((layer, block), 0) for block in own] for layer in ROWS]
    return Areas(int32_bytes(own), np.asarray(counts, dtype=np.uint8).reshape(2, len(own)).tobytes())


def inside(named: Named, own: set[int]) -> list[Pair]:
    """Areas of own blocks in layers of the group, as often as they are named."""
    return [(layer, block) for layer, ids in named.items() if layer in ROWS for block in ids if block in own]


def ids_of(data: bytes) -> list[int]:
    return int32_view(data).tolist()


# ---- areas of own blocks


@given(HELD, BLOCKS, st.lists(NAMED, max_size=2), st.lists(NAMED, max_size=2))
def test_holders_come_and_go_and_a_block_leaves_with_its_last(
    held: dict[Pair, int], reserve: list[int], add: list[Named], drop: list[Named]
) -> None:
    before = of(held)
    own = {block for _, block in held}
    twice = len({*reserve}) < len(reserve) or bool({*reserve} & own)
    after, legal = Counter(held), not twice
    for named in add:
        after.update(inside(named, own | {*reserve}))
    after.subtract([pair for named in drop for pair in inside(named, own | {*reserve})])
    legal = legal and min(after.values(), default=0) >= 0
    call = {"reserve": int32_bytes(reserve), "add": [*map(Rows.of, add)], "drop": [*map(Rows.of, drop)]}
    if not legal:
        with pytest.raises(ValueError, match="is there already, or named twice" if twice else "0 to 255 holders"):
            a.change(before, ROW_OF_LAYER, **call)
        return
    left, freed = a.change(before, ROW_OF_LAYER, **call)
    still = {block for (_, block), count in after.items() if count}
    assert left == of(dict(after), still)
    assert ids_of(freed) == sorted((own | {*reserve}) - still)


def test_the_256th_holder_of_an_area_is_refused_by_name() -> None:
    full = of({(0, 3): 1, (2, 3): MOST_HOLDERS, (2, 4): MOST_HOLDERS - 1})
    one_more, _ = a.change(full, ROW_OF_LAYER, add=[Rows.of({0: [3], 2: [4]})])
    assert one_more == of({(0, 3): 2, (2, 3): MOST_HOLDERS, (2, 4): MOST_HOLDERS})
    with pytest.raises(ValueError, match="layer 2: expected 0 to 255 holders of the area of block 4"):
        a.change(one_more, ROW_OF_LAYER, add=[Rows.of({2: [4]})])
    with pytest.raises(ValueError, match="layer 0: expected 0 to 255 holders of the area of block 4"):
        a.change(one_more, ROW_OF_LAYER, drop=[Rows.of({0: [4]})])


@given(HELD, BLOCKS, NAMED)
def test_vacant_areas_are_filled_or_nothing_is(held: dict[Pair, int], reserve: list[int], named: Named) -> None:
    own = {block for _, block in held}
    wanted = [(layer, block) for layer, ids in named.items() if layer in ROWS for block in ids]
    fits = (
        len({*reserve}) == len(reserve)
        and not {*reserve} & own
        and len({*wanted}) == len(wanted)
        and all(pair[1] in own | {*reserve} and pair not in held for pair in wanted)
        and {*reserve} <= {block for _, block in wanted}
    )
    found = a.fill(of(held), ROW_OF_LAYER, int32_bytes(reserve), Rows.of(named))
    assert found == (of({**held, **dict.fromkeys(wanted, 1)}) if fits else None)


@given(HELD, st.dictionaries(st.sampled_from([0, 1, 2]), st.integers(0, 6), max_size=3))
def test_the_fullest_blocks_are_taken_first(held: dict[Pair, int], counts: dict[int, int]) -> None:
    own = sorted({block for _, block in held})
    by_fullness = sorted(own, key=lambda block: (-sum((layer, block) in held for layer in ROWS), block))
    free = {layer: [block for block in by_fullness if layer in ROWS and (layer, block) not in held] for layer in counts}
    wanted: Rows[Any] = Rows.of({layer: list(range(count)) for layer, count in counts.items()})
    chosen, missing, most, vacant = a.fullest(of(held), ROW_OF_LAYER, wanted)
    assert chosen.as_lists() == {layer: free[layer][: counts[layer]] for layer in sorted(counts)}
    short = [max(0, counts[layer] - len(free[layer])) if layer in ROWS else 0 for layer in sorted(counts)]
    assert (ids_of(missing), most) == (short, max(short, default=0))
    assert vacant == sum(map(len, free.values()))


@given(HELD)
def test_what_is_vacant_and_what_is_left_without_a_block(held: dict[Pair, int]) -> None:
    own = sorted({block for _, block in held})
    free = a.vacant(of(held), 2)
    assert free.tolist() == [[(layer, block) not in held for block in own] for layer in ROWS]
    free[:] = True  # the caller's to change
    with pytest.raises(KeyError):
        a.without(of(held), 10, 2)
    for block in own:
        left, pairs = a.without(of(held), block, 2)
        assert left == of({pair: count for pair, count in held.items() if pair[1] != block})
        assert pairs == sum(count for pair, count in held.items() if pair[1] == block)


# ---- shared blocks


def shared(totals: dict[int, int]) -> Shared:
    blocks = sorted(totals)
    return Shared(int32_bytes(blocks), np.asarray([totals[block] for block in blocks], dtype="<u4").tobytes())


@given(st.dictionaries(BLOCK, st.integers(1, 4), max_size=4), st.lists(NAMED, max_size=2), st.lists(NAMED, max_size=2))
def test_a_shared_block_leaves_with_its_last_pair(totals: dict[int, int], add: list[Named], drop: list[Named]) -> None:
    after = Counter(totals)
    for named in add:
        after.update([block for _, block in inside(named, {*totals})])
    after.subtract([block for named in drop for _, block in inside(named, {*totals})])
    call = {"add": [*map(Rows.of, add)], "drop": [*map(Rows.of, drop)]}
    if min(after.values(), default=0) < 0:
        with pytest.raises(ValueError, match="fewer holders than are to go"):
            a.change_shared(shared(totals), ROW_OF_LAYER, **call)
        return
    left, freed = a.change_shared(shared(totals), ROW_OF_LAYER, **call)
    assert left == shared({block: count for block, count in after.items() if count})
    assert ids_of(freed) == sorted(block for block, count in after.items() if not count)


def test_a_shared_block_has_more_holders_than_an_area_may() -> None:
    many = shared({3: 10 * MOST_HOLDERS})
    assert a.change_shared(many, ROW_OF_LAYER, add=[Rows.of({0: [3], 1: [3]})])[0] == shared({3: 10 * MOST_HOLDERS + 1})


# ---- the whole pool


@given(st.lists(st.booleans(), max_size=6), st.lists(st.integers(-1, 6), max_size=4), st.booleans())
def test_marks_are_all_set_or_none_is(marks: list[bool], blocks: list[int], value: bool) -> None:
    table, expected, wrong = bytearray(marks), list(marks), -1
    for at, block in enumerate(blocks):
        if not 0 <= block < len(marks) or expected[block] == value:
            expected, wrong = list(marks), at
            break
        expected[block] = value
    assert a.mark(table, int32_bytes(blocks), value) == wrong
    assert [bool(mark) for mark in table] == expected


@given(st.lists(st.integers(0, 2), max_size=6), *(st.lists(st.integers(-1, 6), max_size=4),) * 2)
def test_counts_go_up_then_down_or_nothing_changes(counts: list[int], add: list[int], drop: list[int]) -> None:
    table = bytearray(np.asarray(counts, dtype="<u2").tobytes())
    kept, after = bytes(table), Counter(dict(enumerate(counts)))
    after.update(add)
    after.subtract(drop)
    if not {*add, *drop} <= {*range(len(counts))} or min(after.values(), default=0) < 0:
        with pytest.raises(ValueError, match=r"^counts: expected"):
            a.count(table, int32_bytes(add), int32_bytes(drop))
        assert bytes(table) == kept
        return
    gone = a.count(table, int32_bytes(add), int32_bytes(drop))
    assert ids_of(gone) == sorted({block for block in drop if not after[block]})
    assert np.frombuffer(table, dtype="<u2").tolist() == [after[block] for block in range(len(counts))]


def test_a_count_stays_within_its_two_bytes() -> None:
    table = bytearray(np.asarray([MOST_SOURCES - 1, 5], dtype="<u2").tobytes())
    assert a.count(table, int32_bytes([0]), b"") == b""
    kept = bytes(table)
    for add, drop in (([0], []), ([0], [0])):  # up before down: at no moment more than fit
        with pytest.raises(ValueError, match="65535"):
            a.count(table, int32_bytes(add), int32_bytes(drop))
        assert bytes(table) == kept


@given(st.lists(st.integers(0, 2), max_size=5), st.lists(st.integers(-1, 6), max_size=4))
def test_the_first_block_that_is_counted_or_outside(counts: list[int], blocks: list[int]) -> None:
    table = bytearray(np.asarray(counts, dtype="<u2").tobytes())
    first = next((at for at, block in enumerate(blocks) if not 0 <= block < len(counts) or counts[block]), -1)
    assert a.first_counted(table, int32_bytes(blocks)) == first
