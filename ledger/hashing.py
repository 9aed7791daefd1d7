"""SHA-256 that keeps Python's lock."""

import hashlib

PIECE = 31 * 64
"""Bytes hashed at once: from 2048 on hashlib gives the lock up, and a ledger's writer thread would take it meanwhile.
Getting it back costs more than the hash of a few kilobytes."""


def sha256(*parts: bytes) -> bytes:
    """Digest of the parts one behind the other."""
    whole = hashlib.sha256()
    for part in parts:
        if len(part) <= PIECE:
            whole.update(part)
            continue
        rest = memoryview(part)
        for start in range(0, len(rest), PIECE):
            whole.update(rest[start : start + PIECE])
    return whole.digest()
