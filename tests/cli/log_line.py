"""`kvsweep log` as its tests call it: what it answers, and what it refuses."""

import json
from typing import Any

from typer.testing import CliRunner, Result

from kvsweep.cli.log import log_app


def run(*arguments: object) -> Result:
    return CliRunner().invoke(log_app, [str(argument) for argument in arguments])


def answer(*arguments: object) -> Any:
    result = run(*arguments, "--json")
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return json.loads(result.stdout)


def refusal(code: int, *arguments: object) -> str:
    """The one sentence on stderr; stdout stays empty."""
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (code, ""), (result.output, result.exception)
    [line] = result.stderr.splitlines()
    return str(line)
