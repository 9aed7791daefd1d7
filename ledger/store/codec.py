"""Bytes of an event and back: msgpack, positional, integer tags, id lists as little-endian int32 bytes.

What comes back is checked again, because a body that still decodes may hold ids and numbers that no fact can have.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, Final, get_args

import msgspec
from msgspec import Struct

from kvsweep.ledger.errors import LayoutError, LogError, Unencodable
from kvsweep.ledger.events import AnyEvent, Event, Implementation, Measured
from kvsweep.ledger.store.checks import CHECKS, LEFT, STRICT

SCHEMA: Final = 1
"""Version of the encoding and of a file's tables. Fields of events are only appended, with defaults, and the tables of
every version have a reader, so an older ledger stays readable."""

RULES: Final = 1
"""Version of the rules by which events are folded and named by digests. A ledger names its own, and keeps it, so that
old events keep their meaning."""

ASIDE: Final[tuple[type[Struct], ...]] = (Measured, Implementation)
"""Types of fields that no digest sees: what a clock measured, and what did the work."""

EVENT_TYPES: Final[Mapping[str, type[Event]]] = {kind.__name__: kind for kind in get_args(AnyEvent)}
"""Every event type by its name, in the order of the union."""

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final[msgspec.msgpack.Decoder[Event]] = msgspec.msgpack.Decoder(AnyEvent)
_LIST_DECODER: Final[msgspec.msgpack.Decoder[list[Event]]] = msgspec.msgpack.Decoder(list[AnyEvent])
_STRICT: Final[msgspec.msgpack.Decoder[Any]] = msgspec.msgpack.Decoder(STRICT)
_STRICT_LIST: Final[msgspec.msgpack.Decoder[list[Any]]] = msgspec.msgpack.Decoder(list[STRICT])  # type: ignore[valid-type]
_SPLITTER: Final[msgspec.msgpack.Decoder[list[msgspec.Raw]]] = msgspec.msgpack.Decoder(list[msgspec.Raw])
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


class Bodies(Struct, frozen=True, gc=False):
    """Encoded events as they are stored together: one msgpack array."""

    data: bytes
    sizes: list[int]  # bytes of each event; what stands before the first is the array's head

    @property
    def start(self) -> int:
        """Where the first event begins."""
        return len(list_head(len(self.sizes)))

    def each(self) -> list[bytes]:
        ends = list(accumulate(self.sizes, initial=self.start))
        return [self.data[start:end] for start, end in pairwise(ends)]

    @classmethod
    def of(cls, bodies: Sequence[bytes]) -> "Bodies":
        """Of bodies that were encoded one by one."""
        return cls(list_head(len(bodies)) + b"".join(bodies), [len(body) for body in bodies])

    @classmethod
    def joined(cls, parts: Sequence["Bodies"]) -> "Bodies":
        """One array of what stands in several."""
        if len(parts) == 1:
            return parts[0]
        sizes = [size for part in parts for size in part.sizes]
        return cls(b"".join((list_head(len(sizes)), *(memoryview(part.data)[part.start :] for part in parts))), sizes)


def encode_group(events: tuple[Event, ...] | list[Event]) -> Bodies:
    """Wire bytes of some events. Raises LogError as `encode` does, naming the index among them too."""
    try:
        data = _ENCODER.encode(events)
        for event, read in zip(events, _STRICT_LIST.decode(data), strict=True):
            left = LEFT[type(event)]
            if left is not None and not left(read):
                break
        else:
            if len(events) == 1:
                return Bodies(data, [len(data) - 1])  # the head of so short an array is one byte
            return Bodies(data, [len(memoryview(piece)) for piece in _SPLITTER.decode(data)])
    except (TypeError, ValueError, OverflowError, RecursionError, KeyError):  # the decoder's errors are ValueErrors
        pass
    # One by one, to name what is wrong.
    bodies = []
    for index, event in enumerate(events):
        try:
            bodies.append(encode(event))
        except LogError as error:
            raise Unencodable(f"batch[{index}]: {error}") from error
    return Bodies.of(bodies)


def encode_batch(events: Sequence[Event]) -> list[bytes]:
    """Wire bytes of each event. Raises LogError as `encode_group` does."""
    return encode_group(list(events)).each()


def decode_batch(bodies: bytes, count: int) -> list[Event] | None:
    """Events of `count` bodies that stand one behind the other; see `decode_group`."""
    return decode_group(list_head(count) + bodies)


def decode_group(data: bytes) -> list[Event] | None:
    """Events of one array of bodies.

    None where something is wrong with one of them: `decode` each to learn what.
    """
    try:
        _STRICT_LIST.decode(data)
        events = _LIST_DECODER.decode(data)
    except (ValueError, RecursionError):
        return None
    for event in events:
        left = LEFT[type(event)]
        if left is not None and not left(event):
            return None
    return events


def split_batch(bodies: bytes, count: int) -> list[bytes]:
    """Each of `count` bodies that stand one behind the other; fewer where the bytes end or make no sense."""
    try:
        return [bytes(piece) for piece in _SPLITTER.decode(list_head(count) + bodies)]
    except ValueError:
        return []


def decode(body: bytes) -> Event:
    """Event of wire bytes. Raises LogError naming the field by its path, what was expected and what came."""
    try:
        event = _DECODER.decode(body)
    except msgspec.ValidationError as error:
        raise LogError(_named(str(error), body)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LogError(f"event: expected msgpack of one event, got {len(body)} bytes ({error})") from error
    kind = type(event)
    if not _is_fine(event, body):
        if list_length(body) > len(kind.__struct_fields__) + 1:
            raise LogError(
                f"{kind.__name__}: expected at most {len(kind.__struct_fields__)} fields, got {list_length(body) - 1}"
            )
        try:
            CHECKS[kind](event, kind.__name__)
        except LayoutError as error:
            raise LogError(str(error)) from error
    return event


def _is_fine(event: Event, body: bytes) -> bool:
    try:
        _STRICT.decode(body)
    except msgspec.ValidationError:
        return False
    left = LEFT[type(event)]
    return left is None or left(event)


def list_head(count: int) -> bytes:
    """Head of a msgpack array, as short as the encoder writes it."""
    if count < 16:
        return bytes((0x90 | count,))
    return b"\xdc" + count.to_bytes(2, "big") if count < 2**16 else b"\xdd" + count.to_bytes(4, "big")


def list_length(data: bytes) -> int:
    """How many items the msgpack array has whose head these bytes begin with; 0 for any other bytes."""
    head = data[0] if data else 0
    if 0x90 <= head <= 0x9F:
        return head & 0x0F
    return int.from_bytes({0xDC: data[1:3], 0xDD: data[1:5]}.get(head, b""), "big")


def _named(message: str, body: bytes) -> str:
    """The decoder's message with field names in place of array positions: `$[1][1]` is RequestOpened.request[1]."""
    text, _, path = message.partition(" - at `$")
    try:
        raw: Any = msgspec.msgpack.decode(body)
    except msgspec.DecodeError:  # found invalid before its end was reached
        raw = None
    kind = _TAGS.get(raw[0]) if isinstance(raw, list) and raw and isinstance(raw[0], int) else None
    if kind is None:
        return f"event type: {text}"
    first, _, rest = path.removesuffix("`").removeprefix("[").partition("]")
    if not first.isdigit():
        return f"{kind.__name__}: {text}"
    return f"{kind.__name__}.{kind.__struct_fields__[int(first) - 1]}{rest}: {text}"
