"""Whether a message has the types that its declaration gives, before anything looks at what it says.

A message made in the same process is checked by nothing else: a codec checks what comes over a wire. Values that only
a state can judge are the business of the decisions.
"""

from collections.abc import Callable
from functools import cache
from operator import attrgetter
from types import UnionType
from typing import Any, NoReturn, TypeAlias, Union, get_args, get_origin, get_type_hints

from msgspec import Struct

from kvsweep.ledger.errors import LayoutError, Malformed
from kvsweep.ledger.ids import RequestKey, Rows
from kvsweep.ledger.messages import Command, Report

MESSAGES: tuple[type[Struct], ...] = (*get_args(Command), *get_args(Report))
"""What the one door takes."""

INT64 = range(-(2**63), 2**63)
"""What every ledger and wire can hold."""

Quick: TypeAlias = Callable[[Any], bool]
"""Whether a value is plainly of its kind. Where it says no, the check that names the fault decides."""


def check_message(message: object) -> None:
    """Raise Malformed that names the field, what was expected and what came, for example `OpenTail.until`."""
    quick = _QUICK.get(type(message))
    if quick is not None and quick(message):
        return
    if not isinstance(message, MESSAGES):
        raise Malformed("message", "a command or a report", type(message).__name__)
    _check_struct(type(message).__name__, message)


def expect_key(what: str, key: object) -> None:
    """Raise Malformed unless the argument of `what` is the key of a life, whole."""
    if _quick(RequestKey)(key):
        return
    if not isinstance(key, RequestKey):
        _wrong(f"{what}.request", RequestKey.__name__, key)
    _check_struct(f"{what}.request", key)


def _check_struct(path: str, value: Struct) -> None:
    for name, kind in _fields(type(value)):
        _check(f"{path}.{name}", getattr(value, name), kind)
    if isinstance(value, Rows):
        try:
            value.check()
        except LayoutError as error:
            raise Malformed(f"{path}.{error.argument}", error.expected, error.got) from error


@cache
def _fields(kind: type[Struct]) -> tuple[tuple[str, Any], ...]:
    hints = get_type_hints(kind)
    return tuple((name, hints[name]) for name in kind.__struct_fields__)


def _check(path: str, value: object, kind: Any) -> None:
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        _check_union(path, value, get_args(kind))
    elif origin is tuple:
        _check_tuple(path, value, get_args(kind))
    elif isinstance(origin or kind, type) and issubclass(origin or kind, Struct):
        if not isinstance(value, origin or kind):
            _wrong(path, (origin or kind).__name__, value)
        _check_struct(path, value)
    elif not isinstance(value, (int, float) if kind is float else kind) or (
        kind in (int, float) and isinstance(value, bool)
    ):
        _wrong(path, kind.__name__, value)
    elif isinstance(value, int) and not INT64.start <= value < INT64.stop:
        raise Malformed(path, "an integer of 64 bits", str(value))
    elif isinstance(value, bytes) and len(value) % 4:
        raise Malformed(path, "whole int32 values", f"{len(value)} bytes")


def _check_union(path: str, value: object, kinds: tuple[Any, ...]) -> None:
    """At most one struct or tuple matches by its own type; the others are plain."""
    if value is None and type(None) in kinds:
        return
    left = [kind for kind in kinds if kind is not type(None)]
    structs = [kind for kind in left if isinstance(kind, type) and isinstance(value, kind)]
    if structs:
        _check(path, value, structs[0])
    elif len(left) == 1:
        _check(path, value, left[0])
    else:
        _wrong(path, f"one of {[getattr(kind, '__name__', str(kind)) for kind in left]}", value)


def _check_tuple(path: str, value: object, kinds: tuple[Any, ...]) -> None:
    if not isinstance(value, tuple):
        _wrong(path, "tuple", value)
    if kinds[-1:] == (Ellipsis,):
        kinds = (kinds[0],) * len(value)
    if len(value) != len(kinds):
        raise Malformed(path, f"{len(kinds)} values", str(len(value)))
    for at, (item, kind) in enumerate(zip(value, kinds, strict=True)):
        _check(f"{path}[{at}]", item, kind)


def _wrong(path: str, expected: str, value: object) -> NoReturn:
    raise Malformed(path, expected, type(value).__name__)


# ---- the quick way: most messages are well formed


@cache
def _quick(kind: Any) -> Quick:
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _quick_union(tuple(_quick(part) for part in parts))
    if origin is tuple:
        return _quick_tuple(parts)
    if isinstance(origin or kind, type) and issubclass(origin or kind, Struct):
        return _quick_struct(origin or kind)
    return _PLAIN.get(kind, lambda value: False)


def _quick_union(kinds: tuple[Quick, ...]) -> Quick:
    return lambda value: any(quick(value) for quick in kinds)


def _quick_tuple(parts: tuple[Any, ...]) -> Quick:
    if parts[-1:] == (Ellipsis,):
        one = _quick(parts[0])
        return lambda value: type(value) is tuple and all(map(one, value))
    each = tuple(map(_quick, parts))

    def fixed(value: Any) -> bool:
        return type(value) is tuple and len(value) == len(each) and all(q(v) for q, v in zip(each, value, strict=True))

    return fixed


def _quick_struct(kind: type[Struct]) -> Quick:
    if kind is Rows:
        return lambda value: type(value) is Rows and value.fits()
    names, each = kind.__struct_fields__, tuple(_quick(field) for _, field in _fields(kind))
    if len(names) == 1:
        [name], [one] = names, each
        return lambda value: type(value) is kind and one(getattr(value, name))
    fields = attrgetter(*names)

    def struct(value: Any) -> bool:
        if type(value) is not kind:
            return False
        for quick, field in zip(each, fields(value), strict=True):  # noqa: SIM110 - half the time of all()
            if not quick(field):
                return False
        return True

    return struct


_PLAIN: dict[Any, Quick] = {
    int: lambda value: type(value) is int and -(2**63) <= value < 2**63,
    float: lambda value: type(value) is float,
    str: lambda value: type(value) is str,
    bool: lambda value: type(value) is bool,
    bytes: lambda value: type(value) is bytes and not len(value) % 4,
    type(None): lambda value: value is None,
}

_QUICK: dict[type, Quick] = {kind: _quick(kind) for kind in MESSAGES}
