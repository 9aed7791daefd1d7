"""A log as one process sees it: when the process has ended, nothing of it reaches the log any more."""

from __future__ import annotations

from typing import Any, cast

from kvsweep.ledger.errors import LogError
from kvsweep.ledger.store.log import LogStore


class MortalLog:
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
