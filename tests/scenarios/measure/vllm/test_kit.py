"""What every check of the vLLM connector needs: prompts, engines, what a result says."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from kvsweep.ledger.events import BlocksSelected, OwnersCommitted, ResidencyCommitted, RetainPlanned
from kvsweep.ledger.inspect.replay import Ledger
from kvsweep.scenarios.demo.options import DemoOptions
from kvsweep.scenarios.demo.run import run_demo
from kvsweep.scenarios.measure.vllm.job import Engine
from kvsweep.scenarios.measure.vllm.kit import Kit, committed_twice, granted_most, kept_beyond_budget, prompts

TEXT = list(range(1000))


def test_lengths_are_spread_over_the_range_and_the_same_again() -> None:
    given = prompts(TEXT, count=16, shortest=40, longest=400)
    lengths = sorted(map(len, given))
    assert (lengths[0], lengths[-1], len(set(lengths))) == (40, 400, 16)
    assert given == prompts(TEXT, count=16, shortest=40, longest=400)
    assert given != prompts(TEXT, count=16, shortest=40, longest=400, seed=1)
    assert all(one == list(range(one[0], one[0] + len(one))) for one in given)


def test_each_group_has_one_beginning() -> None:
    given = prompts(TEXT, count=8, shortest=80, longest=200, shared=64, groups=4)
    beginnings = [tuple(one[:64]) for one in given]
    assert beginnings[:4] == beginnings[4:]
    assert len(set(beginnings)) == 4
    assert len({tuple(one) for one in given}) == 8


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected 0 < 5 <= 2000 <= 1000"):
        prompts(TEXT, count=2, shortest=5, longest=2000)
    with pytest.raises(ValueError, match=r"shared: expected less than the shortest prompt of 5 tokens, got 5"):
        prompts(TEXT, count=2, shortest=5, longest=9, shared=5)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Ledger of a small run of the demo: a quarter of the blocks, at least three."""
    url = f"sqlite:{tmp_path_factory.mktemp('ledger') / 'demo.ledger'}"
    options = DemoOptions(prompt_tokens=192, tokens=16, block_size=8, every=4, synthetic=True, seed=7)
    run_demo(options, ledger=url, command=["kvsweep", "demo"])
    return url


@pytest.fixture(scope="module")
def ledger(url: str) -> Iterator[Ledger]:
    with Ledger.open(url) as one:
        yield one


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    here = tmp_path / "nowhere"
    return Kit(
        python=here, script=here, folder=tmp_path, model=here, tiny=here, tokens=[], said=lambda _: None, module="m"
    )


@dataclass(frozen=True)
class Altered:
    """The same events; those of one type twice, or every grant replaced."""

    ledger: Ledger
    twice: type | None = None
    granted: int | None = None

    def events(self, **where: Any) -> Iterator[Any]:
        for record in self.ledger.events(**where):
            if self.granted is not None and isinstance(record.event, BlocksSelected):
                yield replace(record, event=replace(record.event, effective_budget_blocks=self.granted))
            else:
                yield record
            if self.twice is not None and isinstance(record.event, self.twice):
                yield record


def test_a_sound_ledger_has_neither(ledger: Ledger) -> None:
    kinds = {type(record.event) for record in ledger.events()}
    assert {BlocksSelected, RetainPlanned, ResidencyCommitted, OwnersCommitted} <= kinds
    assert committed_twice(ledger) == []
    assert kept_beyond_budget(ledger) == []


@pytest.mark.parametrize("kind", [ResidencyCommitted, OwnersCommitted])
def test_a_commit_that_is_there_twice_is_named(ledger: Ledger, kind: type) -> None:
    again = cast(Ledger, Altered(ledger, twice=kind))
    found = committed_twice(again)
    assert found
    assert all("was committed twice" in one for one in found)
    assert len(found) == sum(isinstance(record.event, kind) for record in ledger.events())


def test_a_grant_above_the_budget_is_named(ledger: Ledger) -> None:
    selected = [record.event for record in ledger.events() if isinstance(record.event, BlocksSelected)]
    most = max(one.effective_budget_blocks for one in selected)
    assert granted_most(ledger, budget=0.25, least=3) == (most, [])
    found = granted_most(ledger, budget=0.1, least=3)[1]
    assert len(found) == len([one for one in selected if one.effective_budget_blocks > 3])
    assert found
    assert "blocks" in found[0]


def test_a_keep_above_the_grant_is_named(ledger: Ledger) -> None:
    found = kept_beyond_budget(cast(Ledger, Altered(ledger, granted=1)))
    assert found
    assert "granted were 1" in found[0]


def test_a_ledger_counts_only_when_it_gives_the_digest_that_the_engine_had(kit: Kit, ledger: Ledger, url: str) -> None:
    engine = Engine(name="one", model="m", connector={"ledger": url})
    digest = ledger.verify().digest
    assert kit.replay_faults(engine, {"digest": digest}) == []
    found = kit.replay_faults(engine, {"digest": "0" * 64})
    assert found == [f"the ledger replays to {digest}, the engine ended at {'0' * 64}"]


def test_an_engine_of_ours_writes_into_its_own_folder_and_stock_has_no_connector(kit: Kit) -> None:
    ours = kit.engine("a", connector={"mode": "compact"}, blocks=7)
    assert ours.connector == {
        "ledger": f"sqlite:{kit.folder}/a/ledger.db",
        "summary": f"{kit.folder}/a/summary.json",
        "mode": "compact",
    }
    assert (ours.name, ours.blocks, ours.module) == ("a", 7, "m")
    assert kit.engine("b").connector is None
