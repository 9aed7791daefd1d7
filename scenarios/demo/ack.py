"""Acknowledged positions, a line each, on a file descriptor: what a harness compares with the ledger after a kill."""

from __future__ import annotations

import os

from kvsweep.ledger.errors import SettingsError
from kvsweep.ledger.store.log import Position


class AckPipe:
    """Watcher of a log. Called by the one thread that stores; a descriptor that nobody reads holds that thread up."""

    def __init__(self, descriptor: int) -> None:
        """Raises SettingsError for a descriptor that is not open."""
        try:
            os.fstat(descriptor)
        except (OSError, OverflowError) as error:
            raise SettingsError("ack-fd", "an open file descriptor", str(descriptor)) from error
        self._descriptor = descriptor
        self._last: Position = 0
        self.broken: str | None = None  # why positions could not be written any more

    def __call__(self, durable: Position) -> None:
        lines = "".join(f"{position}\n" for position in range(self._last + 1, durable + 1)).encode()
        self._last = durable
        if self.broken is None:
            try:
                while lines:
                    lines = lines[os.write(self._descriptor, lines) :]
            except OSError as error:
                self.broken = str(error)

    def check(self) -> None:
        """Raise SettingsError where positions are missing on the descriptor."""
        if self.broken is not None:
            raise SettingsError("ack-fd", "a file descriptor that takes every acknowledged position", self.broken)
