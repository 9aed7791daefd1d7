"""Worlds searched side by side, each by one process."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context

from kvsweep.ledger.errors import KvsweepError
from kvsweep.scenarios.explore.search import Found, explore
from kvsweep.scenarios.explore.worlds import WORLDS

NAMES = tuple(world.name for world in WORLDS)


class ProcessEnded(KvsweepError):
    """A process of the sweep ended before it had searched its world."""


def search_world(name: str, limit: int | None, watch: Callable[[int], None] = lambda states: None) -> Found:
    """One of the worlds that ship."""
    return explore(WORLDS[NAMES.index(name)], limit=limit, watch=watch)


def sweep(
    names: Sequence[str],
    *,
    limit: int | None,
    jobs: int,
    watch: Callable[[str, int], None] = lambda world, states: None,
) -> Iterator[Found]:
    """Every named world once; with several processes the largest first and in the order in which they end.

    watch  is told a world and how many states it has so far; with several processes only the last number
    Raises ProcessEnded.
    """
    if jobs == 1 or len(names) == 1:
        for name in names:
            yield search_world(name, limit, lambda states, name=name: watch(name, states))  # type: ignore[misc]
        return
    largest = sorted(names, key=lambda name: -WORLDS[NAMES.index(name)].states)
    with ProcessPoolExecutor(min(jobs, len(names)), mp_context=get_context("spawn")) as pool:
        waiting = [pool.submit(search_world, name, limit) for name in largest]
        try:
            for done in as_completed(waiting):
                found = done.result()
                watch(found.world, found.states)
                yield found
        except BrokenProcessPool as error:
            raise ProcessEnded(
                "a process of the sweep ended early: is there memory enough for so many jobs?"
            ) from error
        finally:
            for one in waiting:
                one.cancel()
