"""Options of `kvsweep log`, the ledger that they name and the conditions that they ask for."""

import contextlib
import datetime
from collections.abc import Iterator
from typing import Annotated

import typer

from kvsweep.cli.terminal import DATA_FAULT, USAGE_FAULT, fail
from kvsweep.ledger.errors import KvsweepError, LayoutError, UsageError
from kvsweep.ledger.ids import RequestKey
from kvsweep.ledger.inspect.replay import Ledger
from kvsweep.ledger.store.query import Block, Where

Which = Annotated[str, typer.Argument(metavar="LEDGER", help="Ledger file, or its url (sqlite:PATH).")]
Who = Annotated[
    str | None, typer.Option("--request", metavar="ID", help="Only this request: its whole id, every life.")
]
Until = Annotated[int | None, typer.Option("--until", metavar="POSITION", help="Up to and with this position.")]
After = Annotated[int | None, typer.Option("--after", metavar="POSITION", help="Beyond this position.")]
Types = Annotated[
    list[str] | None, typer.Option("--type", metavar="TYPE", help="Only this event type; may be repeated.")
]
Operation = Annotated[int | None, typer.Option("--operation", metavar="ID", help="Only of this operation.")]
Rank = Annotated[int | None, typer.Option("--rank", metavar="RANK", help="Only what this rank said or was sent.")]
OnBlock = Annotated[
    str | None, typer.Option("--block", metavar="GROUP:ID", help="Only events that name this device block.")
]
Since = Annotated[str | None, typer.Option("--since", metavar="TIME", help="Stored at or after this time (ISO 8601).")]
Before = Annotated[str | None, typer.Option("--before", metavar="TIME", help="Stored before this time (ISO 8601).")]


@contextlib.contextmanager
def opened(where: str) -> Iterator[Ledger]:
    """The ledger at a path or url; every error of ours becomes one sentence on stderr and an exit code."""
    with sentences(), Ledger.open(url_of(where)) as ledger:
        yield ledger


def url_of(where: str) -> str:
    return where if where.startswith(("sqlite:", "memory:")) else f"sqlite:{where}"


@contextlib.contextmanager
def sentences() -> Iterator[None]:
    """Every error of ours as one sentence on stderr: exit code 2 for what was asked wrongly, 1 for what was found."""
    try:
        yield
    except KvsweepError as error:
        fail(error, USAGE_FAULT if isinstance(error, UsageError) else DATA_FAULT, command="kvsweep log")


# ---- what was asked


def lives_of(ledger: Ledger, request: str | None) -> tuple[RequestKey, ...] | None:
    """Every life of a whole id; None for all. The pool's stream has a name that a request may have too."""
    if request is None:
        return None
    try:
        return ledger.lives(request)
    except LayoutError as error:
        raise LayoutError("--request", error.expected, error.got) from error


def block_of(text: str) -> Block:
    """GROUP:ID as a block. Raises LayoutError."""
    group, colon, block = text.partition(":")
    if not (colon and group.isdecimal() and block.isdecimal()):
        raise LayoutError("block", "GROUP:ID, two numbers", repr(text))
    return Block(int(group), int(block))


def conditions(
    ledger: Ledger,
    *,
    request: str | None = None,
    types: list[str] | None = None,
    operation: int | None = None,
    rank: int | None = None,
    block: str | None = None,
    after: int | None = None,
    until: int | None = None,
    since: str | None = None,
    before: str | None = None,
) -> Where:
    """What the options ask for. Raises LayoutError naming the option."""
    last = ledger.last()
    for option, position in (("--after", after), ("--until", until)):
        if position is not None and not 0 <= position <= last:
            raise LayoutError(option, f"a position from 0 to {last}", str(position))
    low, high = after or 0, last if until is None else until
    if since is not None:
        low = max(low, ledger.position_at(_time_of("--since", since)) - 1)
    if before is not None:
        high = min(high, ledger.position_at(_time_of("--before", before)) - 1)
    where = Where(
        lives=lives_of(ledger, request),
        types=tuple(types) if types else None,
        operation=operation,
        rank=rank,
        block=None if block is None else block_of(block),
        after=low,
        until=high,
    )
    where.check()
    return where


def _time_of(option: str, text: str) -> float:
    """Seconds since 1970. A time without a zone is UTC, as the tables show it."""
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise LayoutError(option, "a time such as 2026-09-16T08:30:00", repr(text)) from error
    return (found if found.tzinfo else found.replace(tzinfo=datetime.UTC)).timestamp()
