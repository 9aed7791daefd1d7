"""The command line in this process: what a shell would get, also of `kvsweep log` alone."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner, Result

from kvsweep.cli.log import log_app
from kvsweep.cli.main import main


@dataclass(frozen=True)
class Answer:
    """Exit code and both streams of one command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.out)

    def expect_sentence(self, code: int) -> str:
        """Nothing on stdout, one line on stderr without a traceback, this exit code. Returns the line."""
        assert (self.code, self.out) == (code, ""), (self.code, self.out, self.err)
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("kvsweep"), self.err
        assert "Traceback" not in lines[0]
        return lines[0]


Command = Callable[..., Answer]


def command_of(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """`kvsweep ARGUMENTS` through the installed entry point, in this process."""

    def run(*arguments: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["kvsweep", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return Answer(int(ended.value.code or 0), out, err)

    return run


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
