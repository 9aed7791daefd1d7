"""What every command says, and where: errors as one sentence on stderr, progress there too, answers on stdout."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Annotated, Final, NoReturn, Protocol

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

DATA_FAULT: Final = 1
USAGE_FAULT: Final = 2

AsJson = Annotated[bool, typer.Option("--json", help="JSON on stdout.")]


def warn(message: object, *, command: str = "kvsweep") -> None:
    """One sentence on stderr."""
    typer.echo(f"{command}: {' '.join(str(message).split())}", err=True)


def fail(message: object, code: int, *, command: str = "kvsweep") -> NoReturn:
    """One sentence on stderr, and the end of the command with this exit code."""
    warn(message, command=command)
    raise typer.Exit(code)


def answer(value: object) -> None:
    """JSON on stdout, on one line."""
    typer.echo(msgspec.json.encode(value).decode())


class Tell(Protocol):
    """Moves a bar. What is None stays as it is."""

    def __call__(self, done: int | None = None, of: int | None = None, what: str | None = None) -> None: ...


@contextlib.contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Tell]:
    """A bar on stderr, and on a terminal only, so that stdout is the answer alone."""
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,}"), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total)

        def tell(done: int | None = None, of: int | None = None, what: str | None = None) -> None:
            bar.update(task, completed=done, total=of, description=what)

        yield tell
