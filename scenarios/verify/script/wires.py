"""Links of a scripted run, by chance and by script, and its log as one process sees it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any, cast

import anyio
import anyio.lowlevel

from kvsweep.ledger.errors import LogError
from kvsweep.ledger.store.log import LogStore
from kvsweep.scenarios.verify.script.timeline import Gate, Timeline
from kvsweep.scenarios.verify.script.world import Links
from kvsweep.transports.links import Delivery


class ProcessLog:
    """Everything is passed on to the log beneath, until `end`. Several may stand on one log, one after the other."""

    def __init__(self, log: LogStore) -> None:
        self._log = log
        self.ended = False

    def end(self) -> None:
        """The process is over."""
        self.ended = True

    @property
    def as_store(self) -> LogStore:
        return cast(LogStore, self)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._log, name)
        if self.ended and callable(found):
            raise LogError("the process has ended")
        return found


CAPACITY = 256
"""Frames of one direction; a sender waits for room above it."""


class Frame:
    """One frame on its way.

    gate    closed: it cannot arrive yet
    behind  so many later frames must have arrived before it
    """

    def __init__(self, data: bytes, gate: Gate | None = None, behind: int = 0) -> None:
        self.data, self.gate, self.behind = data, gate, behind

    @property
    def ready(self) -> bool:
        return self.behind <= 0 and (self.gate is None or self.gate.is_open)


Deliver = Callable[[bytes], Iterable[Frame]]
"""What becomes of a frame: none, one or several on their way."""


class Wire:
    """One direction of one link."""

    def __init__(self, timeline: Timeline, links: Links, chance: random.Random, deliver: Deliver) -> None:
        self._timeline, self._links, self._chance, self._deliver = timeline, links, chance, deliver
        self._frames: list[Frame] = []
        self._closed = False
        self._opened = False
        self._changed = anyio.Event()
        self.passed = 0  # frames put in and taken out

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def put(self, data: bytes) -> None:
        while len(self._frames) >= CAPACITY and not self._closed:
            await self._changed.wait()
        if self._closed:
            raise anyio.BrokenResourceError
        for frame in self._deliver(data):
            for copy in self._by_chance(frame):
                self._frames.append(copy)
                if copy.gate is not None:
                    copy.gate.then(self._notify)
        self._opened = True
        self.passed += 1
        self._notify()
        await anyio.lowlevel.checkpoint()

    def _by_chance(self, frame: Frame) -> Iterable[Frame]:
        links = self._links
        if self._timeline.over or links == Links():
            return [frame]
        draw = self._chance.random()
        if draw < links.lose and self._opened:  # a connection that loses its first frame does not come about
            return []
        copies = [frame]
        if draw > 1 - links.duplicate:
            copies.append(Frame(frame.data, frame.gate, frame.behind))
        for copy in copies:
            turns = self._chance.randint(0, links.delay)
            if turns and copy.gate is None:
                copy.gate = self._timeline.gate_after(turns)
        return copies

    async def get(self) -> bytes:
        while True:
            over = self._timeline.over
            at = next((at for at, frame in enumerate(self._frames) if frame.ready or over), None)
            if at is not None:
                found = self._frames.pop(at)
                for frame in self._frames[:at]:  # it has overtaken them
                    frame.behind -= 1
                self.passed += 1
                self._notify()
                await anyio.lowlevel.checkpoint()
                return found.data
            if self._closed:
                raise anyio.EndOfStream
            await self._changed.wait()

    def close(self) -> None:
        self._closed = True
        self._notify()


class ScriptLink:
    """One end of a link."""

    def __init__(self, out: Wire, into: Wire, delivery: Delivery) -> None:
        self._out, self._into, self.delivery = out, into, delivery

    async def send(self, frame: bytes) -> None:
        await self._out.put(frame)

    async def receive(self) -> bytes:
        return await self._into.get()

    async def aclose(self) -> None:
        self._out.close()
        self._into.close()
