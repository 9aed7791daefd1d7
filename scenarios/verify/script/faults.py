"""Faults: what goes wrong with messages, copies, processes and tables, each addressed by message or event."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from kvsweep.scenarios.verify.script.address import Message, Moment, Number
from kvsweep.scenarios.verify.script.steps import _tag
from kvsweep.scenarios.verify.script.world import Count, Part, Positive


class _Fault(Part, frozen=True, kw_only=True, tag_field="do", tag=_tag):
    """Parent of all faults."""


class Delay(_Fault, frozen=True, kw_only=True):
    """The message arrives `turns` later, or once an event has happened, whichever is later."""

    on: Message
    turns: Count = 0
    until: Moment | None = None


class Drop(_Fault, frozen=True, kw_only=True):
    """The message never arrives."""

    on: Message


class Duplicate(_Fault, frozen=True, kw_only=True):
    """The message arrives once more for each of `times`, the copies `turns` later."""

    on: Message
    times: Annotated[int, Meta(ge=1, le=64)] = 1
    turns: Count = 0


class Reorder(_Fault, frozen=True, kw_only=True):
    """The message arrives after the next `behind` messages of its link and direction."""

    on: Message
    behind: Positive = 1


class Stall(_Fault, frozen=True, kw_only=True):
    """The rank has the command and its copies do not run, for `turns` and until an event has happened."""

    on: Message
    turns: Count = 0
    until: Moment | None = None


class Fail(_Fault, frozen=True, kw_only=True):
    """The first copy of the command fails: the rank says failed."""

    on: Message


class PartialWrite(_Fault, frozen=True, kw_only=True):
    """The command fails after `after` pieces of it were copied: destinations are half written."""

    on: Message
    after: Positive = 1


class StaleEpoch(_Fault, frozen=True, kw_only=True):
    """Before the rank's report comes the same report under an older process epoch."""

    on: Message


class WrongOwner(_Fault, frozen=True, kw_only=True):
    """Before the rank's report comes the same report in the name of another request."""

    on: Message
    request: str


class Crash(_Fault, frozen=True, kw_only=True):
    """A process ends: before a message of its own, which is lost then, or after an event.

    rank     of the process; without it: the producer, which is back at once
    coordinator  it is the coordinator's, and every rank's with it; a new one goes on with the ledger in the next turn
    noticed  false: nobody learns of it before it comes back or a deadline passes
    restart  turns until a new process of it begins, or "never" (TOML has no null); of the producer: until it
             names its blocks again
    """

    rank: Number | None = None
    coordinator: bool = False
    before: Message | None = None
    after: Moment | None = None
    noticed: bool = True
    restart: Count | Literal["never"] = 0


class ReplaceTable(_Fault, frozen=True, kw_only=True):
    """The current table row of the request is overwritten on a rank. Nothing honest does this: it must be seen."""

    rank: Number = 0
    request: str = "a"
    after: Moment


Fault: TypeAlias = (
    Delay | Drop | Duplicate | Reorder | Stall | Fail | PartialWrite | StaleEpoch | WrongOwner | Crash | ReplaceTable
)
