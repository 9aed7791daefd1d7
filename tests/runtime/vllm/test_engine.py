"""The two halves in a stand-in of vLLM: every byte that attention reads is right, and every block comes back."""

from pathlib import Path
from typing import Any

import pytest
from tests.runtime.vllm.engine import BLOCK, Engine

from kvsweep import Ledger
from kvsweep.ledger import events as e
from kvsweep.ledger.errors import LogError
from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import RequestKey
from kvsweep.transports.vllm.messages import Ack

LOSSLESS: dict[str, Any] = {}
COMPACT = {"mode": "compact", "policy": "recency", "budget": 0.5, "interval": 2, "sink": 1, "recent": 1}
QUEST = {"mode": "compact", "policy": "quest", "budget": 0.5, "interval": 3, "sink": 1, "recent": 1}
SHARED = {**QUEST, "tables": "shared"}
MODES = pytest.mark.parametrize(
    "extra", [LOSSLESS, COMPACT, QUEST, SHARED], ids=["lossless", "recency", "quest", "quest-shared"]
)


def watched(engine: Engine) -> list[Event]:
    seen: list[Event] = []
    engine.half.driver.watch(seen.append)
    return seen


def settled(engine: Engine) -> None:
    """Nothing of ours is left in vLLM's pool, no law is broken, and the ledger gives the same state again."""
    assert engine.half.pools.held == 0
    assert engine.pool.get_num_free_blocks() == engine.blocks - 1
    assert all(block.ref_cnt == 0 for block in engine.pool.blocks if not block.is_null)
    assert engine.half.counts.of_ranks("wrong") == 0
    engine.half.driver.check_laws()
    digest = engine.half.driver.record_digest()
    verified = Ledger(engine.half.driver.log).verify()
    assert verified.ok, verified.message
    assert verified.digest == digest


def load(engine: Engine) -> None:
    for number in range(8):
        engine.add(f"r{number}", prompt=5 + 3 * number, output=12 + number, group=f"g{number % 3}")


@MODES
@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("blocks", [18, 24, 60])
def test_every_read_is_right_and_every_block_comes_back(extra: dict[str, Any], prefix: bool, blocks: int) -> None:
    engine = Engine(blocks=blocks, prefix=prefix, extra=extra)
    load(engine)
    engine.run()
    settled(engine)
    summary = engine.half.summary()
    assert summary["commits"] > 0
    assert summary["released_blocks"] > 0
    assert summary["checksums"]["checked"] > 0
    assert summary["poisoned_blocks"] > 0


def test_a_small_pool_preempts_and_a_preempted_request_begins_another_life() -> None:
    engine = Engine(blocks=18)
    seen = watched(engine)
    load(engine)
    engine.run()
    settled(engine)
    assert engine.preemptions > 0
    preempted = [event.request for event in seen if isinstance(event, e.RequestPreempted)]
    assert preempted
    opened = [event.request for event in seen if isinstance(event, e.RequestOpened)]
    assert any(key.request_epoch > 1 for key in opened)


def test_blocks_go_back_while_the_request_runs() -> None:
    """vLLM's own blocks return after the commit, and the pool has as many free as if nothing had been moved."""
    engine = Engine(blocks=60, prefix=False, ranks=1)
    request = engine.add("r", prompt=4 * BLOCK, output=40)
    for _ in range(12):
        engine.step()
    table = engine.tables["r"]
    view = engine.half.driver.state.requests["r"].view
    assert view is not None
    assert [block.is_null for block in table[:4]] == [True] * 4
    assert engine.pool.get_num_free_blocks() == engine.blocks - 1 - -(-request.num_computed_tokens // BLOCK)
    layers = [ids.tolist() for _, ids in view.physical.items()]
    assert len({tuple(ids) for ids in layers}) > 1, "each layer has its own places"


def test_compact_keeps_within_the_budget_and_frees_the_rest() -> None:
    engine = Engine(blocks=60, prefix=False, ranks=1, extra=COMPACT)
    engine.add("r", prompt=16 * BLOCK, output=40)
    for _ in range(30):
        engine.step()
    state = engine.half.driver.state.requests["r"]
    assert state.view is not None
    whole = len(state.source) // 4
    assert whole > 20
    assert int(state.view.logical.counts.max()) <= whole // 2 + 1
    assert engine.blocks - 1 - engine.pool.get_num_free_blocks() < 16
    engine.run()
    settled(engine)


@pytest.mark.parametrize("extra", [QUEST, SHARED], ids=["layer", "shared"])
def test_blocks_that_were_dropped_come_back_from_the_cpu_tier_and_views_are_packed(extra: dict[str, Any]) -> None:
    """Scores change from round to round: a layer drops blocks and uploads others; what that scatters is gathered."""
    engine = Engine(blocks=80, ranks=2, prefix=False, extra=extra)
    seen = watched(engine)
    engine.add("r", prompt=16 * BLOCK, output=60)
    for _ in range(60):
        engine.step()
    view = engine.half.driver.state.requests["r"].view
    assert view is not None
    lists = {tuple(ids.tolist()) for _, ids in view.logical.items()}
    assert len(lists) == 1 if extra is SHARED else len(lists) > 1
    modes = {event.mode for event in seen if isinstance(event, e.RetainPlanned)}
    assert "shared" in modes if extra is SHARED else {"layer", "pack"} <= modes
    uploads = [event.logical for event in seen if isinstance(event, e.UploadPlanned)]
    again = [ids for upload in uploads[1:] for ids in upload.row(0).tolist() if ids in uploads[0].row(0)]
    early = [ids for upload in uploads[1:] for ids in upload.row(0).tolist() if ids < 16]
    assert again or early, "something of the prompt was uploaded after the first round"
    whole = len(engine.half.driver.state.requests["r"].source) // 4
    owned = engine.half.driver.state.ownership.owned(view_key(engine, "r"), engine.layout)[0]
    assert owned.size < whole
    engine.run()
    settled(engine)


def test_without_a_free_block_the_keep_comes_first_and_the_upload_takes_what_it_leaves() -> None:
    engine = Engine(blocks=60, ranks=1, running=16, chunk=16, prefix=False, extra=QUEST)
    seen = watched(engine)
    for number in range(10):
        engine.add(f"r{number}", prompt=12 * BLOCK, output=100)
    engine.run()
    settled(engine)
    chosen = (e.RetainPlanned, e.UploadPlanned, e.RequestPreempted, e.RequestFinished)
    turns: dict[str, list[str]] = {}
    for event in seen:
        of_request = turns.setdefault(event.request.request_id, [])
        if isinstance(event, e.PlanRefused) and (event.lane, event.reason) == ("upload", "no_space"):
            of_request.append("no_space")
        elif isinstance(event, chosen):
            of_request.append(type(event).__name__)
    threes = [turn[at : at + 3] for turn in turns.values() for at in range(len(turn))]
    assert ["no_space", "RetainPlanned", "UploadPlanned"] in threes


def view_key(engine: Engine, request_id: str) -> RequestKey:
    return engine.half.driver.state.requests[request_id].key


def test_a_shared_prefix_is_copied_and_never_written() -> None:
    """Both requests hold the prefix's blocks at once: the second goes by aliases, and loses one reference each."""
    engine = Engine(blocks=60, ranks=1)
    engine.add("a", prompt=6 * BLOCK + 1, output=30, group="g")
    for _ in range(3):
        engine.step()
    shared = [block for block in engine.tables["a"] if not block.is_null]
    before = {block.block_id: engine.nodes[0].layers[0][block.block_id].copy() for block in shared[:2]}
    engine.add("b", prompt=6 * BLOCK + 1, output=30, group="g")
    engine.step()
    tail = engine.half.driver.state.requests["b"].tail
    for _ in range(6):
        engine.step()
    for block_id, bytes_before in before.items():
        block = engine.pool.blocks[block_id]
        if block.block_hash is not None:
            assert (engine.nodes[0].layers[0][block_id] == bytes_before).all()
    assert tail, "the second request's blocks are lent to the coordinator too"
    engine.run()
    settled(engine)


def test_what_a_compacted_request_computes_is_never_in_the_prefix_cache() -> None:
    """It attends to a part, so its keys are not those that another request with the same tokens would compute."""
    engine = Engine(blocks=60, ranks=1, extra=COMPACT)
    engine.add("r", prompt=8 * BLOCK, output=40)
    while engine.half.counts.commits == 0:
        engine.step()
    hashed = {name for name, block in engine.pool.cached.items() if block.block_hash == name}
    for _ in range(20):
        engine.step()
    assert {name for name, block in engine.pool.cached.items() if block.block_hash == name} <= hashed
    assert hashed
    engine.run()
    settled(engine)


def test_an_abort_in_flight_keeps_what_may_still_be_read() -> None:
    engine = Engine(blocks=24)
    load(engine)
    for number in range(8):
        engine.step()
        engine.step()
        engine.abort(f"r{number}")
    engine.run()
    settled(engine)


# ---- what ranks say


@MODES
@pytest.mark.parametrize(
    "faults",
    [{"drop": 0.4}, {"duplicate": 0.6}, {"delay": 0.5}, {"drop": 0.2, "duplicate": 0.2, "delay": 0.2}],
    ids=["drop", "duplicate", "delay", "all"],
)
def test_lost_repeated_and_late_reports_commit_once_and_the_engine_serves_on(
    faults: dict[str, float], extra: dict[str, Any]
) -> None:
    engine = Engine(blocks=24, extra={**extra, "faults": faults})
    seen = watched(engine)
    load(engine)
    engine.run()
    settled(engine)
    commits = [event.operation.operation_id for event in seen if isinstance(event, e.ResidencyCommitted)]
    assert len(commits) == len(set(commits)) > 0
    summary = engine.half.summary()
    assert sum(summary["faults"].values()) > 0
    if "duplicate" in faults:
        assert summary["acks"]["repeated"] + summary["acks"]["ignored"] > 0


def test_a_step_ends_when_every_rank_has_done_it_and_not_before() -> None:
    """The rank that is slower may still read: what a commit replaced stays held until it has said so too."""
    engine = Engine(blocks=40, ranks=2)
    engine.add("r", prompt=3 * BLOCK, output=20)
    held_back: list[tuple[int, int]] = []

    def only_the_first(ack: Ack) -> Ack:
        held_back.extend(one for one in ack.steps if one[0] == 1)
        return Ack(steps=tuple(one for one in ack.steps if one[0] == 0), completions=ack.completions)

    engine.lost = only_the_first
    for _ in range(5):
        engine.step()
    assert engine.half.counts.commits > 0
    assert engine.half.counts.released_blocks == 0
    assert len(engine.half.driver.core.steps.numbers) == 5
    engine.lost = lambda ack: ack
    engine.half.update(Ack(steps=tuple(held_back)))
    assert engine.half.counts.released_blocks > 0
    engine.run()
    settled(engine)


def test_an_answer_that_is_lost_whole_holds_nothing_for_ever() -> None:
    """A rank takes its steps in turn, so a later answer stands for the step of the lost one; its reports come again."""
    engine = Engine(blocks=40, ranks=2)
    engine.add("r", prompt=6 * BLOCK, output=30)
    for number in range(30):
        engine.lost = (lambda ack: None) if number % 3 == 0 else (lambda ack: ack)
        engine.step()
    assert len(engine.half.driver.core.steps.numbers) <= 1
    assert engine.half.counts.commits > 0
    engine.lost = lambda ack: ack
    engine.run()
    settled(engine)


def test_two_reports_of_one_rank_are_not_two_ranks() -> None:
    """The published fault of counters: a rank that reports twice stands for one that never did."""

    def first_rank_twice(ack: Ack) -> Ack:
        return Ack(steps=ack.steps, completions=tuple(one for one in ack.completions if one.done.rank == 0) * 2)  # type: ignore[attr-defined]

    engine = Engine(blocks=40, ranks=2, lost=first_rank_twice)
    engine.add("r", prompt=3 * BLOCK, output=8)
    for _ in range(10):
        engine.step()
    assert engine.half.counts.stores == 0
    assert engine.half.counts.commits == 0
    assert engine.half.counts.acks["repeated"] > 0
    engine.lost = lambda ack: ack
    engine.run()
    settled(engine)


def test_what_is_no_answer_of_ours_is_not_believed_and_not_raised() -> None:
    engine = Engine(blocks=40, ranks=1)
    engine.add("r", prompt=3 * BLOCK, output=8)
    engine.step()
    for foreign in (None, object(), Ack(steps=((0, 10**6), (7, 1)), completions=("report", 3))):
        engine.half.update(foreign)
    assert engine.half.counts.acks["refused"] == 2
    engine.run()
    settled(engine)


def test_a_report_that_contradicts_an_earlier_one_changes_nothing() -> None:
    from msgspec.structs import replace

    def other_digest(ack: Ack) -> Ack:
        again = tuple(replace(one, digest="00000000") for one in ack.completions)  # type: ignore[type-var]
        return replace(ack, completions=ack.completions + again)

    engine = Engine(blocks=40, ranks=1, lost=other_digest)
    engine.add("r", prompt=3 * BLOCK, output=8)
    engine.run()
    settled(engine)
    assert engine.half.counts.contradicting > 0


# ---- the ledger


def test_an_engine_goes_on_with_the_ledger_of_one_that_ended_with_operations_open(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'ledger.db'}"
    first = Engine(blocks=24, extra={"ledger": url})
    load(first)
    for _ in range(7):
        first.step()
    first.lost = lambda ack: Ack(steps=ack.steps)  # the ranks' reports on what is open now never arrive
    for _ in range(3):
        first.step()
    assert first.half.pending()
    first.half.close()
    second = Engine(blocks=24, extra={"ledger": url}, epoch=2)
    assert all(request.life == "CLOSED" for request in second.half.driver.state.requests.values())
    load(second)
    second.run()
    settled(second)
    second.half.close()


def test_a_ledger_of_another_engine_is_refused_by_name(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'ledger.db'}"
    Engine(blocks=24, extra={"ledger": url}).half.close()
    with pytest.raises(LogError, match=r"device_blocks: expected \(120,\), got \(150,\)"):
        Engine(blocks=30, extra={"ledger": url}, epoch=2)


def test_a_ledger_that_cannot_be_written_stops_rounds_and_not_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(blocks=40, ranks=1)
    engine.add("r", prompt=5 * BLOCK, output=20)
    for _ in range(4):
        engine.step()

    def full(*_: object, **__: object) -> None:
        raise LogError("no space left")

    monkeypatch.setattr(engine.half.driver.log, "append", full)
    for _ in range(5):
        engine.step()
    assert engine.half.driver.read_only is not None
    assert engine.reads > 0
