"""Bytes of a state in a snapshot, and back."""

import zlib
from typing import Final

import msgspec
from msgspec import Struct

from kvsweep.ledger.areas import Areas, Shared
from kvsweep.ledger.ids import RequestKey
from kvsweep.ledger.ownership import Holder, Holding, Ownership
from kvsweep.ledger.state import PoolState, RequestState, State


class _Stored(Struct, array_like=True, gc=False):
    """A state without maps, whose order is kept: lists of pairs."""

    pool: PoolState
    requests: list[tuple[str, RequestState]]
    held: list[tuple[RequestKey, list[tuple[Holder, Holding]]]]
    areas: list[tuple[RequestKey, tuple[Areas, ...]]]
    shared: tuple[Shared, ...]
    shared_sources: bytes


_LEVEL: Final = 1  # most of a state are closed requests that look alike: a twelfth is left, at 2 ms a megabyte

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final[msgspec.msgpack.Decoder[_Stored]] = msgspec.msgpack.Decoder(_Stored)


def encode_state(state: State) -> bytes:
    relation = state.ownership
    stored = _Stored(
        pool=state.pool,
        requests=list(state.requests.items()),
        held=[(request, list(holders.items())) for request, holders in relation.held.items()],
        areas=list(relation.areas.items()),
        shared=relation.shared,
        shared_sources=relation.shared_sources,
    )
    return zlib.compress(_ENCODER.encode(stored), _LEVEL)


def decode_state(body: bytes) -> State | None:
    """None where the bytes are no state as this version has it: the fold begins earlier then."""
    try:
        stored = _DECODER.decode(zlib.decompress(body))
    except (msgspec.DecodeError, zlib.error):
        return None
    relation = Ownership(
        held={request: dict(holders) for request, holders in stored.held},
        areas=dict(stored.areas),
        shared=stored.shared,
        shared_sources=stored.shared_sources,
    )
    return State(pool=stored.pool, requests=dict(stored.requests), ownership=relation)
