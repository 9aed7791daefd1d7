"""Whether a message has the types that its declaration gives, before anything looks at what it says.

A message made in the same process is checked by nothing else: a codec checks what comes over a wire. Values that only
a state can judge are the business of the decisions.
"""

from functools import cache
from types import UnionType
from typing import Any, NoReturn, Union, get_args, get_origin, get_type_hints

from msgspec import Struct

from kvsweep.ledger.errors import LayoutError, Malformed
from kvsweep.ledger.ids import RequestKey, Rows
from kvsweep.ledger.messages import Command, Report
from kvsweep.ledger.typecheck import checker

MESSAGES: tuple[type[Struct], ...] = (*get_args(Command), *get_args(Report))
"""What the one door takes."""

INT64 = range(-(2**63), 2**63)
"""What every ledger and wire can hold."""

_fine, _fine_key = checker(MESSAGES), checker([RequestKey])
"""Where these say no, or are not there, the check that names the fault decides."""


def check_message(message: object) -> None:
    """Raise Malformed that names the field, what was expected and what came, for example `OpenTail.until`."""
    if _fine is not None and _fine(message):  # most are
        return
    if type(message) not in MESSAGES:
        raise Malformed("message", "a command or a report", type(message).__name__)
    _check_struct(type(message).__name__, message)  # type: ignore[arg-type]


def expect_key(what: str, key: object) -> None:
    """Raise Malformed unless the argument of `what` is the key of a life, whole."""
    if _fine_key is not None and _fine_key(key):
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
