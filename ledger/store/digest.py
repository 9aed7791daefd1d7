"""One name for a history and the state it gives: live and replayed runs must agree on it.

Two runs with one seed on one machine give one digest. So every field that a clock measured is replaced by its default
before it is hashed. `RunConfigured.evidence` stays in: it names what ran, and must therefore hold no time of day, no
duration and no place that differs between two equal runs (an output file, a process id).
"""

import hashlib
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Final, get_type_hints

import msgspec
from xxhash import xxh3_128_digest

from kvsweep.ledger.errors import LogError
from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import RequestKey
from kvsweep.ledger.state import RequestState, State
from kvsweep.ledger.store import encoding
from kvsweep.ledger.store.codec import ASIDE, EVENT_TYPES, decode_group, list_length
from kvsweep.ledger.store.hashing import sha256

_LEFT_OUT: Final[Mapping[type[Event], dict[str, Any]]] = {
    kind: {name: annotation() for name, annotation in get_type_hints(kind).items() if annotation in ASIDE}
    for kind in EVENT_TYPES.values()
}
GATHERED: Final = 16
"""Events that may wait to be hashed: a round or so, which is still in the cache and fits the buffer for encoding."""

_ENCODER: Final = msgspec.msgpack.Encoder(order="deterministic")
_IN_ORDER: Final = msgspec.msgpack.Encoder()  # a request's keys are forgotten in their order


def unmeasured(event: Event) -> Event:
    """The event as the digest sees it: every field of type Measured or Implementation has its default."""
    changes = _LEFT_OUT[type(event)]
    return msgspec.structs.replace(event, **changes) if changes else event


class Parts:
    """Digests of a state's parts, so that what has not changed since the last call is not hashed again.

    A record, a request's holders and its own blocks are the same objects as long as nothing has changed.
    """

    def __init__(self) -> None:
        self._requests: dict[str, tuple[RequestState, bytes]] = {}
        self._holders: dict[RequestKey, tuple[object, object, bytes]] = {}

    def of(self, state: State) -> str:
        """SHA-256 (hex) over the digests of the state's parts."""
        hashing = self.hashing(state)
        while True:
            try:
                next(hashing)
            except StopIteration as done:
                found: str = done.value
                return found

    def hashing(self, state: State) -> Generator[None, None, str]:
        """The same, with a stop after each part that has to be hashed."""
        relation = state.ownership
        shared = tuple(group.blocks for group in relation.shared)
        parts = [b"kvsweep state 1\0", _ENCODER.encode([state.pool, shared, relation.shared_sources])]
        requests: dict[str, tuple[RequestState, bytes]] = {}
        for name, request in sorted(state.requests.items()):
            known = self._requests.get(name)
            if known is None or known[0] is not request:
                known = request, xxh3_128_digest(_IN_ORDER.encode(request))
                yield
            requests[name] = known
            parts.append(known[1])
        all_holders: dict[RequestKey, tuple[object, object, bytes]] = {}
        for key in sorted(relation.held.keys() | relation.areas.keys()):
            holders, areas = relation.held.get(key), relation.areas.get(key)
            found = self._holders.get(key)
            if found is None or found[0] is not holders or found[1] is not areas:
                own = tuple(group.blocks for group in areas) if areas else ()
                found = holders, areas, xxh3_128_digest(_ENCODER.encode([key, sorted((holders or {}).items()), own]))
                yield
            all_holders[key] = found
            parts.append(found[2])
        self._requests, self._holders = requests, all_holders
        return sha256(b"".join(parts)).hex()


def parts_digest(state: State) -> str:
    """SHA-256 (hex) over the digests of a state's parts."""
    return Parts().of(state)


class Digest:
    """Running digest: `update` with every event of a log in order, `value` at any point.

    chain  where to go on, as `chain` gave it
    """

    def __init__(self, chain: bytes = b"") -> None:
        self._gathered: list[Event] = []
        self._parts = Parts()
        self._chain = chain or hashlib.sha256(b"kvsweep events 1\0").digest()

    @property
    def chain(self) -> bytes:
        """What another running digest goes on from."""
        self._catch_up()
        return self._chain

    def update(self, event: Event) -> None:
        """Add one event. Each is preceded by its length, so that no two sequences share their bytes."""
        self._catch_up()
        self._add(event)

    def _add(self, event: Event) -> None:
        body = _ENCODER.encode(unmeasured(event))
        self._chain = sha256(self._chain + len(body).to_bytes(8, "little") + body)

    def update_all(self, events: Sequence[Event]) -> None:
        """Add some events, in order. They are hashed together: once there are many, or the digest is asked."""
        self._gathered += events
        if len(self._gathered) >= GATHERED:
            self._catch_up()

    def _catch_up(self) -> None:
        if not self._gathered:
            return
        events, self._gathered = self._gathered, []
        if not self._compiled(encoding.chain_of_events, events):
            for event in events:
                self._add(event)

    def update_bodies(self, bodies: bytes, start: int = 0, stop: int | None = None) -> None:
        """Add events as they are stored: those from `start` up to `stop` in one msgpack array of bodies.

        Whether they are facts is not looked at closely. Raises LogError for what is no array of events.
        """
        self._catch_up()
        stop = list_length(bodies) if stop is None else stop
        if not self._compiled(encoding.chain_of_bodies, bodies, start, stop):
            events = decode_group(bodies)
            if events is None:
                raise LogError(f"bodies: expected one array of events, got {len(bodies)} bytes")
            for event in events[start:stop]:
                self._add(event)

    def _compiled(self, chain_of: Callable[..., bytes] | None, *what: object) -> bool:
        """Whether compiled code has added them; else nothing was added."""
        if chain_of is None:
            return False
        try:
            self._chain = chain_of(self._chain, *what)
        except ValueError:
            return False
        return True

    def value(self, state: State) -> str:
        """SHA-256 (hex) over the events so far and the state they gave."""
        self._catch_up()
        return _named(self._chain.hex(), self._parts.of(state))

    def by_parts(self, state: State) -> "ByParts":
        """The same, worked out bit by bit while events go on being added."""
        self._catch_up()
        return ByParts(self._chain.hex(), self._parts.hashing(state))


class ByParts:
    """A digest that is being worked out."""

    def __init__(self, history: str, hashing: Generator[None, None, str]) -> None:
        self._history, self._hashing = history, hashing

    def go_on(self, parts: int) -> str | None:
        """Hash so many parts of the state more; the digest once that was the last."""
        try:
            for _ in range(parts):
                next(self._hashing)
        except StopIteration as done:
            return _named(self._history, done.value)
        return None


def _named(history: str, now: str) -> str:
    return hashlib.sha256(f"kvsweep 1\0{history}\0{now}".encode()).hexdigest()
