"""Ids and ragged rows (D1, D2, D7): what they accept, that they cannot change, and that a mix-up is an error."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kvsweep.ledger.errors import LayoutError
from kvsweep.ledger.ids import POOL, Logical, Operation, RequestKey, Rows, int32_bytes, int32_view, no_rows

LISTS = st.dictionaries(st.integers(0, 200), st.lists(st.integers(-(2**31), 2**31 - 1), max_size=6), max_size=6)


def fails(sentence: str) -> Any:
    return pytest.raises(LayoutError, match=f"^{re.escape(sentence)}$")


# ---- int32 bytes


@given(st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_ids_are_little_endian_int32(values: list[int]) -> None:
    data = int32_bytes(values)
    assert data == b"".join(value.to_bytes(4, "little", signed=True) for value in values)
    assert int32_view(data).tolist() == values


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64])
def test_every_integer_dtype_is_taken_where_its_values_fit(dtype: Any) -> None:
    assert int32_bytes(np.array([0, 7, 127], dtype=dtype)) == int32_bytes([0, 7, 127])


def test_strided_and_big_endian_ids_give_the_same_bytes() -> None:
    values = np.arange(10, dtype=">i8")
    assert int32_bytes(values[::3]) == int32_bytes([0, 3, 6, 9])


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ([2**31], "ids: expected values that fit int32, got 2147483648 … 2147483648"),
        ([0, -(2**31) - 1], "ids: expected values that fit int32, got -2147483649 … 0"),
        ([1.0], "ids: expected a flat list of integers, got float64 of shape (1,)"),
        ([[1, 2]], "ids: expected a flat list of integers, got int64 of shape (1, 2)"),
        (3, "ids: expected a flat list of integers, got int64 of shape ()"),
        ([True], "ids: expected a flat list of integers, got bool of shape (1,)"),
        ([2**70], "ids: expected a flat list of integers, got object of shape (1,)"),
    ],
)
def test_d2_what_is_no_id_is_refused_never_rounded_or_wrapped(values: Any, sentence: str) -> None:
    with fails(sentence):
        int32_bytes(values)


def test_views_of_wire_bytes_are_read_only() -> None:
    with pytest.raises(ValueError, match="read-only"):
        int32_view(int32_bytes([1]))[0] = 2


# ---- rows


@given(LISTS)
def test_d7_rows_are_ragged_and_come_back_as_they_went_in(lists: dict[int, list[int]]) -> None:
    made: Rows[Logical] = Rows.of(lists)
    assert made.as_lists() == {layer: lists[layer] for layer in sorted(lists)}
    assert made.size == sum(len(row) for row in lists.values())
    assert len(made) == len(lists)
    assert made.counts.tolist() == [len(lists[layer]) for layer in sorted(lists)]
    assert [(layer, row.tolist()) for layer, row in made.items()] == sorted(lists.items())
    for layer, row in lists.items():
        assert made.row(layer).tolist() == row


@given(LISTS, LISTS)
def test_rows_are_equal_and_hash_alike_exactly_when_their_lists_are_equal(
    first: dict[int, list[int]], second: dict[int, list[int]]
) -> None:
    assert (Rows.of(first) == Rows.of(second)) == (first == second)
    assert hash(Rows.of(first)) == hash(Rows.of(dict(reversed(first.items()))))


def test_d7_an_absent_layer_is_not_an_empty_one() -> None:
    made: Rows[Logical] = Rows.of({0: [], 2: [5]})
    assert made.row(0).tolist() == []
    with fails("layer: expected one of [0, 2], got 1"):
        made.row(1)
    with fails("layer: expected one of [0, 2], got 3"):
        made.row(3)
    assert no_rows((0, 2)) != no_rows(())
    assert no_rows((2, 0)).as_lists() == {0: [], 2: []}


def test_rows_do_not_share_memory_with_what_they_were_made_of() -> None:
    ids = np.array([1, 2, 3], dtype=np.int32)
    made: Rows[Logical] = Rows.of({0: ids})
    same: Rows[Logical] = Rows.from_csr(layers=[0], row_ptr=[0, 3], ids=ids)
    ids[:] = 9
    assert made.as_lists() == same.as_lists() == {0: [1, 2, 3]}
    for view in (made.ids, made.row(0), made.layers, made.row_ptr):
        assert not view.flags.writeable


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ({0: [0.5]}, "rows[0]: expected a flat list of integers, got float64 of shape (1,)"),
        ({3: [[1]]}, "rows[3]: expected a flat list of integers, got int64 of shape (1, 1)"),
        ({1: 4}, "rows[1]: expected a flat list of integers, got int64 of shape ()"),
        ({-1: [4]}, "layers: expected ascending layer indices without repeats, got [-1]"),
        ({0: [2**31]}, "ids: expected values that fit int32, got 2147483648 … 2147483648"),
    ],
)
def test_rows_of_what_is_no_row_are_refused_naming_the_layer(rows: Any, sentence: str) -> None:
    with fails(sentence):
        Rows.of(rows)


@pytest.mark.parametrize(
    ("csr", "sentence"),
    [
        (([1, 0], [0, 1, 2], [5, 6]), "layers: expected ascending layer indices without repeats, got [1, 0]"),
        (([1, 1], [0, 1, 2], [5, 6]), "layers: expected ascending layer indices without repeats, got [1, 1]"),
        (([0], [0, 1, 2], [5, 6]), "row_ptr: expected 2 values, one more than layers, got 3 values"),
        (([], [], []), "row_ptr: expected 1 values, one more than layers, got 0 values"),
        (([0], [0, 1], [5, 6]), "row_ptr: expected 0 ascending to 2 ids, got [0, 1]"),
        (([0], [1, 2], [5, 6]), "row_ptr: expected 0 ascending to 2 ids, got [1, 2]"),
        (([0, 1], [0, 3, 2], [5, 6]), "row_ptr: expected 0 ascending to 2 ids, got [0, 3, 2]"),
    ],
)
def test_csr_buffers_that_do_not_fit_are_refused_naming_the_argument(
    csr: tuple[list[int], list[int], list[int]], sentence: str
) -> None:
    with fails(sentence):
        Rows.from_csr(layers=csr[0], row_ptr=csr[1], ids=csr[2])


@pytest.mark.parametrize("field", ["layer_bytes", "row_ptr_bytes", "id_bytes"])
def test_decoded_rows_with_part_of_an_id_are_refused(field: str) -> None:
    made = replace(Rows.of({0: [1]}), **{field: b"\0\0\0"})
    with fails(f"{field.removesuffix('_bytes').replace('layer', 'layers').replace('id', 'ids')}: "
               "expected whole int32 values, got 3 bytes"):  # fmt: skip
        made.check()


# ---- identities


def test_f5_a_key_is_the_whole_id_and_the_epoch() -> None:
    assert RequestKey("a", 1) != RequestKey("a", 2)
    assert RequestKey("a", 11) != RequestKey("a1", 1)
    assert RequestKey("@pool", 1) != POOL
    assert len({RequestKey("a", 1), RequestKey("a", 1), RequestKey("b", 1)}) == 2


@pytest.mark.parametrize("field", ["request", "operation_id", "pool_generation", "map_revision"])
def test_f2_operations_are_one_only_if_all_four_parts_are(field: str) -> None:
    operation = Operation(request=RequestKey("a", 1), operation_id=1, pool_generation=1, map_revision=1)
    other = RequestKey("a", 2) if field == "request" else 2
    assert replace(operation, **{field: other}) != operation
    with pytest.raises(AttributeError, match="immutable"):
        setattr(operation, field, other)
