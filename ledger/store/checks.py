"""What the type of an event's field does not say by itself: ids and numbers that no fact can have.

Every check stands here twice, built once from the types of the fields. CHECKS explain. STRICT and LEFT only answer,
fast, because they run over every event that is written or read: the decoder checks numbers while it decodes, and what
is left are ids. Whatever is not fine is explained.
"""

import math
import types
from collections.abc import Callable, Mapping
from functools import lru_cache
from operator import attrgetter
from typing import Annotated, Any, Final, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct

from kvsweep.ledger.errors import LayoutError
from kvsweep.ledger.events import AckIgnored, AckRefused, AnyEvent, Event
from kvsweep.ledger.ids import Rows, int32_view
from kvsweep.ledger.layout import Layout

INT64_MAX: Final = 2**63 - 1

PEER_NUMBERS: Final = frozenset({AckIgnored, AckRefused})
"""Events that repeat what a peer said: its numbers may be anything that fits int64, or a lie could not be recorded."""

SHAPES: Final = 4096  # shapes of rows, and sets of ranks, whose answer is remembered

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
    kind: _struct_check(kind, _check_int64 if kind in PEER_NUMBERS else _check_count) for kind in get_args(AnyEvent)
}
"""Raise LayoutError naming the field by its path (the check's second argument begins it)."""


# ---- the same, as fast answers

Count = Annotated[int, Meta(ge=0, le=INT64_MAX)]
Int64 = Annotated[int, Meta(ge=-INT64_MAX - 1, le=INT64_MAX)]
Seconds = Annotated[float, Meta(ge=0.0, le=math.nextafter(math.inf, 0.0))]


class _Strict:
    """Types with the fields of the events whose numbers have bounds, and that take no field more."""

    def __init__(self, integer: object) -> None:
        self._integer = integer
        self._made: dict[type[Struct], Any] = {}

    def of(self, annotation: Any) -> Any:
        origin, arguments = get_origin(annotation), get_args(annotation)
        if annotation is int:
            return self._integer
        if annotation is float:
            return Seconds
        if origin in (Union, types.UnionType):
            return Union[tuple(self.of(part) for part in arguments)]  # noqa: UP007 - of a tuple
        if origin is tuple:
            return tuple[tuple(part if part is ... else self.of(part) for part in arguments)]  # type: ignore[misc]
        if isinstance(annotation, type) and issubclass(annotation, Struct) and annotation not in (Rows, Layout):
            return self._struct(annotation)
        return annotation

    def _struct(self, kind: type[Struct]) -> Any:
        if kind not in self._made:
            hints, config = get_type_hints(kind), kind.__struct_config__
            self._made[kind] = msgspec.defstruct(
                kind.__name__,
                [
                    (field.name, self.of(hints[field.name]))
                    if field.required
                    else (field.name, self.of(hints[field.name]), msgspec.field(default_factory=lambda: None))
                    for field in msgspec.structs.fields(kind)
                ],
                array_like=True,
                tag=config.tag,
                kw_only=True,
                gc=False,
                forbid_unknown_fields=True,
            )
        return self._made[kind]


_COUNTS, _INT64S = _Strict(Count), _Strict(Int64)
STRICT: Final = Union[tuple((_INT64S if kind in PEER_NUMBERS else _COUNTS).of(kind) for kind in get_args(AnyEvent))]  # noqa: UP007
"""What a decoder takes instead of AnyEvent to check numbers and lengths; defaults are of no use in what it gives."""


def _ids_fine(data: bytes) -> bool:
    """Whole int32 values, none negative: the highest byte of each is that of an ASCII character."""
    return len(data) % 4 == 0 and data[3::4].isascii()


def _list_fine(parts: tuple[bytes, ...]) -> bool:
    for data in parts:  # noqa: SIM110 - a generator costs more than the loop
        if data and not _ids_fine(data):
            return False
    return True


@lru_cache(maxsize=SHAPES)
def _shape_fits(layer_bytes: bytes, row_ptr_bytes: bytes, size: int) -> bool:
    try:
        Rows(layer_bytes=layer_bytes, row_ptr_bytes=row_ptr_bytes, id_bytes=bytes(size)).check()
    except LayoutError:
        return False
    return True


def _rows_fine(rows: Any) -> bool:
    data = rows.id_bytes
    return _ids_fine(data) and _shape_fits(rows.layer_bytes, rows.row_ptr_bytes, len(data))


@lru_cache(maxsize=SHAPES)
def _pairs_fine(pairs: tuple[tuple[int, int], ...]) -> bool:
    try:
        _check_pairs(pairs, "")
    except LayoutError:
        return False
    return True


def _parts(kind: type[Struct], check_int: Check) -> list[Answer]:
    """What the strict types leave to be checked."""
    parts: list[Answer] = []
    for name, annotation in get_type_hints(kind).items():
        if annotation in (int, float):
            continue
        if annotation is bytes:
            parts.append(_at(name, _ids_fine))
        elif annotation == tuple[bytes, ...]:
            parts.append(_at(name, _list_fine))
        elif annotation == tuple[tuple[int, int], ...]:
            parts.append(_at(name, _pairs_fine))
        elif Rows in (annotation, get_origin(annotation)):
            parts.append(_at(name, _rows_fine))
        else:
            explain = _check_for(annotation, check_int)
            if explain is not None and not _only_numbers(annotation):
                parts.append(_at(name, _answer(explain)))
    return parts


def _only_numbers(annotation: Any) -> bool:
    """Whether the strict type says everything of such a field: numbers, texts, and structs, unions, tuples of them."""
    if get_origin(annotation) in (Union, types.UnionType) or get_args(annotation)[1:] == (...,):
        return all(_only_numbers(part) for part in get_args(annotation) if part not in (..., type(None)))
    if isinstance(annotation, type) and issubclass(annotation, Struct) and annotation not in (Rows, Layout):
        return all(_only_numbers(part) for part in get_type_hints(annotation).values())
    return annotation in (int, float, str) or get_origin(annotation) is Literal


def _at(path: str, fine: Answer) -> Answer:
    get = attrgetter(path)
    return lambda event: fine(get(event))


def _answer(explain: Check) -> Answer:
    def fine(value: Any) -> bool:
        try:
            explain(value, "")
        except LayoutError:
            return False
        return True

    return fine


def _left(kind: type[Event]) -> Answer | None:
    parts = _parts(kind, _check_int64 if kind in PEER_NUMBERS else _check_count)
    if len(parts) <= 1:
        return parts[0] if parts else None

    def fine(event: Any) -> bool:
        for part in parts:  # noqa: SIM110 - a generator costs more than the loop
            if not part(event):
                return False
        return True

    return fine


LEFT: Final[Mapping[type[Event], Answer | None]] = {kind: _left(kind) for kind in get_args(AnyEvent)}
"""Whether CHECKS would find nothing in what the strict types have let through; None: certainly nothing."""
