"""SHA-256 that keeps Python's lock."""

import hashlib
from collections.abc import Callable
from typing import Final

PIECE: Final = 31 * 64
"""Bytes hashed at once: from 2048 on hashlib gives the lock up, and a ledger's writer thread would take it meanwhile.
Getting it back costs more than the hash of a few kilobytes."""


def in_pieces(data: bytes) -> bytes:
    """SHA-256 by hashlib, which gets no long piece."""
    whole, rest = hashlib.sha256(), memoryview(data)
    for start in range(0, len(rest), PIECE):
        whole.update(rest[start : start + PIECE])
    return whole.digest()


def _chosen() -> Callable[[bytes], bytes]:
    """The compiled code where the processor has instructions for it; elsewhere hashlib's is the faster one."""
    try:
        from kvsweep.ledger import _store
    except ImportError:
        return in_pieces
    return _store.sha256 if _store.sha256_hardware() else in_pieces


sha256: Final = _chosen()
"""Digest of the bytes."""
