"""Runs the commands of a page's console blocks and writes what they say under them.

python scripts/transcript.py docs/debugging.md

A ```sh block's `kvsweep` commands prepare what the others look at; a ```console block is one command with its answer.
Everything runs in a new folder. Times and digests differ from run to run and do not count as a difference.
"""

import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kvsweep.cli.main import main as kvsweep

BLOCK = re.compile(r"```(?P<kind>sh|console)\n(?P<body>.*?)```\n", re.DOTALL)
CHANGING = (
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?"), "TIME"),
    (re.compile(r"\b[0-9a-f]{16,64}\b"), "DIGEST"),
)


def commands(page: str) -> Iterator[tuple[str, str, str]]:
    """(kind of block, command, answer on the page) in order."""
    for block in BLOCK.finditer(page):
        lines = block["body"].splitlines()
        if block["kind"] == "sh":
            yield from (("sh", line, "") for line in lines if line.startswith("kvsweep "))
        elif lines[0].startswith("$ kvsweep "):
            yield "console", lines[0].removeprefix("$ "), "\n".join(lines[1:])


def run(command: str) -> str:
    """What the command writes to stdout, without spaces at the ends of lines. Raises SystemExit if it fails."""
    before, out = sys.argv, io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    sys.argv = shlex.split(command)
    try:
        with contextlib.redirect_stdout(out):
            kvsweep()
    except SystemExit as ended:
        if ended.code:
            raise SystemExit(f"{command}: exit code {ended.code}") from ended
    finally:
        sys.argv = before
    said = out.buffer.getvalue().decode()
    return "\n".join(line.rstrip() for line in said.rstrip().splitlines())


def unchanging(text: str) -> str:
    for pattern, name in CHANGING:
        text = pattern.sub(name, text)
    return text


def answers(page: str, folder: Path) -> list[tuple[str, str, str]]:
    """(command, answer on the page, answer now) of every console block."""
    found, before = [], Path.cwd()
    os.chdir(folder)
    try:
        for kind, command, answer in commands(page):
            now = run(command)
            if kind == "console":
                found.append((command, answer, now))
    finally:
        os.chdir(before)
    return found


def rewritten(page: str, found: list[tuple[str, str, str]]) -> str:
    """The page with the answers of now."""
    for command, answer, now in found:
        if unchanging(answer) != unchanging(now):
            page = page.replace(f"$ {command}\n{answer}\n" if answer else f"$ {command}\n", f"$ {command}\n{now}\n", 1)
    return page


def main() -> None:
    path = Path(sys.argv[1])
    page = path.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        path.write_text(rewritten(page, answers(page, Path(folder))), encoding="utf-8")


if __name__ == "__main__":
    main()
