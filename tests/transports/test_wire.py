"""Frames: what was sent comes out, byte for byte; anything else is a BadFrame and never another error."""

import typing
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields as fields_of
from msgspec.structs import replace

from kvsweep.ledger.ids import Operation, RequestKey, Rows, int32_bytes
from kvsweep.ledger.messages import (
    Cancel,
    Done,
    Forget,
    FromRank,
    Heard,
    MoveBlocks,
    ProcessStarted,
    StoreBlocks,
    ToRank,
    Transfer,
)
from kvsweep.transports import wire
from kvsweep.transports.wire import BadFrame, decode_from_rank, decode_to_rank, encode

TO_RANK, FROM_RANK = typing.get_args(ToRank), typing.get_args(FromRank)
INT = st.integers(0, 2**63 - 1)
TEXT = st.text(max_size=12)
ID = st.integers(-(2**31), 2**31 - 1)
KEY = st.builds(RequestKey, TEXT, INT)
OPERATION = st.builds(Operation, request=KEY, operation_id=INT, pool_generation=INT, map_revision=INT)
ROWS = st.dictionaries(st.integers(0, 40), st.lists(ID, max_size=6), max_size=4).map(Rows.of)
RANKS = st.lists(INT, max_size=4).map(lambda epochs: tuple(enumerate(epochs)))


def message(kind: Any) -> st.SearchStrategy[Any]:
    """Any value that the fields' types allow; what it would mean is the receiver's business."""
    by_name = {"operation": OPERATION, "request": KEY, "ranks": RANKS, "outcome": TEXT, "wait_s": st.floats(0, 1e9)}
    by_name |= {"rank": INT, "table": ROWS, "source": ROWS, "destination": ROWS}
    known = {name: strategy for name, strategy in by_name.items() if name in {f.name for f in fields_of(kind)}}
    for field in fields_of(kind):
        hint = typing.get_type_hints(kind)[field.name]
        if typing.get_origin(hint) is typing.Literal:
            known[field.name] = st.sampled_from(typing.get_args(hint))
        known.setdefault(field.name, INT)
    return st.builds(kind, **known)


ANY_TO_RANK, ANY_FROM_RANK = st.one_of(*map(message, TO_RANK)), st.one_of(*map(message, FROM_RANK))
OP = Operation(request=RequestKey("a-b-c", 1), operation_id=7, pool_generation=1, map_revision=2)
HEARD = Heard(operation_id=7)
TRANSFER = Transfer(
    operation=OP,
    ranks=((0, 7), (1, 8)),
    generation=3,
    row=1,
    source_kind="source_only",
    source=Rows.of({0: [4, 5], 2: []}),
    destination=Rows.of({0: [0, 1], 2: []}),
    table=Rows.of({0: [0, 1, 9], 2: [3]}),
    floor=5,
)
DONE = Done(operation=OP, rank=1, process_epoch=8, outcome="completed", h2d_bytes=576, wait_s=0.25)


def test_these_are_the_messages_of_each_direction() -> None:
    assert set(TO_RANK) == {Transfer, MoveBlocks, StoreBlocks, Cancel, Heard, Forget}
    assert set(FROM_RANK) == {Done, ProcessStarted}


@pytest.mark.parametrize("kind", TO_RANK)
def test_every_command_comes_out_as_it_went_in(kind: Any) -> None:
    @given(message(kind))
    def check(sent: Any) -> None:
        got = decode_to_rank(encode(sent))
        assert got == sent
        assert type(got) is kind
        assert encode(got) == encode(sent)

    check()


@pytest.mark.parametrize("kind", FROM_RANK)
def test_every_report_comes_out_as_it_went_in(kind: Any) -> None:
    @given(message(kind))
    def check(sent: Any) -> None:
        got = decode_from_rank(encode(sent))
        assert got == sent
        assert type(got) is kind

    check()


@given(ANY_TO_RANK)
def test_a_frame_of_the_other_direction_is_bad(sent: Any) -> None:
    with pytest.raises(BadFrame):
        decode_from_rank(encode(sent))


@given(ANY_FROM_RANK)
def test_a_report_is_no_command(sent: Any) -> None:
    with pytest.raises(BadFrame):
        decode_to_rank(encode(sent))


@pytest.mark.parametrize("sent", [TRANSFER, HEARD, Cancel(operation=OP, ranks=((0, 7),))])
def test_every_truncation_is_bad_and_every_tail_is_bad(sent: Any) -> None:
    frame = encode(sent)
    for cut in (*(frame[:at] for at in range(len(frame))), frame + b"\0", frame + frame):
        with pytest.raises(BadFrame):
            decode_to_rank(cut)
    assert decode_to_rank(frame) == sent


@given(st.binary(max_size=80))
def test_garbage_is_bad_or_a_message_but_never_another_error(frame: bytes) -> None:
    for decode in (decode_to_rank, decode_from_rank):
        try:
            got: Any = decode(frame)
        except BadFrame as error:
            got = error
        if isinstance(got, BadFrame):
            assert str(got) == f"frame of {len(frame)} bytes: {got.reason}"
        else:
            assert isinstance(got, (*TO_RANK, *FROM_RANK))


@given(st.integers(0, 10_000), st.integers(0, 255))
def test_one_changed_byte_gives_rows_that_fit_or_a_bad_frame(at: int, value: int) -> None:
    frame = bytearray(encode(TRANSFER))
    frame[at % len(frame)] = value
    try:
        got = decode_to_rank(bytes(frame))
    except BadFrame:
        return
    for name in ("source", "destination", "table"):
        rows = getattr(got, name, None)
        if rows is not None:
            rows.check()
            assert sum(ids.size for _, ids in rows.items()) == rows.size


RAW = msgspec.to_builtins(TRANSFER, builtin_types=(bytes,))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"floor": "5"}, r"Expected `int`, got `str` - at `\$\.floor`"),
        ({"floor": None}, r"\$\.floor"),
        ({"ranks": [[0]]}, r"\$\.ranks\[0\]"),
        ({"source_kind": "guess"}, r"Invalid enum value 'guess' - at `\$\.source_kind`"),
        ({"operation": {"request": ["a", 1]}}, r"\$\.operation"),
        ({"type": "Gather"}, r"Invalid value 'Gather' - at `\$\.type`"),
        ({"table": [b"\0\0\0\0", b"\0\0\0\0", b""]}, "row_ptr: expected 2 values"),
        ({"table": [b"", b"\0\0\0\0", b"\0\0"]}, "ids: expected whole int32 values, got 2 bytes"),
        ({"source": [int32_bytes([2, 0]), int32_bytes([0, 0, 0]), b""]}, "layers: expected ascending"),
        ({"source": [int32_bytes([0]), int32_bytes([0, 2]), int32_bytes([1])]}, "row_ptr: expected 0 ascending to 1"),
    ],
)
def test_a_bad_frame_names_the_field(change: dict[str, Any], reason: str) -> None:
    assert decode_to_rank(msgspec.msgpack.encode(RAW)) == TRANSFER
    with pytest.raises(BadFrame, match=reason):
        decode_to_rank(msgspec.msgpack.encode({**RAW, **change}))


@pytest.mark.parametrize("name", ["operation", "ranks", "generation", "row", "source", "destination", "table", "floor"])
def test_a_command_without_one_of_its_fields_is_bad(name: str) -> None:
    short = {key: value for key, value in RAW.items() if key != name}
    with pytest.raises(BadFrame, match=f"missing required field `{name}`"):
        decode_to_rank(msgspec.msgpack.encode(short))


def test_a_frame_that_is_too_long_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = encode(TRANSFER)
    monkeypatch.setattr(wire, "FRAME_BYTES", len(frame))
    assert decode_to_rank(frame) == TRANSFER
    with pytest.raises(BadFrame, match=f"frame of {len(frame) + 1} bytes: expected at most {len(frame)} bytes"):
        decode_to_rank(b"\xff" * (len(frame) + 1))
    longer = encode(replace(TRANSFER, row=2**40))
    for decode in (decode_to_rank, decode_from_rank):
        with pytest.raises(BadFrame, match="expected at most"):
            decode(longer)


def test_the_bound_leaves_room_for_the_largest_table_that_is_meant() -> None:
    """64 layers of 8192 blocks: ids of source, destination and table."""
    many = Rows.of({layer: range(8192) for layer in range(64)})
    frame = encode(replace(TRANSFER, source=many, destination=many, table=many))
    assert len(frame) < wire.FRAME_BYTES
    assert decode_to_rank(frame).operation == OP  # type: ignore[union-attr]


def test_a_bad_frame_spoils_no_later_one() -> None:
    for bad in (b"", b"\xc1", encode(DONE), encode(TRANSFER)[:-1], b"\x81" * 5000):
        with pytest.raises(BadFrame):
            decode_to_rank(bad)
        assert decode_to_rank(encode(TRANSFER)) == TRANSFER
        assert decode_from_rank(encode(DONE)) == DONE
