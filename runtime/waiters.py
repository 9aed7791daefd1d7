"""Tasks that wait for the state to change, each woken only for what it waits for."""

from collections.abc import Hashable

import anyio

ANYTHING, IDLE, ROOM = "anything", "idle", "room"
"""What a task may wait for beside the events of one request."""


class Waiters:
    """Waiting tasks by what wakes them. A wake is no promise: whoever waited looks for itself, and waits again."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, set[anyio.Event]] = {}

    async def wait(self, about: Hashable) -> None:
        """Return once somebody has waked `about`, or everybody, since the call."""
        event, waiting = anyio.Event(), self._waiting.setdefault(about, set())
        waiting.add(event)
        try:
            await event.wait()
        finally:
            waiting.discard(event)
            if not waiting and self._waiting.get(about) is waiting:
                del self._waiting[about]

    def wake(self, about: Hashable) -> None:
        for event in self._waiting.get(about, ()):
            event.set()

    def wake_all(self) -> None:
        for waiting in self._waiting.values():
            for event in waiting:
                event.set()

    def __len__(self) -> int:
        """Tasks that wait."""
        return sum(map(len, self._waiting.values()))
