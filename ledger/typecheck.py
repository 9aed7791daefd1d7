"""Whether a value has the types of its declaration, found by compiled code: it says yes or no, and never why."""

from collections.abc import Callable, Iterable
from types import NoneType, UnionType
from typing import Any, Final, TypeAlias, Union, get_args, get_origin, get_type_hints

from msgspec import Struct

from kvsweep.ledger.ids import Rows

Form: TypeAlias = tuple[Any, ...]
"""(kind, what belongs to the kind); ledger/native/forms.hpp names the kinds."""

_PLAIN: Final[dict[Any, Form]] = {
    NoneType: ("nothing",),
    int: ("word",),  # of 64 bits
    float: ("number",),
    str: ("text",),
    bool: ("flag",),
    bytes: ("ids",),  # whole int32 values
}


def checker(kinds: Iterable[type[Struct]]) -> Callable[[object], bool] | None:
    """Whether a value is a struct of one of these types, and all in it has the types of its declaration.

    No subclass of a type counts, and no int as a float. None where the compiled code was not built.
    """
    try:
        from kvsweep.ledger import _store
    except ImportError:
        return None
    return _store.checker([_record(kind) for kind in kinds])


def _record(kind: type[Struct]) -> Form:
    hints = get_type_hints(kind)
    fields = tuple((name, _form(hints[name])) for name in kind.__struct_fields__)
    return ("rows" if kind is Rows else "record", kind, fields)


def _form(annotation: Any) -> Form:
    origin, parts = get_origin(annotation) or annotation, get_args(annotation)
    if origin in _PLAIN:
        return _PLAIN[origin]
    if origin in (Union, UnionType):
        return ("any", tuple(_form(part) for part in parts))
    if origin is tuple:
        return ("list", (_form(parts[0]),)) if parts[1:] == (...,) else ("each", tuple(map(_form, parts)))
    if isinstance(origin, type) and issubclass(origin, Struct):
        return _record(origin)
    raise TypeError(f"the compiled code has no form for a field of type {annotation!r}")
