"""Reports of ranks and producer through `core.handle(Done(...))`: each verdict of the table, and what it may change."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from tests.runtime.rig import PRODUCER, RANKS, CoreRig, Ids

from kvsweep.ledger import events as e
from kvsweep.ledger.ids import POOL, Operation, RequestKey
from kvsweep.ledger.messages import Abort, Acknowledged, Cancel, Finish, Turn
from kvsweep.ledger.state import RequestState

FIRST: Ids = {0: [0, 2], 1: [1, 2]}
SECOND: Ids = {0: [0, 2, 6], 1: [1, 2, 3]}


@pytest.fixture
def key(rig: CoreRig) -> RequestKey:
    return rig.open()


@pytest.fixture
def moving(rig: CoreRig, key: RequestKey) -> Operation:
    """An upload that both ranks were sent."""
    return rig.started(rig.select(key, FIRST))


def but_for_the_record(request: RequestState) -> RequestState:
    return replace(request, seq=0)


def recorded(rig: CoreRig, say: Callable[[], Turn], outcome: str, verdict: str) -> e.AckIgnored | e.AckRefused:
    """The report changes nothing that it speaks of, and is one event that names its verdict."""
    before, effects = rig.state, len(rig.effects)
    turn = say()
    assert turn.outcome == outcome
    (event,) = turn.events
    assert isinstance(event, e.AckIgnored if verdict in ("duplicate", "stale") else e.AckRefused)
    assert event.verdict == verdict
    assert rig.state.ownership == before.ownership
    assert replace(rig.state.pool, seq=0) == replace(before.pool, seq=0)
    for name, request in rig.state.requests.items():
        assert but_for_the_record(request) == but_for_the_record(before.requests[name])
    assert len(rig.effects) == effects
    return event


# ---- applied


def test_f2_a_completion_of_an_awaited_rank_is_applied_with_its_own_figures(rig: CoreRig, moving: Operation) -> None:
    turn = rig.done(moving, 1, h2d_bytes=10, unpack_bytes=9, table_updates=2, wait_s=0.25)
    assert turn.outcome == "accepted"
    (event,) = turn.events
    assert isinstance(event, e.RankTransferred)
    assert (event.rank, event.process_epoch, event.h2d_bytes, event.unpack_bytes) == (1, 11, 10, 9)
    assert (event.table_updates, event.measured.wait_s) == (2, 0.25)


@pytest.mark.parametrize("outcome", ["failed", "cancelled"])
def test_f2_g3_a_rank_that_did_not_complete_turns_the_operation_back_in_the_same_batch(
    rig: CoreRig, key: RequestKey, moving: Operation, outcome: str
) -> None:
    rig.done(moving, 0)
    mark = len(rig.events)
    turn = rig.done(moving, 1, outcome)
    assert turn.outcome == "accepted"
    assert rig.since(mark) == ["UploadAborted", "TransferSettled"]
    assert rig.last(e.UploadAborted).reason == f"rank 1 {outcome}"
    assert rig.request(key).settling == (), "rank 0 was terminal: its completion counts"
    assert rig.free() == 16
    rig.lawful()


def test_f2_a_settling_operation_takes_any_terminal_word_and_releases_with_the_last_one(
    rig: CoreRig, key: RequestKey, moving: Operation
) -> None:
    rig.send(Abort(operation=moving, reason="x"))
    assert rig.done(moving, 0, "completed").outcome == "accepted", "it ran to its end before the cancel came"
    assert rig.free() < 16
    assert rig.done(moving, 1, "failed").outcome == "accepted"
    assert [event.outcome for event in rig.events if isinstance(event, e.TransferSettled)] == ["completed", "failed"]
    assert rig.free() == 16
    assert rig.request(key).view is None
    rig.lawful()


# ---- duplicate


def test_f2_a_repeated_word_of_an_open_operation_is_a_no_op(rig: CoreRig, moving: Operation) -> None:
    rig.done(moving, 0, h2d_bytes=10)
    recorded(rig, lambda: rig.done(moving, 0, h2d_bytes=10), "repeated", "duplicate")


def test_f2_a_repeated_word_of_the_last_closed_operation_is_a_no_op(rig: CoreRig, moving: Operation) -> None:
    rig.all_done(moving)
    recorded(rig, lambda: rig.done(moving, 1), "repeated", "duplicate")  # committed
    rig.acknowledge(moving)
    recorded(rig, lambda: rig.done(moving, 1), "repeated", "duplicate")  # closed


def test_f2_a_repeated_word_of_a_settling_operation_is_a_no_op(rig: CoreRig, moving: Operation) -> None:
    rig.send(Abort(operation=moving, reason="x"))
    rig.done(moving, 0, "cancelled")
    recorded(rig, lambda: rig.done(moving, 0, "cancelled"), "repeated", "duplicate")
    recorded(rig, lambda: rig.done(moving, 0, "completed"), "refused", "conflict")


# ---- stale


def test_f2_a_word_on_an_operation_before_the_last_closed_one_is_ignored(
    rig: CoreRig, key: RequestKey, moving: Operation
) -> None:
    rig.all_done(moving)
    rig.acknowledge(moving)
    rig.upload(key, SECOND)
    recorded(rig, lambda: rig.done(moving, 0), "ignored", "stale")


def test_f2_a_word_on_the_last_closed_operation_that_says_something_else_is_ignored(
    rig: CoreRig, moving: Operation
) -> None:
    rig.all_done(moving)
    rig.acknowledge(moving)
    recorded(rig, lambda: rig.done(moving, 0, "failed"), "ignored", "stale")


def test_f2_f5_a_word_on_an_earlier_life_of_the_id_is_ignored_by_the_present_one(
    rig: CoreRig, key: RequestKey, moving: Operation
) -> None:
    rig.all_done(moving)
    rig.acknowledge(moving)
    rig.send(Finish(request=key))
    event = recorded(rig, lambda: rig.done(moving, 0), "ignored", "stale")
    assert event.request == key, "closed"
    again = rig.open("a")
    assert again.request_epoch == 2
    event = recorded(rig, lambda: rig.done(moving, 0), "ignored", "stale")
    assert event.request == again, "recorded in the latest life's stream"
    assert event.operation == moving


def test_f2_a_word_of_a_process_that_is_gone_is_ignored(rig: CoreRig, moving: Operation) -> None:
    recorded(rig, lambda: rig.done(moving, 0, process_epoch=9), "ignored", "stale")


# ---- future


def test_f2_an_operation_that_was_not_given_out_is_an_error(rig: CoreRig, moving: Operation) -> None:
    ahead = replace(moving, operation_id=moving.operation_id + 1)
    event = recorded(rig, lambda: rig.done(ahead, 0), "refused", "future")
    assert isinstance(event, e.AckRefused)
    assert (event.expected, event.got) == ("operation id below 2", "2")


def test_f2_an_epoch_that_was_not_given_out_is_an_error(rig: CoreRig, moving: Operation) -> None:
    later = replace(moving, request=RequestKey("a", 2))
    recorded(rig, lambda: rig.done(later, 0), "refused", "future")
    stranger = replace(moving, request=RequestKey("never-opened", 1))
    event = recorded(rig, lambda: rig.done(stranger, 0), "refused", "future")
    assert event.request == POOL


def test_f2_a_process_epoch_that_is_not_known_is_an_error(rig: CoreRig, moving: Operation) -> None:
    event = recorded(rig, lambda: rig.done(moving, 0, process_epoch=99), "refused", "future")
    assert isinstance(event, e.AckRefused)
    assert (event.expected, event.got) == ("process epoch up to 10 of rank 0", "99")


# ---- conflict


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"pool_generation": 2}, "pool_generation 1"),
        ({"pool_generation": 0}, "pool_generation 1"),
        ({"map_revision": 1}, "map_revision 0"),
    ],
)
def test_f2_a_word_that_differs_from_the_operation_it_names_is_an_error(
    rig: CoreRig, moving: Operation, changed: dict[str, object], expected: str
) -> None:
    """Identity is the whole tuple: request and epoch, operation, pool generation, map revision."""
    other = replace(moving, **changed)
    event = recorded(rig, lambda: rig.done(other, 0), "refused", "conflict")
    assert isinstance(event, e.AckRefused)
    assert event.expected == expected
    assert rig.done(moving, 0).outcome == "accepted", "the honest one still counts"


def test_f2_a_rank_that_is_not_awaited_or_an_unknown_word_is_an_error(rig: CoreRig, moving: Operation) -> None:
    recorded(rig, lambda: rig.done(moving, 7), "refused", "conflict")
    recorded(rig, lambda: rig.done(moving, -1), "refused", "conflict")
    recorded(rig, lambda: rig.done(moving, 0, "done"), "refused", "conflict")
    assert rig.done(moving, 0).outcome == "accepted"


def test_f2_another_outcome_of_a_rank_that_has_spoken_is_an_error(rig: CoreRig, moving: Operation) -> None:
    rig.done(moving, 0)
    event = recorded(rig, lambda: rig.done(moving, 0, "failed"), "refused", "conflict")
    assert isinstance(event, e.AckRefused)
    assert (event.expected, event.got) == ("outcome completed, as recorded", "outcome failed")


def test_f2_a_word_on_an_operation_that_no_rank_was_sent_is_an_error(rig: CoreRig, key: RequestKey) -> None:
    """A keep map goes to the producer only."""
    rig.upload(key, FIRST)
    published = rig.started(rig.select(key, {0: [0], 1: [1]}))
    recorded(rig, lambda: rig.done(published, 0), "refused", "conflict")


def test_f2_a_rank_cannot_say_that_its_own_process_has_ended(rig: CoreRig, moving: Operation) -> None:
    recorded(rig, lambda: rig.done(moving, 0, "epoch_ended"), "refused", "conflict")


def test_f2_f5_a_word_on_an_operation_of_another_request_is_no_word_on_this_one(
    rig: CoreRig, moving: Operation
) -> None:
    other = replace(moving, request=rig.open("b"))
    recorded(rig, lambda: rig.done(other, 0), "ignored", "stale")


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_f2_ranks_are_a_set_not_a_count(
    rig: CoreRig, key: RequestKey, moving: Operation, order: tuple[int, int]
) -> None:
    """Two words of one rank are not the words of two ranks."""
    first, second = order
    rig.done(moving, first)
    rig.done(moving, first)
    assert rig.request(key).view is None
    rig.done(moving, second)
    assert rig.request(key).current == 1


# ---- the producer


def test_f1_the_producers_word_closes_the_lane_once(rig: CoreRig, key: RequestKey, moving: Operation) -> None:
    rig.all_done(moving)
    turn = rig.acknowledge(moving, cpu_gather_bytes=3)
    assert turn.outcome == "accepted"
    (event,) = turn.events
    assert isinstance(event, e.UploadAcknowledged)
    assert (event.process_epoch, event.cpu_gather_bytes) == (PRODUCER, 3)
    recorded(rig, lambda: rig.acknowledge(moving), "repeated", "duplicate")
    assert rig.request(key).upload.phase == "IDLE"
    rig.upload(key, SECOND)
    recorded(rig, lambda: rig.acknowledge(moving), "ignored", "stale")


@pytest.mark.parametrize(
    ("epoch", "outcome", "verdict"), [(PRODUCER - 1, "ignored", "stale"), (PRODUCER + 1, "refused", "future")]
)
def test_f2_the_word_of_another_producer_process_closes_nothing(
    rig: CoreRig, key: RequestKey, moving: Operation, epoch: int, outcome: str, verdict: str
) -> None:
    rig.all_done(moving)
    recorded(rig, lambda: rig.send(Acknowledged(operation=moving, process_epoch=epoch)), outcome, verdict)
    assert rig.request(key).upload.phase == "COMMITTED"
    assert rig.acknowledge(moving).outcome == "accepted"


@pytest.mark.parametrize("changed", [{"operation_id": 2}, {"request": RequestKey("a", 2)}])
def test_f2_a_producers_word_on_what_was_not_given_out_is_an_error(
    rig: CoreRig, moving: Operation, changed: dict[str, object]
) -> None:
    rig.all_done(moving)
    recorded(rig, lambda: rig.acknowledge(replace(moving, **changed)), "refused", "future")


def test_f1_the_producers_word_before_the_commit_closes_nothing(
    rig: CoreRig, key: RequestKey, moving: Operation
) -> None:
    recorded(rig, lambda: rig.acknowledge(moving), "ignored", "stale")
    rig.all_done(moving)
    assert rig.request(key).upload.phase == "COMMITTED"


def test_g3_every_rank_is_told_to_stop_with_the_process_it_was_sent_to(rig: CoreRig, moving: Operation) -> None:
    rig.done(moving, 0, "failed")
    assert rig.last(Cancel).ranks == RANKS
    assert rig.last(Cancel).operation == moving
