"""Steps that take time: a task each, its operation, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import anyio

from kvsweep.ledger import events as e
from kvsweep.ledger.errors import Aborted, KvsweepError
from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import Operation, RequestKey
from kvsweep.ledger.messages import BlockSelection, Retain
from kvsweep.scenarios.verify.script import steps as s

Asked: TypeAlias = tuple[BlockSelection | Retain, str]
"""What was asked, and under which idempotency key."""
STARTS = (e.TransferStarted, e.KeepMapPublished, e.ReadersDrained, e.StoreStarted)


@dataclass
class Job:
    """One lasting step.

    ended  None while it runs, "" when it has done what it was for, else why not
    """

    at: int  # index of the step in the script
    step: s.Lasting
    key: RequestKey | None = None
    ended: str | None = None
    aborted: bool = False
    operation: Operation | None = None  # the last one that it started
    asked: Asked | None = None  # what a retry asks again
    judged: bool = False
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)  # its caller ends with the coordinator

    @property
    def done(self) -> bool:
        return self.ended is not None

    def sees(self, event: Event) -> bool:
        """Whether this fact is the beginning of its operation; it is remembered then."""
        if isinstance(event, STARTS) and event.request == self.key:
            self.operation = event.operation
            return True
        return False

    def cut(self) -> None:
        """The process that it asked has ended."""
        self.aborted, self.ended = True, "the coordinator restarted"

    def fail(self, error: KvsweepError) -> None:
        self.aborted = isinstance(error, Aborted)
        self.ended = " ".join(str(error).split())


def judge(step: s.Step, reason: str, *, aborted: bool = False) -> str | None:
    """What is wrong with how a step ended: reason "" for well, else why it was refused or aborted. None: as written."""
    refused, abort = step.refused, getattr(step, "aborted", "")
    what = "aborted" if aborted else "refused"
    expected = abort if aborted else refused
    if reason and not expected:
        return f"{what}: {reason}"
    if reason and expected not in reason:
        return f"{what}: expected {expected!r} in the reason, got {reason!r}"
    if not reason and (refused or abort):
        return f"expected to be {'aborted' if abort else 'refused'} ({abort or refused!r}), and it was not"
    return None
