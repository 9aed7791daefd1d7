"""Wakes an event loop when the log's thread has stored something, whatever loop it is."""

import contextlib
import socket

import anyio

from kvsweep.ledger.store.log import LogStore, Position


class LogBell:
    """Rung by the log's thread, which never waits here; heard by one task."""

    def __init__(self, log: LogStore) -> None:
        self._heard, self._rung = socket.socketpair()
        self._heard.setblocking(False)
        self._rung.setblocking(False)
        self._leave = log.watch(self._ring)

    def _ring(self, position: Position) -> None:
        with contextlib.suppress(OSError):  # full: the task has more than enough to wake for
            self._rung.send(b"\0")

    async def wait(self) -> None:
        """Return once it was rung since the last call."""
        await anyio.wait_readable(self._heard)
        self._heard.recv(4096)

    def close(self) -> None:
        self._leave()
        self._heard.close()
        self._rung.close()
