"""The calls of a serving loop in few words, and selections that several worlds use."""

from typing import Final

from kvsweep.scenarios.verify.explore.world import Ask, Asker, AskKind, Want


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
