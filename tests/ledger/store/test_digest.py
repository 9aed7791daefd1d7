"""The digest: same history, same name; any other history, another name; measured seconds do not count."""

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from kvsweep.ledger import events as e
from kvsweep.ledger.areas import Areas, Shared
from kvsweep.ledger.events import Event
from kvsweep.ledger.fold import apply
from kvsweep.ledger.ids import RequestKey
from kvsweep.ledger.state import EMPTY, State
from kvsweep.ledger.store.codec import EVENT_TYPES
from kvsweep.ledger.store.digest import Digest, parts_digest, unmeasured
from kvsweep.ledger.store.snapshot import decode_state, encode_state


def digest_of(events: Sequence[Event]) -> str:
    digest = Digest()
    for event in events:
        digest.update(event)
    return digest.value(EMPTY)


def test_measured_fields_are_found_by_their_type() -> None:
    """Oracle: the definitions, read by hand."""
    measured = {name for name, kind in EVENT_TYPES.items() if "measured" in kind.__struct_fields__}
    assert measured == {"UploadPlanned", "RankTransferred", "RetainPlanned", "TablesApplied", "RankStored"}


@pytest.mark.parametrize("kind", EVENT_TYPES.values(), ids=list(EVENT_TYPES))
def test_only_what_a_clock_measured_is_left_out(kind: type[Event], make_event: Any) -> None:
    rng = np.random.default_rng(20260916)
    event = make_event(kind, rng)
    for name in kind.__struct_fields__:
        other = getattr(make_event(kind, rng), name)
        while other == getattr(event, name):
            other = (
                replace(other, block_size=other.block_size * 2)
                if name == "layout"
                else getattr(make_event(kind, rng), name)
            )
        changed = digest_of([replace(event, **{name: other})]) != digest_of([event])
        assert changed == (name not in ("measured", "implementation")), name
    assert unmeasured(unmeasured(event)) == unmeasured(event)


def test_order_and_boundaries_count() -> None:
    first, second = (e.RequestResumed(request=RequestKey("r", 1), seq=seq) for seq in (0, 1))
    names = {digest_of(events) for events in ([], [first], [first, second], [second, first], [first, first])}
    assert len(names) == 5


def test_the_state_counts(written: Any) -> None:
    digest = Digest()
    assert digest.value(EMPTY) != digest.value(written.state)
    assert parts_digest(EMPTY) != parts_digest(written.state)


def test_what_was_hashed_before_does_not_count(written: Any) -> None:
    """Parts that did not change keep their digest; a state that was never asked gives the same."""
    state, seen = EMPTY, {parts_digest(EMPTY)}
    for event in written.events:
        state = apply(state, event)
        fresh = decode_state(encode_state(state))
        assert fresh is not None
        assert parts_digest(state) == parts_digest(fresh), event
        seen.add(parts_digest(state))
    assert len(seen) == len(written.events) + 1, "every event changes the state, if only its next number"


def test_every_part_of_a_state_counts(written: Any) -> None:
    """Also where only blocks became shared, and neither the request nor its holders changed."""
    state: State = EMPTY
    for event in written.events[:20]:
        state = apply(state, event)
    (key,) = state.ownership.own
    relation = state.ownership
    areas = {**relation.areas, key: (Areas(), Areas())}
    held = {**relation.held, key: dict(list(relation.held[key].items())[:1])}
    changed = [
        replace(state, ownership=replace(relation, areas=areas)),
        replace(state, ownership=replace(relation, held=held)),
        replace(state, ownership=replace(relation, shared=(Shared(b"abcd", b"abcd"), Shared()))),
        replace(state, ownership=replace(relation, shared_sources=b"abcd")),
        replace(state, pool=replace(state.pool, seq=99)),
        replace(state, requests={**state.requests, "a-b-c": replace(state.requests["a-b-c"], seq=99)}),
    ]
    parts_digest(state)
    assert len({parts_digest(state), *(parts_digest(other) for other in changed)}) == 1 + len(changed)


def test_the_digest_is_the_same_in_another_process_and_hash_seed(written: Any) -> None:
    """A dict or a set in the state must not let the interpreter's hash seed in."""
    code = (
        "import sys; from kvsweep.ledger.store.codec import decode; from kvsweep.ledger.store.digest import Digest\n"
        "from kvsweep.ledger.fold import apply; from kvsweep.ledger.state import EMPTY\n"
        "state, digest = EMPTY, Digest()\n"
        "for line in sys.stdin:\n"
        "    event = decode(bytes.fromhex(line)); state = apply(state, event); digest.update(event)\n"
        "print(digest.value(state))"
    )
    from kvsweep.ledger.store.codec import encode

    history = "\n".join(encode(event).hex() for event in written.events)
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            input=history,
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": hash_seed},
        )
        assert done.stdout.strip() == written.digest.value(written.state)
