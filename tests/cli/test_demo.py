"""The closing tables of `kvsweep demo`: every figure by itself, and what freed memory apart from what cost bytes."""

from dataclasses import fields

import pytest
from msgspec.structs import replace
from rich.console import Console

from kvsweep.cli.demo import COSTS, closing_table
from kvsweep.runtime.metrics import Metrics
from kvsweep.scenarios.demo.options import DemoOptions
from kvsweep.scenarios.demo.result import NOT_RUN, DemoResult
from kvsweep.scenarios.demo.run import run_demo


@pytest.fixture(scope="module")
def result() -> DemoResult:
    options = DemoOptions(prompt_tokens=128, tokens=16, block_size=8, every=8, synthetic=True)
    return run_demo(options, ledger="memory:", command=["kvsweep", "demo"])


def shown(result: DemoResult) -> str:
    console = Console(width=160, record=True, file=None)
    with console.capture() as captured:
        console.print(closing_table(result))
    return captured.get()


def row(text: str, name: str) -> list[str]:
    (line,) = (line for line in text.splitlines() if line.startswith(f"│ {name} "))
    return [cell.strip() for cell in line.strip("│").split("│")]


def test_a2_every_cost_has_a_row_of_its_own(result: DemoResult) -> None:
    """A2: reported by operations, and counted by the memories where bytes pass; none is a sum of others."""
    text = shown(replace(result, metrics=result.metrics | {"h2d_bytes": 123456}, counted={"h2d_bytes": 123457}))
    for name in COSTS:
        assert len(row(text, name)) == 4
    assert row(text, "h2d_bytes")[1:3] == ["123,456", "123,457"]
    assert row(text, "packed_bytes")[2] == ""
    assert COSTS.keys() == result.metrics.keys()
    costs = {field.name for field in fields(Metrics)}
    assert costs >= COSTS.keys()


def test_b7_what_was_freed_stands_apart_from_what_it_cost(result: DemoResult) -> None:
    """B7: two tables."""
    text = shown(result)
    cost, freed = text.index("What it cost"), text.index("What it freed")
    assert cost < text.index("resident_moved_bytes") < freed < text.index("physical blocks released")
    assert row(text, "owned by one request at most")[1] == str(result.owned_blocks_max)
    assert row(text, "retained by layer")[1] == str(result.remap["layer"])


def test_j2_what_was_not_run_is_said(result: DemoResult) -> None:
    text = " ".join(shown(result).split())
    for what in NOT_RUN[:3]:
        assert what in text


def test_the_run_names_its_digest_and_how_to_look_back(result: DemoResult) -> None:
    text = shown(result)
    assert result.digest in text
    assert "kvsweep log replay" in text
    assert "made from the seed" in text
    real = replace(result, model=result.model | {"sha256": "ab" * 32})
    assert f"SHA-256 {'ab' * 32}" in shown(real)


def test_a_difference_from_plain_decoding_is_not_hidden(result: DemoResult) -> None:
    assert "token for token" in shown(result)
    found = replace(result, lossless=False, first_difference="demo/0, token 3")
    assert "differs first in demo/0, token 3" in shown(found)


def test_g3_what_is_still_held_and_what_a_storm_did_is_said(result: DemoResult) -> None:
    """G3: nothing may be held at the end; and rows for a crowd stand only where there was one."""
    calm = shown(result)
    assert row(calm, "held when all had ended")[1].startswith("nothing")
    assert "requests, ranks" not in calm
    assert "the storm" not in calm
    busy = shown(
        replace(
            result,
            requests=4,
            ranks=3,
            storm={"aborts": 2, "rank restarts": 1},
            refused={"PoolExhausted": 5},
            held_at_end=result.held_at_end | {"fences": 3},
        )
    )
    assert row(busy, "requests, ranks")[1] == "4, 3"
    assert row(busy, "the storm")[1] == "2 × aborts; 1 × rank restarts"
    assert row(busy, "rounds that ended early")[1] == "5 × PoolExhausted"
    assert row(busy, "held when all had ended")[1] == "3 × fences"
    assert row(busy, "preemptions")[1] == "0"
