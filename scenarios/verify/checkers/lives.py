"""What the events say of each request: tables, tail blocks, CPU blocks and attempts, as plain lists."""

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from kvsweep.ledger.events import LaneName
from kvsweep.ledger.ids import HOLE, Operation, RequestKey, Rows

Ids = dict[int, list[int]]
"""layer -> ids."""


def lists(rows: Rows[Any]) -> Ids:
    """A ragged table as plain lists."""
    return {layer: ids.tolist() for layer, ids in rows.items()}


def flat(data: bytes) -> list[int]:
    """'<i4' bytes as a plain list."""
    return [int(value) for value in np.frombuffer(data, dtype="<i4")]


@dataclass(slots=True)
class Table:
    """One generation: which logical block each slot of a layer holds, and in which physical block."""

    logical: Ids
    physical: Ids
    row: int

    def slots(self, layer: int) -> list[tuple[int, int]]:
        """(logical, physical) of every slot, in order."""
        return list(zip(self.logical.get(layer, []), self.physical.get(layer, []), strict=True))


@dataclass(slots=True)
class TailBlock:
    """A block that decoding writes, or wrote: its physical block in each group that still has it."""

    physical: dict[int, int]
    phase: Literal["open", "dirty", "clean", "lost"] = "open"


@dataclass(slots=True)
class Attempt:
    """One operation from its plan until no rank can touch anything for it."""

    operation: Operation
    lane: LaneName
    generation: int = 0
    row: int = HOLE
    ranks: dict[int, int] = field(default_factory=dict)  # process epoch by rank; empty where nothing was sent
    reports: dict[int, str] = field(default_factory=dict)  # terminal report by rank
    settling: bool = False
    replaces: int = 0  # current generation when it was planned
    full: bool = False
    planned: Ids = field(default_factory=dict)
    table: Table | None = None
    stored: dict[int, int] = field(default_factory=dict)  # CPU block by logical block

    @property
    def quiet(self) -> bool:
        return self.ranks.keys() <= self.reports.keys()


@dataclass(slots=True)
class Life:
    """One life of a request."""

    key: RequestKey
    rows: int
    life: Literal["RUNNING", "PREEMPTED", "FINISHING", "CLOSED"] = "RUNNING"
    current: int = 0
    tables: dict[int, Table] = field(default_factory=dict)
    tail: dict[int, TailBlock] = field(default_factory=dict)
    sources: dict[int, int] = field(default_factory=dict)  # valid CPU block by logical block
    stale: dict[int, int] = field(default_factory=dict)  # held, and not named again since the producer restarted
    attempts: dict[int, Attempt] = field(default_factory=dict)  # open or settling, by operation id
    fences: dict[int, frozenset[int]] = field(default_factory=dict)  # steps that each fence waits for

    @property
    def table(self) -> Table | None:
        return self.tables.get(self.current)
