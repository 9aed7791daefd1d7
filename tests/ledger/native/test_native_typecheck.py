"""Compiled checks of messages say yes to what has the declared types, and to nothing else."""

from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace
from tests.runtime.core.test_well_formed import ODD, SELECTION, WELL_FORMED

from kvsweep.ledger import _store
from kvsweep.ledger.errors import Malformed
from kvsweep.ledger.ids import RequestKey, Rows, no_rows
from kvsweep.ledger.messages import OpenTail, Preempt, ProcessStarted, PublishPrefix, Select
from kvsweep.ledger.typecheck import checker
from kvsweep.runtime.core.well_formed import MESSAGES, _check_struct, check_message

KEY = RequestKey("a", 1)
FINE: Any = checker(MESSAGES)
HALF = "\ud800"


class Word(str):
    """No str to the compiled code."""


class Twin(OpenTail, frozen=True, kw_only=True):
    """Nor is a subclass the type itself."""


def whole(message: Any) -> bool:
    """Whether Python's check, which names what is wrong, finds nothing."""
    try:
        _check_struct(type(message).__name__, message)
    except Malformed:
        return False
    return True


@pytest.mark.parametrize("message", WELL_FORMED, ids=lambda message: type(message).__name__)
def test_every_field_of_every_message_is_looked_at(message: Any) -> None:
    assert FINE(message)
    inside = [
        field for name in message.__struct_fields__ if hasattr(field := getattr(message, name), "__struct_fields__")
    ]
    places = [(message, lambda made: made), *((field, put_at(message, field)) for field in inside)]
    for owner, put in places:
        for name, odd in product(owner.__struct_fields__, (*ODD, 2**63, -(2**63), -(2**63) - 1, HALF, (b"",), (b"1",))):
            bad = put(replace(owner, **{name: odd}))
            if type(odd) is int and isinstance(getattr(owner, name), float):
                assert not FINE(bad), "an int that stands for a float is left to Python"
            else:
                assert FINE(bad) == whole(bad), bad


def put_at(message: Any, field: Any) -> Any:
    (name,) = (name for name in message.__struct_fields__ if getattr(message, name) is field)
    return lambda made: replace(message, **{name: made})


WORDS = (
    b"",
    b"\0\0\0\0",
    b"\1\0\0\0",
    b"\0\0\0\0\1\0\0\0",
    b"\1\0\0\0\0\0\0\0",
    b"\xff\xff\xff\xff",
    bytes(12),
    b"12",
    1,
)


def test_rows_fit_or_do_not_as_python_says() -> None:
    for layer, row_ptr, ids in product(WORDS, repeat=3):
        rows: Rows[Any] = Rows(layer_bytes=layer, row_ptr_bytes=row_ptr, id_bytes=ids)  # type: ignore[arg-type]
        message = Select(selection=replace(SELECTION, logical_blocks_by_layer=rows), idempotency_key="k")
        assert FINE(message) == whole(message), (layer, row_ptr, ids)


def test_what_stands_in_for_a_type_is_left_to_python() -> None:
    for odd in (*ODD, Twin(request=KEY, until=1), no_rows(), Preempt(request=replace(KEY, request_id=Word("a")))):
        assert not FINE(odd)
    with pytest.raises(Malformed, match="expected a command or a report, got Twin"):
        check_message(Twin(request=KEY, until=1))
    assert FINE(ProcessStarted(process_epoch=1, rank=None))
    assert FINE(PublishPrefix(request=KEY, keys=((0, "k"), (1, ""))))
    assert not FINE(PublishPrefix(request=KEY, keys=((0, "k", 1),)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "told",
    [
        [("integer",)],
        [("unheard of",)],
        [("record", OpenTail, (("no such field", ("integer",)),))],
        [("record", OpenTail, (("until", ("list", ())),))],
        [("record", OpenTail, (("until", ("rows", Rows, ())),))],
    ],
)
def test_type_trees_that_make_no_sense_are_refused(told: Any) -> None:
    with pytest.raises((ValueError, AttributeError)):
        _store.checker(told)
