"""Chance of a walk: draws from one seed, and facts that are wrong in one field."""

from typing import Any

import numpy as np
from msgspec.structs import fields as fields_of
from msgspec.structs import replace

from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import Operation, RequestKey, Rows, int32_bytes

WORDS = {
    "kind": ("diff", "full"), "mode": ("shared", "layer", "move", "pack"),
    "cause": ("upload", "retain", "preempt", "finish"), "outcome": ("completed", "failed", "cancelled", "epoch_ended"),
}  # fmt: skip


class Chance:
    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def some(self, items: Any, most: int = 99) -> list[int]:
        """A random subset, ascending."""
        found = sorted(items)
        count = int(self.rng.integers(0, min(len(found), most) + 1))
        return sorted(int(item) for item in self.rng.choice(found, size=count, replace=False)) if found else []

    def one(self, items: Any) -> Any:
        found = list(items)
        return found[int(self.rng.integers(len(found)))]

    def spoiled(self, event: Event) -> Event:
        field = self.one(fields_of(event)).name
        value = getattr(event, field)
        if field in WORDS:
            value = self.one(WORDS[field])
        elif isinstance(value, bool | str) or value is None:
            return event
        elif isinstance(value, int):
            value += int(self.rng.choice([-1, 1, 2]))
        elif isinstance(value, bytes):
            value = int32_bytes(self.rng.integers(-1, 8, size=self.rng.integers(0, 4)))
        elif isinstance(value, Rows):
            lists = value.as_lists()
            layer = int(self.rng.integers(0, 4))
            lists[layer] = self.rng.integers(-1, 8, size=self.rng.integers(0, 4)).tolist()
            value = Rows.of(lists)
        elif isinstance(value, Operation):
            part = self.one(("operation_id", "pool_generation", "map_revision"))
            value = replace(value, **{part: getattr(value, part) + int(self.rng.choice([-1, 1]))})
        elif isinstance(value, RequestKey):
            value = RequestKey(self.one(("a", "b", "c", "")), value.request_epoch + int(self.rng.integers(-1, 2)))
        elif isinstance(value, tuple) and value and isinstance(value[0], bytes):
            value = tuple(int32_bytes(self.some(range(-1, 8), 3)) for _ in range(self.rng.integers(0, 3)))
        elif isinstance(value, tuple):
            value = value[:-1]
        return replace(event, **{field: value})
