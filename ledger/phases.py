"""The tables. A missing key is the error; there is no other way to change a phase.

Three small machines share one event stream: the request's life, one open operation in each lane, and operations that
settle after an abort. What binds them is in `joint.py`. SELECTED, PLANNED (upload) and LEASED are passed through inside
one atomic batch and are never seen between two batches.
"""

from collections.abc import Mapping
from typing import Final, TypeAlias

Table: TypeAlias = Mapping[tuple[str, str], str]

LIFE: Final[Table] = {
    ("NEW", "RequestOpened"): "RUNNING",
    ("RUNNING", "RequestPreempted"): "PREEMPTED",
    ("PREEMPTED", "RequestResumed"): "RUNNING",
    ("RUNNING", "RequestFinished"): "FINISHING",
    ("PREEMPTED", "RequestFinished"): "FINISHING",
    ("FINISHING", "RequestClosed"): "CLOSED",
}

UPLOAD: Final[Table] = {
    ("IDLE", "BlocksSelected"): "SELECTED",
    ("SELECTED", "KeepMapPublished"): "PUBLISHED",
    ("PUBLISHED", "UploadAcknowledged"): "IDLE",
    ("SELECTED", "UploadPlanned"): "PLANNED",
    ("PLANNED", "UploadStaged"): "STAGED",
    ("STAGED", "BlocksLeased"): "LEASED",
    ("LEASED", "TransferStarted"): "MOVING",
    ("MOVING", "RankTransferred"): "MOVING",
    ("MOVING", "TransferCompleted"): "MOVED",
    ("MOVED", "ResidencyCommitted"): "COMMITTED",
    ("COMMITTED", "UploadAcknowledged"): "IDLE",
    ("MOVING", "UploadAborted"): "IDLE",
    ("MOVED", "UploadAborted"): "IDLE",
}

RETAIN: Final[Table] = {
    ("IDLE", "RetainPlanned"): "PLANNED",
    ("PLANNED", "ReadersDrained"): "APPLYING",
    ("APPLYING", "TablesApplied"): "APPLYING",
    ("APPLYING", "AllRanksApplied"): "APPLIED",
    ("APPLIED", "OwnersCommitted"): "COMMITTED",
    ("COMMITTED", "BlocksRetired"): "RETIRED",
    ("RETIRED", "RetainAcknowledged"): "IDLE",
    ("PLANNED", "RetainAborted"): "IDLE",
    ("APPLYING", "RetainAborted"): "IDLE",
    ("APPLIED", "RetainAborted"): "IDLE",
}

STORE: Final[Table] = {
    ("IDLE", "StoreStarted"): "MOVING",
    ("MOVING", "RankStored"): "MOVING",
    ("MOVING", "StoreCompleted"): "IDLE",
    ("MOVING", "StoreAborted"): "IDLE",
}

TABLES: Final[Mapping[str, Table]] = {"life": LIFE, "upload": UPLOAD, "retain": RETAIN, "store": STORE}

ABORTABLE: Final[Mapping[str, frozenset[str]]] = {
    "upload": frozenset(state for state, event in UPLOAD if event == "UploadAborted"),
    "retain": frozenset(state for state, event in RETAIN if event == "RetainAborted"),
    "store": frozenset(state for state, event in STORE if event == "StoreAborted"),
}
"""States from which a preemption, a finish or a caller can still turn back."""


PASSED_THROUGH: Final = frozenset({"SELECTED", "PLANNED", "STAGED", "LEASED"})
"""Upload states inside the start batch: nothing waits there, so no abort leads out of them."""


def events_of(table: Table) -> frozenset[str]:
    """The alphabet of one machine."""
    return frozenset(event for _, event in table)


ALPHABET: Final[Mapping[str, frozenset[str]]] = {name: events_of(table) for name, table in TABLES.items()}


def legal(table: Table, state: str) -> tuple[str, ...]:
    """Events that the table takes in this state."""
    return tuple(event for at, event in table if at == state)
