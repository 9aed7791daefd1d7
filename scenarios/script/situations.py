"""Situations: what a run is meant to reach, by name. Each is a predicate over the facts, seen one by one."""

from __future__ import annotations

from kvsweep.ledger.event_base import Event
from kvsweep.runtime.driver import Driver

SITUATIONS: dict[str, str] = {}


class Situations:
    def __init__(self, driver: Driver) -> None:
        self.reached: set[str] = set()

    def see(self, event: Event) -> None:
        pass
