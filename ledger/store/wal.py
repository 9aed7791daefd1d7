"""Looks into SQLite's write-ahead file for what SQLite leaves out without a word.

A killed writer leaves its last batches there. SQLite reads that file up to the first frame whose checksum is wrong, so
one damaged byte would shorten the ledger silently, while a torn end, which a kill leaves too, is no fault.
"""

import fcntl
import os
import struct
from typing import Final

_HEAD_BYTES: Final = 32
_FRAME_HEAD: Final = struct.Struct(">II8s8s")  # page, pages after a commit or 0, salts, checksum
_LITTLE_ENDIAN: Final = b"\x37\x7f\x06\x82"  # how the words of the checksums are read
_READ_FRAMES_AT: Final = 16  # in the index file: how many frames SQLite reads, native uint32


def has_log(path: str) -> bool:
    """Whether a write-ahead file with at least one frame stands beside the ledger."""
    try:
        return os.path.getsize(f"{path}-wal") > _HEAD_BYTES
    except FileNotFoundError:
        return False


def has_writer(path: str) -> bool:
    """Whether a living process holds the ledger's lock."""
    try:
        descriptor = os.open(f"{path}-lock", os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def has_unread_commit(path: str, page_bytes: int) -> bool:
    """Whether a frame that was written whole stands, damaged, behind the last one that SQLite reads.

    Call it while a connection that has read is open, and while nobody writes. A kill cuts the last frame or leaves a
    batch without its end, in frames that are right; a whole frame that is wrong is damage. (After a loss of power it
    may be a batch that was never acknowledged: that is reported too.)
    """
    try:
        with open(f"{path}-shm", "rb") as index, open(f"{path}-wal", "rb") as log:
            index.seek(_READ_FRAMES_AT)
            [read] = struct.unpack("=I", index.read(4))
            head, frames = log.read(_HEAD_BYTES), memoryview(log.read())
    except (FileNotFoundError, struct.error):
        return False
    size = _FRAME_HEAD.size + page_bytes
    whole = len(frames) // size
    if not whole:
        return False
    # A file is used again from its start, and frames of before stay behind: both their salts are others. One damaged
    # byte changes one salt only, be it the frame's or the head's.
    salts = (head[16:24], _FRAME_HEAD.unpack_from(frames, 0)[2])
    order = "<" if head[:4] == _LITTLE_ENDIAN else ">"
    last = head[24:32] if read == 0 else _FRAME_HEAD.unpack_from(frames, (read - 1) * size)[3]
    for at in range(read * size, whole * size, size):
        _, committed, salt, checksum = _FRAME_HEAD.unpack_from(frames, at)
        if not any(salt[:4] == known[:4] or salt[4:] == known[4:] for known in salts):
            return False
        # A right frame that ends a batch and is not read stands behind a damaged head.
        right = checksum == _checksum(frames[at : at + 8], frames[at + _FRAME_HEAD.size : at + size], last, order)
        if committed or not right:
            return True
        last = checksum
    return False


def _checksum(head: memoryview, page: memoryview, seed: bytes, order: str) -> bytes:
    """SQLite's running checksum over a frame: pairs of words, each sum feeding the other."""
    first, second = struct.unpack(">II", seed)
    for one, two in struct.iter_unpack(f"{order}II", bytes(head) + bytes(page)):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + two + first) & 0xFFFFFFFF
    return struct.pack(">II", first, second)
