"""Bytes of an event and back: msgpack, positional, integer tags, id lists as little-endian int32 bytes.

What comes back is checked again, because a body that still decodes may hold ids and numbers that no fact can have.
"""

import math
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from kvsweep.ledger.errors import LayoutError, LogError, Unencodable
from kvsweep.ledger.event_base import Event
from kvsweep.ledger.events import AckIgnored, AckRefused, AnyEvent
from kvsweep.ledger.ids import Rows, int32_view
from kvsweep.ledger.layout import Layout

SCHEMA: Final = 1
"""Version of the encoding. Fields are only appended, with defaults, so an older ledger stays readable."""

RULES: Final = 1
"""Version of the reducers' rules. A ledger names its own, so that old events keep their meaning."""

INT64_MAX: Final = 2**63 - 1

EVENT_TYPES: Final[Mapping[str, type[Event]]] = {kind.__name__: kind for kind in get_args(AnyEvent)}
"""Every event type by its name, in the order of the union."""

PEER_WORDS: Final = frozenset({AckIgnored, AckRefused})
"""Events that repeat what a peer said: its numbers may be anything that fits int64, or a lie could not be recorded."""

Check: TypeAlias = Callable[[Any, str], None]

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final[msgspec.msgpack.Decoder[Event]] = msgspec.msgpack.Decoder(AnyEvent)
_TAGS: Final[Mapping[object, type[Event]]] = {kind.__struct_config__.tag: kind for kind in EVENT_TYPES.values()}


def encode(event: Event) -> bytes:
    """Wire bytes of one event.

    Raises LogError naming the field when the event could not be read back: a wrong type, an id list that is not
    int32, a negative number, rows that do not fit together.
    """
    name = type(event).__name__
    if EVENT_TYPES.get(name) is not type(event):
        raise Unencodable(f"event: expected one of the {len(EVENT_TYPES)} event types, got {name}")
    try:
        body = _ENCODER.encode(event)
    except (TypeError, ValueError, OverflowError) as error:
        raise Unencodable(f"{name} cannot be encoded: {error}") from error
    decode(body)
    return body


def encode_batch(events: Sequence[Event]) -> list[bytes]:
    """Wire bytes of each event. Raises LogError as `encode` does, naming the index in the batch too."""
    bodies = []
    for index, event in enumerate(events):
        try:
            bodies.append(encode(event))
        except LogError as error:
            raise Unencodable(f"batch[{index}]: {error}") from error
    return bodies


def decode(body: bytes) -> Event:
    """Event of wire bytes. Raises LogError naming the field by its path, what was expected and what came."""
    try:
        event = _DECODER.decode(body)
    except msgspec.ValidationError as error:
        raise LogError(_named(str(error), body)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LogError(f"event: expected msgpack of one event, got {len(body)} bytes ({error})") from error
    kind = type(event)
    if _items(body) > len(kind.__struct_fields__) + 1:
        raise LogError(
            f"{kind.__name__}: expected at most {len(kind.__struct_fields__)} fields, got {_items(body) - 1}"
        )
    try:
        _CHECKS[kind](event, kind.__name__)
    except LayoutError as error:
        raise LogError(str(error)) from error
    return event


def _items(body: bytes) -> int:
    """Length of the msgpack array at the head of a body that has decoded as one."""
    head = body[0]
    if 0x90 <= head <= 0x9F:
        return head & 0x0F
    return int.from_bytes(body[1:3] if head == 0xDC else body[1:5], "big")


def _named(message: str, body: bytes) -> str:
    """The decoder's message with field names in place of array positions: `$[1][1]` is RequestOpened.request[1]."""
    text, _, path = message.partition(" - at `$")
    raw: Any = msgspec.msgpack.decode(body)
    kind = _TAGS.get(raw[0]) if isinstance(raw, list) and raw and isinstance(raw[0], int) else None
    if kind is None:
        return f"event type: {text}"
    first, _, rest = path.removesuffix("`").removeprefix("[").partition("]")
    if not first.isdigit():
        return f"{kind.__name__}: {text}"
    return f"{kind.__name__}.{kind.__struct_fields__[int(first) - 1]}{rest}: {text}"


# ---- checks, built once from the types of the fields


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


_CHECKS: Final[Mapping[type[Event], Check]] = {
    kind: _struct_check(kind, _check_int64 if kind in PEER_WORDS else _check_count) for kind in EVENT_TYPES.values()
}
