"""What the compiled fold reads: bodies that the codec would take, no others, and states, which come back unchanged."""

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.ledger.native.both import LEFT_TO_THE_REFERENCE
from tests.ledger.store.test_codec import STRANGE, changed, leaves
from tests.ledger.walks import Walk
from tests.ledger.worlds import TWO_LAYERS, WITH_SLIDING

from kvsweep.ledger import compiled
from kvsweep.ledger import events as e
from kvsweep.ledger.events import Event
from kvsweep.ledger.fold import apply
from kvsweep.ledger.ids import Operation, RequestKey
from kvsweep.ledger.state import EMPTY, State
from kvsweep.ledger.store.codec import EVENT_TYPES, decode_group, encode
from kvsweep.ledger.store.digest import parts_digest
from kvsweep.ledger.store.snapshot import Rereader, state_bytes, state_of

SEED = 20260916
KEY = RequestKey("r", 1)
OP = Operation(request=KEY, operation_id=1, pool_generation=1, map_revision=0)
READ = [kind for kind in EVENT_TYPES.values() if kind not in LEFT_TO_THE_REFERENCE]
KINDS = pytest.mark.parametrize("kind", READ, ids=[kind.__name__ for kind in READ])

fold: Any = compiled.fold


def taken(body: bytes) -> bool:
    return decode_group(b"\x91" + body) is not None


def mutants(body: bytes, rng: np.random.Generator) -> Iterator[bytes]:
    """The body with one byte or a few of them other than they were, gone, new, or twice there."""
    at, size = int(rng.integers(len(body))), int(rng.integers(1, 6))
    yield body[:at] + bytes([int(rng.integers(256))]) + body[at + 1 :]
    yield body[:at] + bytes([body[at] ^ 1 << int(rng.integers(8))]) + body[at + 1 :]
    yield body[:at] + body[at + size :]
    yield body[:at] + rng.bytes(size) + body[at:]
    yield body[:at] + body[at : at + size] + body[at:]
    yield body[:at]


@KINDS
def test_every_event_that_is_not_left_to_the_reference_is_read(kind: type[Event], make_event: Any) -> None:
    rng = np.random.default_rng(SEED)
    for repeat in range(40):
        event = make_event(kind, rng)
        assert fold.readable(encode(event)), f"seed {SEED}, repeat {repeat}: {event}"


@pytest.mark.parametrize(
    "kind", sorted(LEFT_TO_THE_REFERENCE, key=lambda kind: kind.__name__), ids=lambda kind: kind.__name__
)
def test_what_is_left_to_the_reference_is_not_read(kind: type[Event], make_event: Any) -> None:
    assert not fold.readable(encode(make_event(kind, np.random.default_rng(SEED))))


@KINDS
def test_strange_values_are_read_only_where_the_codec_takes_them(kind: type[Event], make_event: Any) -> None:
    rng = np.random.default_rng(SEED)
    for repeat in range(150):
        raw = msgspec.msgpack.decode(msgspec.msgpack.encode(make_event(kind, rng)))
        places = leaves(raw)
        path, strange = places[int(rng.integers(len(places)))], STRANGE[int(rng.integers(len(STRANGE)))]
        body = msgspec.msgpack.encode(changed(raw, path, strange) if repeat else [*raw, strange])
        assert fold.readable(body) == taken(body), f"seed {SEED}, repeat {repeat}: {strange!r} at {path}"


@KINDS
def test_an_event_may_end_before_fields_that_have_defaults(kind: type[Event], make_event: Any) -> None:
    rng = np.random.default_rng(SEED)
    for _ in range(10):
        raw = msgspec.msgpack.decode(msgspec.msgpack.encode(make_event(kind, rng)))
        for kept in range(len(raw)):
            body = msgspec.msgpack.encode(raw[:kept])
            assert fold.readable(body) == taken(body), raw[:kept]


@KINDS
def test_a_damaged_body_is_read_only_where_the_codec_takes_it(kind: type[Event], make_event: Any) -> None:
    rng = np.random.default_rng(SEED)
    for repeat in range(120):
        body = encode(make_event(kind, rng))
        for mutant in mutants(body, rng):
            if fold.readable(mutant):
                assert taken(mutant), f"seed {SEED}, repeat {repeat}: {mutant.hex()}"


@pytest.mark.full
@KINDS
def test_many_damaged_bodies_are_read_only_where_the_codec_takes_them(kind: type[Event], make_event: Any) -> None:
    rng = np.random.default_rng(SEED + 1)
    for repeat in range(5_000):
        mutant = encode(make_event(kind, rng))
        for _ in range(rng.integers(1, 4)):
            mutant = list(mutants(mutant or b"\0", rng))[int(rng.integers(6))]
        if fold.readable(mutant):
            assert taken(mutant), f"seed {SEED + 1}, repeat {repeat}: {mutant.hex()}"


def test_every_width_of_an_integer_and_head_of_a_list_is_read() -> None:
    body = encode(e.RequestFinished(request=KEY, seq=5))
    assert body.hex() == "930492a1720105"
    for tag in ("04", "cc04", "cd0004", "ce00000004", "cf0000000000000004", "d004", "d10004", "d200000004"):
        for head in ("93", "dc0003", "dd00000003"):
            for text in ("a172", "d90172", "da000172", "db0000000172"):
                odd = bytes.fromhex(head + tag + "92" + text + "01" + "05")
                assert taken(odd)
                assert fold.readable(odd), odd.hex()


@pytest.mark.parametrize(
    "text",
    ["", "요청/7", "🙂", "\ufffe\uffff", "\U0010ffff", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xff"],
)
def test_texts_are_read_as_python_reads_them(text: str | bytes) -> None:
    raw = text if isinstance(text, bytes) else text.encode()
    body = b"\x93\x04\x92" + bytes([0xA0 | len(raw)]) + raw + b"\x01\x05"
    assert fold.readable(body) == taken(body) == isinstance(text, str)


def test_what_a_peer_said_may_be_any_number_that_fits() -> None:
    said: dict[str, Any] = {"process_epoch": -1, "outcome": "completed", "verdict": "stale", "rule": "r"}
    for rank, fits in ((-(2**63), True), (2**63 - 1, True), (2**63, False)):
        event = e.AckIgnored(request=KEY, seq=0, operation=OP, rank=rank, **said)
        body = msgspec.msgpack.encode(event)
        assert fold.readable(body) == taken(body) == fits
    assert not fold.readable(msgspec.msgpack.encode(e.TailSealed(request=KEY, seq=0, logical=-1)))


# ---- states


def lived(written: Any) -> Iterator[State]:
    """States of every kind: of a small run, and of walks with two ranks, prefixes, restarts and what is settling."""
    state = EMPTY
    for event in written.events:
        state = apply(state, event)
        yield state
    for seed in range(6):
        walk = Walk(SEED + seed, WITH_SLIDING if seed % 2 else TWO_LAYERS, 0.0)
        for _ in range(120):
            walk.take(walk.batch())
            yield walk.state


def test_a_state_comes_back_unchanged(written: Any) -> None:
    reader = Rereader()
    for number, state in enumerate(lived(written)):
        machine = fold.machine_of(state_bytes(state))
        body = machine.state_bytes()
        for back in (state_of(body), reader.state_of(body)):
            assert back == state, f"seed {SEED}, state {number}"
            assert parts_digest(back) == parts_digest(state)
            # Their order counts, for whoever walks over them.
            assert list(back.requests) == list(state.requests)
            assert [list(one) for one in back.ownership.held.values()] == [
                list(state.ownership.held[key]) for key in back.ownership.held
            ]


def test_what_has_not_changed_is_the_same_object_again(written: Any) -> None:
    reader, states = Rereader(), []
    for events in (written.events[:-1], written.events):
        state = EMPTY
        for event in events:
            state = apply(state, event)
        states.append(reader.state_of(state_bytes(state)))
    before, after = states
    assert before.pool.run is after.pool.run
    same = [name for name, request in after.requests.items() if before.requests.get(name) is request]
    assert same == ["@pool"]
    assert before.requests["a-b-c"] != after.requests["a-b-c"]


def test_the_state_of_an_unconfigured_pool_is_left_to_the_reference() -> None:
    assert fold.machine_of(state_bytes(EMPTY)) is None


def test_a_damaged_state_is_refused_or_is_the_one_that_the_reference_reads(written: Any) -> None:
    rng = np.random.default_rng(SEED)
    whole = [state_bytes(state) for state in lived(written)][10::40]
    for repeat in range(2_000):
        for mutant in mutants(whole[int(rng.integers(len(whole)))], rng):
            machine = fold.machine_of(mutant)
            if machine is not None:
                found = state_of(mutant)
                assert state_of(machine.state_bytes()) == found, f"seed {SEED}, repeat {repeat}"
