"""A batch on its way into a file: encoded, with what stands beside its bodies, so that its writer needs no event.

What is here is the reference; `kvsweep.ledger.store.encoding` does the same in compiled code, byte for byte.
"""

import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias, get_type_hints

import msgspec
from msgspec import Struct

from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import Operation
from kvsweep.ledger.store.codec import EVENT_TYPES, Bodies, encode_group, list_head
from kvsweep.ledger.store.log import Position

ROW: Final = struct.Struct("=8q")
"""tag, index of the request's id among the part's names, epoch, seq, operation id, rank, bytes, flags: an event's."""

HAS_OPERATION: Final = 1
HAS_RANK: Final = 2

TAG_NAMES: Final[Mapping[int, str]] = {
    tag: name for name, kind in EVENT_TYPES.items() if isinstance(tag := kind.__struct_config__.tag, int)
}

NAMED: Final[Mapping[type[Event], tuple[int, bool, bool]]] = {
    EVENT_TYPES[name]: (
        tag,
        get_type_hints(EVENT_TYPES[name]).get("operation") in (Operation, Operation | None),
        "rank" in get_type_hints(EVENT_TYPES[name]),
    )
    for tag, name in TAG_NAMES.items()
}
"""Event type -> its tag, whether it has an operation, whether it has a rank."""

Packed: TypeAlias = tuple[bytes, str, bytes, str]
"""Running checksums, plain columns as JSON, bodies as one msgpack array, places of lives as JSON."""

_JSON: Final = msgspec.json.Encoder()


class Part(Struct, frozen=True, gc=False):
    """Events that were checked and encoded together."""

    data: bytes  # one msgpack array
    rows: bytes  # a ROW an event
    names: tuple[str, ...]  # request ids, in the order of their first event
    dense: bool = False  # whether all are known to be of one life, and their numbers to follow each other

    @property
    def events(self) -> int:
        return len(self.rows) // ROW.size


def part_of(events: Sequence[Event], bodies: Bodies) -> Part:
    """Of events that were encoded before."""
    names: dict[str, int] = {}
    rows = []
    for event, size in zip(events, bodies.sizes, strict=True):
        request = event.request
        tag, has_operation, has_rank = NAMED[type(event)]
        operation: Operation | None = event.operation if has_operation else None  # type: ignore[attr-defined]
        rank: int = event.rank if has_rank else 0  # type: ignore[attr-defined]
        rows.append(
            ROW.pack(
                tag,
                names.setdefault(request.request_id, len(names)),
                request.request_epoch,
                event.seq,
                0 if operation is None else operation.operation_id,
                rank,
                size,
                HAS_OPERATION * (operation is not None) | HAS_RANK * has_rank,
            )
        )
    return Part(bodies.data, b"".join(rows), tuple(names))


def encode_part(events: Sequence[Event]) -> Part:
    """Check and encode a batch that is not empty. Raises LogError as `encode_group` does."""
    events = tuple(events)
    return part_of(events, encode_group(events))


def pack_parts(parts: Sequence[Part], numbers: Sequence[list[int]], first: Position) -> Packed:
    """Parts as one group.

    numbers  of each part's names
    first    position of the first event
    """
    count = sum(part.events for part in parts)
    head = list_head(count)
    bodies, plain, places, crcs = [head], list[tuple[object, ...]](), list[list[int]](), list[int]()
    crc, offset, run = zlib.crc32(head), len(head), [-1, -1]
    for part, own in zip(parts, numbers, strict=True):
        data, at = memoryview(part.data), len(list_head(part.events))
        bodies.append(data[at:])  # type: ignore[arg-type]
        for tag, name, epoch, seq, operation, rank, size, flags in ROW.iter_unpack(part.rows):
            rid = own[name]
            crc = zlib.crc32(data[at : at + size], crc)
            at += size
            crcs.append(crc)
            said = (operation if flags & HAS_OPERATION else None, rank if flags & HAS_RANK else None)
            if run[0] == rid and run[1] == epoch:
                run[3] += 1
                run[6] += size
            else:
                run = [rid, epoch, seq, 1, first + len(plain), offset, size]
                places.append(run)
            plain.append((rid, epoch, seq, TAG_NAMES[tag], *said, offset, size))
            offset += size
    return (
        struct.pack(f"<{len(crcs)}I", *crcs),
        _JSON.encode(plain).decode(),
        b"".join(bodies) if len(parts) > 1 else parts[0].data,
        _JSON.encode(places).decode(),
    )
