"""The ledger's compiled part, as ledger/native/bind.cpp defines it. kvsweep.ledger.store_native is its only caller.

A ValueError says that an argument is not what is expected; nothing has been done then.
"""

from collections.abc import Sequence
from typing import Any

Schema = Any  # a capsule

def crc_folds() -> bool: ...
def crc32(data: bytes, crc: int, fold: bool, /) -> int: ...
def schema(facts: Sequence[Any], names: Sequence[tuple[int, str]], request: type, operation: type, /) -> Schema: ...
def encode(schema: Schema, events: object, /) -> tuple[bytes, bytes, tuple[str, ...], bool] | None: ...
def pack(
    schema: Schema, parts: list[tuple[bytes, bytes, list[int]]], first: int, fold: bool, /
) -> tuple[bytes, str, bytes, str]: ...
