"""What several decisions check before they plan, and how a plan is refused that may be made later."""

from collections.abc import Generator
from typing import TypeAlias

from msgspec import Struct

from kvsweep.kernels.table import Kernels
from kvsweep.ledger.draft import Draft
from kvsweep.ledger.errors import Refused
from kvsweep.ledger.events import LaneName
from kvsweep.ledger.fold import legal_now
from kvsweep.ledger.ids import Operation, Physical, RequestKey, Rows, Slot, Source
from kvsweep.ledger.messages import Reserve, Reserved
from kvsweep.ledger.state import RequestState
from kvsweep.runtime.core.steps import OpenSteps
from kvsweep.runtime.settings import Settings

Asking: TypeAlias = Generator[Reserve, Reserved, Operation | None]
"""A decision that asks the pools for blocks: it yields what it needs, and goes on with what it got."""


class Context(Struct, frozen=True):
    """What decisions may look at beside the draft."""

    settings: Settings
    steps: OpenSteps
    kernels: Kernels


class CannotPlan(Exception):
    """A plan lacks something that may come back later: recorded as PlanRefused, the old residency is kept."""

    def __init__(
        self, lane: LaneName, reason: str, needed: int, vacant: int, free: int, *, selection_revision: int = 0
    ) -> None:
        self.lane, self.reason, self.needed, self.vacant, self.free = lane, reason, needed, vacant, free
        self.selection_revision = selection_revision
        super().__init__(f"{lane}: {reason} (needed {needed}, vacant {vacant}, free {free})")


def floor(draft: Draft, operation: Operation) -> int:
    """Lowest operation id that ranks may still be spoken to about: below it they forget and refuse."""
    for live in (draft.base.live, draft.base.began, draft.began):  # each ascending, and above those before it
        for first in live:
            return first
    return operation.operation_id


def free_row(draft: Draft, request: RequestState, lane: LaneName) -> int:
    """A table row that nobody holds; never picked by parity."""
    taken = draft.rows(request.key)
    for row in range(request.rows):
        if row not in taken:
            return row
    raise CannotPlan(lane, "no_row", 1, 0, 0, selection_revision=request.selection_revision)


def expect_lanes(request: RequestState, what: str) -> None:
    """Raise Refused where a lane that changes the view is busy, before anything is planned or reserved."""
    for name, lane in (("upload", request.upload), ("retain", request.retain)):
        if lane.phase != "IDLE":
            reason = f"the {name} lane is busy ({lane.phase}): one view-changing operation at a time"
            raise Refused(request.key, what, request.describe(), legal_now(request), reason)


def expect_count(key: RequestKey, what: str, state: str, field: str, got: int) -> None:
    """Raise Refused for a count below 0: counting back is never meant."""
    if got < 0:
        raise Refused(key, what, state, (), f"{field}: expected 0 or more, got {got}")


def expect_ranks(draft: Draft, lane: LaneName, selection_revision: int = 0) -> None:
    """Raise CannotPlan while a rank is lost: nobody would answer for it."""
    if draft.pool.lost:
        raise CannotPlan(lane, "rank_lost", 0, 0, 0, selection_revision=selection_revision)


def ids_bytes(*rows: Rows[Source] | Rows[Physical] | Rows[Slot]) -> int:
    """Bytes of ids in a message."""
    return sum(len(row.layer_bytes) + len(row.row_ptr_bytes) + len(row.id_bytes) for row in rows)
