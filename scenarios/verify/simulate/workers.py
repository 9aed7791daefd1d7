"""Processes that judge seeds side by side, each a fresh interpreter that prints one line a seed."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import IO, Final

import msgspec

from kvsweep.ledger.errors import KvsweepError
from kvsweep.scenarios.verify.simulate.draw import random_script
from kvsweep.scenarios.verify.simulate.judge import Judged, judge_twice

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
