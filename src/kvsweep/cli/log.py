"""`kvsweep log`: look back at a ledger. Nothing here writes to one but `repair`."""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, Final

import msgspec
import typer
from rich.text import Text

from kvsweep.cli.log_draw import console, table, time_text
from kvsweep.cli.log_options import (
    After,
    Before,
    OnBlock,
    Operation,
    Rank,
    Since,
    Types,
    Until,
    Which,
    Who,
    conditions,
    lives_of,
    opened,
)
from kvsweep.cli.log_questions import diff, explain, replay, why_block
from kvsweep.cli.log_upkeep import export, repair, stats, verify
from kvsweep.cli.terminal import AsJson, answer
from kvsweep.ledger.ids import POOL
from kvsweep.ledger.inspect.as_data import event_to_builtins, named
from kvsweep.ledger.inspect.causes import event_line
from kvsweep.ledger.inspect.replay import Ledger
from kvsweep.ledger.store.log import Position, Record
from kvsweep.ledger.store.query import Where

LIMIT: Final = 1000  # events that `events` shows unless asked for more
SCREENFUL: Final = 500  # rows a table: a long answer is shown while it is read
FOLLOW_S: Final = 0.2  # between two looks at a ledger that is followed

log_app = typer.Typer(no_args_is_help=True, help="Look back at a ledger: what happened, why, and whether it holds.")


@log_app.command()
def requests(where: Which, request: Who = None, as_json: AsJson = False) -> None:
    """Every life of every request, and the pool's own facts, with how many events each has."""
    with opened(where) as ledger:
        lives = lives_of(ledger, request)
        found = [stream for stream in ledger.streams() if lives is None or stream.request in lives]
        if as_json:
            rows = [
                {
                    "request": stream.request.request_id,
                    "epoch": stream.request.request_epoch,
                    "events": stream.events,
                    "last": stream.last,
                }
                for stream in found
            ]
            answer({"requests": rows})
            return
        shown = table("request", "events", "last position")
        for stream in found:
            name = "the pool" if stream.request == POOL else named(stream.request)
            shown.add_row(Text(name), str(stream.events), str(stream.last))
        console().print(shown)


@log_app.command()
def events(
    where: Which,
    request: Who = None,
    types: Types = None,
    operation: Operation = None,
    rank: Rank = None,
    block: OnBlock = None,
    after: After = None,
    until: Until = None,
    since: Since = None,
    before: Before = None,
    limit: Annotated[int, typer.Option("--limit", help="At most so many.", min=1)] = LIMIT,
    as_json: AsJson = False,
) -> None:
    """The events, in order: all of them, or those that meet every condition."""
    with opened(where) as ledger:
        asked = conditions(
            ledger, request=request, types=types, operation=operation, rank=rank, block=block, after=after,
            until=until, since=since, before=before,
        )  # fmt: skip
        found = ledger.find(asked)
        shown = itertools.islice(found, limit)
        if as_json:
            typer.echo('{"events":[', nl=False)
            for index, record in enumerate(shown):
                typer.echo(f"{',' if index else ''}\n{line_of(record)}", nl=False)
            left = next(found, None)
            typer.echo(f'\n],"more":{"false" if left is None else "true"}}}')
            return
        show_events(shown)
        if next(found, None) is not None:
            typer.echo(f"kvsweep log: more than {limit} events; --limit or --after shows others", err=True)


@log_app.command()
def tail(
    where: Which,
    count: Annotated[int, typer.Option("-n", "--count", help="The last so many to begin with.", min=0)] = 10,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with what is stored from now on.")] = False,
    request: Who = None,
    types: Types = None,
    rank: Rank = None,
    as_json: AsJson = False,
) -> None:
    """The last events, and with -f those that follow until it is interrupted; --json gives one object a line."""
    with opened(where) as ledger:
        asked = conditions(ledger, request=request, types=types, rank=rank)
        last = ledger.last()
        found = list(itertools.islice(ledger.find(asked, newest_first=True), count))[::-1]
        records: Iterable[Record] = found
        if follow:
            records = itertools.chain(found, following(ledger, asked, last, wait=lambda: time.sleep(FOLLOW_S)))
        try:
            if as_json or follow:
                for record in records:
                    typer.echo(line_of(record) if as_json else text_of(record))
            else:
                show_events(records)
        except KeyboardInterrupt:
            return


log_app.command()(replay)
log_app.command()(explain)
log_app.command(name="why-block")(why_block)
log_app.command()(diff)
log_app.command()(verify)
log_app.command()(stats)
log_app.command()(export)
log_app.command()(repair)


# ---- parts


def following(ledger: Ledger, asked: Where, after: Position, *, wait: Callable[[], object]) -> Iterator[Record]:
    """Records beyond `after` that meet the conditions, for ever; `wait` stands between two looks."""
    while True:
        last = ledger.last()
        if last > after:
            yield from ledger.find(msgspec.structs.replace(asked, after=after, until=last))
            after = last
        wait()


def line_of(record: Record) -> str:
    """One event as JSON, on one line."""
    shown: dict[str, Any] = {"position": record.position, "event": event_to_builtins(record.event)}
    if record.time:
        shown["time"] = time_text(record.time)
    return msgspec.json.encode(shown).decode()


def text_of(record: Record) -> str:
    fact = event_line(record)
    return f"{record.position} {time_text(record.time)} {fact.stream} {fact.type}: {fact.sentence}"


def show_events(records: Iterable[Record]) -> None:
    """Tables of a screenful each."""
    left, screen = iter(records), console()
    while chunk := list(itertools.islice(left, SCREENFUL)):
        shown = table("position", "time (UTC)", "request", "seq", "type", "what")
        for record in chunk:
            fact = event_line(record)
            shown.add_row(
                str(record.position),
                time_text(record.time),
                Text(fact.stream),
                str(record.event.seq),
                fact.type,
                Text(fact.sentence),
            )
        screen.print(shown)
