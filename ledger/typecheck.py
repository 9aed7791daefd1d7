"""Whether a value has the types of its declaration, found by compiled code: it says yes or no, and never why."""

from collections.abc import Callable, Iterable
from types import NoneType, UnionType
from typing import Any, Final, TypeAlias, Union, get_args, get_origin, get_type_hints

from msgspec import Struct

from kvsweep.ledger.ids import Rows

TypeTree: TypeAlias = tuple[Any, ...]
"""(kind, what belongs to the kind); ledger/native/typecheck.hpp names the kinds."""

_SCALARS: Final[dict[Any, TypeTree]] = {
    NoneType: ("nothing",),
    int: ("integer",),  # of 64 bits
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


def _record(kind: type[Struct]) -> TypeTree:
    hints = get_type_hints(kind)
    fields = tuple((name, _tree_of(hints[name])) for name in kind.__struct_fields__)
    return ("rows" if kind is Rows else "record", kind, fields)


def _tree_of(annotation: Any) -> TypeTree:
    origin, parts = get_origin(annotation) or annotation, get_args(annotation)
    if origin in _SCALARS:
        return _SCALARS[origin]
    if origin in (Union, UnionType):
        return ("any", tuple(_tree_of(part) for part in parts))
    if origin is tuple:
        return ("list", (_tree_of(parts[0]),)) if parts[1:] == (...,) else ("each", tuple(map(_tree_of, parts)))
    if isinstance(origin, type) and issubclass(origin, Struct):
        return _record(origin)
    raise TypeError(f"the compiled code has no tree for a field of type {annotation!r}")
