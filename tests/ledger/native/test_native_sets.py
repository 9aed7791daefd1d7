"""Questions about ids in their compiled form: the same answers as NumPy's, and refusals instead of stray reads."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsweep.ledger import compiled
from kvsweep.ledger.holding import Holders, Holding, distinct, missing_from, union, without
from kvsweep.ledger.ids import Int32, Rows
from kvsweep.ledger.layout import LayerLayout, Layout
from kvsweep.ledger.ownership import Holder
from kvsweep.ledger.ragged import (
    first_beyond,
    first_common,
    first_outside,
    first_repeated,
    first_unsorted,
    ids_at,
    joined_rows,
    slots_of,
)
from kvsweep.runtime.core.placement import VacantAreas

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
    same(first_beyond, rows(lists), ints([0, 7, 2**31 - 1]))


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


@given(st.lists(st.lists(ID, max_size=8), max_size=4))
def test_sets_of_ids(lists: list[list[int]]) -> None:
    parts = [ints(sorted({*ids})) for ids in lists]
    same(union, parts)
    for ids in lists:
        same(distinct, ints(ids))
        for part in parts:
            same(missing_from, ints(ids), part)
        if all(max(one, default=0) < 2**24 for one in (ids, *lists)):  # NumPy's marks would be as large as the ids
            same(without, ints(sorted({*ids})), parts)


@given(SMALL, st.data())
def test_ids_at_slots(lists: list[list[int]], data: st.DataObject) -> None:
    slots = [data.draw(st.lists(st.integers(0, len(ids) - 1))) if ids else [] for ids in lists]
    same(ids_at, rows(lists), rows(slots))


LAYOUT = Layout.of(
    model_hash="m",
    dtype="float32",
    block_size=4,
    layers=(
        LayerLayout(layer=0, group=0, kind="full", kv_heads=1, head_dim=2),
        LayerLayout(layer=1, group=1, kind="sliding", kv_heads=1, head_dim=2, window_tokens=8),
        LayerLayout(layer=2, group=0, kind="full", kv_heads=1, head_dim=2),
    ),
)


@given(SMALL, st.sets(st.integers(0, 14)), st.lists(st.integers(0, 6), min_size=2, max_size=2))
def test_where_areas_are_held_and_where_new_ones_go(held: list[list[int]], own: set[int], wanted: list[int]) -> None:
    blocks, areas = ints(sorted(own)), Holding(areas=rows(held))
    for group in range(2):
        same(lambda group: Holders({Holder("view", 1): areas}).occupancy(group, LAYOUT, blocks), group)

    class Owned:
        def occupancy(self, *_: object) -> tuple[Int32, Any]:
            return blocks, Holders({Holder("view", 1): areas}).occupancy(0, LAYOUT, blocks)

    def fullest() -> list[Any]:
        vacant = VacantAreas(Owned(), None, 0, LAYOUT)  # type: ignore[arg-type]
        return [plain(part) for part in vacant.fullest(ints([0, 2]), ints(wanted))]

    same(fullest)


PTR = ints([0, 2]).tobytes()
TWO = ints([3, 4]).tobytes()


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
        ("first_beyond", (PTR, TWO, b""), "limits: expected one a row"),
        ("first_repeated", (PTR, ints([-1, 2])), "rows: expected ids from 0"),
        ("first_common", (PTR, TWO, ints([0, 0, 0]), b""), "second: expected as many rows"),
        ("slots_of", (PTR, TWO, ints([0, 0, 0]), b""), "wanted: expected as many rows"),
        ("join", (PTR, TWO, ints([0, 0, 0]), b""), "second: expected as many rows"),
        ("take", (PTR, TWO, PTR, ints([0, 2])), "slots: expected slots of their row"),
        ("take", (PTR, TWO, PTR, ints([-1, 0])), "slots: expected slots of their row"),
        ("mark_areas", (np.zeros((1, 2), np.bool_), ints([1]), b"", b"", bytes(4), b""), "blocks: expected one"),
        ("mark_areas", (np.zeros((1, 1), np.bool_), ints([1]), b"", TWO, bytes(4), b""), "layers: expected one"),
        ("mark_areas", (np.zeros((1, 1), np.bool_), ints([1]), ints([1]), b"", bytes(4), b""), "layer_row: expected"),
        ("mark_areas", (np.zeros((1, 1), np.bool_), ints([-1]), ints([0]), b"", bytes(4), b""), "blocks: expected ids"),
        ("mark_areas", (np.zeros(1, np.bool_), ints([1]), b"", b"", bytes(4), b""), "held: expected bool"),
        ("mark_areas", (np.zeros((1, 1)), ints([1]), b"", b"", bytes(4), b""), "held: expected bool"),
        ("mark_areas", (b"1", ints([1]), b"", b"", bytes(4), b""), "held: expected a C-contiguous"),
        ("fullest", (np.zeros((1, 1), np.bool_), ints([1]), ints([1]), ints([1])), "rows: expected rows of held"),
        ("fullest", (np.zeros((1, 1), np.bool_), ints([1]), ints([0]), b""), "blocks, wanted: expected one"),
    ],
)
def test_what_is_malformed_is_refused(name: str, arguments: tuple[Any, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        getattr(sets, name)(*arguments)


@pytest.fixture
def matrix() -> Any:
    return np.zeros((2, 3), np.bool_)


@pytest.mark.parametrize(
    ("areas", "new", "well"),
    [
        ([[1, 2], [3]], [], True),
        ([[1, 9], [9]], [9], True),
        ([[1], [3]], [9], False),  # a reserved block that nobody needs
        ([[1, 1], []], [], False),  # handed out twice
        ([[4], []], [], False),  # nobody's block
        ([[], [1]], [], False),  # held already
    ],
)
def test_where_destinations_may_be(matrix: Any, areas: list[list[int]], new: list[int], well: bool) -> None:
    matrix[1, 0] = True  # layer 2's area of block 1
    places = Rows.of({0: areas[0], 2: areas[1]})
    where = (places.layer_bytes, places.row_ptr_bytes, places.id_bytes)
    assert sets.placed_well(matrix, ints([1, 2, 3]), ints(new), LAYOUT.rows_of_group(0), *where) is well
