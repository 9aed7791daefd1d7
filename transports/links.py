"""Links to ranks. What a link guarantees stands in its type's name; the hostile one ships beside the plain one."""

from __future__ import annotations

import enum
import random
from typing import Protocol

import anyio
import anyio.lowlevel
from msgspec import Struct

from kvsweep.ledger.errors import LayoutError


class Delivery(enum.Enum):
    """What may happen to frames on the way. Every user of a link must stand the worst that it declares."""

    ORDERED = "ordered"  # each frame once, in order
    UNORDERED_DUPLICATING = "unordered_duplicating"  # late, in any order, more than once
    LOSSY = "lossy"  # and some never


class RankLink(Protocol):
    """One end of a link: whole frames, bounded."""

    delivery: Delivery

    async def send(self, frame: bytes) -> None:
        """Waits for room."""

    async def receive(self) -> bytes:
        """Waits for a frame. Raises anyio.EndOfStream when the other end is closed and nothing is left."""

    async def aclose(self) -> None:
        """The other end gets EndOfStream after what is on the way."""


class Chaos(Struct, frozen=True, kw_only=True):
    """How hostile a link is; drawn from one seed, so that a run repeats."""

    seed: int
    duplicate: float = 0.0  # chance that a frame comes twice
    lose: float = 0.0  # chance that a frame never comes
    delay: int = 0  # turns that a frame may be held, drawn for each

    @property
    def delivery(self) -> Delivery:
        if self.lose:
            return Delivery.LOSSY
        return Delivery.UNORDERED_DUPLICATING if self.duplicate or self.delay else Delivery.ORDERED


class _Frame:
    def __init__(self, data: bytes, delay: int) -> None:
        self.data = data
        self.delay = delay


class _Way:
    """One direction: a bounded buffer from which frames leave as the chaos says."""

    def __init__(self, capacity: int, chaos: Chaos, salt: int) -> None:
        self.chaos = chaos
        self.capacity = capacity
        self.frames: list[_Frame] = []
        self.closed = False
        self._opened = False
        self._random = random.Random(chaos.seed * 2 + salt)
        self._changed = anyio.Event()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def put(self, data: bytes) -> None:
        while len(self.frames) >= self.capacity and not self.closed:
            await self._changed.wait()
        if self.closed:
            raise anyio.BrokenResourceError
        draw = self._random.random()
        lost = draw < self.chaos.lose and self._opened  # a connection that loses its first frame does not come about
        self._opened = True
        copies = 0 if lost else 2 if draw > 1 - self.chaos.duplicate else 1
        for _ in range(copies):
            delay = self._random.randint(0, self.chaos.delay) if self.chaos.delay else 0
            self.frames.append(_Frame(data, delay))
        self._notify()
        await anyio.lowlevel.checkpoint()

    async def get(self) -> bytes:
        while True:
            if not self.frames:
                if self.closed:
                    raise anyio.EndOfStream
                await self._changed.wait()
                continue
            await anyio.lowlevel.checkpoint()
            for frame in self.frames:
                frame.delay -= 1
            ready = [at for at, frame in enumerate(self.frames) if frame.delay < 0]
            if ready:
                at = ready[0] if self.chaos.delivery is Delivery.ORDERED else self._random.choice(ready)
                data = self.frames.pop(at).data
                self._notify()
                return data

    def close(self) -> None:
        self.closed = True
        self._notify()


class InProcessLink:
    """One end of a link inside this process."""

    def __init__(self, out: _Way, into: _Way) -> None:
        self._out, self._into = out, into
        self.delivery = out.chaos.delivery

    async def send(self, frame: bytes) -> None:
        await self._out.put(frame)

    async def receive(self) -> bytes:
        return await self._into.get()

    async def aclose(self) -> None:
        self._out.close()
        self._into.close()


def in_process_link(*, capacity: int = 256, chaos: Chaos | None = None) -> tuple[InProcessLink, InProcessLink]:
    """(coordinator's end, rank's end). `capacity` frames a direction; a duplicate may stand above it once."""
    if capacity < 1:
        raise LayoutError("capacity", "at least 1 frame", str(capacity))
    chaos = chaos or Chaos(seed=0)
    down, up = _Way(capacity, chaos, 0), _Way(capacity, chaos, 1)
    return InProcessLink(down, up), InProcessLink(up, down)
