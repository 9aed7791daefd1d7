"""What a checker found: a law, where, and what is wrong."""

from typing import Final

from msgspec import Struct

BREAKS_KEPT: Final = 64
"""Of one checker: what follows the first is a consequence more often than news."""


class Break(Struct, frozen=True):
    """One broken law. position is that of the event in the ledger, from 1; 0 where nothing was seen yet."""

    law: str
    position: int
    detail: str

    def __str__(self) -> str:
        return f"{self.law} at event {self.position}: {self.detail}"


class Breaks:
    """The first 64 breaks of one checker, in order, and the position of the event that is being looked at."""

    def __init__(self) -> None:
        self.position = 0
        self.found: list[Break] = []

    def add(self, law: str, detail: str) -> None:
        if len(self.found) < BREAKS_KEPT:
            self.found.append(Break(law, self.position, detail))
