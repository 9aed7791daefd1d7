"""Bytes of a state, in a snapshot and for the compiled fold, and back.

What a state works out and keeps for itself is no part of them.
"""

import zlib
from collections.abc import Callable
from typing import Final, Generic, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from kvsweep.ledger.events import RunConfigured
from kvsweep.ledger.holding import Holders
from kvsweep.ledger.ids import RequestKey
from kvsweep.ledger.ownership import Holder, Holding, Ownership
from kvsweep.ledger.state import PoolState, RequestState, State


class _Stored(Struct, array_like=True, gc=False):
    """A state without maps, whose order is kept: lists of pairs."""

    pool: PoolState
    requests: list[tuple[str, RequestState]]
    held: list[tuple[RequestKey, list[tuple[Holder, Holding]]]]
    own: list[tuple[RequestKey, tuple[bytes, ...]]]
    shared: tuple[bytes, ...]
    shared_sources: bytes


class _Cut(Struct, array_like=True, gc=False):
    """The same, before its parts are read."""

    pool: PoolState
    requests: list[tuple[str, msgspec.Raw]]
    held: list[tuple[RequestKey, msgspec.Raw]]
    own: list[tuple[RequestKey, msgspec.Raw]]
    shared: tuple[bytes, ...]
    shared_sources: bytes


K = TypeVar("K")
V = TypeVar("V")

_LEVEL: Final = 1  # most of a state are closed requests that look alike: a twelfth is left, at 2 ms a megabyte

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final[msgspec.msgpack.Decoder[_Stored]] = msgspec.msgpack.Decoder(_Stored)
_CUTTER: Final[msgspec.msgpack.Decoder[_Cut]] = msgspec.msgpack.Decoder(_Cut)
_REQUEST_DECODER: Final[msgspec.msgpack.Decoder[RequestState]] = msgspec.msgpack.Decoder(RequestState)
_HELD_DECODER: Final[msgspec.msgpack.Decoder[list[tuple[Holder, Holding]]]] = msgspec.msgpack.Decoder(
    list[tuple[Holder, Holding]]
)
_OWN_DECODER: Final[msgspec.msgpack.Decoder[tuple[bytes, ...]]] = msgspec.msgpack.Decoder(tuple[bytes, ...])


def state_bytes(state: State) -> bytes:
    ownership = state.ownership
    return _ENCODER.encode(
        _Stored(
            pool=state.pool,
            requests=list(state.requests.items()),
            held=[(request, list(holders.items())) for request, holders in ownership.held.items()],
            own=list(ownership.own.items()),
            shared=ownership.shared,
            shared_sources=ownership.shared_sources,
        )
    )


def encode_state(state: State) -> bytes:
    return zlib.compress(state_bytes(state), _LEVEL)


def state_of(body: bytes) -> State:
    """Of bytes that `state_bytes` gave. Raises msgspec.DecodeError where they are no state as this version has it."""
    stored = _DECODER.decode(body)
    ownership = Ownership(
        {request: Holders(holders) for request, holders in stored.held},
        dict(stored.own),
        stored.shared,
        stored.shared_sources,
    )
    return State(pool=stored.pool, requests=dict(stored.requests), ownership=ownership)


def decode_state(body: bytes) -> State | None:
    """None where the bytes are no state as this version has it: the fold begins earlier then."""
    try:
        return state_of(zlib.decompress(body))
    except (msgspec.DecodeError, zlib.error):
        return None


class Rereader:
    """Reads the bytes of states of one ledger, one after the other.

    A part with the bytes that it had is the same object again: what it has worked out and keeps for itself, its digest
    above all, need not be worked out anew.
    """

    def __init__(self) -> None:
        self._requests: _Parts[str, RequestState] = _Parts(_REQUEST_DECODER.decode)
        self._held: _Parts[RequestKey, Holders] = _Parts(_holders_of)
        self._own: _Parts[RequestKey, tuple[bytes, ...]] = _Parts(_OWN_DECODER.decode)
        self._run: RunConfigured | None = None

    def state_of(self, body: bytes) -> State:
        cut = _CUTTER.decode(body)
        pool = replace(cut.pool, run=self._run) if cut.pool.run == self._run else cut.pool
        self._run = pool.run
        ownership = Ownership(self._held.read(cut.held), self._own.read(cut.own), cut.shared, cut.shared_sources)
        return State(pool=pool, requests=self._requests.read(cut.requests), ownership=ownership)


class _Parts(Generic[K, V]):
    """Parts of one kind, each with the bytes that it was read from last."""

    def __init__(self, decode: Callable[[bytes], V]) -> None:
        self._decode = decode
        self._known: dict[K, tuple[bytes, V]] = {}

    def read(self, cut: list[tuple[K, msgspec.Raw]]) -> dict[K, V]:
        before, self._known = self._known, {}
        for key, raw in cut:
            body, known = bytes(raw), before.get(key)
            if known is None or known[0] != body:
                known = body, self._decode(body)
            self._known[key] = known
        return {key: part for key, (_, part) in self._known.items()}


def _holders_of(body: bytes) -> Holders:
    return Holders(_HELD_DECODER.decode(body))
