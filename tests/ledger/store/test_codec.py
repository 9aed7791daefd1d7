"""The encoding: every event type there and back, and what a damaged or impossible body is answered with."""

import contextlib
import re
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from kvsweep.ledger import events as e
from kvsweep.ledger.errors import LayoutError, LogError
from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import Operation, RequestKey, Rows
from kvsweep.ledger.store import codec
from kvsweep.ledger.store.checks import CHECKS
from kvsweep.ledger.store.codec import EVENT_TYPES, decode, decode_batch, encode, encode_batch, split_batch

SEED = 20260916
KEY = RequestKey("r", 1)
OP = Operation(request=KEY, operation_id=1, pool_generation=1, map_revision=0)


def body_of(*items: object) -> bytes:
    return msgspec.msgpack.encode(list(items))


@pytest.mark.parametrize("kind", EVENT_TYPES.values(), ids=list(EVENT_TYPES))
def test_every_event_type_survives_the_round_trip(kind: type[Event], make_event: Any) -> None:
    rng = np.random.default_rng(SEED)
    for repeat in range(40):
        event = make_event(kind, rng)
        body = encode(event)
        assert decode(body) == event, f"seed {SEED}, repeat {repeat}"
        # The tag is the type's own, so no type is ever read as another.
        assert msgspec.msgpack.decode(body)[0] == kind.__struct_config__.tag


def test_the_union_holds_every_concrete_event_and_no_tag_twice() -> None:
    concrete = {kind for kind in vars(e).values() if isinstance(kind, type) and issubclass(kind, Event)} - {Event}
    assert set(EVENT_TYPES.values()) == concrete
    assert len({kind.__struct_config__.tag for kind in concrete}) == len(concrete)


def test_bytes_of_an_event_are_fixed() -> None:
    """An old ledger must stay readable: these bytes may never change."""
    event = e.SourcesRegistered(request=RequestKey("a-b", 3), seq=5, logical=b"\x02\0\0\0", source=b"\x09\0\0\0")
    assert encode(event).hex() == "952792a3612d620305c40402000000c40409000000"
    planned = e.UploadAborted(request=KEY, seq=300, operation=OP, reason="late")
    assert encode(planned).hex() == "951392a17201cd012c9492a17201010100a46c617465"


def test_ids_travel_as_little_endian_int32_bytes() -> None:
    """D2: an id list is a buffer, never a list of numbers."""
    rows: Rows[Any] = Rows.of({3: [1, 258]})
    body = encode(e.KeepMapPublished(request=KEY, seq=0, operation=OP, selection_revision=1, keep=rows))
    assert b"\x01\0\0\0\x02\x01\0\0" in body


def test_f2_f5_a_request_id_is_opaque() -> None:
    for name in ("a-b-c", "@pool", "", "요청/7", "a\0b", "7:1:2"):
        key = RequestKey(name, 1)
        assert decode(encode(e.RequestResumed(request=key, seq=0))).request == key


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (body_of(1, ["r", 1], 0, "one", 2), "RequestOpened.pool_generation: Expected `int`, got `str`"),
        (body_of(1, ["r", "1"], 0, 1, 2), "RequestOpened.request[1]: Expected `int`, got `str`"),
        (body_of(99, ["r", 1], 0), "event type: Invalid value 99"),
        (body_of(1, ["r", 1]), "RequestOpened: Expected `array` of at least length 5, got 2"),
        (body_of(2, ["r", 1], 0, "new"), "RequestPreempted: expected at most 2 fields, got 3"),
        (body_of(2, ["r", 1], -1), "RequestPreempted.seq: expected an integer from 0 to 9223372036854775807, got -1"),
        (
            body_of(2, ["r", 2**63], 0),
            "RequestPreempted.request.request_epoch: expected an integer from 0 to 9223372036854775807, "
            "got 9223372036854775808",
        ),
        (
            body_of(39, ["r", 1], 0, b"\0\0\0", b""),
            "SourcesRegistered.logical: expected whole int32 values, got 3 bytes",
        ),
        (body_of(39, ["r", 1], 0, b"", b"\xff" * 4), "SourcesRegistered.source: expected ids of 0 or more, got -1"),
        (
            body_of(13, ["r", 1], 0, [["r", 1], 1, 1, 0], [[1, 5], [1, 6]]),
            "TransferStarted.ranks: expected ascending ranks without repeats, got [1, 1]",
        ),
        (
            body_of(38, ["r", 1], 0, 1, [b"", b"\0"]),
            "FenceOpened.freed[1]: expected whole int32 values, got 1 bytes",
        ),
        (
            body_of(17, ["r", 1], 0, [["r", 1], 1, 1, 0], 1, [b"\0" * 4, b"\0" * 4, b""]),
            "KeepMapPublished.keep.row_ptr: expected 2 values, one more than layers, got 1 values",
        ),
        (
            body_of(33, ["r", 1], 0, [["r", 1], 1, 1, 0], 0, 1, 0, [float("nan"), 0.0]),
            "RankStored.measured.wait_s: expected a finite number of seconds, 0 or more, got nan",
        ),
        (b"", "event: expected msgpack of one event, got 0 bytes (Input data was truncated)"),
        (body_of(2, ["r", 1], 0) + b"\0", "event: expected msgpack of one event, got 8 bytes (MessagePack data is"),
    ],
)
def test_a_body_that_no_writer_makes_is_refused_by_its_path(body: bytes, message: str) -> None:
    with pytest.raises(LogError, match=re.escape(message)):
        decode(body)


def test_an_event_that_could_not_be_read_back_is_not_written() -> None:
    good = e.RequestOpened(request=KEY, seq=0, pool_generation=1, rows=2)
    wrong: Any = "two"
    with pytest.raises(LogError, match=r"^batch\[1\]: RequestOpened.rows: Expected `int`, got `str`$"):
        encode_batch([good, replace(good, rows=wrong)])
    with pytest.raises(LogError, match=r"UploadPlanned\.source_kind"):
        encode(e.UploadPlanned(request=KEY, seq=0, operation=OP, kind="diff", source_kind=wrong, logical=Rows.of({})))
    with pytest.raises(LogError, match="RequestResumed cannot be encoded"):
        encode(e.RequestResumed(request=RequestKey("\ud800", 1), seq=0))
    with pytest.raises(LogError, match=f"expected one of the {len(EVENT_TYPES)} event types, got Event"):
        encode(Event(request=KEY, seq=0))


def test_what_a_peer_lied_can_be_recorded() -> None:
    """F2: each outcome is itself recorded, so a negative rank in an acknowledgement must not stop the log."""
    fields: dict[str, Any] = {
        "operation": replace(OP, operation_id=-5),
        "rank": -1,
        "process_epoch": -(2**63),
        "outcome": "??",
    }
    event = e.AckRefused(request=KEY, seq=0, **fields, verdict="conflict", rule="rank", expected="0 to 1", got="-1")
    assert decode(encode(event)) == event
    with pytest.raises(LogError, match="fits 64 bits"):
        encode(replace(event, rank=2**63))


# ---- fast answers and explanations


def leaves(value: Any, path: tuple[int, ...] = ()) -> list[tuple[int, ...]]:
    """Places of everything in nested lists that is no list, without the tag."""
    if isinstance(value, list):
        return [leaf for at, part in enumerate(value) for leaf in leaves(part, (*path, at))]
    return [path] if path != (0,) else []


def changed(raw: list[Any], path: tuple[int, ...], value: object) -> list[Any]:
    head, *rest = path
    return [*raw[:head], changed(raw[head], tuple(rest), value) if rest else value, *raw[head + 1 :]]


STRANGE: tuple[object, ...] = (
    -1, 0, 2**63 - 1, 2**63, -(2**63), float("nan"), float("inf"), -0.5, 0.5, "text", None, b"", b"\0", b"\xff" * 4,
    b"\x01\0\0\0" * 2, b"\0\0\0\x80", [], [[1, 2], [1, 3]], [[3, 1], [2, 1]],
)  # fmt: skip


def explained(body: bytes) -> str | None:
    """What the slow checks alone say of a body; None where it is an event."""
    try:
        event = codec._DECODER.decode(body)
        if codec.list_length(body) > len(type(event).__struct_fields__) + 1:
            return "too many fields"
        CHECKS[type(event)](event, "event")
    except (msgspec.DecodeError, LayoutError) as error:
        return str(error)
    return None


@pytest.mark.parametrize("kind", EVENT_TYPES.values(), ids=list(EVENT_TYPES))
def test_the_fast_answer_is_the_explained_one_whatever_stands_in_a_field(kind: type[Event], make_event: Any) -> None:
    rng = np.random.default_rng(SEED)
    for repeat in range(60):
        raw = msgspec.msgpack.decode(msgspec.msgpack.encode(make_event(kind, rng)))
        places = leaves(raw)
        path = places[int(rng.integers(len(places)))]
        strange = STRANGE[int(rng.integers(len(STRANGE)))]
        body = msgspec.msgpack.encode(changed(raw, path, strange) if repeat else [*raw, strange])
        why = explained(body)
        context = f"seed {SEED}, repeat {repeat}: {strange!r} at {path}: {why}"
        if why is None:
            event = decode(body)
            assert decode_batch(body, 1) == [event], context
            assert encode_batch([event]) == [msgspec.msgpack.encode(event)], context
        else:
            with pytest.raises(LogError):
                decode(body)
            assert decode_batch(body, 1) is None, context


def test_a_batch_comes_apart_into_its_bodies(make_event: Any) -> None:
    rng = np.random.default_rng(SEED)
    for count in (0, 1, 15, 16, 17, 70_000):
        bodies = [encode(make_event(e.RequestResumed, rng))] * count
        joined = b"".join(bodies)
        assert split_batch(joined, count) == bodies
        assert decode_batch(joined, count) == [decode(body) for body in bodies]
    assert split_batch(b"\xc1", 1) == []


@pytest.mark.parametrize("kind", EVENT_TYPES.values(), ids=list(EVENT_TYPES))
def test_a_body_of_which_a_byte_is_wrong_is_an_event_or_a_log_error(kind: type[Event], make_event: Any) -> None:
    """Of several things that are wrong the decoder names the first, and may not have come to the others."""
    rng = np.random.default_rng(SEED)
    for _ in range(150):
        body = bytearray(encode(make_event(kind, rng)))
        body[int(rng.integers(min(len(body), 80)))] = int(rng.integers(256))
        with contextlib.suppress(LogError):
            decode(bytes(body))
