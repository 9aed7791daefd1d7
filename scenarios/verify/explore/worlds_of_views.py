"""Worlds of selections: uploads, retains, and what may happen to them."""

from typing import Final

from kvsweep.scenarios.verify.explore.calls import PACK, THREE, W0, W1, W2, one, retain, rounds, select
from kvsweep.scenarios.verify.explore.world import Asker, Faults, World

VIEWS: Final[tuple[World, ...]] = (
    World(
        name="churn",
        title="Three rounds of churn in a pool of three blocks, with an abort and a step",
        askers=one(*rounds(W0, W1, W2)),
        faults=Faults(aborts=1),
        blocks=3, steps=1,
        sometimes=(
            "committed under an open step", "a start comes again", "a word is duplicate", "a word is stale",
            "retain by layer", "a vacant area is reused while an older generation is read",
            "a vacant area is reused while an attempt settles", "vacant areas and a new block in one plan",
            "refused: no_row", "refused: no_space",
        ),
        states=20_726,
    ),
    World(
        name="tight",
        title="Three rounds of churn in a pool of two blocks: only vacant areas make it end",
        askers=one(*rounds(W0, W1, W2)),
        faults=Faults(), blocks=2, steps=3, rows=4,
        sometimes=(
            "refused: no_space", "a vacant area is reused under an open step", "a vacant area is reused",
            "steps end out of order",
        ),
        states=1_025,
    ),
    World(
        name="preempt",
        title="Preempted and resumed under open steps",
        askers=one(select(*W0), retain(*W1)),
        faults=Faults(preemptions=2, aborts=1), steps=3, blocks=4, rows=4,
        sometimes=(
            "preempted in upload MOVING", "preempted in upload COMMITTED", "preempted in retain APPLYING",
            "preempted in retain COMMITTED", "preempted in retain RETIRED", "preempted in settling",
            "preempted under an open step", "resumed while an attempt settles",
        ),
        states=76_582,
    ),
    World(
        name="preempt-churn",
        title="Preempted in any round of churn: areas are vacant beside what older generations still read",
        askers=one(*rounds(W0, W1)),
        faults=Faults(preemptions=1), steps=2, blocks=4, rows=4,
        sometimes=(
            "a vacant area is reused while an older generation is read", "vacant areas and a new block in one plan",
            "a vacant area is reused under an open step", "preempted in retain COMMITTED",
            "a vacant area is reused",
        ),
        states=15_680,
    ),
    World(
        name="restart-churn",
        title="A rank or the producer restarts in any round of churn",
        askers=one(*rounds(W0, W1)),
        faults=Faults(rank_restarts=1, producer_restarts=1), blocks=4,
        sometimes=(
            "a rank ends in retain APPLYING", "a rank ends in upload MOVING",
            "the producer restarts in retain APPLYING", "the producer restarts in upload COMMITTED",
            "a vacant area is reused", "a command for another process",
        ),
        states=107_756,
    ),
    World(
        name="failure-churn",
        title="An operation fails on a rank in any round of churn and is asked for again",
        askers=one(*rounds(W0, W1)),
        faults=Faults(failures=1, repetitions=1), blocks=4,
        sometimes=(
            "a vacant area is reused while an attempt settles", "aborted after one rank had completed",
            "a keep map is published",
        ),
        states=4_844,
    ),
    World(
        name="failure",
        title="An operation fails on a rank and is asked for again while the first attempt settles",
        askers=one(select(*W0), retain(*W1)),
        faults=Faults(failures=1, repetitions=1), steps=1, blocks=6,
        sometimes=(
            "a retry starts while an attempt settles", "aborted after one rank had completed", "retain by layer",
        ),
        states=4_360,
    ),
    World(
        name="quarantine",
        title="After an abort the next attempt has other contents",
        askers=one(select((0,), (1,)), select((2,), (3,)), select((4,), (0,))),
        faults=Faults(aborts=2), steps=2, blocks=4, rows=4,
        sometimes=(
            "a cancel comes before its start", "a cancel stops a queued operation",
            "a start comes after its cancel", "copies run after the abort", "aborted after one rank had completed",
            "settling ends a quarantine", "a retry starts while an attempt settles", "a command below the floor",
            "the last reader retires a generation",
        ),
        states=119_147,
    ),
    World(
        name="two-rows",
        title="Double buffering: with two rows a plan waits until the older generation has drained",
        askers=one(select(*W0), retain(*W1)),
        faults=Faults(aborts=1, preemptions=1), steps=3, blocks=4, rows=2,
        sometimes=(
            "preempted in retain APPLYING", "preempted under an open step",
            "a retry starts while an attempt settles", "the last reader retires a generation",
        ),
        states=21_696,
    ),
    World(
        name="compete",
        title="Two requests compete for a pool that cannot hold both",
        askers=(
            Asker(name="a", blocks=3, calls=(select((0, 1), (1, 2)), retain((1,), (2,)))),
            Asker(name="b", blocks=3, calls=(select((0, 1), (0, 1)),)),
        ),
        faults=Faults(aborts=1, finishes=1), steps=1, blocks=3,
        sometimes=(
            "finished in retain COMMITTED", "finished in settling", "finished in upload COMMITTED",
            "finished in upload MOVING", "finished in retain APPLYING", "finished in retain RETIRED",
            "finished under an open step", "closed", "refused: no_space",
        ),
        states=69_825,
    ),
    World(
        name="byte-move",
        title="One table a group: layers that keep different slots have their bytes moved",
        askers=one(select((0, 1, 2), (0, 1, 2)), retain((0, 1), (1, 2))),
        faults=Faults(aborts=1, preemptions=1), steps=2, blocks=6, layer_tables=False,
        sometimes=(
            "retain by move", "preempted in retain APPLYING", "aborted after one rank had completed",
        ),
        states=18_968,
    ),
    World(
        name="pack",
        title="Scattered areas are packed, then an upload fills what became vacant",
        askers=one(select((0, 1, 2), (0, 1, 2)), retain((0,), (2,)), PACK, select((0, 4), (2, 4))),
        faults=Faults(aborts=1), steps=2, blocks=4, rows=4,
        sometimes=(
            "retain by pack", "bytes move into a vacant area", "a vacant area is reused while an attempt settles",
            "vacant areas and a new block in one plan", "steps end out of order",
        ),
        states=24_095,
    ),
    World(
        name="rank-restart",
        title="A rank restarts and is heard of late, or its loss is heard of first",
        askers=one(select(*W0), retain(*W1)),
        faults=Faults(rank_restarts=1, losses_seen=True), steps=2, blocks=4,
        sometimes=(
            "a rank ends in retain COMMITTED", "a rank ends in retain APPLYING", "a rank ends in retain RETIRED",
            "refused: rank_lost", "a rank ends in upload COMMITTED", "a rank ends in upload MOVING",
            "a command for another process", "a rank ends in settling", "preempted in retain COMMITTED",
        ),
        states=6_562,
    ),
    World(
        name="rank-restart-abort",
        title="A rank restarts while attempts settle",
        askers=one(select(*W0), select(*W1)),
        faults=Faults(rank_restarts=1, aborts=1), steps=1, blocks=6, forged=True,
        sometimes=(
            "a forged word is conflict", "a forged word is future", "a forged word is stale",
            "a rank ends in upload COMMITTED", "a rank ends in upload MOVING", "a command for another process",
            "a rank ends in settling", "preempted in settling",
        ),
        states=17_334,
    ),
    World(
        name="producer-restart",
        title="The producer restarts; its blocks are registered again",
        askers=one(select(*W0), retain(*W1)),
        faults=Faults(producer_restarts=1, aborts=1), steps=1, blocks=4,
        sometimes=(
            "the producer restarts in retain COMMITTED", "the producer restarts in retain APPLYING",
            "the producer restarts in retain RETIRED", "the producer restarts in settling",
            "the producer restarts in upload COMMITTED", "the producer restarts in upload MOVING",
        ),
        states=19_094,
    ),
    World(
        name="three-layers",
        title="Three layers of different choices",
        askers=one(*rounds(*THREE)),
        faults=Faults(aborts=1), steps=1, blocks=4, layers=3,
        sometimes=(
            "a vacant area is reused under an open step", "a vacant area is reused", "retain by shared",
        ),
        states=6_351,
    ),
    World(
        name="three-ranks",
        title="Three ranks answer in any order",
        askers=one(select((0,), (1,)), retain((), (1,))),
        faults=Faults(aborts=2), steps=2, blocks=3, ranks=3,
        sometimes=(
            "aborted after one rank had completed", "steps end out of order", "settling ends a quarantine",
        ),
        states=172_036,
    ),
    World(
        name="layer-by-layer",
        title="A rank copies layer after layer; commands and restarts come in between",
        askers=one(select(*W0), select(*W1)),
        faults=Faults(aborts=1, failures=1, rank_restarts=1), steps=1, blocks=6, by_layer=True,
        sometimes=(
            "a cancel comes too late to stop copies", "a rank ends in upload COMMITTED",
            "a rank ends in upload MOVING", "a command for another process", "a rank ends in settling",
            "preempted in settling",
        ),
        states=141_954,
    ),
    World(
        name="copy",
        title="The producer gathers into copy destinations, which are leased like sources",
        askers=one(select(*W0), retain(*W1)),
        faults=Faults(aborts=2, producer_restarts=1), steps=1, blocks=4, copies=2,
        sometimes=(
            "the producer restarts in upload MOVING", "the producer restarts in settling",
            "copies run after the abort",
        ),
        states=34_618,
    ),
    World(
        name="zero-bytes",
        title="A plan of zero bytes publishes a keep map and changes no table",
        askers=one(select((0, 1), (0, 1)), select((1,), (0,)), retain((1,), (0,))),
        faults=Faults(aborts=1, preemptions=1, producer_restarts=1), steps=1, blocks=4, ranks=1,
        sometimes=(
            "preempted in upload PUBLISHED", "the producer restarts in upload PUBLISHED",
            "the producer restarts in retain COMMITTED", "the producer restarts in retain APPLYING",
            "the producer restarts in retain RETIRED", "the producer restarts in settling",
            "the producer restarts in upload COMMITTED", "the producer restarts in upload MOVING",
        ),
        states=51_206,
    ),
    World(
        name="lives",
        title="A request finishes in the middle of anything and its id begins a new life",
        askers=one(select(*W0), retain(*W1)),
        faults=Faults(finishes=2, reopenings=1), steps=2, blocks=4, forged=True,
        sometimes=(
            "a new life of the same id", "a forged word is conflict", "a forged word is future",
            "a forged word is stale", "finished in retain COMMITTED", "finished in upload COMMITTED",
            "finished in upload MOVING", "finished in retain APPLYING", "finished in retain RETIRED",
        ),
        states=8_832,
    ),
    World(
        name="repeated-calls",
        title="A call whose answer was lost is made again under its key, at any later moment",
        askers=one(select(*W0), retain(*W1)),
        faults=Faults(aborts=1, preemptions=1), steps=1, blocks=4, keyed=True,
        sometimes=(
            "preempted in retain APPLYING", "resumed while an attempt settles",
            "a retry starts while an attempt settles",
        ),
        states=15_546,
    ),
    World(
        name="mixed",
        title="One of every fault, at any moment of an upload and a retain on one rank",
        askers=one(select((0,), (1,)), retain((0,), ())),
        faults=Faults(aborts=1, failures=1, preemptions=1, finishes=1, rank_restarts=1, producer_restarts=1),
        steps=1, blocks=3, ranks=1,
        sometimes=(
            "finished in upload MOVING", "finished in settling", "a rank ends in settling",
            "preempted in retain APPLYING", "the producer restarts in settling",
            "resumed while an attempt settles", "closed",
        ),
        states=69_764,
    ),
)  # fmt: skip
