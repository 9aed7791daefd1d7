"""Where two ledgers differ: the first event that does, the events before it, and how the states differ after it."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from kvsweep.ledger import events as e
from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import POOL, RequestKey
from kvsweep.ledger.inspect.as_data import POOL_VALUES, Builtins, event_to_builtins, named, state_values
from kvsweep.ledger.inspect.causes import EventLine, event_line
from kvsweep.ledger.inspect.lives import lives_at, open_lives, with_sharers
from kvsweep.ledger.state import State
from kvsweep.ledger.store.digest import unmeasured
from kvsweep.ledger.store.log import LogStore, Position, Record
from kvsweep.ledger.store.query import Where

SHOWN_BEFORE: Final = 5
"""Events before the difference that an answer shows."""

PROGRESS_EVENTS: Final = 1000

MEASURED: Final = frozenset({"measured", "implementation", "evidence"})
"""Fields that may differ between runs that are the same."""


class Differing(Struct, frozen=True, kw_only=True):
    """One thing that differs, by name; '-' where one side does not have it."""

    what: str
    first: str
    second: str


class Side(Struct, frozen=True, kw_only=True):
    """What one ledger has where they differ."""

    event: Builtins
    sentence: str
    type: str
    stream: str


class LedgerDiff(Struct, frozen=True, kw_only=True):
    """Where two ledgers differ. Measured times never count, nor does what evidence says of the run."""

    parted: bool
    common: Position  # events that both have, the same
    first: Side | None  # the next event; None where that ledger ends
    second: Side | None
    fields: tuple[Differing, ...]  # of the two events
    states: tuple[Differing, ...]  # after them, of the requests they are about and of the pool
    before: tuple[EventLine, ...]  # the last events that both have
    evidence: tuple[Differing, ...]  # what the two runs were begun with


def diff(
    first: LogStore,
    second: LogStore,
    *,
    every_event: bool = False,
    progress: Callable[[Position], None] | None = None,
) -> LedgerDiff:
    """Find the first event in which two ledgers differ.

    every_event  do not trust recorded digests: up to the last one that is the same in both, nothing is compared

    Raises LogCorrupt where one of them is damaged and the comparison comes to it.
    """
    start = 0 if every_event else _last_common_digest(first, second)
    common, one, other = _first_difference(first, second, start, progress)
    begun = max(1, first.header.first, common - SHOWN_BEFORE + 1)
    return LedgerDiff(
        parted=one is not None or other is not None,
        common=common,
        first=None if one is None else _side(one),
        second=None if other is None else _side(other),
        fields=() if one is None or other is None else _differing(_flat(one.event), _flat(other.event)),
        states=_states(first, second, common, one, other),
        before=tuple(event_line(record) for record in first.find(Where(after=begun - 1, until=common))),
        evidence=_differing(_evidence(first), _evidence(second)),
    )


def _last_common_digest(first: LogStore, second: LogStore) -> Position:
    """Position of the last recorded digest that both share; 0 without one. It covers everything before it."""
    where = Where(lives=(POOL,), types=("DigestRecorded",))
    common = 0
    for one, other in zip(first.find(where), second.find(where), strict=False):
        if one.position != other.position or one.event != other.event:
            break
        common = one.position
    return common


def _first_difference(
    first: LogStore, second: LogStore, start: Position, progress: Callable[[Position], None] | None
) -> tuple[Position, Record | None, Record | None]:
    common = start
    pairs = itertools.zip_longest(first.read(after=start), second.read(after=start))
    for one, other in pairs:
        if one is None or other is None or not _same(one.event, other.event):
            return common, one, other
        common = one.position
        if progress is not None and common % PROGRESS_EVENTS == 0:
            progress(common)
    return common, None, None


def _same(one: Event, other: Event) -> bool:
    if one == other:
        return True
    return type(one) is type(other) and _compared(one) == _compared(other)


def _compared(event: Event) -> Event:
    """Without what a clock measured, and without the run's command line and places."""
    event = unmeasured(event)
    if isinstance(event, e.RunConfigured | e.CoordinatorRestarted):
        return replace(event, evidence="")
    if isinstance(event, e.DigestRecorded):
        return replace(event, digest="")  # covers the evidence too
    return event


def _side(record: Record) -> Side:
    line = event_line(record)
    return Side(event=event_to_builtins(record.event), sentence=line.sentence, type=line.type, stream=line.stream)


# ---- what differs, by name


def _flat(event: Event) -> dict[str, str]:
    return {
        what: value for what, value in _leaves("", event_to_builtins(event)) if what.partition(".")[0] not in MEASURED
    }


def _evidence(log: LogStore) -> dict[str, str]:
    for record in log.find(Where(types=("RunConfigured",), until=1)):
        if isinstance(record.event, e.RunConfigured):
            try:
                return dict(_leaves("", msgspec.json.decode(record.event.evidence)))
            except msgspec.DecodeError:
                return {"evidence": record.event.evidence}
    return {}


def _leaves(path: str, value: Any) -> Iterator[tuple[str, str]]:
    """(dotted path, value) of nested tables; a list is one value."""
    if isinstance(value, dict) and (value or not path):
        for name, part in value.items():
            yield from _leaves(f"{path}.{name}" if path else str(name), part)
    else:
        yield path or "value", value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _differing(first: dict[str, str], second: dict[str, str]) -> tuple[Differing, ...]:
    return tuple(
        Differing(what=what, first=first.get(what, "-"), second=second.get(what, "-"))
        for what in {**first, **second}
        if first.get(what) != second.get(what)
    )


def _states(
    first: LogStore, second: LogStore, common: Position, one: Record | None, other: Record | None
) -> tuple[Differing, ...]:
    """Of the lives that the two events are about: everything that an explanation compares."""
    if one is None and other is None:
        return ()
    sides = [(first, one), (second, other)]
    events = [record.event for _, record in sides if record is not None]
    lives = tuple(dict.fromkeys(event.request for event in events if event.request != POOL))
    if any(isinstance(event, e.ProducerRestarted) for event in events):
        lives = tuple(dict.fromkeys((*lives, *open_lives(first, until=common))))
    ends = [(log, common if record is None else record.position) for log, record in sides]
    sharing = any(isinstance(event, e.PrefixEvicted) for event in events) or any(
        len(with_sharers(log, lives, until=end)) > len(lives) for log, end in ends
    )
    return _differing(*(_values(lives_at(log, lives, at=end, sharing=sharing), lives) for log, end in ends))


def _values(state: State, lives: tuple[RequestKey, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for key in lives or (POOL,):
        name = f"{named(key)} " if key != POOL else ""
        found |= {
            what if what in POOL_VALUES else f"{name}{what}": text for what, text in state_values(state, key).items()
        }
    return found
