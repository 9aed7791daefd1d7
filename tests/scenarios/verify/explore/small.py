"""Worlds of some hundred states, for tests."""

from typing import Any

from kvsweep.scenarios.verify.explore.search import Found
from kvsweep.scenarios.verify.explore.world import Ask, Asker, Faults, World
from kvsweep.scenarios.verify.explore.worlds import WORLDS

UPLOADS = (Ask("select", ((0,), (1,))), Ask("select", ((2,), (3,))))


def small(*calls: Ask, known: int = 4, **fields: Any) -> World:
    """One request that makes these calls; `known` of its blocks are on the CPU when it begins."""
    askers = (Asker(name="a", blocks=known, calls=calls or UPLOADS),)
    return World(**{"name": "small", "title": "small", "askers": askers, "sometimes": (), "states": 0, **fields})


def shipped(name: str) -> World:
    return next(world for world in WORLDS if world.name == name)


def only(found: Found) -> str:
    """The law that the search found broken."""
    assert found.broken, f"{found.states} states and nothing is broken"
    return found.broken[0]


REMAP = (Ask("select", ((0, 1), (1, 2))), Ask("retain", ((1,), (1,))))
SMALL = {
    "abort": small(faults=Faults(aborts=1)),
    "step": small(UPLOADS[0], Ask("retain", ((0,), ())), Ask("select", ((0,), (2,))), steps=1, blocks=2),
    "preempt": small(*REMAP, faults=Faults(preemptions=1), steps=1),
    "finish": small(faults=Faults(finishes=1, reopenings=1), steps=1),
    "forged": small(UPLOADS[0], forged=True),
    "repeated": small(UPLOADS[0], keyed=True, faults=Faults(aborts=1)),
    "failure": small(UPLOADS[0], faults=Faults(failures=1, repetitions=1)),
    "rank": small(UPLOADS[0], faults=Faults(rank_restarts=1, losses_seen=True)),
    "producer": small(faults=Faults(producer_restarts=1)),
    "store": small(Ask("tail", until=2), Ask("seal", until=1), Ask("seal", until=2), known=0, steps=1),
    "stored": small(
        Ask("tail", until=2), Ask("seal", until=1), Ask("seal", until=2),
        known=0, ranks=1, faults=Faults(finishes=1, reopenings=1),
    ),
    "lost": small(Ask("tail", until=1), known=0, faults=Faults(preemptions=1, finishes=1), steps=1),
    "fence": small(
        Ask("tail", until=1), Ask("seal", until=1), Ask("select", ((0,), ())), Ask("retain", ((0,), ())),
        Ask("select", ((0,), (0,))),
        known=0, steps=1, blocks=2,
    ),
    "move": small(
        Ask("select", ((0, 1), (0, 1))), Ask("retain", ((0,), (1,))), layer_tables=False, faults=Faults(aborts=1),
    ),
    "pack": small(Ask("select", ((0, 1), (0, 1))), Ask("retain", ((0,), (1,))), Ask("pack"), steps=1),
    "published": small(Ask("select", ((), ())), ranks=1, faults=Faults(preemptions=1, producer_restarts=1)),
    "prefix": World(
        name="prefix", title="prefix", sometimes=(), states=0, shared_text=1, blocks=2, ranks=1,
        askers=(
            Asker(name="a", blocks=0, calls=(
                Ask("tail", until=1), Ask("seal", until=1), Ask("publish", until=1), Ask("select", ((0,), (0,))),
                Ask("retain", ((0,), (0,))),
            )),
            Asker(name="b", blocks=0, calls=(
                Ask("attach", until=1), Ask("retain", ((0,), (0,))), Ask("evict", until=1),
            )),
        ),
    ),
    "copy": small(UPLOADS[0], faults=Faults(aborts=1), copies=1),
}  # fmt: skip
