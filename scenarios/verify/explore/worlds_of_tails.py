"""Worlds of what decoding writes: tails, stores, windows, shared prefixes."""

from typing import Final

from kvsweep.scenarios.verify.explore.calls import PACK, one, retain, select, until
from kvsweep.scenarios.verify.explore.world import Asker, Faults, World

TAILS: Final[tuple[World, ...]] = (
    World(
        name="store",
        title="Decoding writes a block, it is stored, and becomes a slot",
        askers=one(select((0,), (1,)), until("tail", 6), until("seal", 6), retain((0, 5), (5,))),
        faults=Faults(aborts=1), steps=1, blocks=3,
        sometimes=("a tail block becomes a slot", "the last step opens a fence", "a store completes"),
        states=76_222,
    ),
    World(
        name="fence",
        title="A tail block of which one layer keeps a slot: the rest of it is vacant only when the steps have ended",
        askers=one(
            until("tail", 3), until("seal", 3), select((2,), ()), retain((2,), ()), select((2,), (0,)), blocks=2,
        ),
        faults=Faults(aborts=1), steps=2, blocks=2,
        sometimes=(
            "a tail block becomes a slot", "a vacant area is reused under an open step",
            "the last step opens a fence",
        ),
        states=7_160,
    ),
    World(
        name="store-preempt",
        title="A block that is being written is lost by preemption, a sealed one is stored first",
        askers=one(until("tail", 2), until("seal", 1), until("seal", 2), blocks=0),
        faults=Faults(preemptions=1, finishes=1, failures=1), steps=1, blocks=3,
        sometimes=(
            "a tail block is lost", "finished in settling", "finished in store MOVING", "preempted in store MOVING",
            "finished under an open step", "closed", "the last step opens a fence", "a store completes",
            "preempted in settling",
        ),
        states=36_638,
    ),
    World(
        name="store-restart",
        title="A rank or the producer restarts around a store",
        askers=one(until("tail", 1), until("seal", 1), select((0,), (0,)), blocks=0),
        faults=Faults(rank_restarts=1, producer_restarts=1, losses_seen=True), steps=1, blocks=3,
        sometimes=(
            "a rank ends in store MOVING", "a rank ends in upload PUBLISHED",
            "the producer restarts in store MOVING", "a tail block is lost", "preempted in store MOVING",
            "preempted in upload PUBLISHED", "refused: rank_lost", "the producer restarts in upload PUBLISHED",
            "a command for another process",
        ),
        states=10_999,
    ),
    World(
        name="prefix",
        title="Two requests share a block, each drops it, and the cache gives it up, in any order",
        askers=(
            Asker(name="a", blocks=0, calls=(
                until("tail", 1), until("seal", 1), until("publish", 1), select((0,), (0,)), retain((0,), (0,)),
                retain((), ()),
            )),
            Asker(name="b", blocks=0, calls=(
                until("attach", 1), select((0,), (0,)), retain((0,), (0,)), until("evict", 1),
            )),
        ),
        faults=Faults(finishes=1), blocks=2, ranks=1, shared_text=1,
        sometimes=(
            "a prefix is attached", "a prefix is evicted under two readers", "finished in upload PUBLISHED",
            "a prefix is evicted", "a prefix is evicted under a reader", "a prefix is published",
            "finished in store MOVING", "finished in retain APPLYING", "finished in retain RETIRED",
        ),
        states=10_855,
    ),
    World(
        name="publish-churn",
        title="A published block stays whole while the request that wrote it churns",
        askers=one(
            until("tail", 1), until("seal", 1), until("publish", 1), until("tail", 2), until("seal", 2),
            select((0, 1), (0, 1)), retain((0,), (1,)), select((0,), (0, 1)), until("evict", 1), blocks=0,
        ),
        faults=Faults(aborts=1), steps=2, blocks=4, shared_text=1,
        sometimes=(
            "a prefix is evicted", "a prefix is evicted under a reader", "a prefix is published",
            "a tail block becomes a slot", "the last step opens a fence", "a store completes",
        ),
        states=7_157,
    ),
    World(
        name="window",
        title="A group of sliding windows drops what no query sees any more, while steps and stores go on",
        askers=one(
            until("tail", 3), until("seal", 2), until("seal", 3), select((1,), (2,)), retain((1,), (2,)), blocks=0,
        ),
        faults=Faults(aborts=1), steps=2, blocks=4, sliding=1,
        sometimes=("a tail block becomes a slot", "the last step opens a fence", "a store completes"),
        states=12_327,
    ),
    World(
        name="prefix-move",
        title="Bytes are moved and packed beside a shared block, which nobody writes",
        askers=one(
            until("tail", 1), until("seal", 1), until("publish", 1), until("tail", 2), until("seal", 2),
            select((0, 1), (0, 1)), retain((0, 1), (0, 1)), retain((0,), (1,)), PACK, blocks=0,
        ),
        faults=Faults(aborts=1, finishes=1), steps=1, ranks=1, shared_text=1, layer_tables=False,
        sometimes=("retain by move", "retain by pack", "a prefix is published", "a tail block becomes a slot"),
        states=2_788,
    ),
)  # fmt: skip
