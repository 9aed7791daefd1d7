"""The page about the explorer names the worlds that ship, each with its number of states."""

from pathlib import Path

from kvsweep.scenarios.verify.explore.worlds import WORLDS

PAGE = Path(__file__).resolve().parents[4] / "docs" / "explorer.md"


def test_the_page_lists_every_world_with_its_states() -> None:
    rows = [f"| `{world.name}` | {world.states:,} | {world.title} |" for world in WORLDS]
    page = PAGE.read_text(encoding="utf-8").splitlines()
    listed = [line for line in page if line.startswith("| `")]
    assert listed == rows, "\n".join(["expected in docs/explorer.md:", *rows])


def test_the_page_says_how_many_states_there_are_in_all() -> None:
    total = sum(world.states for world in WORLDS)
    assert f"{len(WORLDS)} worlds, {total:,} states" in PAGE.read_text(encoding="utf-8")
