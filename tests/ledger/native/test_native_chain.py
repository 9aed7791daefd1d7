"""Compiled digests of events: the same chain as the reference's, over facts and over their bodies, or none at all."""

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from kvsweep.ledger import _store
from kvsweep.ledger import events as e
from kvsweep.ledger.errors import LogError
from kvsweep.ledger.events import Event, Implementation, Measured
from kvsweep.ledger.ids import Operation, RequestKey, Rows
from kvsweep.ledger.store import encoding
from kvsweep.ledger.store.codec import EVENT_TYPES, Bodies, encode, list_length
from kvsweep.ledger.store.digest import Digest
from kvsweep.ledger.store.encoding import Native
from kvsweep.ledger.store.hashing import in_pieces

SEED = 20260916
KEY = RequestKey("r", 1)
NATIVE = Native()
KINDS = list(EVENT_TYPES.values())
HARDWARE = [False, True] if _store.sha256_hardware() else [False]


def reference(events: Sequence[Event], chain: bytes = b"") -> bytes:
    digest = Digest(chain=chain)
    for event in events:
        digest.update(event)
    return digest.chain


def bodies_of(events: Sequence[Event]) -> bytes:
    return Bodies.of([encode(event) for event in events]).data


def same(events: Sequence[Event], chain: bytes = b"") -> None:
    wanted, start = reference(events, chain), chain or Digest().chain
    assert NATIVE.chain_of_events(start, events) == wanted, events
    assert NATIVE.chain_of_bodies(start, bodies_of(events), 0, len(events)) == wanted, events
    both = Digest(chain=chain), Digest(chain=chain)
    both[0].update_all(events)
    both[1].update_bodies(bodies_of(events))
    assert {digest.chain for digest in both} == {wanted}


def chain_of(chain: bytes, bodies: bytes) -> bytes:
    return NATIVE.chain_of_bodies(chain, bodies, 0, list_length(bodies))


# ---- SHA-256


@pytest.mark.parametrize("hardware", HARDWARE)
def test_sha256_is_that_of_hashlib(hardware: bool) -> None:
    rng = np.random.default_rng(SEED)
    sizes = [*range(301), *rng.integers(301, 70_000, size=60).tolist(), 1 << 20]
    for size in sizes:
        data = rng.bytes(size)
        assert _store.sha256_by(data, hardware) == hashlib.sha256(data).digest(), size
        assert _store.sha256(data) == in_pieces(data) == hashlib.sha256(data).digest(), size


def test_instructions_are_refused_where_the_processor_has_none() -> None:
    if _store.sha256_hardware():
        pytest.skip("this processor has them")
    with pytest.raises(ValueError, match="hardware: expected false"):
        _store.sha256_by(b"", True)


# ---- chains


@pytest.mark.parametrize("kind", KINDS, ids=list(EVENT_TYPES))
def test_every_event_type_is_seen_as_the_reference_sees_it(kind: type[Event], make_event: Any) -> None:
    rng = np.random.default_rng([SEED, *kind.__name__.encode()])
    for _ in range(60):
        event = make_event(kind, rng)
        optional = [field.name for field in msgspec.structs.fields(kind) if not field.required]
        defaults = {field.name: field.default for field in msgspec.structs.fields(kind) if not field.required}
        same([event])
        same([replace(event, **defaults)], rng.bytes(32))
        same([replace(event, **{name: defaults[name] for name in optional if rng.random() < 0.5})])


def test_batches_of_every_length_and_mixture(make_event: Any) -> None:
    rng = np.random.default_rng(SEED)
    for count in [1, 2, 15, 16, 17, 300]:
        same([make_event(KINDS[int(rng.integers(len(KINDS)))], rng) for _ in range(count)])
    assert chain_of(bytes(32), b"\x90") == bytes(32)


def test_a_batch_of_more_than_65535_events_and_one_that_fits_no_buffer() -> None:
    same([e.RequestResumed(request=KEY, seq=seq) for seq in range(2**16)])
    op = Operation(request=KEY, operation_id=1, pool_generation=1, map_revision=0)
    for size in (31, 32, 255, 256, 65_535, 65_536, 300_000):
        rows: Rows[Any] = Rows.of({3: np.arange(size // 4)})
        same(
            [
                e.CommandRefused(request=KEY, seq=0, command="c" * size, state="", reason="é" * (size // 2)),
                e.KeepMapPublished(request=KEY, seq=0, operation=op, selection_revision=1, keep=rows),
            ]
        )


def test_a_whole_run(written: Any) -> None:
    same(written.events)
    digest = Digest()
    for first in range(0, len(written.events), 7):
        digest.update_all(written.events[first : first + 7])
    assert digest.value(written.state) == written.digest.value(written.state)


def test_part_of_a_group(make_event: Any) -> None:
    rng = np.random.default_rng(SEED)
    events = [make_event(KINDS[int(rng.integers(len(KINDS)))], rng) for _ in range(20)]
    bodies = bodies_of(events)
    for start, stop in ((0, 20), (0, 7), (7, 20), (3, 3), (19, 20), (20, 20)):
        digest = Digest()
        digest.update_bodies(bodies, start, stop)
        assert digest.chain == reference(events[start:stop])
    for start, stop in ((-1, 2), (3, 2), (0, 21)):
        with pytest.raises(ValueError, match="bodies: expected"):
            NATIVE.chain_of_bodies(bytes(32), bodies, start, stop)


def test_an_older_body_is_decoded_first() -> None:
    """Without a field that has a default: the reference hashes the default."""
    op = Operation(request=KEY, operation_id=1, pool_generation=1, map_revision=0)
    event = e.TransferStarted(request=KEY, seq=0, operation=op, ranks=((0, 1),))
    digest, older = Digest(), b"\x91\x95" + encode(event)[1:-1]
    with pytest.raises(ValueError, match="bodies: expected"):
        chain_of(digest.chain, older)
    digest.update_bodies(older)
    assert digest.chain == reference([event])


@pytest.mark.parametrize("kind", KINDS, ids=list(EVENT_TYPES))
def test_what_is_not_as_the_encoder_writes_it_is_not_taken(kind: type[Event], make_event: Any) -> None:
    """Of any other bytes the chain is the reference's, or there is none; and no byte behind the end is read."""
    rng = np.random.default_rng([SEED, *kind.__name__.encode()])
    for _ in range(40):
        body = encode(make_event(kind, rng))
        for at in range(len(body)):
            with pytest.raises(ValueError, match="bodies: expected"):
                chain_of(bytes(32), b"\x91" + body[:at])
        for at in rng.integers(0, len(body), size=20):
            other = b"\x91" + body[:at] + bytes((int(rng.integers(256)),)) + body[at + 1 :]
            try:
                found = chain_of(bytes(32), other)
            except ValueError:
                continue
            try:
                events = msgspec.msgpack.decode(other, type=list[e.AnyEvent])
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue  # which is no event: nobody has asked for its digest
            assert found == reference(events, bytes(32))


LONGER = {
    "count": (b"\x00", b"\xcc\x00"), "count 16": (b"\x00", b"\xcd\x00\x00"), "count 32": (b"\x00", b"\xce" + bytes(4)),
    "count 64": (b"\x00", b"\xcf" + bytes(8)), "signed": (b"\x00", b"\xd0\x00"),
}  # fmt: skip


@pytest.mark.parametrize("name", LONGER)
def test_a_longer_form_of_a_number_is_decoded_first(name: str) -> None:
    event, (short, longer) = e.RequestResumed(request=KEY, seq=0), LONGER[name]
    body = encode(event)
    assert body.endswith(short)
    digest, other = Digest(), b"\x91" + body[: -len(short)] + longer
    with pytest.raises(ValueError, match="bodies: expected"):
        chain_of(digest.chain, other)
    digest.update_bodies(other)
    assert digest.chain == reference([event])


@pytest.mark.parametrize("head", [b"\xd9\x01r", b"\xda\x00\x01r", b"\xdb\x00\x00\x00\x01r"])
def test_a_longer_form_of_a_length_is_decoded_first(head: bytes) -> None:
    event = e.RequestResumed(request=KEY, seq=0)
    digest, other = Digest(), b"\x91" + encode(event).replace(b"\xa1r", head)
    with pytest.raises(ValueError, match="bodies: expected"):
        chain_of(digest.chain, other)
    digest.update_bodies(other)
    assert digest.chain == reference([event])


def test_what_is_no_event_is_said(make_event: Any) -> None:
    digest = Digest()
    for wrong in (b"", b"\x91", b"\x91\x90", b"\x91\x91\x09", b"\xc0", b"\x90\x90"):
        with pytest.raises(LogError, match="bodies: expected one array of events"):
            digest.update_bodies(wrong)
    assert digest.chain == Digest().chain
    lies: Any = e.RequestResumed(request=KEY, seq="1")  # type: ignore[arg-type]
    digest.update_all([lies])
    assert digest.chain == reference([lies]), "the reference looks at no type"
    for chain in (b"", bytes(31), "r"):
        with pytest.raises(ValueError, match=r"^(chain|data): expected"):
            chain_of(chain, b"\x90")  # type: ignore[arg-type]


def test_what_stands_aside_is_told_by_its_type() -> None:
    shapes = {name: shape for event in encoding.event_schemas() for name, shape in event[2]}  # type: ignore[misc, union-attr]
    assert shapes["measured"][4] == msgspec.msgpack.encode(Measured())
    assert shapes["implementation"][4] == msgspec.msgpack.encode(Implementation())
    assert [name for name, shape in shapes.items() if len(shape) > 4] == ["measured", "implementation"]
