"""Plants one deliberate fault at a time in a copy of the tree; the test that is named for it has to fail.

python scripts/mutants.py [--jobs J] [--limit S] [--json] [NAME...]

The faults are data: tests/mutants/*.toml, a list of [[mutant]] with name, file, text, replacement, why, test. The text
stands exactly once in the file. A mutant is killed when its test fails on an assertion or an error of the project
within the limit; a module that does not import, or a test that is not there, kills nothing. Exit status 1 when a mutant
survives, no longer applies, or its test fails without any fault.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Literal

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("kernels", "ledger", "runtime", "scenarios", "transports", "src", "tests", "pyproject.toml")
LEFT_OUT = shutil.ignore_patterns("__pycache__", ".*", "*.db")
NO_KILL = ("ImportError", "ModuleNotFoundError", "SyntaxError", "IndentationError", "NameError", "UnboundLocalError")
"""Errors that say the mutant is no program, not that a test found it."""

# An editable installation finds the package before sys.path is asked: it has to come last, or no mutant is ever seen.
# Compiled code would hide what is planted in its reference, which the tests of both hold equal.
RUN = (
    "import sys; sys.path[:0] = sys.argv[1:3]; sys.modules['kvsweep.ledger._sets'] = None; "
    "sys.meta_path.sort(key=lambda finder: 'Redirecting' in type(finder).__name__); "
    "import pytest; sys.exit(pytest.main(sys.argv[3:]))"
)

Verdict = Literal["killed", "survived", "too slow", "not run"]


class MutantsError(Exception):
    """The data is not as it should be; the message is one sentence."""


@dataclass(frozen=True)
class Mutant:
    """One fault. `file` is relative to the root, `test` is a pytest node id, `why` says what goes wrong with it."""

    name: str
    file: str
    text: str
    replacement: str
    why: str
    test: str


@dataclass(frozen=True)
class Outcome:
    """What became of one mutant; seconds are those of its test's process."""

    name: str
    verdict: Verdict
    detail: str
    seconds: float


def read_mutants(folder: Path) -> tuple[Mutant, ...]:
    """Every mutant of the folder's files. Raises MutantsError for a missing or unknown field, or a name twice."""
    found: dict[str, Mutant] = {}
    fields = set(Mutant.__dataclass_fields__)
    for path in sorted(folder.glob("*.toml")):
        for row in tomllib.loads(path.read_text(encoding="utf-8")).get("mutant", ()):
            name = row.get("name", "without a name")
            wrong = sorted(fields ^ row.keys())
            if wrong:
                raise MutantsError(f"{path.name}: mutant {name!r}: field {wrong[0]!r} is missing or unknown")
            if name in found:
                raise MutantsError(f"{path.name}: mutant {name!r} is listed twice")
            found[name] = Mutant(**row)
    return tuple(found.values())


def fault_of(mutant: Mutant, root: Path) -> str | None:
    """Why the mutant does not apply, or None."""
    path = root / mutant.file
    if not path.is_file():
        return f"{mutant.file} is not there"
    count = path.read_text(encoding="utf-8").count(mutant.text)
    if count != 1:
        return f"its text stands {count} times in {mutant.file}, expected once"
    return "its replacement is the text itself" if mutant.text == mutant.replacement else None


class Tree:
    """A copy of the code and the tests, by hard links where it can be; one file at a time is another one."""

    def __init__(self, root: Path, where: Path) -> None:
        self.root, self.where = root, where
        for name in COPIED:
            if (root / name).is_dir():
                shutil.copytree(root / name, where / name, symlinks=True, ignore=LEFT_OUT, copy_function=_link)
            else:
                _link(root / name, where / name)
        self._stamp = int(time.time())

    def pytest(self, ids: Iterable[str], report: Path, limit_s: float | None) -> int | None:
        """Exit status of a pytest run over these ids; None where it passed the limit."""
        places = [str(self.where / "src"), str(self.where)]
        options = ["-q", "-x", "-p", "no:cacheprovider", "-m", "", f"--junitxml={report}"]
        command = [sys.executable, "-c", RUN, *places, *options, *ids]
        report.unlink(missing_ok=True)
        try:
            return subprocess.run(command, cwd=self.where, capture_output=True, timeout=limit_s, check=False).returncode
        except subprocess.TimeoutExpired:
            return None

    def run(self, mutant: Mutant, limit_s: float) -> Outcome:
        """Plant the fault, run its test, take the fault out again."""
        path, original = self.where / mutant.file, self.root / mutant.file
        text = original.read_text(encoding="utf-8").replace(mutant.text, mutant.replacement)
        path.unlink()
        path.write_text(text, encoding="utf-8")
        self._stamp += 2  # compiled files go by whole seconds: no two versions may share one
        os.utime(path, (self._stamp, self._stamp))
        report, started = self.where.parent / f"{self.where.name}.xml", time.monotonic()
        try:
            status = self.pytest([mutant.test], report, limit_s)
        finally:
            path.unlink()
            _link(original, path)
        verdict, detail = verdict_of(status, report)
        return Outcome(mutant.name, verdict, detail, round(time.monotonic() - started, 2))


def _link(source: object, target: object) -> None:
    try:
        os.link(str(source), str(target), follow_symlinks=False)
    except OSError:  # another file system
        shutil.copy2(str(source), str(target))


def verdict_of(status: int | None, report: Path) -> tuple[Verdict, str]:
    """What pytest's exit status and report say: a test that ran and failed, and why."""
    if status is None:
        return "too slow", "the test passed the limit"
    if status == 0:
        return "survived", "the test passes"
    cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
    failures = [failure for case in cases for failure in case.iter("failure")]
    if status != 1 or not failures:
        errors = [error.get("message", "") for case in cases for error in case.iter("error")]
        return "not run", f"pytest ended with status {status}: {(errors or ['no test ran'])[0].splitlines()[0]}"
    said = failures[0].get("message", "").splitlines()[0] if failures[0].get("message") else "no message"
    if said.startswith(NO_KILL):
        return "not run", said
    return "killed", said


def check_unchanged(tree: Tree, mutants: Sequence[Mutant]) -> None:
    """Every named test passes without a fault. Raises MutantsError naming one that does not."""
    report = tree.where.parent / "unchanged.xml"
    status = tree.pytest(sorted({mutant.test for mutant in mutants}), report, None)
    if status != 0:
        cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
        bad = [case.get("name") for case in cases if case.find("failure") is not None or case.find("error") is not None]
        raise MutantsError(f"without any fault, pytest ends with status {status}: {bad[0] if bad else 'nothing ran'}")


def outcomes(mutants: Sequence[Mutant], *, jobs: int, limit_s: float) -> Iterator[Outcome]:
    """Run all of them, `jobs` at a time, in their order. Raises MutantsError."""
    with tempfile.TemporaryDirectory(prefix="kvsweep-mutants-") as place:
        trees: SimpleQueue[Tree] = SimpleQueue()
        for number in range(jobs):
            trees.put(Tree(ROOT, Path(place) / str(number)))

        def one(mutant: Mutant) -> Outcome:
            tree = trees.get()
            try:
                return tree.run(mutant, limit_s)
            finally:
                trees.put(tree)

        tree = trees.get()
        check_unchanged(tree, mutants)
        trees.put(tree)
        with ThreadPoolExecutor(jobs) as pool:
            yield from pool.map(one, mutants)


def chosen(mutants: Sequence[Mutant], names: Sequence[str]) -> list[Mutant]:
    """The mutants of these names, or all. Raises MutantsError for a name that is not there."""
    known: Mapping[str, Mutant] = {mutant.name: mutant for mutant in mutants}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise MutantsError(f"there is no mutant {unknown[0]!r}")
    return [known[name] for name in names] if names else list(mutants)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the mutants. Returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these (default: all)")
    parser.add_argument("--jobs", type=int, default=1, help="at a time (default: 1)")
    parser.add_argument("--limit", type=float, default=20.0, metavar="S", help="seconds a test may take (default: 20)")
    parser.add_argument("--json", action="store_true", help="one JSON document on the standard output, nothing else")
    given = parser.parse_args(arguments)
    started, found = time.monotonic(), []
    try:
        if given.jobs < 1 or given.limit <= 0:
            raise MutantsError(f"expected at least 1 job and a limit above 0, got {given.jobs} and {given.limit:g}")
        mutants = chosen(read_mutants(ROOT / "tests/mutants"), given.names)
        stale = {mutant.name: fault for mutant in mutants if (fault := fault_of(mutant, ROOT)) is not None}
        if stale:
            name, fault = next(iter(stale.items()))
            raise MutantsError(f"{len(stale)} mutant(s) no longer apply; {name}: {fault}")
        for at, outcome in enumerate(outcomes(mutants, jobs=given.jobs, limit_s=given.limit), start=1):
            found.append(outcome)
            if not given.json:
                line = f"{at}/{len(mutants)} {outcome.verdict:8} {outcome.seconds:5.1f} s  {outcome.name}"
                print(line if outcome.verdict == "killed" else f"{line}: {outcome.detail}", flush=True)
    except MutantsError as error:
        print(f"mutants: {error}", file=sys.stderr)
        return 1
    left = [outcome.name for outcome in found if outcome.verdict != "killed"]
    seconds = round(time.monotonic() - started, 1)
    if given.json:
        result = {"mutants": len(found), "killed": len(found) - len(left), "left": left, "seconds": seconds}
        print(json.dumps({**result, "outcomes": [asdict(outcome) for outcome in found]}, indent=2))
    else:
        print(f"{len(found) - len(left)} of {len(found)} killed, {seconds:g} s" + (f"; left: {left}" if left else ""))
    return int(bool(left))


if __name__ == "__main__":
    raise SystemExit(main())
