"""`kvsweep log`: look back at a ledger. Nothing here writes to one."""

import contextlib
import itertools
from collections import Counter, deque
from collections.abc import Iterator
from typing import Annotated, Final

import msgspec
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from kvsweep.ledger.errors import KvsweepError, LayoutError, UsageError
from kvsweep.ledger.explain import Figures, explain, figures, render
from kvsweep.ledger.ids import POOL, RequestKey
from kvsweep.ledger.plain import named, plain_event
from kvsweep.ledger.replay import Ledger, Verified
from kvsweep.ledger.state import RequestState
from kvsweep.ledger.store import Position, Record

DATA_FAULT: Final = 1
USAGE_FAULT: Final = 2

log_app = typer.Typer(no_args_is_help=True, help="Look back at a ledger: what happened, and whether it holds.")

Where = Annotated[str, typer.Argument(metavar="LEDGER", help="Ledger file, or its url (sqlite:PATH).")]
Who = Annotated[
    str | None, typer.Option("--request", metavar="ID", help="Only this request: its whole id, every life.")
]
Until = Annotated[int | None, typer.Option("--until", metavar="POSITION", help="Up to and with this position.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON on stdout.")]


@contextlib.contextmanager
def opened(where: str) -> Iterator[Ledger]:
    """The ledger at a path or url; every error of ours becomes one sentence on stderr and an exit code."""
    try:
        with Ledger.open(where if where.startswith(("sqlite:", "memory:")) else f"sqlite:{where}") as ledger:
            yield ledger
    except KvsweepError as error:
        typer.echo(f"kvsweep log: {error}", err=True)
        raise typer.Exit(USAGE_FAULT if isinstance(error, UsageError) else DATA_FAULT) from error


@log_app.command()
def requests(where: Where, request: Who = None, as_json: AsJson = False) -> None:
    """Every life of every request, and the pool's own facts, with how many events each has."""
    with opened(where) as ledger:
        lives = _lives(ledger, request)
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
            _json({"requests": rows})
            return
        table = _table("request", "events", "last position")
        for stream in found:
            name = "the pool" if stream.request == POOL else named(stream.request)
            table.add_row(Text(name), str(stream.events), str(stream.last))
        _console().print(table)


@log_app.command()
def events(
    where: Where,
    request: Who = None,
    until: Until = None,
    types: Annotated[
        list[str] | None, typer.Option("--type", metavar="TYPE", help="Only this event type; may be repeated.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """The events, in order."""
    with opened(where) as ledger:
        found = _events(ledger, request, until, types)
        if as_json:
            typer.echo('{"events":[', nl=False)
            for index, record in enumerate(found):
                body = msgspec.json.encode({"position": record.position, "event": plain_event(record.event)}).decode()
                typer.echo(f"{',' if index else ''}\n{body}", nl=False)
            typer.echo("\n]}")
            return
        console = _console()
        # A table a screenful: a long ledger is shown while it is read.
        while chunk := list(itertools.islice(found, 500)):
            table = _table("position", "request", "seq", "type", "operation", "rank")
            for record in chunk:
                event = record.event
                operation = getattr(event, "operation", None)
                table.add_row(
                    str(record.position),
                    Text("the pool" if event.request == POOL else named(event.request)),
                    str(event.seq),
                    type(event).__name__,
                    str(operation.operation_id) if operation else "",
                    str(getattr(event, "rank", "")),
                )
            console.print(table)


@log_app.command()
def replay(
    where: Where,
    request: Who = None,
    until: Until = None,
    verify: Annotated[bool, typer.Option("--verify", help="Only the verdict, not the state.")] = False,
    as_json: AsJson = False,
) -> None:
    """Fold the ledger again, compare every recorded digest, check every law, and show the state it gives."""
    with opened(where) as ledger:
        lives = _lives(ledger, request)
        verified = _verify(ledger, until)
        last = ledger.last() if until is None else until
        shown = [] if verify or not verified.ok else _figures(ledger, lives, last)
        if as_json:
            outcome = {
                "events": verified.events,
                "digest": verified.digest,
                "recorded_digest": verified.recorded_digest,
                "ok": verified.ok,
            }
            if not verified.ok:
                outcome |= {"position": verified.position, "message": verified.message}
            elif not verify:
                outcome |= {"position": last, "requests": shown}
            _json(outcome)
        else:
            _show(verified, shown, last)
        if not verified.ok:
            at = "" if verified.position is None else f" at position {verified.position}"
            typer.echo(f"kvsweep log: {where} does not hold{at}: {verified.message}", err=True)
            raise typer.Exit(DATA_FAULT)


@log_app.command(name="explain")
def explain_command(where: Where, request: Who = None, until: Until = None, as_json: AsJson = False) -> None:
    """Why the event at POSITION (or the last one before it, of that request) was legal, and what it changed."""
    with opened(where) as ledger:
        found = deque(_events(ledger, request, until, None), maxlen=1)
        if not found:
            raise LayoutError("ledger", "at least one event up to there", "none")
        explanation = explain(ledger, found[0].position)
        if as_json:
            _json(explanation)
        else:
            typer.echo(render(explanation))


# ---- parts


def _lives(ledger: Ledger, request: str | None) -> list[RequestKey] | None:
    """Every life of a whole id; None for all. The pool's stream has a name that a request may have too."""
    if request is None:
        return None
    known = ledger.requests()
    lives = [key for key in known if key.request_id == request]
    if not lives:
        raise LayoutError("--request", f"one of the {len({key.request_id for key in known})} ids in it", repr(request))
    return lives


def _events(ledger: Ledger, request: str | None, until: Position | None, types: list[str] | None) -> Iterator[Record]:
    lives, last = _lives(ledger, request), ledger.last()
    if until is not None and not 0 <= until <= last:
        raise LayoutError("--until", f"a position from 0 to {last}", str(until))
    end = last if until is None else until
    records = ledger.events(types=types or None)
    return (
        record
        for record in itertools.takewhile(lambda record: record.position <= end, records)
        if lives is None or record.event.request in lives
    )


def _verify(ledger: Ledger, until: Position | None) -> Verified:
    # Drawn on stderr and on a terminal only, so that stdout is the answer alone.
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("replay", total=ledger.last() if until is None else until)
        return ledger.verify(until=until, progress=lambda position: progress.update(task, completed=position))


def _figures(ledger: Ledger, lives: list[RequestKey] | None, until: Position) -> list[Figures]:
    state = ledger.state(until=until)
    wanted: list[RequestState] = [
        request for request in state.requests.values() if lives is None or request.key in lives
    ]
    return [figures(state, request) for request in wanted]


def _show(verified: Verified, shown: list[Figures], position: Position) -> None:
    console = _console()
    if shown:
        table = _table("request", "life", "lanes", "view", "tail", "held", title=f"state after position {position}")
        for one in shown:
            table.add_row(
                Text(named(RequestKey(one.request_id, one.request_epoch))),
                one.life,
                f"upload {one.upload}\nretain {one.retain}\nstore {one.store}",
                f"{one.generation} of {one.views}\n{_spread(one.view_slots)}" if one.views else "none",
                "\n".join(f"{n} {phase}" for phase, n in Counter(one.tail.values()).items()) or "none",
                f"{one.held_areas} areas in {sum(one.owned_blocks)} blocks\n"
                f"{one.held_sources} CPU blocks\nrows {one.held_rows}",
            )
        console.print(table)
    recorded = "no digest was recorded" if verified.recorded_digest is None else f"recorded {verified.recorded_digest}"
    console.print(Text(f"{verified.events} events; digest {verified.digest}; {recorded}; ok: {verified.ok}"))


def _spread(slots: dict[str, int]) -> str:
    """Slots over the layers: one number if they agree, else the least and the most."""
    if not slots:
        return "no slots"
    least, most = min(slots.values()), max(slots.values())
    return f"slots: {least}" if least == most else f"slots: {least} to {most}"


def _console() -> Console:
    return Console(soft_wrap=True)


def _table(*columns: str, title: str | None = None) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _json(value: object) -> None:
    typer.echo(msgspec.json.encode(value).decode())
