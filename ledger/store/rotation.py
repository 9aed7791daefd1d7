"""When a ledger's next snapshot is due, when it goes on in another file, and which files may go."""

import os
import time
from collections.abc import Callable
from typing import Final

from kvsweep.ledger.ids import POOL
from kvsweep.ledger.state import State
from kvsweep.ledger.store.files import LedgerFiles
from kvsweep.ledger.store.log import Rotation

SNAPSHOT_SHARE: Final = 10  # bytes of events for each byte of a snapshot, at the least


class Pace:
    """Counts what is stored. Whoever writes the log counts, its owner asks: a thread's count may be one group behind.

    A snapshot may be as large as many events, so it is due only after ten times its size.

    now  seconds since 1970
    """

    def __init__(self, rotation: Rotation, *, now: Callable[[], float] = time.time) -> None:
        self.rotation, self._now = rotation, now
        self._events = self._bytes = 0  # since the last snapshot
        self._cost = 0  # bytes of the last snapshot
        self._file_bytes, self._file_since = 0, now()

    def began(self, path: str, first_time: int, behind: int) -> None:
        """Writing goes on in this file.

        first_time  of its first group, in microseconds since 1970; 0 where it has none
        behind      events since the last snapshot
        """
        self._file_bytes = os.path.getsize(path)
        self._file_since = first_time / 1e6 if first_time else self._now()
        self._events = behind

    def added(self, events: int, size: int) -> None:
        self._events += events
        self._bytes += size
        self._file_bytes += size

    def asked(self) -> None:
        """A snapshot is on its way: no other is due before much more has been appended."""
        self._events = self._bytes = 0

    def kept(self, cost: int) -> None:
        """A snapshot of that many bytes was stored."""
        self.asked()
        self._cost = cost

    def snapshot_due(self) -> bool:
        if not self._events:
            return False
        enough = self._events >= self.rotation.snapshot_events and self._bytes >= SNAPSHOT_SHARE * self._cost
        return enough or self.file_due()

    def file_due(self) -> bool:
        """Whether the next snapshot begins another file."""
        return self._file_bytes >= self.rotation.file_bytes or self._now() - self._file_since >= self.rotation.file_s

    def too_old(self, last_time: int) -> bool:
        """Whether a file whose last group was stored then may go."""
        return self._now() - last_time / 1e6 > self.rotation.keep_s


def retire(files: LedgerFiles, state: State, pace: Pace) -> None:
    """Remove files that the retention does not keep. `state` is that after the last event.

    The file behind the one that goes must begin with a snapshot, or the rest could not be folded any more.
    """
    open_lives = {request.key for request in state.requests.values() if request.life != "CLOSED"}
    while len(files.numbers) > 1:
        size, keep = files.size(), pace.rotation.keep_bytes
        with files.using(files.numbers[1]) as following:
            if following.snapshot(following.header.first - 1) is None:
                return
        with files.using(files.numbers[0]) as oldest:
            if size <= keep and not pace.too_old(oldest.last_time()):
                return
            pinned = any(stream.request in open_lives for stream in oldest.streams() if stream.request != POOL)
        if pinned and size <= 2 * keep:
            return
        files.drop_oldest()
