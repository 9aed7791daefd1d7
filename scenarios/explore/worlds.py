"""The worlds that ship. Each asks one question of the protocol and says what has to come up on the way."""

from typing import Final

from kvsweep.scenarios.explore.world import Ask, Asker, Faults, Want, World


def select(*want: tuple[int, ...]) -> Ask:
    return Ask("select", want)


def retain(*want: tuple[int, ...]) -> Ask:
    return Ask("retain", want)


def until(what: str, blocks: int) -> Ask:
    kinds = {"tail": "tail", "seal": "seal", "publish": "publish", "attach": "attach", "evict": "evict"}
    return Ask(kinds[what], until=blocks)  # type: ignore[arg-type]


PACK: Final = Ask("pack")


def rounds(*wants: Want) -> tuple[Ask, ...]:
    """The first want is uploaded; each further round keeps what it still wants and uploads the rest."""
    first, *others = wants
    calls = [Ask("select", first)]
    for want in others:
        calls += [Ask("retain", want), Ask("select", want)]
    return tuple(calls)


def one(*calls: Ask, blocks: int = 5) -> tuple[Asker, ...]:
    return (Asker(name="a", blocks=blocks, calls=calls),)


W0: Final[Want] = ((0, 1), (1, 2))
W1: Final[Want] = ((1, 3), (1, 0))  # the layers keep different slots
W2: Final[Want] = ((3, 0), (1, 4))
THREE: Final[tuple[Want, ...]] = (((0, 1), (1, 2), (2, 3)), ((1, 4), (1, 0), (2, 3)))

WORLDS: Final[tuple[World, ...]] = (
    World(
        name="churn",
        title="Three rounds of churn in a pool of three blocks, with an abort and two steps",
        askers=one(*rounds(W0, W1, W2)),
        faults=Faults(aborts=1, repetitions=1),
        blocks=3, steps=2, forged=True,
        sometimes=(), states=0,
    ),
    World(
        name="tight",
        title="Three rounds of churn in a pool of two blocks: only vacant areas make it end",
        askers=one(*rounds(W0, W1, W2)),
        faults=Faults(), blocks=2, steps=3, rows=4,
        sometimes=(), states=0,
    ),
    World(
        name="preempt",
        title="Preempted and resumed under open steps",
        askers=one(*rounds(W0, W1)),
        faults=Faults(preemptions=2, aborts=1), steps=3, blocks=4, rows=4,
        sometimes=(), states=0,
    ),
    World(
        name="failure",
        title="An operation fails on a rank and is asked for again while the first attempt settles",
        askers=one(*rounds(W0, W1)),
        faults=Faults(failures=1, repetitions=1), steps=1, blocks=6,
        sometimes=(), states=0,
    ),
    World(
        name="quarantine",
        title="After an abort the next attempt has other contents",
        askers=one(select((0,), (1,)), select((2,), (3,)), select((4,), (0,))),
        faults=Faults(aborts=2), steps=2, blocks=4, rows=4,
        sometimes=(), states=0,
    ),
    World(
        name="two-rows",
        title="Double buffering: with two rows a plan waits until the older generation has drained",
        askers=one(*rounds(W0, W1)),
        faults=Faults(aborts=1, preemptions=1), steps=3, blocks=4, rows=2,
        sometimes=(), states=0,
    ),
    World(
        name="compete",
        title="Two requests compete for a pool that cannot hold both",
        askers=(
            Asker(name="a", blocks=3, calls=(select((0, 1), (1, 2)), retain((1,), (2,)))),
            Asker(name="b", blocks=3, calls=(select((0, 1), (0, 1)),)),
        ),
        faults=Faults(aborts=1, finishes=1), steps=1, blocks=3,
        sometimes=(), states=0,
    ),
    World(
        name="byte-move",
        title="One table a group: layers that keep different slots have their bytes moved",
        askers=one(select((0, 1, 2), (0, 1, 2)), retain((0, 1), (1, 2)), select((0, 3), (3, 1))),
        faults=Faults(aborts=1, preemptions=1), steps=2, blocks=6, layer_tables=False,
        sometimes=(), states=0,
    ),
    World(
        name="pack",
        title="Scattered areas are packed, then an upload fills what became vacant",
        askers=one(select((0, 1, 2), (0, 1, 2)), retain((0,), (2,)), PACK, select((0, 4), (2, 4))),
        faults=Faults(aborts=1), steps=2, blocks=4, rows=4,
        sometimes=(), states=0,
    ),
    World(
        name="rank-restart",
        title="A rank restarts and is heard of late, or its loss is heard of first",
        askers=one(*rounds(W0, W1)),
        faults=Faults(rank_restarts=1, losses_seen=True), steps=2, blocks=4,
        sometimes=(), states=0,
    ),
    World(
        name="rank-restart-abort",
        title="A rank restarts while attempts settle",
        askers=one(select(*W0), select(*W1)),
        faults=Faults(rank_restarts=2, aborts=1), steps=1, blocks=6, forged=True,
        sometimes=(), states=0,
    ),
    World(
        name="producer-restart",
        title="The producer restarts; its blocks are registered again",
        askers=one(*rounds(W0, W1)),
        faults=Faults(producer_restarts=1, aborts=1), steps=1, blocks=4,
        sometimes=(), states=0,
    ),
    World(
        name="store",
        title="Decoding writes a block, it is stored, and becomes a slot",
        askers=one(select((0,), (1,)), until("tail", 6), until("seal", 6), retain((0, 5), (5,))),
        faults=Faults(aborts=1), steps=1, blocks=3,
        sometimes=(), states=0,
    ),
    World(
        name="fence",
        title="A tail block of which one layer keeps a slot: the rest of it is vacant only when the steps have ended",
        askers=one(
            until("tail", 3), until("seal", 3), select((2,), ()), retain((2,), ()), select((2,), (0,)), blocks=2,
        ),
        faults=Faults(aborts=1), steps=2, blocks=2,
        sometimes=(), states=0,
    ),
    World(
        name="store-preempt",
        title="A block that is being written is lost by preemption, a sealed one is stored first",
        askers=one(until("tail", 2), until("seal", 1), until("seal", 2), blocks=0),
        faults=Faults(preemptions=1, finishes=1, failures=1), steps=1, blocks=3,
        sometimes=(), states=0,
    ),
    World(
        name="store-restart",
        title="A rank or the producer restarts around a store",
        askers=one(until("tail", 1), until("seal", 1), select((0,), (0,)), blocks=0),
        faults=Faults(rank_restarts=1, producer_restarts=1, losses_seen=True), steps=1, blocks=3,
        sometimes=(), states=0,
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
        faults=Faults(finishes=1), steps=1, blocks=2, ranks=1, shared_text=1,
        sometimes=(), states=0,
    ),
    World(
        name="publish-churn",
        title="A published block stays whole while the request that wrote it churns",
        askers=one(
            until("tail", 1), until("seal", 1), until("publish", 1), until("tail", 2), until("seal", 2),
            select((0, 1), (0, 1)), retain((0,), (1,)), select((0,), (0, 1)), until("evict", 1), blocks=0,
        ),
        faults=Faults(aborts=1), steps=2, blocks=4, shared_text=1,
        sometimes=(), states=0,
    ),
    World(
        name="three-layers",
        title="Three layers of different choices",
        askers=one(*rounds(*THREE)),
        faults=Faults(aborts=1), steps=2, blocks=4, layers=3,
        sometimes=(), states=0,
    ),
    World(
        name="three-ranks",
        title="Three ranks answer in any order",
        askers=one(select((0,), (1,)), retain((), (1,))),
        faults=Faults(aborts=2), steps=2, blocks=3, ranks=3,
        sometimes=(), states=0,
    ),
    World(
        name="layer-by-layer",
        title="A rank copies layer after layer; commands and restarts come in between",
        askers=one(select(*W0), select(*W1)),
        faults=Faults(aborts=1, failures=1, rank_restarts=1), steps=1, blocks=6, by_layer=True,
        sometimes=(), states=0,
    ),
    World(
        name="copy",
        title="The producer gathers into copy destinations, which are leased like sources",
        askers=one(*rounds(W0, W1)),
        faults=Faults(aborts=2, producer_restarts=1), steps=1, blocks=4, copies=2,
        sometimes=(), states=0,
    ),
    World(
        name="zero-bytes",
        title="A plan of zero bytes publishes a keep map and changes no table",
        askers=one(select((0, 1), (0, 1)), select((1,), (0,)), retain((1,), (0,))),
        faults=Faults(aborts=1, preemptions=1, producer_restarts=1), steps=1, blocks=4, ranks=1,
        sometimes=(), states=0,
    ),
    World(
        name="lives",
        title="A request finishes in the middle of anything and its id begins a new life",
        askers=one(*rounds(W0, W1)),
        faults=Faults(finishes=2, reopenings=1), steps=2, blocks=4, forged=True,
        sometimes=(), states=0,
    ),
    World(
        name="window",
        title="A group of sliding windows drops what no query sees any more, while steps and stores go on",
        askers=one(
            until("tail", 3), until("seal", 2), until("seal", 3), select((1,), (2,)), retain((1,), (2,)), blocks=0,
        ),
        faults=Faults(aborts=1), steps=2, blocks=4, sliding=1,
        sometimes=(), states=0,
    ),
    World(
        name="repeated-calls",
        title="A call whose answer was lost is made again under its key, at any later moment",
        askers=one(*rounds(W0, W1)),
        faults=Faults(aborts=1, preemptions=1), steps=1, blocks=4, keyed=True,
        sometimes=(), states=0,
    ),
)  # fmt: skip
