"""Breadth first through a world: every state once, every law in each, and the shortest way to a broken one."""

from array import array
from collections.abc import Callable

from msgspec import Struct

from kvsweep.scenarios.verify.explore.space import Space
from kvsweep.scenarios.verify.explore.world import World

PROGRESS_STATES = 2048
"""States between two reports about how far the search is."""


class Found(Struct, frozen=True, kw_only=True):
    """What a search of one world saw. `cut` searches stopped at a limit: nothing follows from what they did not see."""

    world: str
    title: str
    states: int
    coordinator_states: int  # distinct states of the coordinator's part alone
    depth: int  # actions from the start to the farthest state
    broken: tuple[str, ...]  # laws broken in the first state that breaks any, or on the way into it
    trail: tuple[str, ...]  # the actions that lead there, fewest first found
    sometimes_missing: tuple[str, ...]
    cut: bool


def explore(
    world: World,
    *,
    limit: int | None = None,
    watch: Callable[[int], None] = lambda states: None,
    space: Space | None = None,
) -> Found:
    """Search the whole world, or up to `limit` states; `watch` is told how many there are so far."""
    return Search(world, limit, watch, space or Space(world)).run()


class Search:
    """States by number in order of discovery; the edges of progress are kept to see that everything drains."""

    def __init__(self, world: World, limit: int | None, watch: Callable[[int], None], space: Space) -> None:
        self.world, self.space = world, space
        self._limit, self._watch = limit, watch
        self.states: list[int] = []
        self.known: dict[int, int] = {}
        self._parent = array("L")
        self._depth = array("L")
        self._edges = array("L")  # of progress: numbers of the states they lead to
        self._edges_end = array("L")  # by state

    def run(self) -> Found:
        space = self.space
        first = space.first()
        broken, at, cut = space.broken(first), 0, False
        self._add(first, 0, 0)
        last: str | None = None
        while not broken and at < len(self.states):
            if at % PROGRESS_STATES == 0:
                self._watch(len(self.states))
            state, progress = self.states[at], 0
            for action, after, forward, faults in space.successors(state):
                number = self.known.get(after)
                if number is None:
                    if self._limit is not None and len(self.states) >= self._limit:
                        cut = True
                        continue
                    number = self._add(after, at, self._depth[at] + 1)
                    broken = (*faults, *space.broken(after))
                elif faults:
                    broken = faults
                if forward:
                    progress += 1
                    self._edges.append(number)
                if broken:
                    last = action
                    break
            self._edges_end.append(len(self._edges))
            if not broken and not progress and not cut:
                broken = tuple(f"everything drains: nothing is under way, and {why}" for why in space.undrained(state))
                last = None
            if broken:
                break
            at += 1
        trail = () if not broken else self._trail(at) + ((last,) if last else ())
        if not broken and not cut:
            broken = self._circles()
        missing = () if broken or cut else (*sorted(set(self.world.sometimes) - space.reached), *space.never_made())
        return Found(
            world=self.world.name,
            title=self.world.title,
            states=len(self.states),
            coordinator_states=len(space.coordinators),
            depth=max(self._depth),
            broken=broken,
            trail=trail,
            sometimes_missing=missing,
            cut=cut,
        )

    def _add(self, state: int, parent: int, depth: int) -> int:
        number = self.known[state] = len(self.states)
        self.states.append(state)
        self._parent.append(parent)
        self._depth.append(depth)
        return number

    def _trail(self, number: int) -> tuple[str, ...]:
        """The actions from the start to a state."""
        actions: list[str] = []
        while number:
            parent = self._parent[number]
            state = self.states[number]
            actions.append(
                next(action for action, after, _, _ in self.space.successors(self.states[parent]) if after == state)
            )
            number = parent
        return tuple(reversed(actions))

    def _circles(self) -> tuple[str, ...]:
        """Progress that comes back to where it was would never end; taking away states without any leaves circles."""
        waits = array("L", [0]) * len(self.states)
        start = 0
        for end in self._edges_end:
            for edge in range(start, end):
                waits[self._edges[edge]] += 1
            start = end
        ready = [number for number, count in enumerate(waits) if not count]
        gone = 0
        while ready:
            number = ready.pop()
            gone += 1
            for edge in range(self._edges_end[number - 1] if number else 0, self._edges_end[number]):
                waits[self._edges[edge]] -= 1
                if not waits[self._edges[edge]]:
                    ready.append(self._edges[edge])
        left = len(self.states) - gone
        return (f"everything drains: progress goes round in circles through {left} states",) if left else ()
