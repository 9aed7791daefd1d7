"""The search finds what is broken, by the shortest way there is, and says what it did not see."""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.scenarios.verify.explore.small import SMALL, UPLOADS, only, shipped, small

from kvsweep.ledger import acks, fold
from kvsweep.ledger.draft import Draft
from kvsweep.ledger.errors import Refused
from kvsweep.ledger.events import AckIgnored
from kvsweep.ledger.messages import Release, SealTail
from kvsweep.ledger.reducers import settle
from kvsweep.ledger.state import Lane, OpenOperation, RequestState
from kvsweep.runtime.core import core, follow, restarts
from kvsweep.runtime.core.steps import OpenSteps
from kvsweep.scenarios.verify.explore import coordinator_state, space
from kvsweep.scenarios.verify.explore.coordinator_state import Oracles
from kvsweep.scenarios.verify.explore.search import Search, explore
from kvsweep.scenarios.verify.explore.space import Space
from kvsweep.scenarios.verify.explore.world import Ask, Faults
from kvsweep.transports.rank import RankWorker


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the oracles, which see many faults before their effects are there."""
    monkeypatch.setattr(Oracles, "complaints", lambda self: ())


# ---- each law, by a fault planted in the code that it watches


def test_a_quarantine_that_is_dropped_is_found_in_three_actions(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_once(draft: Draft, request: RequestState, lane: Lane, opened: OpenOperation, reason: str) -> None:
        lane.open = None
        settle._quiet(draft, request, opened)

    monkeypatch.setattr(settle, "_settle", at_once)
    found = explore(small(faults=Faults(aborts=1)))
    assert only(found).startswith("what a copy may still touch is held: rank 0 has operation 1 under way")
    assert found.trail == ("a asks: select [[0], [1]]", "rank 0 receives transfer #1", "#1 is aborted")


@pytest.mark.usefixtures("alone")
def test_a_generation_that_is_retired_under_its_reader_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OpenSteps, "reads", lambda *_: False)
    found = explore(small(*UPLOADS, Ask("retain", ((2,), (3,))), steps=1, blocks=2))
    assert "a step of a (generation 1)" in only(found)
    assert "a step begins on a, generation 1" in found.trail


@pytest.mark.usefixtures("alone")
def test_a_tail_block_that_leaves_under_its_writer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = OpenSteps.fence_is_quiet
    monkeypatch.setattr(OpenSteps, "fence_is_quiet", lambda self, key, fence, made: quiet(self, key, fence, ()))
    found = explore(shipped("store-preempt"))
    assert "a step of a (generation 0) expects block 0 of text 1, unconfirmed, finds nothing" in only(found)
    assert found.trail == ("a asks: tail", "a step begins on a, generation 0", "a is preempted")


def test_a_block_that_is_sealed_before_it_is_confirmed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def every(draft: Draft, context: Any, command: Any) -> Any:
        return seal(draft, context, replace(command, confirmed_tokens=command.confirmed_tokens + 4))

    seal = core.DECIDE[SealTail]
    monkeypatch.setitem(core.DECIDE, SealTail, every)
    assert "expects block 1 of text 1, finds block 1 of text 1, unconfirmed" in only(explore(shipped("store-preempt")))


def test_a_rank_that_obeys_the_command_of_another_process_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RankWorker, "_is_ours", lambda self, work: self.rank in dict(work.ranks))
    found = explore(small(faults=Faults(rank_restarts=1)))
    assert only(found).startswith("what a copy may still touch is held")
    assert len(found.trail) == 4


def test_an_upload_that_goes_on_over_a_restart_of_the_producer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "abort", lambda *_: None)
    found = explore(small(faults=Faults(producer_restarts=1)))
    assert only(found).startswith("a reader finds what it was handed: rank 1, layer 0, block 0: the current view of a")


@pytest.mark.usefixtures("alone")
def test_a_store_that_is_valid_before_every_rank_has_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "_all_done", lambda opened: opened is not None and bool(opened.outcomes))
    monkeypatch.setattr("kvsweep.ledger.reducers.tail.expect_all", lambda request, lane, *_: lane.open)
    found = explore(small(Ask("tail", until=5), Ask("seal", until=5)))
    assert only(found).startswith("a valid CPU block has its bytes on every rank: rank 1, layer 0")


@pytest.mark.usefixtures("alone")
def test_a_row_that_two_attempts_write_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_views(self: Draft, request: Any) -> set[int]:
        held = self.holders(request).items()
        return {row for holder, holding in held if holder.kind == "view" for row in holding.rows}

    monkeypatch.setattr(Draft, "rows", of_views)
    found = explore(small(faults=Faults(aborts=1)))
    assert only(found).startswith("a table row has exactly one holder")
    assert len(found.trail) == 3


@pytest.mark.usefixtures("alone")
def test_a_report_that_counts_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    table = tuple(row for row in acks.TABLE if not row[0].startswith("rank already recorded with this outcome"))
    monkeypatch.setattr(acks, "TABLE", table)
    found = explore(small())
    assert only(found).startswith("an honest report is no error")
    assert found.trail[-1] == found.trail[-2] == "completed of #1 arrives from rank 0"


@pytest.mark.usefixtures("alone")
def test_f2_a_forged_report_that_is_taken_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    table = tuple(row for row in acks.TABLE if not row[0].startswith("differs from the operation"))
    monkeypatch.setattr(acks, "TABLE", table)
    assert explore(small()).broken == ()
    found = explore(small(forged=True))
    assert only(found).startswith(("a report that no rank sent changes nothing", "nothing raises"))
    assert len(found.trail) == 1


def test_a_report_that_nobody_says_again_leaves_a_state_that_does_not_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "_say_again", lambda *_: None)
    found = explore(small(faults=Faults(producer_restarts=1)))
    why = "upload operation 1 is open: the producer has not acknowledged"
    assert only(found) == f"everything drains: nothing is under way, and a: {why}"
    assert found.trail[-1] == "the producer restarts"


def test_what_an_oracle_finds_is_a_broken_law(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OpenSteps, "reads", lambda *_: False)
    found = explore(SMALL["step"])
    assert only(found) == "ownership: generation 1 is retired while step 1 reads it"
    assert len(found.trail) == 16


def test_progress_in_a_circle_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that starts anew what it has answered: start and run follow each other for ever."""
    start = RankWorker._start

    def forgetful(self: RankWorker, work: Any) -> None:
        self._reports.pop(work.operation.operation_id, None)
        start(self, work)

    monkeypatch.setattr(RankWorker, "_start", forgetful)
    monkeypatch.setattr(space, "broken", lambda promise, rank: ())
    found = explore(small(UPLOADS[0]))
    assert "progress goes round in circles through" in only(found)


def test_blocks_that_stay_away_from_their_pool_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    perform = coordinator_state.CoordinatorState._perform

    def keeps(self: coordinator_state.CoordinatorState, effect: Any) -> Any:
        return [] if isinstance(effect, Release) else perform(self, effect)

    monkeypatch.setattr(coordinator_state.CoordinatorState, "_perform", keeps)
    found = explore(small(faults=Faults(finishes=1)))
    assert only(found).startswith("free and held make up the pool")


def test_what_the_core_raises_is_a_broken_law(monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(draft: Draft, request: RequestState, *_: Any) -> None:
        raise Refused(request.key, "ResidencyCommitted", "running", (), "planted")

    monkeypatch.setattr(follow, "_commit", raises)
    found = explore(small())
    assert only(found).startswith("nothing raises: Refused:")
    assert len(found.trail) == 7


def test_a_refusal_that_leaves_something_behind_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def counts(draft: Draft, request: RequestState, event: Any) -> None:
        request.whole_blocks += 1

    rule = replace(fold.RULES[AckIgnored], reduce=counts)
    monkeypatch.setitem(fold.RULES, AckIgnored, rule)
    assert only(explore(small())) == "what is repeated changes nothing"


# ---- what the search itself promises


def test_the_way_to_a_broken_state_is_a_shortest_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every state that is one action nearer was searched and found whole."""
    monkeypatch.setattr(restarts, "_say_again", lambda *_: None)
    world = small(faults=Faults(producer_restarts=1))
    search = Search(world, None, lambda states: None, Space(world))
    found = search.run()
    assert len(found.trail) == 8
    assert list(search._depth) == sorted(search._depth)


def test_a_search_that_is_cut_claims_nothing() -> None:
    world = small(sometimes=("the moon is reached",))
    whole, cut = explore(world), explore(world, limit=10)
    assert (whole.cut, whole.sometimes_missing) == (False, ("the moon is reached",))
    assert (cut.cut, cut.states, cut.sometimes_missing, cut.broken) == (True, 10, (), ())


def test_the_watcher_hears_how_far_the_search_is() -> None:
    heard: list[int] = []
    found = explore(shipped("three-ranks"), limit=3000, watch=heard.append)
    assert heard == sorted(heard)
    assert len(heard) >= 2
    assert heard[-1] <= found.states == 3000


def test_two_searches_of_one_world_agree_in_every_state() -> None:
    world = SMALL["preempt"]
    first, second = (Search(world, None, lambda states: None, Space(world)) for _ in range(2))
    assert first.run() == second.run()
    assert first.states == second.states
