"""A ledger in numbers: events and bytes by type, and how its operations ended."""

from typing import Final

from msgspec import Struct

from kvsweep.ledger.ids import POOL
from kvsweep.ledger.store.log import LogStore, Position
from kvsweep.ledger.store.query import Where


class TypeCount(Struct, frozen=True, kw_only=True):
    type: str
    events: int
    bytes: int  # of encoded events


class LaneCount(Struct, frozen=True, kw_only=True):
    """Operations of one lane by how they ended; what is still open is in none of the last two."""

    lane: str
    begun: int
    completed: int  # committed or, for a store, stored on every rank
    aborted: int


class Stats(Struct, frozen=True, kw_only=True):
    schema: int
    rules: int
    created_by: str
    first: Position  # of the events that are kept
    last: Position
    events: int  # kept
    bytes: int  # of encoded events
    requests: int  # ids
    lives: int
    open_lives: int
    begun_s: float | None  # when the first and the last event were stored, in seconds since 1970, where that is known
    ended_s: float | None
    lanes: tuple[LaneCount, ...]
    ignored: int  # acknowledgements that changed nothing
    refused: int  # acknowledgements, plans and commands
    types: tuple[TypeCount, ...]  # most events first


_LANES: Final = {
    "upload": (("UploadPlanned", "KeepMapPublished"), ("ResidencyCommitted", "KeepMapPublished"), "UploadAborted"),
    "retain": (("RetainPlanned",), ("OwnersCommitted",), "RetainAborted"),
    "store": (("StoreStarted",), ("StoreCompleted",), "StoreAborted"),
}


def stats(log: LogStore) -> Stats:
    """Count what is stored, without decoding an event."""
    last, counts = log.durable(), log.tally()
    types = sorted(
        (TypeCount(type=name, events=n, bytes=size) for name, n, size in counts), key=lambda one: -one.events
    )
    events = {one.type: one.events for one in types}

    def of(*names: str) -> int:
        return sum(events.get(name, 0) for name in names)

    lives = [stream.request for stream in log.requests() if stream.request != POOL]
    ends = [_time(log, log.header.first), _time(log, last)]
    return Stats(
        schema=log.header.schema,
        rules=log.header.rules,
        created_by=log.header.created_by,
        first=log.header.first,
        last=last,
        events=sum(events.values()),
        bytes=sum(one.bytes for one in types),
        requests=len({life.request_id for life in lives}),
        lives=len(lives),
        open_lives=len(lives) - of("RequestClosed"),
        begun_s=ends[0],
        ended_s=ends[1],
        lanes=tuple(
            LaneCount(lane=lane, begun=of(*begun), completed=of(*done), aborted=of(aborted))
            for lane, (begun, done, aborted) in _LANES.items()
        ),
        ignored=of("AckIgnored"),
        refused=of("AckRefused", "PlanRefused", "CommandRefused"),
        types=tuple(types),
    )


def _time(log: LogStore, position: Position) -> float | None:
    for record in log.find(Where(after=position - 1, until=position)):
        return record.time / 1e6 if record.time else None
    return None
