"""One scenario run twice and judged, and processes that do so side by side, a line a seed."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import IO, Final

import msgspec
from msgspec import Struct

from kvsweep.ledger.errors import KvsweepError
from kvsweep.scenarios.verify.script.format import Script
from kvsweep.scenarios.verify.script.run import Verdict, run_script
from kvsweep.scenarios.verify.simulate.draw import random_script

SAME_TWICE = "a seed gives one run"


class Judged(Struct, frozen=True, kw_only=True):
    """What the runs of one seed came to. `broken` is empty where all is well; its entries name the law first."""

    seed: int
    broken: tuple[str, ...]
    situations: tuple[str, ...]
    events: int  # of one run


def judge_twice(script: Script) -> Judged:
    """Run it twice: digest and unseed must agree. A draw or an order that hangs on something else shows there."""
    first, second = run_script(script), run_script(script)
    broken = list(first.broken)
    if _identity(first) != _identity(second):
        broken.append(f"{SAME_TWICE}: expected {_identity(first)}, got {_identity(second)}")
    return Judged(seed=script.seed, broken=tuple(broken), situations=tuple(first.reached), events=first.events)


def _identity(verdict: Verdict) -> tuple[str, int, int]:
    return verdict.digest, verdict.unseed, verdict.turns


def law_of(broken: str) -> str:
    """Name of the law that a line of `broken` speaks of."""
    return broken.partition(":")[0].partition(" (turn ")[0]


LINES_WAITING: Final = 1024
ERROR_CHARACTERS: Final = 2000


class WorkerFailed(KvsweepError):
    """A process ended before it had judged all its seeds."""


def judge_seed(seed: int) -> Judged:
    return judge_twice(random_script(seed))


def judged(seeds: range, jobs: int) -> Iterator[Judged]:
    """Every seed once, in any order. Raises WorkerFailed with the last words of a process that ended early."""
    if jobs == 1:
        yield from map(judge_seed, seeds)
        return
    shares = [seeds[at::jobs] for at in range(min(jobs, len(seeds)))]
    lines: queue.Queue[bytes | None] = queue.Queue(LINES_WAITING)
    processes = [_start(share) for share in shares]
    try:
        for process in processes:
            threading.Thread(target=_read, args=(process.stdout, lines), daemon=True).start()
        running = len(processes)
        while running:
            line = lines.get()
            if line is None:
                running -= 1
            else:
                yield msgspec.json.decode(line, type=Judged)
        for process in processes:
            said = process.stderr.read() if process.stderr else b""
            if process.wait():
                words = said.decode(errors="replace")[-ERROR_CHARACTERS:]
                raise WorkerFailed(f"a process of the sweep ended with {process.returncode}: {words}")
    finally:
        for process in processes:
            process.kill()
            process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()


def _start(share: range) -> subprocess.Popen[bytes]:
    numbers = [str(number) for number in (share.start, share.stop, share.step)]
    return subprocess.Popen(
        [sys.executable, "-m", __name__, *numbers],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def _read(pipe: IO[bytes] | None, lines: queue.Queue[bytes | None]) -> None:
    try:
        for line in pipe or ():
            lines.put(line)
    except ValueError:
        pass  # closed: nobody waits for the rest
    finally:
        lines.put(None)


def main(arguments: list[str]) -> None:
    """Judge range(START, STOP, STEP)."""
    for seed in range(*map(int, arguments)):
        sys.stdout.buffer.write(msgspec.json.encode(judge_seed(seed)) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
