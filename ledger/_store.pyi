"""The ledger's compiled part, as ledger/native/bind.cpp defines it. kvsweep.ledger.store_native is its only caller.

A ValueError says that an argument is not what is expected; nothing has been done then.
"""

from collections.abc import Callable, Sequence
from typing import Any

from typing_extensions import Buffer

from kvsweep.ledger.event_base import Event
from kvsweep.ledger.store_part import Part

Schema = Any  # a capsule

def crc_folds() -> bool: ...
def crc32(data: Buffer, crc: int, fold: bool, /) -> int: ...
def schema(
    facts: Sequence[Any],
    names: Sequence[tuple[int, str]],
    request: type,
    operation: type,
    part: type[Part],
    otherwise: Callable[[Sequence[Event]], Part],
    /,
) -> Schema: ...
def encoder(schema: Schema, /) -> Callable[[Sequence[Event]], Part]: ...
def pack(
    schema: Schema, parts: list[tuple[bytes, bytes, list[int]]], first: int, fold: bool, /
) -> tuple[bytes, str, bytes, str]: ...
def look(path: bytes, /) -> tuple[int, int, int] | None: ...
def sha256_hardware() -> bool: ...
def sha256(data: bytes, hardware: bool, /) -> bytes: ...
def chain_of_bodies(schema: Schema, chain: bytes, bodies: bytes, /) -> bytes: ...
def chain_of_events(schema: Schema, chain: bytes, events: Sequence[Event], /) -> bytes: ...
