"""What makes a million states cheap must not make two different states one, nor lose one."""

import pytest
from msgspec.structs import replace
from tests.scenarios.verify.explore.small import SMALL, shipped, small

from kvsweep.ledger.messages import Abort, OpenRequest
from kvsweep.scenarios.verify.explore.coordinator_state import CoordinatorState
from kvsweep.scenarios.verify.explore.digest import Parts, digest_of
from kvsweep.scenarios.verify.explore.loop import Spent
from kvsweep.scenarios.verify.explore.messages import first_registration, message_of
from kvsweep.scenarios.verify.explore.rank import Rank
from kvsweep.scenarios.verify.explore.search import Search
from kvsweep.scenarios.verify.explore.space import Space
from kvsweep.scenarios.verify.explore.world import Ask, World

State = tuple[bytes, tuple[bytes, ...], Spent]


def canonical_states(world: World, *, exact: bool) -> tuple[int, set[State]]:
    """How many states the search told apart, and the canonical form of each."""
    space = Space(world, exact=exact)
    search = Search(world, None, lambda states: None, space)
    found = search.run()
    assert (found.broken, found.cut) == ((), False)
    coordinators = [digest_of(part.canonical()) for part in space.coordinators.items]
    ranks = [digest_of(part.canonical()) for part in space.ranks.items]
    states = set()
    for state in search.states:
        coordinator, parts, spent = space.unpack(state)
        states.add((coordinators[coordinator], tuple(ranks[part] for part in parts), space.spent(spent)))
    return found.states, states


def full(name: str) -> object:
    return pytest.param(shipped(name), id=name, marks=pytest.mark.full)


@pytest.mark.parametrize(
    "world",
    [
        *(pytest.param(SMALL[name], id=name) for name in ("step", "rank", "fence", "failure", "prefix")),
        *map(full, ("tight", "three-layers", "rank-restart", "lives", "publish-churn", "store-restart", "pack")),
    ],
)
def test_leaving_out_what_only_counts_loses_no_state_and_adds_none(world: World) -> None:
    """The world is searched once with every number kept; its states, put in canonical form, are those of the other."""
    told_apart, exact = canonical_states(world, exact=True)
    number, canonical = canonical_states(world, exact=False)
    assert exact == canonical
    assert len(canonical) == number <= told_apart


def test_numbers_that_only_count_were_there_to_be_left_out() -> None:
    """Steps that end in another order leave other step numbers and the same state."""
    world = replace(SMALL["step"], steps=3)
    assert canonical_states(world, exact=True)[0] > canonical_states(world, exact=False)[0]


# ---- parts


@pytest.fixture
def opened() -> CoordinatorState:
    coordinator, _, _ = CoordinatorState(small()).handles(OpenRequest(request_id="a"))
    return coordinator.handles(first_registration(coordinator, "a", 4))[0]


def uploading(coordinator: CoordinatorState) -> CoordinatorState:
    message = message_of(coordinator, "a", Ask("select", ((0,), (1,))))
    assert message is not None
    return coordinator.handles(message)[0]


def test_a_coordinator_that_goes_on_leaves_the_one_before_it_as_it_was(opened: CoordinatorState) -> None:
    before = digest_of(opened.exact()), opened.pools.device.free, opened.pools.cpu.free
    after = uploading(opened)
    assert digest_of(after.exact()) != before[0]
    assert (digest_of(opened.exact()), opened.pools.device.free, opened.pools.cpu.free) == before
    assert after.pools.device.free == (opened.pools.device.free[0] - 1,)


def test_coordinators_with_equal_futures_are_one_and_others_are_not(opened: CoordinatorState) -> None:
    refused = message_of(opened, "a", Ask("retain", ((9,), ())))
    assert refused is not None
    noted, turn, _ = opened.handles(replace(refused, map_revision=7))
    assert turn.outcome == "refused"
    assert noted.canonical() == opened.canonical()
    assert digest_of(noted.exact()) != digest_of(opened.exact())
    stepped = uploading(opened)
    (operation,) = {work.operation for work in stepped.sent}
    aborted, _, _ = stepped.handles(Abort(operation=operation, reason="asked for"))
    assert len({digest_of(one.canonical()) for one in (opened, stepped, aborted)}) == 3


def test_a_rank_that_goes_on_leaves_the_one_before_it_as_it_was(opened: CoordinatorState) -> None:
    rank = Rank(small(), 0)
    (work,) = uploading(opened).sent
    before = digest_of(rank.canonical())
    received = rank.receives(work)
    ran = received.runs(1)
    restarted = ran.restarts()
    assert digest_of(rank.canonical()) == before
    assert len({digest_of(one.canonical()) for one in (rank, received, ran, restarted)}) == 4
    assert [len(one.said) for one in (rank, received, ran, restarted)] == [0, 0, 1, 1]


def test_ranks_that_have_different_work_of_one_number_are_different(opened: CoordinatorState) -> None:
    """Operations of different branches carry one number."""
    (one,) = uploading(opened).sent
    message = message_of(opened, "a", Ask("select", ((2,), (1,))))
    assert message is not None
    (other,) = opened.handles(message)[0].sent
    parts = {digest_of(Rank(small(), 0).receives(work).canonical()) for work in (one, other)}
    assert len(parts) == 2


def test_a_state_is_packed_and_unpacked() -> None:
    space = Space(small())
    assert space.unpack(space.pack(5, (7, 1 << 23), 3)) == (5, (7, 1 << 23), 3)


def test_a_world_of_too_many_parts_says_so() -> None:
    parts = Parts[int](lambda part: part, 2)
    assert [parts.number(part) for part in (7, 8, 7)] == [0, 1, 0]
    with pytest.raises(OverflowError, match="at most 2 parts"):
        parts.number(9)
