"""What the type of an event's field does not say by itself: ids and numbers that no fact can have.

Every check stands here twice, built once from the types of the fields. CHECKS explain; FINE only answers, fast, because
it runs over every event that is written or read. Whatever is not fine is explained.
"""

import math
import types
from collections.abc import Callable, Mapping
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from msgspec import Struct

from kvsweep.ledger.errors import LayoutError
from kvsweep.ledger.event_base import Event
from kvsweep.ledger.events import AckIgnored, AckRefused, AnyEvent
from kvsweep.ledger.ids import Rows, int32_view
from kvsweep.ledger.layout import Layout

INT64_MAX: Final = 2**63 - 1

PEER_WORDS: Final = frozenset({AckIgnored, AckRefused})
"""Events that repeat what a peer said: its numbers may be anything that fits int64, or a lie could not be recorded."""

SHAPES: Final = 4096  # shapes of rows that are known to fit together

Check: TypeAlias = Callable[[Any, str], None]
Answer: TypeAlias = Callable[[Any], bool]


def _check_count(value: Any, path: str) -> None:
    if not 0 <= value <= INT64_MAX:
        raise LayoutError(path, f"an integer from 0 to {INT64_MAX}", str(value))


def _check_int64(value: Any, path: str) -> None:
    if not -INT64_MAX - 1 <= value <= INT64_MAX:
        raise LayoutError(path, "an integer that fits 64 bits", str(value))


def _check_seconds(value: Any, path: str) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise LayoutError(path, "a finite number of seconds, 0 or more", str(value))


def _check_ids(value: Any, path: str) -> None:
    if len(value) % 4:
        raise LayoutError(path, "whole int32 values", f"{len(value)} bytes")
    ids = int32_view(value)
    if ids.size and int(ids.min()) < 0:
        raise LayoutError(path, "ids of 0 or more", str(int(ids.min())))


def _check_rows(value: Any, path: str) -> None:
    try:
        value.check()
    except LayoutError as error:
        raise LayoutError(f"{path}.{error.argument}", error.expected, error.got) from error
    _check_ids(value.id_bytes, f"{path}.ids")


def _check_layout(value: Any, path: str) -> None:
    try:
        value.check()
    except LayoutError as error:
        raise LayoutError(f"{path}.{error.argument}", error.expected, error.got) from error


def _check_pairs(value: Any, path: str) -> None:
    ranks = [rank for rank, _ in value]
    if ranks != sorted(set(ranks)):
        raise LayoutError(path, "ascending ranks without repeats", str(ranks))
    for index, pair in enumerate(value):
        for part in pair:
            _check_count(part, f"{path}[{index}]")


def _check_for(annotation: Any, check_int: Check) -> Check | None:
    """What the type of a field does not say by itself. None: nothing more to check."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is int:
        return check_int
    if annotation is float:
        return _check_seconds
    if annotation is bytes:
        return _check_ids
    if annotation is str or origin is Literal:
        return None
    if annotation is Layout:
        return _check_layout
    if Rows in (annotation, origin):
        return _check_rows
    if origin in (Union, types.UnionType):
        inner = _check_for(next(part for part in arguments if part is not type(None)), check_int)
        return None if inner is None else _optional(inner)
    if origin is tuple and arguments == (tuple[int, int], ...):
        return _check_pairs
    if origin is tuple and arguments[1:] == (...,):
        inner = _check_for(arguments[0], check_int)
        return None if inner is None else _each(inner)
    if isinstance(annotation, type) and issubclass(annotation, Struct):
        return _struct_check(annotation, check_int)
    raise TypeError(f"the codec has no check for a field of type {annotation!r}")


def _optional(inner: Check) -> Check:
    def check(value: Any, path: str) -> None:
        if value is not None:
            inner(value, path)

    return check


def _each(inner: Check) -> Check:
    def check(value: Any, path: str) -> None:
        for index, item in enumerate(value):
            inner(item, f"{path}[{index}]")

    return check


def _struct_check(kind: type[Struct], check_int: Check) -> Check:
    checks = [(name, _check_for(annotation, check_int)) for name, annotation in get_type_hints(kind).items()]
    wanted = [(name, check) for name, check in checks if check is not None]

    def check(value: Any, path: str) -> None:
        for name, inner in wanted:
            inner(getattr(value, name), f"{path}.{name}")

    return check


CHECKS: Final[Mapping[type[Event], Check]] = {
    kind: _struct_check(kind, _check_int64 if kind in PEER_WORDS else _check_count) for kind in get_args(AnyEvent)
}
"""Raise LayoutError naming the field by its path (the check's second argument begins it)."""


# ---- the same, as fast answers


class _Fields:
    """Dotted paths of an event type's fields, by what has to be checked of them."""

    def __init__(self, kind: type[Struct]) -> None:
        self.integers: list[str] = []
        self.seconds: list[str] = []
        self.ids: list[str] = []
        self.lists: list[str] = []
        self.rows: list[str] = []
        self.pairs: list[str] = []
        self.others: list[tuple[str, Any]] = []
        self._add(kind, "")

    def _add(self, kind: type[Struct], prefix: str) -> None:
        for name, annotation in get_type_hints(kind).items():
            path = f"{prefix}{name}"
            if annotation is int:
                self.integers.append(path)
            elif annotation is float:
                self.seconds.append(path)
            elif annotation is bytes:
                self.ids.append(path)
            elif annotation == tuple[bytes, ...]:
                self.lists.append(path)
            elif annotation == tuple[tuple[int, int], ...]:
                self.pairs.append(path)
            elif Rows in (annotation, get_origin(annotation)):
                self.rows.append(path)
            elif annotation is not Layout and isinstance(annotation, type) and issubclass(annotation, Struct):
                self._add(annotation, f"{path}.")
            else:
                self.others.append((path, annotation))


@lru_cache(maxsize=SHAPES)
def _shape_fits(layer_bytes: bytes, row_ptr_bytes: bytes, size: int) -> bool:
    try:
        Rows(layer_bytes=layer_bytes, row_ptr_bytes=row_ptr_bytes, id_bytes=bytes(size)).check()
    except LayoutError:
        return False
    return True


def _ids_fine(data: bytes) -> bool:
    """Whole int32 values, none negative: the highest byte of each is that of an ASCII character."""
    return len(data) % 4 == 0 and data[3::4].isascii()


def _rows_fine(rows: Any) -> bool:
    data = rows.id_bytes
    return _ids_fine(data) and _shape_fits(rows.layer_bytes, rows.row_ptr_bytes, len(data))


def _list_fine(parts: tuple[bytes, ...]) -> bool:
    for data in parts:  # noqa: SIM110 - a generator costs more than the loop
        if data and not _ids_fine(data):
            return False
    return True


@lru_cache(maxsize=SHAPES)
def _pairs_fine(pairs: tuple[tuple[int, int], ...]) -> bool:
    try:
        _check_pairs(pairs, "")
    except LayoutError:
        return False
    return True


def _seconds_fine(value: float) -> bool:
    return 0 <= value < math.inf


def _parts(kind: type[Struct], lowest: int) -> list[Answer]:
    fields = _Fields(kind)
    integers = attrgetter(*fields.integers)  # every event has two: its number and its request's epoch

    def integers_fine(event: Any) -> bool:
        found: tuple[int, ...] = integers(event)
        return min(found) >= lowest and max(found) <= INT64_MAX

    parts: list[Answer] = [integers_fine]
    for paths, fine in (
        (fields.seconds, _seconds_fine),
        (fields.ids, _ids_fine),
        (fields.lists, _list_fine),
        (fields.pairs, _pairs_fine),
        (fields.rows, _rows_fine),
    ):
        parts += [_at(path, fine) for path in paths]
    for path, annotation in fields.others:
        explain = _check_for(annotation, _check_count if lowest == 0 else _check_int64)
        if explain is not None:
            parts.append(_answer(attrgetter(path), explain))
    return parts


def _at(path: str, fine: Answer) -> Answer:
    get = attrgetter(path)
    return lambda event: fine(get(event))


def _answer(get: Callable[[Any], Any], explain: Check) -> Answer:
    def fine(event: Any) -> bool:
        try:
            explain(get(event), "")
        except LayoutError:
            return False
        return True

    return fine


def _fine(kind: type[Event]) -> Answer:
    parts = _parts(kind, -INT64_MAX - 1 if kind in PEER_WORDS else 0)
    if len(parts) == 1:
        return parts[0]

    def fine(event: Any) -> bool:
        for part in parts:  # noqa: SIM110 - as above
            if not part(event):
                return False
        return True

    return fine


FINE: Final[Mapping[type[Event], Answer]] = {kind: _fine(kind) for kind in get_args(AnyEvent)}
"""Whether CHECKS would find nothing."""
