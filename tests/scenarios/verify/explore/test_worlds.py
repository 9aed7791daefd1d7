"""The worlds that ship: every one searched to its end, as many states as ever, nothing broken, nothing missed."""

from pathlib import Path

import pytest
from tests.scenarios.verify.explore.small import SMALL

from kvsweep.scenarios.verify.explore.search import explore
from kvsweep.scenarios.verify.explore.world import World
from kvsweep.scenarios.verify.explore.worlds import WORLDS

QUICK = 7_000
"""Larger worlds are for `./check --full`."""


def marked(world: World) -> object:
    marks = (pytest.mark.full,) if world.states > QUICK else ()
    return pytest.param(world, id=world.name, marks=marks)


@pytest.mark.parametrize("world", [marked(world) for world in WORLDS])
def test_nothing_is_broken_and_everything_is_reached_in_as_many_states_as_ever(world: World) -> None:
    """Another number of states means that the core does something else than before: know why, then write it down."""
    found = explore(world)
    assert found.broken == (), "\n".join((*found.broken, *found.trail))
    assert found.sometimes_missing == ()
    assert (found.states, found.cut) == (world.states, False)


@pytest.mark.parametrize("name", SMALL)
def test_nothing_is_broken_in_a_small_world(name: str) -> None:
    found = explore(SMALL[name])
    assert found.broken == (), "\n".join((*found.broken, *found.trail))


def test_the_worlds_pass_a_million_states() -> None:
    assert sum(world.states for world in WORLDS) >= 1_000_000


def test_every_world_says_what_it_is_for() -> None:
    assert len({world.name for world in WORLDS}) == len(WORLDS)
    assert all(world.title and world.sometimes for world in WORLDS)
    assert all(len(set(world.sometimes)) == len(world.sometimes) for world in WORLDS)


PAGE = Path(__file__).resolve().parents[4] / "docs" / "explorer.md"


def test_the_page_lists_every_world_with_its_states() -> None:
    rows = [f"| `{world.name}` | {world.states:,} | {world.title} |" for world in WORLDS]
    page = PAGE.read_text(encoding="utf-8").splitlines()
    listed = [line for line in page if line.startswith("| `")]
    assert listed == rows, "\n".join(["expected in docs/explorer.md:", *rows])


def test_the_page_says_how_many_states_there_are_in_all() -> None:
    total = sum(world.states for world in WORLDS)
    assert f"{len(WORLDS)} worlds, {total:,} states" in PAGE.read_text(encoding="utf-8")
