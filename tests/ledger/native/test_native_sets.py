"""Questions about ids in their compiled form: the same answers as NumPy's, and refusals instead of stray reads."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsweep.ledger import compiled
from kvsweep.ledger.ids import Int32, Rows, int32_bytes
from kvsweep.ledger.ragged import (
    distinct,
    first_beyond,
    first_common,
    first_outside,
    first_repeated,
    first_unsorted,
    ids_at,
    joined_rows,
    slots_of,
)
from kvsweep.ledger.sources import look_up

sets: Any = compiled.sets
pytestmark = pytest.mark.skipif(sets is None, reason="the compiled form is not built here")

LAYERS = 3
ID = st.one_of(st.integers(0, 9), st.integers(0, 300), st.integers(0, 2**24 + 2), st.integers(2**31 - 3, 2**31 - 1))
ROWS = st.lists(st.lists(ID, max_size=6), min_size=LAYERS, max_size=LAYERS)
WILD = st.lists(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=6), min_size=LAYERS, max_size=LAYERS)
SMALL = st.lists(st.lists(st.integers(0, 12), max_size=6), min_size=LAYERS, max_size=LAYERS)


def rows(lists: list[list[int]]) -> Rows[Any]:
    return Rows.of(dict(enumerate(lists)))


def ints(ids: Any) -> Int32:
    return np.asarray(ids, dtype=np.int32)


def by_numpy(call: Callable[..., Any], *arguments: Any) -> Any:
    """What the reference says."""
    compiled.sets = None
    try:
        return plain(call(*arguments))
    finally:
        compiled.sets = sets


def plain(value: Any) -> Any:
    return (value.dtype.str, value.tolist()) if isinstance(value, np.ndarray) else value


def same(call: Callable[..., Any], *arguments: Any) -> None:
    assert plain(call(*arguments)) == by_numpy(call, *arguments)


@given(WILD)
def test_the_order_and_the_bounds_of_rows(lists: list[list[int]]) -> None:
    same(first_unsorted, rows(lists))
    same(first_outside, rows(lists), 200)
    same(first_beyond, rows(lists), rows([[], [1] * 7, [1] * 300]))


@given(*(st.lists(st.integers(-1, 3), max_size=4),) * 3)
def test_whether_rows_fit(layers: list[int], row_ptr: list[int], ids: list[int]) -> None:
    parts = [ints(part).tobytes() for part in (layers, row_ptr, ids)]

    def fit() -> bool:
        return Rows(layer_bytes=parts[0], row_ptr_bytes=parts[1], id_bytes=parts[2]).fits()

    same(fit)


@given(SMALL, SMALL)
def test_marks_of_rows(one: list[list[int]], other: list[list[int]]) -> None:
    same(first_repeated, rows(one))
    same(first_common, rows(one), rows(other))
    same(slots_of, rows([sorted({*ids}) for ids in one]), rows(other))
    same(joined_rows, rows(one), rows(other))


@given(WILD, WILD)
def test_joining_looks_at_no_id(one: list[list[int]], other: list[list[int]]) -> None:
    same(joined_rows, rows(one), rows(other))


def test_ids_too_large_for_marks_are_left_to_the_reference() -> None:
    far = Rows.of({0: [5, 2**24, 5]})
    with pytest.raises(ValueError, match="below 2"):
        sets.first_repeated(far.row_ptr_bytes, far.id_bytes)
    assert first_repeated(far) == 0
    assert first_common(far, Rows.of({0: [2**24]})) == 0
    assert slots_of(far, Rows.of({0: [2**24]})).as_lists() == {0: [1]}


@given(st.lists(ID, max_size=8))
def test_sets_of_ids(ids: list[int]) -> None:
    same(distinct, int32_bytes(ids))


@given(st.lists(st.integers(-1, 9), max_size=8), st.lists(st.integers(-2, 12), max_size=8))
def test_what_stands_at_some_places(table: list[int], ids: list[int]) -> None:
    same(look_up, int32_bytes(table), int32_bytes(ids))


@given(SMALL, st.data())
def test_ids_at_slots(lists: list[list[int]], data: st.DataObject) -> None:
    slots = [data.draw(st.lists(st.integers(0, len(ids) - 1))) if ids else [] for ids in lists]
    same(ids_at, rows(lists), rows(slots))


PTR = ints([0, 2]).tobytes()
TWO = ints([3, 4]).tobytes()
ROW = ints([0]).tobytes()


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("first_unsorted", (b"", b""), "rows: expected row pointers"),
        ("first_unsorted", (b"123", b""), "rows: expected whole, aligned int32"),
        ("first_unsorted", (PTR, b""), "rows: expected row pointers from 0"),
        ("first_unsorted", (ints([1, 2]), TWO), "rows: expected row pointers from 0"),
        ("first_unsorted", (ints([0, 3, 2]), TWO), "rows: expected ascending"),
        ("first_unsorted", (ints([0, -1, 2]), TWO), "rows: expected ascending"),
        ("first_unsorted", (PTR, np.arange(2)), "rows: expected bytes or"),
        ("first_unsorted", (PTR, ints([1, 9, 2, 9])[::2]), "rows: expected bytes or"),
        ("first_unsorted", (PTR, "34"), "rows: expected bytes or"),
        ("first_unsorted", (PTR, memoryview(bytes(12))[1:9]), "rows: expected bytes or"),
        ("first_beyond", (PTR, TWO, b""), "limits: expected row pointers"),
        ("first_repeated", (PTR, ints([-1, 2])), "rows: expected ids from 0"),
        ("first_common", (PTR, TWO, ints([0, 0, 0]), b""), "second: expected as many rows"),
        ("slots_of", (PTR, TWO, ints([0, 0, 0]), b""), "wanted: expected as many rows"),
        ("join", (PTR, TWO, ints([0, 0, 0]), b""), "second: expected as many rows"),
        ("take", (PTR, TWO, PTR, ints([0, 2])), "slots: expected slots of their row"),
        ("take", (PTR, TWO, PTR, ints([-1, 0])), "slots: expected slots of their row"),
        ("look_up", (b"123", b""), "table: expected whole, aligned int32"),
        ("change", (TWO, b"\1", ROW, b"", (), ()), "held: expected a count for each block and row"),
        ("change", (ints([4, 3]), b"\1\1", ROW, b"", (), ()), "blocks: expected ascending ids"),
        ("change", (TWO, b"\1\1", ROW, b"", (Rows.of({1: [3]}),), ()), "layers: expected layers of the layout"),
        ("change", (TWO, b"\1\1", ints([1]), b"", (), ()), "row_of_layer: expected rows of the group's layers"),
        ("change", (TWO, "11", ROW, b"", (), ()), "held: expected bytes"),
        ("fill", (TWO, b"\1\1", ROW, b"", Rows.of({1: [3]})), "layers: expected layers of the layout"),
        ("fill", (TWO, b"\1", ROW, b"", Rows.of({0: [3]})), "held: expected a count for each block and row"),
        ("fullest", (TWO, b"\1", ROW, Rows.of({0: [3]})), "held: expected a count for each block and row"),
        ("fullest", (TWO, b"\1\1", ROW, Rows.of({1: [3]})), "layers: expected layers of the layout"),
        ("change_shared", (TWO, bytes(4), ROW, (), ()), "total: expected one a block"),
        ("mark", (b"00", b"", True), "marks: expected a bytearray"),
        ("mark", (bytearray(2), b"1", True), "ids: expected whole, aligned int32"),
        ("count", (bytearray(3), b"", b""), "counts: expected whole, aligned uint16"),
        ("count", (bytes(4), b"", b""), "counts: expected a bytearray"),
        ("first_counted", (bytearray(3), b""), "counts: expected whole, aligned uint16"),
    ],
)
def test_what_is_malformed_is_refused(name: str, arguments: tuple[Any, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        getattr(sets, name)(*arguments)
