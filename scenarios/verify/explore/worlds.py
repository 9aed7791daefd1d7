"""The worlds that ship. Each asks one question of the protocol and says what has to come up on the way."""

from typing import Final

from kvsweep.scenarios.verify.explore.world import Ask, Asker, AskKind, Faults, Want, World


def select(*want: tuple[int, ...]) -> Ask:
    return Ask("select", want)


def retain(*want: tuple[int, ...]) -> Ask:
    return Ask("retain", want)


def until(what: AskKind, blocks: int) -> Ask:
    """A call on the first logical blocks."""
    return Ask(what, until=blocks)


PACK: Final = Ask("pack")


def rounds(*wants: Want) -> tuple[Ask, ...]:
    """The first want is uploaded; each further round keeps what it still wants and uploads the rest."""
    first, *others = wants
    calls = [Ask("select", first)]
    for want in others:
        calls += [Ask("retain", want), Ask("select", want)]
    return tuple(calls)


def one(*calls: Ask, blocks: int = 5) -> tuple[Asker, ...]:
    """One request, of which the CPU has `blocks` blocks when it begins."""
    return (Asker(name="a", blocks=blocks, calls=calls),)


W0: Final[Want] = ((0, 1), (1, 2))
W1: Final[Want] = ((1, 3), (0, 1))  # the layers keep different slots
W2: Final[Want] = ((0, 3), (1, 4))
THREE: Final[tuple[Want, ...]] = (((0, 1), (1, 2), (2, 3)), ((1, 4), (0, 1), (2, 3)))


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


VIEWS: Final[tuple[World, ...]] = (
    World(
        name="churn",
        title="Three rounds of churn in a pool of three blocks, with an abort and a step",
        askers=one(*rounds(W0, W1, W2)),
        faults=Faults(aborts=1),
        blocks=3, steps=1,
        sometimes=(
            "committed under an open step", "a start comes again", "a report is duplicate", "a report is stale",
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
            "a forged report is conflict", "a forged report is future", "a forged report is stale",
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
            "a new life of the same id", "a forged report is conflict", "a forged report is future",
            "a forged report is stale", "finished in retain COMMITTED", "finished in upload COMMITTED",
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


WORLDS: Final[tuple[World, ...]] = (*VIEWS, *TAILS)
