"""Checking, encoding and packing of events in compiled code, where it was built; else the reference does it.

Both give the same bytes. What the compiled code does not take, for whatever reason, goes to the reference, which takes
it or says what is wrong with it: there is one place where messages are written.
"""

import os
import types
from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import Operation, RequestKey, Rows
from kvsweep.ledger.layout import Layout
from kvsweep.ledger.store import group
from kvsweep.ledger.store.checks import PEER_NUMBERS
from kvsweep.ledger.store.codec import ASIDE
from kvsweep.ledger.store.group import NAMED, TAG_NAMES, Packed, Part
from kvsweep.ledger.store.log import Position

Seen: TypeAlias = tuple[int, int, int]
"""Inode, device and bytes of a file."""

Shape: TypeAlias = tuple[object, ...]
"""(kind, whether None is allowed, what belongs to the kind); ledger/native/encode.hpp names the kinds."""


def why_not_native() -> str | None:
    """Why the compiled code cannot run here; None where it can."""
    try:
        import kvsweep.ledger._store  # noqa: F401
    except ImportError as error:
        return f"the extension was not built or does not load ({error})"
    return None


def event_schemas() -> list[tuple[object, ...]]:
    """(type, tag, fields, has an operation, has a rank) of every event."""
    return [
        (kind, tag, _fields(kind, "integer" if kind in PEER_NUMBERS else "count"), has_operation, has_rank)
        for kind, (tag, has_operation, has_rank) in NAMED.items()
    ]


def _fields(kind: type[Struct], integer: str) -> tuple[tuple[str, Shape], ...]:
    hints = get_type_hints(kind)
    return tuple((name, _shape(hints[name], integer)) for name in kind.__struct_fields__)


def _shape(annotation: Any, integer: str) -> Shape:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        kind, _, *more = _shape(next(part for part in arguments if part is not type(None)), integer)
        return (kind, True, *more)
    if annotation in _SCALARS:
        return (_SCALARS[annotation], False)
    if annotation is int:
        return (integer, False)
    if origin is Literal:
        return ("one of", False, arguments)
    if Rows in (annotation, origin):
        return ("rows", False, Rows, _fields(Rows, integer))
    if origin is tuple and arguments[1:] == (...,):
        return ("list", False, _shape(arguments[0], integer))
    if annotation is Layout:
        return ("checked", False, Layout, _fields(Layout, "integer"))
    if isinstance(annotation, type) and issubclass(annotation, Struct):
        seen = (msgspec.msgpack.encode(annotation()),) if annotation in ASIDE else ()
        return ("record", False, annotation, _fields(annotation, integer), *seen)
    raise TypeError(f"the compiled code has no shape for a field of type {annotation!r}")


_SCALARS: Final[dict[Any, str]] = {
    str: "text",
    float: "seconds",
    bytes: "ids",
    tuple[tuple[int, int], ...]: "pairs",
}


class Native:
    """The compiled code with its types. Raises ImportError where it was not built.

    encode_part  as kvsweep.ledger.store.group.encode_part
    fold         whether checksums are made by carry-less multiplication; None: where the processor has it
    """

    def __init__(self, *, fold: bool | None = None) -> None:
        from kvsweep.ledger import _store

        names = list(TAG_NAMES.items())
        self._schema = _store.schema(event_schemas(), names, RequestKey, Operation, Part, group.encode_part)
        self._pack = _store.pack
        self._fold = _store.crc_folds() if fold is None else fold
        self.encode_part = _store.encoder(self._schema)
        self.look = _store.look
        self._chain_of_bodies, self._chain_of_events = _store.chain_of_bodies, _store.chain_of_events

    def pack_parts(self, parts: Sequence[Part], numbers: Sequence[list[int]], first: Position) -> Packed:
        """As kvsweep.ledger.store.group.pack_parts."""
        told = [(part.data, part.rows, own) for part, own in zip(parts, numbers, strict=True)]
        return self._pack(self._schema, told, first, self._fold)

    def chain_of_events(self, chain: bytes, events: Sequence[Event]) -> bytes:
        """Chain of digests, gone on over events in order; see kvsweep.ledger.store.digest.

        Raises ValueError for what it does not take.
        """
        return self._chain_of_events(self._schema, chain, events)

    def chain_of_bodies(self, chain: bytes, bodies: bytes, start: int, stop: int) -> bytes:
        """The same over events `start` up to `stop` of one msgpack array of bodies."""
        return self._chain_of_bodies(self._schema, chain, bodies, start, stop)


def _look(path: bytes) -> Seen | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_dev, found.st_size


_native: Final = Native() if why_not_native() is None else None
encode_part = group.encode_part if _native is None else _native.encode_part
pack_parts = group.pack_parts if _native is None else _native.pack_parts
look = _look if _native is None else _native.look
"""(inode, device, bytes) of the file at a path, None where there is none. Raises OSError."""
chain_of_events = None if _native is None else _native.chain_of_events
chain_of_bodies = None if _native is None else _native.chain_of_bodies
