"""The events before one that it depends on: of its operation, of who speaks, of what its plan stands on."""

from typing import Final

from msgspec import Struct

from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import POOL, RequestKey
from kvsweep.ledger.inspect.as_data import named
from kvsweep.ledger.inspect.sentences import sentence
from kvsweep.ledger.state import RequestState
from kvsweep.ledger.store.log import LogStore, Position, Record
from kvsweep.ledger.store.query import Where

OF_OPERATION: Final = 24
"""Events of one operation that are shown, the newest: an operation has a few, and each rank adds one or two."""

OPERATIONS: Final = 4
"""Open and settling operations whose plans are shown, the newest."""

LIFE: Final = ("RequestOpened", "RequestPreempted", "RequestResumed", "RequestFinished", "RequestClosed")
COMMITS: Final = ("ResidencyCommitted", "OwnersCommitted")
BEGINS: Final = ("UploadPlanned", "KeepMapPublished", "RetainPlanned", "StoreStarted")
PLANS: Final = ("UploadPlanned", "RetainPlanned", "PlanRefused", "CommandRefused", "BlocksSelected")
ACKS: Final = ("AckIgnored", "AckRefused")


class EventLine(Struct, frozen=True, kw_only=True):
    """One earlier event, in a line."""

    position: Position
    type: str
    stream: str  # 'the pool', or the request's whole id and epoch
    sentence: str


def event_line(record: Record) -> EventLine:
    event = record.event
    return EventLine(
        position=record.position,
        type=type(event).__name__,
        stream="the pool" if event.request == POOL else named(event.request),
        sentence=sentence(event),
    )


def causes_of(log: LogStore, position: Position, event: Event, request: RequestState | None) -> tuple[EventLine, ...]:
    """Earlier events that the one at `position` depends on, in order; `request` is its life as it found it."""
    found: dict[Position, Record] = {}
    name, operation = type(event).__name__, getattr(event, "operation", None)

    def add(count: int, where: Where) -> None:
        for record, _ in zip(log.find(where, newest_first=True), range(count), strict=False):
            found[record.position] = record

    def last(types: tuple[str, ...], *lives: RequestKey, rank: int | None = None) -> None:
        add(1, Where(lives=lives, types=types, rank=rank, until=position - 1))

    if operation is not None:
        mine = Where(lives=(operation.request,), operation=operation.operation_id, until=position - 1)
        add(OF_OPERATION, mine)
        if not any(type(record.event).__name__ in BEGINS for record in found.values()):  # maybe it is another request's
            add(1, Where(types=BEGINS, operation=operation.operation_id, until=position - 1))
    if name in ACKS and operation is not None:
        last(LIFE, operation.request)
        rank = getattr(event, "rank", -1)
        if rank >= 0:
            last(("RankLost",), POOL, rank=rank)
            last(("RankRestarted",), POOL, rank=rank)
        else:
            last(("ProducerRestarted",), POOL)
    if name in PLANS and event.request != POOL:
        for types in (LIFE, COMMITS, ("BlocksSelected",)):
            last(types, event.request)
        if request is not None:
            held = sorted(one.operation.operation_id for one in (*request.open_operations(), *request.settling))
            for number in held[-OPERATIONS:]:
                add(1, Where(lives=(event.request,), types=BEGINS, operation=number, until=position - 1))
    return tuple(event_line(found[at]) for at in sorted(found))
