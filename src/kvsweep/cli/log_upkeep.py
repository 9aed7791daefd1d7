"""`kvsweep log verify`, `stats`, `export` and `repair`: does a ledger hold, how large is it, and what can be saved."""

import contextlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final, Literal, TextIO

import msgspec
import typer
from rich.text import Text

from kvsweep.cli.log_draw import console, counted, table, time_text
from kvsweep.cli.log_options import After, Types, Until, Which, Who, conditions, opened, sentences, url_of
from kvsweep.cli.log_questions import outcome_of, refuse_broken
from kvsweep.cli.terminal import AsJson, answer, progress
from kvsweep.ledger.errors import LayoutError, LogError
from kvsweep.ledger.inspect.as_data import event_to_builtins
from kvsweep.ledger.inspect.replay import Ledger
from kvsweep.ledger.store.log import Record

Format = Literal["jsonl", "parquet"]
STDOUT: Final = "-"


def verify(where: Which, until: Until = None, as_json: AsJson = False) -> None:
    """Read everything: the store's structure, every checksum, every recorded digest and every law."""
    with opened(where) as ledger:
        with progress("verify", ledger.last() if until is None else until) as tell:
            verified = ledger.verify(until=until, progress=tell)
        if as_json:
            answer(outcome_of(verified))
        else:
            recorded = verified.recorded_digest or "none"
            said = f"{verified.events} events; digest {verified.digest}; recorded {recorded}; ok: {verified.ok}"
            console().print(Text(said))
        refuse_broken(where, verified)


def stats(where: Which, as_json: AsJson = False) -> None:
    """How many events and bytes of which type, how operations ended, and what it takes on disk."""
    with opened(where) as ledger:
        found, files = ledger.stats(), ledger.log.files()
        if as_json:
            answer(msgspec.to_builtins(found) | {"files": [{"path": path, "bytes": size} for path, size in files]})
            return
        screen = console()
        begun, ended = (time_text(int(one * 1e6)) if one else "?" for one in (found.begun_s, found.ended_s))
        screen.print(
            Text(
                f"{found.events} events ({found.first} to {found.last}), {found.bytes} bytes of them encoded, "
                f"{sum(size for _, size in files)} on disk in {len(files)} file(s)\n"
                f"{found.lives} lives of {found.requests} requests, {found.open_lives} open; from {begun} to {ended}\n"
                f"schema {found.schema}, rules {found.rules}, begun by version {found.created_by}\n"
                f"{found.ignored} acknowledgements ignored; {found.refused} of them, of plans and of commands refused"
            )
        )
        drawn = table("lane", "begun", "completed", "aborted")
        for lane in found.lanes:
            drawn.add_row(lane.lane, str(lane.begun), str(lane.completed), str(lane.aborted))
        screen.print(drawn)
        drawn = table("type", "events", "bytes")
        for one in found.types:
            drawn.add_row(one.type, str(one.events), str(one.bytes))
        screen.print(drawn)


def export(
    where: Which,
    to: Annotated[str, typer.Argument(metavar="FILE", help="New file, ending in .jsonl or .parquet; - for stdout.")],
    form: Annotated[Format | None, typer.Option("--format", help="Instead of what the name ends in.")] = None,
    request: Who = None,
    types: Types = None,
    after: After = None,
    until: Until = None,
    as_json: AsJson = False,
) -> None:
    """Write the events, one a line or row, as JSON lines or Parquet (which needs the package's extra 'arrow')."""
    with opened(where) as ledger:
        chosen = _format_of(to, form)
        asked = conditions(ledger, request=request, types=types, after=after, until=until)
        with progress("export", asked.until or 0) as tell:
            written = _write(chosen, to, counted(ledger.find(asked), tell))
        if as_json and to != STDOUT:
            answer({"events": written, "path": to, "format": chosen, "bytes": os.path.getsize(to)})
        elif to != STDOUT:
            console().print(Text(f"{written} events to {to}"))


def repair(where: Which, as_json: AsJson = False) -> None:
    """Cut a damaged ledger back to its whole beginning; the damaged files stay beside it under other names."""
    with sentences():
        with progress("repair", None) as tell:
            found = Ledger.repair(url_of(where), progress=tell)
        if as_json:
            answer(found)
            return
        dropped = "how much, nobody can know" if found.dropped is None else f"{found.dropped} events"
        said = f"{found.path}: {found.kept} events are kept, up to position {found.last}"
        if found.position is not None:
            said += f"; damaged at position {found.position}: {found.fault}\ndropped: {dropped}"
        elif found.fault:
            said += f"; its structure was damaged: {found.fault}"
        screen = console()
        screen.print(Text(f"{said}\n{found.safe}"))
        for name in found.saved:
            screen.print(Text(f"kept as it was: {name}"))


def _format_of(to: str, form: Format | None) -> Format:
    found = (
        form or {".jsonl": "jsonl", ".parquet": "parquet"}.get(Path(to).suffix) or ("jsonl" if to == STDOUT else None)
    )
    if found == "jsonl":
        return "jsonl"
    if found == "parquet" and to != STDOUT:
        return "parquet"
    raise LayoutError("FILE", "a name that ends in .jsonl or .parquet, or --format", repr(to))


def _write(form: Format, to: str, records: Iterable[Record]) -> int:
    """Number of events. A file appears whole or not at all, and none is replaced."""
    if to == STDOUT:
        return _lines(sys.stdout, records)
    if os.path.exists(to):
        raise LayoutError("FILE", "a new file", f"{to}, which exists")
    part = f"{to}.part"
    try:
        if form == "parquet":
            written = _parquet(part, records)
        else:
            with open(part, "w", encoding="utf-8") as file:
                written = _lines(file, records)
        os.rename(part, to)
    except OSError as error:
        raise LogError(f"{to} cannot be written: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
    return written


def _lines(file: TextIO, records: Iterable[Record]) -> int:
    written = 0
    for record in records:
        time = time_text(record.time) or None
        line = {"position": record.position, "time": time, "event": event_to_builtins(record.event)}
        file.write(msgspec.json.encode(line).decode() + "\n")
        written += 1
    return written


def _parquet(path: str, records: Iterable[Record]) -> int:
    from kvsweep.ledger.inspect.arrow import batches_of, writer

    written = 0
    with writer(path) as parquet:
        for batch in batches_of(records):
            parquet.write_batch(batch)
            written += batch.num_rows
    return written
