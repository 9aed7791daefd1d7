"""Compiled code checks, encodes and packs events: the same bytes and the same refusals as the reference, always."""

import enum
import itertools
import os
import subprocess
import sys
import zlib
from collections.abc import Sequence
from datetime import datetime_CAPI  # type: ignore[attr-defined]  # a capsule of somebody else
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from tests.ledger.conftest import arbitrary
from tests.ledger.small_run import LAYOUT

from kvsweep.ledger import _store
from kvsweep.ledger import events as e
from kvsweep.ledger.errors import LogError
from kvsweep.ledger.events import Event, Measured
from kvsweep.ledger.ids import Operation, RequestKey, Rows
from kvsweep.ledger.store import encoding, group
from kvsweep.ledger.store.codec import EVENT_TYPES, encode_batch
from kvsweep.ledger.store.encoding import Native
from kvsweep.ledger.store.group import ROW, Part

SEED = 20260916
KEY = RequestKey("r", 1)
OP = Operation(request=KEY, operation_id=1, pool_generation=1, map_revision=0)
NATIVE = Native()
FOLDS = [False, True] if _store.crc_folds() else [False]


def refuse(events: Sequence[Event]) -> Part:
    raise LookupError("the reference was asked")


STRICT = _store.encoder(
    _store.schema(encoding.event_schemas(), list(group.TAG_NAMES.items()), RequestKey, Operation, Part, refuse)
)
"""The compiled code alone: what it does not take is not taken."""


def outcome(encode: Any, events: Any) -> object:
    try:
        part = encode(events)
    except LogError as error:
        return str(error)
    return part.data, part.rows, part.names


def same(events: Any) -> object:
    found = outcome(NATIVE.encode_part, events)
    assert found == outcome(group.encode_part, events)
    return found


# ---- encoding


@pytest.mark.parametrize("kind", EVENT_TYPES.values(), ids=list(EVENT_TYPES))
def test_every_event_type_is_encoded_as_the_reference_does(kind: type[Event], make_event: Any) -> None:
    rng = np.random.default_rng([SEED, *kind.__name__.encode()])
    for _ in range(60):
        event = make_event(kind, rng)
        found = same([event])
        assert isinstance(found, tuple)
        assert found[0] == b"\x91" + msgspec.msgpack.encode(event)
        assert outcome(STRICT, (event,)) == found, "by the compiled code itself"


def test_batches_of_every_length_and_mixture(make_event: Any) -> None:
    rng, kinds = np.random.default_rng(SEED), list(EVENT_TYPES.values())
    for count in [1, 2, 3, 15, 16, 17, 300]:
        batch = [make_event(kinds[at % len(kinds)], rng) for at in range(count)]
        found = same(batch)
        assert isinstance(found, tuple)
        assert found[0][-len(msgspec.msgpack.encode(batch[-1])) :] == msgspec.msgpack.encode(batch[-1])
    assert same([]) == same(()) == (b"\x90", b"", ())


def test_a_batch_of_more_than_65535_events() -> None:
    batch = [e.RequestResumed(request=KEY, seq=seq) for seq in range(2**16)]
    found = same(batch)
    assert isinstance(found, tuple)
    assert found[0][:5] == b"\xdd\x00\x01\x00\x00"
    assert STRICT(batch).dense


@pytest.mark.parametrize("size", [0, 1, 31, 32, 255, 256, 65_535, 65_536, 300_000])
def test_lengths_of_texts_and_lists_around_every_head(size: int) -> None:
    """Also beyond the buffer that is kept for batches of the usual size."""
    ids = bytes(size // 4 * 4)
    rows: Rows[Any] = Rows.of({3: np.arange(size // 4)})
    for event in (
        e.CommandRefused(request=KEY, seq=0, command="c" * size, state="", reason="é" * (size // 2)),
        e.SourcesRegistered(request=RequestKey("i" * size, 1), seq=0, logical=ids, source=b""),
        e.BlocksRetired(request=KEY, seq=0, generation=1, cause="retain", freed=(b"\0\0\0\0",) * (size % 70_000)),
        e.KeepMapPublished(request=KEY, seq=0, operation=OP, selection_revision=1, keep=rows),
    ):
        batch = [event, e.RequestResumed(request=KEY, seq=1)]
        assert outcome(STRICT, batch) == same(batch)


@pytest.mark.parametrize(
    "value",
    [
        *(sign * (2**power + off) for sign in (1, -1) for power in (5, 7, 8, 15, 16, 31, 32, 62) for off in (-1, 0, 1)),
        0, -1, 2**63 - 1, -(2**63), 2**63, -(2**63) - 1, 2**64 - 1, 2**64, 2**200, True, False, 1.0, "1", None,
    ],
    ids=repr,
)  # fmt: skip
def test_integers_of_every_size(value: Any) -> None:
    same([e.RankLost(request=KEY, seq=0, rank=value, process_epoch=1, pool_generation=1)])
    same([e.RequestResumed(request=KEY, seq=value)])
    same([e.RequestResumed(request=RequestKey("r", value), seq=0)])
    word: Any = {"rank": value, "process_epoch": 1, "outcome": "x", "verdict": "stale", "rule": ""}
    same([e.AckIgnored(request=KEY, seq=0, operation=OP, **word)])  # a peer's words may be negative


class Word(str):
    """No str to the compiled code; one to the encoder."""


class Number(enum.IntEnum):
    ONE = 1


class Twin(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False, tag=3):
    """Looks like RequestResumed in bytes."""

    request: RequestKey
    seq: int


WRONG: list[Any] = [
    None, True, -1, 2**63, 1.5, float("nan"), float("inf"), -0.0, -1.0, "", "\ud800", "diff", Word("diff"), Number.ONE,
    b"", b"123", b"\xff\xff\xff\xff", b"\0\0\0\x80", bytearray(4), memoryview(bytes(4)), (), [], (b"",), [b""],
    (b"123",), (1,), ((0, 1),), ((1, 1), (0, 1)), ((0, 1), (0, 2)), ((0, -1),), ((0, 1, 2),), ([0, 1],), ((2**63, 1),),
    ((2**63 - 1, 1),), RequestKey("", 0), RequestKey("r", -1), RequestKey(1, 1), ("r", 1), OP, Measured(),  # type: ignore[arg-type]
    Operation(request=("r", 1), operation_id=1, pool_generation=1, map_revision=0),  # type: ignore[arg-type]
    Operation(request=KEY, operation_id=-1, pool_generation=1, map_revision=0), Measured(wait_s=1),
    Measured(wait_s=-1.0), Measured(plan_s=float("inf")), Measured(wait_s=float("nan")),
    *(
        Rows(layer_bytes=layer, row_ptr_bytes=row_ptr, id_bytes=ids)
        for layer, row_ptr, ids in itertools.product(
            (b"", b"\0\0\0\0", b"\1\0\0\0\0\0\0\0", b"\0\0\0\0\1\0\0\0", b"\1\0\0\0\1\0\0\0",
             b"\xff\xff\xff\xff", b"1"),
            (b"", b"\0\0\0\0", b"\0\0\0\0\1\0\0\0", b"\1\0\0\0\1\0\0\0", b"\0\0\0\0\1\0\0\0\0\0\0\0",
             b"\0\0\0\0\0\0\0\0\1\0\0\0", b"12"),
            (b"", b"\7\0\0\0", b"\0\0\0\x80"),
        )
    ),
    {}, object(), LAYOUT, replace(LAYOUT, block_size=0), replace(LAYOUT, layers=()), replace(LAYOUT, layers=(1,)),
    replace(LAYOUT, layers=[*LAYOUT.layers]), replace(LAYOUT, packing="x"), replace(LAYOUT, model_hash=1),
    replace(LAYOUT, layers=(replace(LAYOUT.layers[0], layer=1),)), replace(LAYOUT, block_size=2**64 - 1),
    (e.Difference(field="a", expected="b", got="c"),), (e.Difference(field="a", expected="b", got=1),), (7, 2**64),
]  # fmt: skip


@pytest.mark.parametrize("kind", EVENT_TYPES.values(), ids=list(EVENT_TYPES))
def test_whatever_stands_in_a_field_both_say_the_same(kind: type[Event]) -> None:
    rng = np.random.default_rng([SEED, *kind.__name__.encode()])
    fine = arbitrary(kind, rng)
    for name in kind.__struct_fields__:
        for value in WRONG:
            event = replace(fine, **{name: value})
            if name == "request" and not isinstance(value, RequestKey):
                with pytest.raises(LookupError):
                    STRICT([event])  # the reference itself cannot say where such an event would stand
                continue
            same([arbitrary(e.RequestResumed, rng), event])


def test_a_message_names_the_event_and_the_field() -> None:
    bad = e.RequestOpened(request=KEY, seq=1, pool_generation=1, rows=-2)
    with pytest.raises(LogError) as caught:
        NATIVE.encode_part([e.RequestResumed(request=KEY, seq=0), bad])
    assert str(caught.value) == (
        "batch[1]: RequestOpened.rows: expected an integer from 0 to 9223372036854775807, got -2"
    )


@pytest.mark.parametrize("batch", [[Twin(request=KEY, seq=0)], [None], [KEY], [3]], ids=repr)
def test_what_is_no_event_is_refused(batch: Any) -> None:
    with pytest.raises(LogError, match="expected one of the"):
        NATIVE.encode_part(batch)


def test_a_batch_is_dense_only_if_it_is_one_life_in_order() -> None:
    def resumed(*numbers: int, key: RequestKey = KEY) -> list[Event]:
        return [e.RequestResumed(request=key, seq=seq) for seq in numbers]

    for dense in (resumed(4), resumed(4, 5, 6)):
        assert STRICT(dense).dense
    other = RequestKey("r", 1)  # equal, and no reason to look at it closely
    for loose in (resumed(4, 6), resumed(5, 4), resumed(4, 4), resumed(4) + resumed(5, key=other)):
        assert not STRICT(loose).dense
    again = resumed(4) + resumed(5, key=other) + resumed(5)
    assert not STRICT(again).dense


# ---- packing


def parts_of(rng: np.random.Generator, make_event: Any, sizes: Sequence[int]) -> list[Part]:
    kinds, keys = list(EVENT_TYPES.values()), [RequestKey(name, epoch) for name in ("a", "b") for epoch in (1, 2)]
    return [
        group.encode_part(
            [
                make_event(kinds[int(rng.integers(len(kinds)))], rng, request=keys[int(rng.integers(4))])
                for _ in range(size)
            ]
        )
        for size in sizes
    ]


@pytest.mark.parametrize("fold", FOLDS)
@pytest.mark.parametrize("sizes", [[1], [40], [1, 1], [3, 1, 20], [15, 1], [16], [1] * 70, [70_000]], ids=repr)
def test_a_group_is_packed_as_the_reference_does(fold: bool, sizes: list[int], make_event: Any) -> None:
    rng = np.random.default_rng([SEED, *sizes])
    if sizes == [70_000]:
        parts = [group.encode_part([e.RequestResumed(request=KEY, seq=seq) for seq in range(70_000)])]
    else:
        parts = parts_of(rng, make_event, sizes)
    numbers = [[int(rng.choice([1, 2, 2**40, 2**63 - 1])) for _ in part.names] for part in parts]
    for first in (1, 2**50):
        assert Native(fold=fold).pack_parts(parts, numbers, first) == group.pack_parts(parts, numbers, first)


ONE = group.encode_part([e.RequestResumed(request=KEY, seq=0)])


@pytest.mark.parametrize(
    ("data", "rows", "numbers"),
    [
        (ONE.data[:-1], ONE.rows, [1]),
        (ONE.data + b"\0", ONE.rows, [1]),
        (b"", b"", []),
        (b"", ONE.rows, [1]),
        (ONE.data, ONE.rows[:-1], [1]),
        (ONE.data, ONE.rows, []),
        (ONE.data, ROW.pack(-1, 0, 1, 0, 0, 0, len(ONE.data) - 1, 0), [1]),
        (ONE.data, ROW.pack(128, 0, 1, 0, 0, 0, len(ONE.data) - 1, 0), [1]),
        (ONE.data, ROW.pack(9, 0, 1, 0, 0, 0, len(ONE.data) - 1, 0), [1]),
        (ONE.data, ROW.pack(3, -1, 1, 0, 0, 0, len(ONE.data) - 1, 0), [1]),
        (ONE.data, ROW.pack(3, 1, 1, 0, 0, 0, len(ONE.data) - 1, 0), [1]),
        (ONE.data, ROW.pack(3, 0, 1, 0, 0, 0, -1, 0), [1]),
        (ONE.data, ROW.pack(3, 0, 1, 0, 0, 0, 2**62, 0), [1]),
        (ONE.data, ROW.pack(3, 0, 1, 0, 0, 0, 2**62, 0) + ROW.pack(3, 0, 1, 0, 0, 0, -(2**62), 0), [1]),
        (bytearray(ONE.data), ONE.rows, [1]),
        (ONE.data, ONE.rows, (1,)),
    ],
)
def test_a_part_that_does_not_fit_itself_is_refused(data: Any, rows: Any, numbers: Any) -> None:
    schema = NATIVE._schema
    with pytest.raises(ValueError, match=r"^(part|parts, first|data): expected "):
        _store.pack(schema, [(data, rows, numbers)], 1, False)


def test_a_number_that_is_none_is_refused() -> None:
    with pytest.raises(TypeError):
        _store.pack(NATIVE._schema, [(ONE.data, ONE.rows, ["1"])], 1, False)  # type: ignore[list-item]
    with pytest.raises(OverflowError):
        _store.pack(NATIVE._schema, [(ONE.data, ONE.rows, [2**63])], 1, False)
    with pytest.raises(ValueError, match="incorrect name"):
        _store.encoder(datetime_CAPI)


# ---- checksums


@pytest.mark.parametrize("fold", FOLDS)
def test_checksums_are_those_of_zlib(fold: bool) -> None:
    rng = np.random.default_rng(SEED)
    data = rng.bytes(9_000)
    for size in [*range(400), 1_023, 1_024, 1_025, 4_096, 8_999]:
        for start in (0, 1, 7, 15):
            piece, before = memoryview(data)[start : start + size], int(rng.integers(2**32))
            assert _store.crc32(piece, before, fold) == zlib.crc32(piece, before), (size, start)


@pytest.mark.parametrize("fold", FOLDS)
def test_checksums_of_running_pieces_are_that_of_the_whole(fold: bool) -> None:
    rng = np.random.default_rng(SEED)
    data, crc, at = rng.bytes(100_000), 0, 0
    while at < len(data):
        size = int(rng.integers(1, 3_000))
        crc = _store.crc32(data[at : at + size], crc, fold)
        at += size
    assert crc == zlib.crc32(data)


@pytest.mark.parametrize("size", [1, 15, 16, 63, 64, 65, 127, 128, 500, 5_001])
@pytest.mark.parametrize("fold", FOLDS)
def test_a_checksum_reads_nothing_beyond_its_end(fold: bool, size: int) -> None:
    from tests.kernels.native.test_native_guard import at_the_edge

    data = at_the_edge(np.random.default_rng(SEED).integers(0, 256, size, dtype=np.uint8))
    assert _store.crc32(data, 0, fold) == zlib.crc32(data)


def test_folding_is_refused_where_the_processor_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    if _store.crc_folds():
        pytest.skip("this processor can")
    with pytest.raises(ValueError, match="fold: expected false"):
        _store.crc32(b"", 0, True)


# ---- which of the two runs


def test_the_compiled_code_runs_where_it_was_built() -> None:
    assert encoding.encode_part.__name__ == "encode_part"
    assert type(encoding.encode_part).__name__ == "builtin_function_or_method"


WITHOUT = """
import sys
sys.modules["kvsweep.ledger._store"] = None
from kvsweep.ledger.store import encoding, group
from kvsweep.ledger.events import RequestResumed
from kvsweep.ledger.ids import RequestKey
from kvsweep.ledger.store.log import QueueBounds
from kvsweep.ledger.store.open import open_log
assert encoding.encode_part is group.encode_part and encoding.pack_parts is group.pack_parts
log = open_log(sys.argv[1], queue=QueueBounds())
log.append([RequestResumed(request=RequestKey("r", 1), seq=seq) for seq in range(9)])
print(len(list(log.read())), encoding.why_not_native())
log.close()
"""


def test_without_it_the_reference_runs(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'ledger.db'}"
    done = subprocess.run([sys.executable, "-c", WITHOUT, url], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("9 the extension was not built or does not load (")


def test_bodies_alone_are_the_encoders_too(written: Any) -> None:
    """Ledgers in memory and digests encode events one by one."""
    part = NATIVE.encode_part(written.events)
    assert part.data[-len(encode_batch(written.events)[-1]) :] == encode_batch(written.events)[-1]
    assert [row[6] for row in ROW.iter_unpack(part.rows)] == [len(body) for body in encode_batch(written.events)]


# ---- looking at files


def test_a_look_at_a_file_is_that_of_the_reference(tmp_path: Path) -> None:
    whole, name = tmp_path / "whole", tmp_path / "é \udcff"
    whole.write_bytes(b"12345")
    name.write_bytes(b"")
    for path in (whole, name, tmp_path, tmp_path / "none"):
        encoded = os.fsencode(path)
        assert _store.look(encoded) == encoding._look(encoded)
    assert _store.look(os.fsencode(whole)) == (whole.stat().st_ino, whole.stat().st_dev, 5)
    assert _store.look(os.fsencode(tmp_path / "none")) is None
    for look in (_store.look, encoding._look):
        with pytest.raises(NotADirectoryError, match="below"):
            look(os.fsencode(whole / "below"))
