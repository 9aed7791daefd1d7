"""Frames to ranks: queued without waiting, sent by one task a link."""

from collections import deque
from collections.abc import Callable, Iterable

import anyio

from kvsweep.ledger.messages import ToRank
from kvsweep.transports.links import RankLink
from kvsweep.transports.wire import encode

OUTGOING_FRAMES = 65536
"""Frames waiting for one rank. Open and settling operations bound them; a rank behind by more is given up."""


class _Queue:
    def __init__(self) -> None:
        self.frames: deque[bytes] = deque()
        self.posted = anyio.Event()


class Outgoing:
    """One bounded queue a connected rank. What is posted to another is dropped: its operations end by deadline.

    note  is told when a rank is given up
    """

    def __init__(self, ranks: Iterable[int], *, note: Callable[[str], None]) -> None:
        self._queues = {rank: _Queue() for rank in ranks}
        self._note = note

    def __len__(self) -> int:
        """Frames that wait."""
        return sum(len(queue.frames) for queue in self._queues.values())

    def connect(self, rank: int) -> None:
        """A fresh queue; what waits in the old one is of another link."""
        self._queues[rank] = _Queue()

    def post(self, rank: int, message: ToRank) -> None:
        """Waits for nothing, and one rank that takes nothing costs the others nothing."""
        queue = self._queues.get(rank)
        if queue is None:
            return
        if len(queue.frames) >= OUTGOING_FRAMES:
            del self._queues[rank]
            self._note(f"rank {rank}: {OUTGOING_FRAMES} frames wait for it; given up until it connects again")
            return
        queue.frames.append(encode(message))
        queue.posted.set()

    async def send(self, rank: int, link: RankLink) -> None:
        """Send the rank's frames over this link until it ends."""
        queue = self._queues[rank]
        try:
            while True:
                if not queue.frames:
                    queue.posted = anyio.Event()
                    await queue.posted.wait()
                    continue
                await link.send(queue.frames.popleft())
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return  # what it was sent and did not do ends by deadline, or with its process epoch
