"""Addresses: which event of the run, or which message on its way, something in a scenario speaks of."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal, TypeAlias, get_args

from msgspec import Meta

from kvsweep.ledger import events as e
from kvsweep.ledger.events import Event, LaneName
from kvsweep.scenarios.verify.script.world import Part

EVENTS: Final[dict[str, type[Event]]] = {
    re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower(): kind for kind in get_args(e.AnyEvent)
}
"""Name in a scenario → type of the fact: RankTransferred is `rank_transferred`."""

RankMessage = Literal["transfer", "move_blocks", "store_blocks", "cancel", "heard", "forget", "done", "process_started"]
ProducerMessage = Literal["gather", "publish_keep_map", "acknowledge", "acknowledged"]
MessageName: TypeAlias = RankMessage | ProducerMessage
RANK_MESSAGES: Final = frozenset(get_args(RankMessage))
COMMANDS: Final = frozenset({"transfer", "move_blocks", "store_blocks"})
"""Messages that make a rank copy."""

Number: TypeAlias = Annotated[int, Meta(ge=0, le=1_000_000)]


class Moment(Part, frozen=True, kw_only=True):
    """The `occurrence`-th event of this kind that fits, counted from the beginning of the run."""

    event: str  # name of the fact
    request: str | None = None  # of this request; "@pool" for facts of the pool
    rank: Number | None = None  # that names this rank
    operation: Number | None = None  # that names this operation; they are counted from 1
    occurrence: Annotated[int, Meta(ge=1, le=1_000_000)] = 1  # which of those that fit

    def fits(self, event: Event) -> bool:
        """Whether the event is of this kind, request, rank and operation."""
        if type(event) is not EVENTS.get(self.event):
            return False
        operation = getattr(event, "operation", None)
        return (
            (self.request is None or event.request.request_id == self.request)
            and (self.rank is None or getattr(event, "rank", None) == self.rank)
            and (self.operation is None or (operation is not None and operation.operation_id == self.operation))
        )


class Message(Part, frozen=True, kw_only=True):
    """The `occurrence`-th message of this kind that fits; 0 means every one.

    To a rank: transfer, move_blocks, store_blocks, cancel, heard, forget. From a rank: done, process_started.
    To the producer: gather, publish_keep_map, acknowledge. From the producer: acknowledged.
    """

    message: MessageName  # what it is
    rank: Number | None = None  # on this rank's link
    request: str | None = None  # that speaks of this request
    lane: LaneName | None = None  # upload, retain or store: of an operation in this lane
    operation: Number | None = None  # that speaks of this operation; they are counted from 1
    occurrence: Number = 1  # which of those that fit; 0: every one
