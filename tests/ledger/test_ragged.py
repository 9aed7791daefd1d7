"""Whole-array questions about rows, each against the same question asked list by list."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsweep.ledger import compiled
from kvsweep.ledger.ids import Int32, Logical, Rows, int32_bytes, int32_view
from kvsweep.ledger.ragged import (
    distinct,
    empty_like,
    ends_of,
    even_rows,
    first_beyond,
    first_common,
    first_outside,
    first_repeated,
    first_unsorted,
    ids_at,
    joined_rows,
    same_rows,
    slots_of,
)

Lists = dict[int, list[int]]
IDS = st.lists(st.integers(0, 9), max_size=5)
TABLES = st.dictionaries(st.integers(0, 4), IDS, max_size=4)
ANY_IDS = st.dictionaries(st.integers(0, 4), st.lists(st.integers(-3, 12), max_size=5), max_size=4)


@pytest.fixture(autouse=True, scope="module", params=["numpy", "compiled"])
def _form(request: pytest.FixtureRequest) -> Iterator[None]:
    """Both forms of what is asked here."""
    built = compiled.sets
    if request.param == "compiled" and built is None:
        pytest.skip("the compiled form is not built here")
    compiled.sets = built if request.param == "compiled" else None
    yield
    compiled.sets = built


def rows(lists: Lists) -> Rows[Any]:
    return Rows.of(lists)


def first(lists: Lists, wrong: Callable[[int, list[int]], bool]) -> int | None:
    return next((layer for layer, ids in sorted(lists.items()) if wrong(layer, ids)), None)


def ints(ids: list[int]) -> Int32:
    return np.asarray(ids, dtype=np.int32)


@given(ANY_IDS)
def test_the_first_row_that_is_not_ascending(lists: Lists) -> None:
    assert first_unsorted(rows(lists)) == first(lists, lambda _, ids: ids != sorted({*ids}))


@given(ANY_IDS, st.integers(0, 12))
def test_the_first_row_with_an_id_outside(lists: Lists, limit: int) -> None:
    assert first_outside(rows(lists), limit) == first(lists, lambda _, ids: any(not 0 <= at < limit for at in ids))


@given(ANY_IDS, st.lists(st.integers(0, 12), min_size=5, max_size=5))
def test_the_first_row_with_a_slot_beyond_the_row_that_it_names_slots_of(lists: Lists, counts: list[int]) -> None:
    others = rows({layer: [7] * counts[layer] for layer in lists})
    expected = first(lists, lambda layer, ids: any(not 0 <= at < counts[layer] for at in ids))
    assert first_beyond(rows(lists), others) == expected


@given(TABLES)
def test_the_first_row_that_names_an_id_twice(lists: Lists) -> None:
    assert first_repeated(rows(lists)) == first(lists, lambda _, ids: len({*ids}) != len(ids))


@given(TABLES, st.data())
def test_the_first_row_with_an_id_in_both(lists: Lists, data: st.DataObject) -> None:
    other = {layer: data.draw(IDS) for layer in lists}
    expected = first(lists, lambda layer, ids: bool({*ids} & {*other[layer]}))
    assert first_common(rows(lists), rows(other)) == expected


@given(TABLES, TABLES)
def test_rows_are_joined_row_by_row(one: Lists, two: Lists) -> None:
    expected = {layer: one.get(layer, []) + two.get(layer, []) for layer in {*one, *two}}
    assert joined_rows(rows(one), rows(two)).as_lists() == dict(sorted(expected.items()))


@given(TABLES, st.data())
def test_slots_name_places_and_ids_name_slots(lists: Lists, data: st.DataObject) -> None:
    apart = {layer: list(dict.fromkeys(ids)) for layer, ids in lists.items()}
    slots = {
        layer: sorted(data.draw(st.sets(st.integers(0, len(ids) - 1)))) if ids else [] for layer, ids in apart.items()
    }
    table: Rows[Logical] = rows(apart)
    picked: Rows[Logical] = ids_at(table, rows(slots))
    picked.check()
    assert picked.as_lists() == {layer: [apart[layer][slot] for slot in slots[layer]] for layer in sorted(apart)}
    found = slots_of(table, picked)
    found.check()
    assert found.as_lists() == {layer: slots[layer] for layer in sorted(slots)}


def test_slots_of_some_layers_only() -> None:
    assert slots_of(rows({0: [4, 5], 1: [6, 7]}), rows({1: [7]})).as_lists() == {1: [1]}


@given(TABLES, st.sets(st.integers(0, 4)))
def test_rows_are_the_same_or_not(lists: Lists, layers: set[int]) -> None:
    named = [lists[layer] for layer in sorted(layers) if layer in lists]
    assert same_rows(rows(lists), layers) == all(ids == named[0] for ids in named)


@given(st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=1, max_size=4))
def test_even_rows_and_ends(table: list[list[int]]) -> None:
    layers = list(range(0, 2 * len(table), 2))
    made: Rows[Logical] = even_rows(layers, ints([at for ids in table for at in ids]).reshape(len(table), 3))
    assert made == rows(dict(zip(layers, table, strict=True)))
    assert ends_of(made.counts).tolist() == made.row_ptr.tolist()
    nothing: Rows[Logical] = even_rows(layers, np.empty((len(table), 0), dtype=np.int32))
    assert nothing == empty_like(made.layer_bytes) == rows({layer: [] for layer in layers})


@given(st.lists(st.one_of(st.integers(0, 20), st.just(100_000)), max_size=8))
def test_each_id_once_ascending(ids: list[int]) -> None:
    assert int32_view(distinct(int32_bytes(ids))).tolist() == sorted({*ids})


def test_nothing_of_no_rows() -> None:
    nothing = rows({})
    assert first_unsorted(nothing) is first_repeated(nothing) is first_outside(nothing, 0) is None
    with pytest.raises(StopIteration):
        next(nothing.items())
