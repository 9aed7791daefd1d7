"""Worlds searched side by side, each by a fresh interpreter that prints what it found."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from typing import Final

import msgspec

from kvsweep.ledger.errors import KvsweepError
from kvsweep.scenarios.verify.explore.search import Found, explore
from kvsweep.scenarios.verify.explore.worlds import WORLDS

NAMES: Final = tuple(world.name for world in WORLDS)
NO_LIMIT: Final = 0


class ProcessEnded(KvsweepError):
    """A process ended before it had searched its world."""


def _ignored(states: int) -> None:
    """Nobody watches."""


def search_world(name: str, limit: int | None, *, watch: Callable[[int], None] = _ignored) -> Found:
    """One of the worlds that ship."""
    world = next(world for world in WORLDS if world.name == name)
    return explore(world, limit=limit, watch=watch)


def sweep(
    names: Sequence[str],
    *,
    limit: int | None,
    jobs: int,
    watch: Callable[[str, int], None],
) -> Iterator[Found]:
    """Every named world once; with several processes the largest first, in the order in which they end.

    watch  is told a world and how many states it has so far; with several processes the last number only
    Raises ProcessEnded with the last line of a process that ended early.
    """
    if jobs == 1 or len(names) == 1:
        for name in names:
            yield search_world(name, limit, watch=partial(watch, name))
        return
    sizes = {world.name: world.states for world in WORLDS}
    with ThreadPoolExecutor(min(jobs, len(names))) as threads:
        largest_first = sorted(names, key=lambda name: sizes[name], reverse=True)
        waiting = [threads.submit(_apart, name, limit) for name in largest_first]
        try:
            for done in as_completed(waiting):
                found = done.result()
                watch(found.world, found.states)
                yield found
        finally:
            threads.shutdown(wait=False, cancel_futures=True)


def _apart(name: str, limit: int | None) -> Found:
    command = [sys.executable, "-m", __name__, name, str(limit or NO_LIMIT)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode:
        said = done.stderr.decode(errors="replace").splitlines()[-1:]
        raise ProcessEnded(f"the process that searched {name} ended with {done.returncode}, saying {said}")
    return msgspec.json.decode(done.stdout, type=Found)


def _main() -> None:
    name, limit = sys.argv[1:]
    found = search_world(name, int(limit) or None)
    sys.stdout.buffer.write(msgspec.json.encode(found))


if __name__ == "__main__":
    _main()
