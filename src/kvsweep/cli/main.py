"""The command line. Every error is one sentence on stderr and a non-zero exit; every command has --json."""

import sys
from typing import Annotated, cast

import typer

import kvsweep
from kvsweep.cli.bench import bench
from kvsweep.cli.demo import demo
from kvsweep.cli.doctor import doctor
from kvsweep.cli.explore import explore
from kvsweep.cli.log import log_app
from kvsweep.cli.model import model
from kvsweep.cli.scenario import scenario_app
from kvsweep.cli.simulate import simulate
from kvsweep.cli.soak import soak
from kvsweep.cli.terminal import USAGE_FAULT, warn

# Newer releases of typer carry click inside, older ones ask for it; the base class is the same by either name.
CommandLineFault = cast(type[typer.BadParameter], typer.BadParameter.__bases__[0])

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Coordinator of KV-cache compaction for LLM serving.",
)
app.add_typer(log_app, name="log")
app.add_typer(scenario_app, name="scenario")
for command in (simulate, explore, model, demo, soak, bench, doctor):
    app.command()(command)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(kvsweep.__version__)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """Nothing to do before a command."""


def main() -> None:
    """Entry point: also what the parser says of a command line becomes one sentence."""
    try:
        code = app(standalone_mode=False)
    except CommandLineFault as error:
        message, code = error.format_message(), USAGE_FAULT
        if message:  # none where no command was given: the help has been shown
            warn(message)
    sys.exit(code)
