"""Why something was ignored, refused or planned so: the rule that decided, where it stands, and its two sides."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from kvsweep.ledger import acks, joint
from kvsweep.ledger.events import (
    AckIgnored,
    AckRefused,
    CommandRefused,
    Event,
    PlanRefused,
    RetainPlanned,
    UploadPlanned,
)
from kvsweep.ledger.fold import legal_now
from kvsweep.ledger.ids import Rows
from kvsweep.ledger.state import RequestState, State


class Decision(Struct, frozen=True, kw_only=True):
    """Why something was ignored, refused or planned so."""

    verdict: str
    rule: str
    expected: str
    got: str
    stands: str  # where the rule is kept
    clauses: tuple[str, ...]  # of the contract


_PRODUCER: Final = "what waits for the producer's word"
_EARLIER: Final = "the acknowledgement table of another version"
_ACK_ROWS: Final = {rule: number for number, (rule, _, _) in enumerate(acks.TABLE, 1)}
_JOINT: Final = {rule.name: rule.clause for rule in joint.JOINT}

NOT_PLANNED: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "no_space": ("a plan that does not get its blocks changes nothing, and is made again when blocks return", ("G3",)),
    "no_row": ("a plan needs a table row without a holder; one comes back when a generation retires", ("G1", "G3")),
    "invalid_source": ("an upload reads only CPU blocks that are valid on every rank", ("A1", "D1")),
    "unequal_layers": ("one table for all layers needs layers that keep the same slots of one row", ("B1",)),
    "rank_lost": ("an operation waits for every rank, so none begins while one is gone", ("F1",)),
}
"""Reasons of PlanRefused, with the rule behind each."""

PLANNED: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "diff": ("what is wanted and not resident is uploaded, in ascending order", ("E3", "E4")),
    "full": ("what is resident is disregarded and the whole selection is uploaded", ("E4", "E6")),
    "shared": ("all layers keep the same slots of one row: that row is rewritten", ("B1", "B2")),
    "layer": ("layers keep different slots: each gets a table of its own, and nothing moves", ("B3", "B4")),
    "move": ("the backend reads one table: kept blocks are copied out of place", ("B3",)),
    "pack": ("areas outside the fullest blocks are copied into those, so that blocks become free", ("B6", "B7")),
}
"""Kinds of upload and ways to retain, with the rule behind each."""


def decision(before: State, request: RequestState | None, event: Event) -> Decision | None:
    """The decision that an event records, or None where it records none."""
    match event:
        case AckRefused():
            return _acknowledged(event, event.expected, event.got)
        case AckIgnored():
            found = _judged_again(before, event)
            same = found.rule == event.rule
            return _acknowledged(event, found.expected if same else "", found.got if same else "")
        case PlanRefused():
            rule, clauses = NOT_PLANNED.get(event.reason, (event.reason, ("G3",)))
            return Decision(
                verdict="refused",
                rule=f"{event.lane}: {event.reason}: {rule}",
                expected=f"{event.needed} places",
                got=f"{event.vacant} vacant areas, {event.free} free blocks",
                stands=f"planning of the {event.lane} lane",
                clauses=clauses,
            )
        case CommandRefused():
            legal = ", ".join(legal_now(request)) if request else "nothing"
            name = event.reason.partition(":")[0]
            return Decision(
                verdict="refused",
                rule=event.reason,
                expected=f"a state that takes {event.command}; here legal: {legal}",
                got=event.state,
                stands="the joint rules" if name in _JOINT else "the tables of the lanes",
                clauses=(_JOINT[name],) if name in _JOINT else ("G1",),
            )
        case UploadPlanned():
            return _planned(event.kind, "upload", event.logical, "to upload")
        case RetainPlanned():
            return _planned(event.mode, "retain", event.keep, "kept")
        case _:
            return None


def _judged_again(before: State, event: AckIgnored) -> acks.Verdict:
    """The event does not keep both sides: the table is asked once more."""
    said = acks.Ack(
        operation=event.operation, rank=event.rank, process_epoch=event.process_epoch, outcome=event.outcome
    )
    return acks.judge(before, said)


def _acknowledged(event: AckIgnored | AckRefused, expected: str, got: str) -> Decision:
    row = _ACK_ROWS.get(event.rule)
    table = f"row {row} of {len(acks.TABLE)} of the acknowledgement table" if row else _EARLIER
    return Decision(
        verdict=event.verdict,
        rule=event.rule,
        expected=expected,
        got=got,
        stands=table if event.rank >= 0 else _PRODUCER,
        clauses=("F2",),
    )


def _planned(how: str, lane: str, rows: Rows, what: str) -> Decision:  # type: ignore[type-arg]
    rule, clauses = PLANNED[how]
    counts = dict(zip(rows.layers.tolist(), rows.counts.tolist(), strict=True))
    return Decision(
        verdict="planned",
        rule=f"{how}: {rule}",
        expected="",
        got=f"blocks {what}, by layer: {counts}",
        stands=f"planning of the {lane} lane",
        clauses=clauses,
    )
