"""Lives of requests, turns that wait for the log, and steps."""

from collections.abc import Callable
from itertools import permutations

import pytest
from tests.runtime.rig import CoreRig, Ids, frozen, selection

from kvsweep.ledger import events as e
from kvsweep.ledger.errors import Busy, Refused, UsageError
from kvsweep.ledger.ids import RequestKey, int32_bytes, no_rows
from kvsweep.ledger.messages import (
    Abort,
    Finish,
    OpenRequest,
    OpenTail,
    Preempt,
    RegisterSources,
    Resume,
    Retain,
    SealTail,
    Select,
)

MakeRig = Callable[..., CoreRig]
FIRST: Ids = {0: [0, 2], 1: [1, 2]}
SECOND: Ids = {0: [0, 2, 6], 1: [1, 2, 3]}


# ---- F5: identity


@pytest.mark.parametrize("name", ["a-1", "a/1", "@pool", "", "요청\n7", "cmpl-0-ab12-1"])
def test_f5_an_id_is_whole_and_opaque(rig: CoreRig, name: str) -> None:
    """Nothing is parsed out of it, and no id is special."""
    key = rig.open(name)
    assert key == RequestKey(name, 1)
    other = rig.open(name + "-1")
    rig.upload(key, FIRST)
    assert rig.request(other).view is None
    assert rig.view(key).logical.as_lists() == FIRST


def test_f5_a_new_life_of_an_id_starts_when_the_earlier_one_is_closed(rig: CoreRig) -> None:
    key = rig.open()
    operation = rig.started(rig.select(key, FIRST))
    turn = rig.send(OpenRequest(request_id="a"))
    assert turn.outcome == "refused"
    rig.send(Finish(request=key))
    turn = rig.send(OpenRequest(request_id="a"))
    assert turn.outcome == "refused"
    assert turn.refusal is not None
    assert turn.refusal.reason == "the earlier life is not closed"
    rig.all_done(operation, outcome="cancelled")
    again = rig.open()
    assert again == RequestKey("a", 2)
    assert rig.state.request(key) is None


def test_f5_commands_for_a_life_that_is_not_there_are_refused(rig: CoreRig) -> None:
    old = RequestKey("a", 0)
    rig.open()
    for key in (old, RequestKey("b", 1)):
        for command in (
            Preempt(request=key),
            Resume(request=key),
            Finish(request=key),
            OpenTail(request=key, until=3),
            SealTail(request=key, confirmed_tokens=3),
            RegisterSources(request=key, logical=int32_bytes([0]), source=int32_bytes([0])),
            Select(selection=selection(rig.layout, key, 1, FIRST), idempotency_key="k"),
            Retain(
                request=key,
                keep=no_rows((0, 1)),
                adopt=no_rows(),
                map_revision=0,
                selection_revision=1,
                idempotency_key="k",
            ),
        ):
            turn = rig.send(command)
            assert turn.outcome == "refused"
            assert turn.refusal is not None
            assert turn.refusal.legal == ("OpenRequest",)
            (event,) = turn.events
            assert isinstance(event, e.CommandRefused)
            assert event.command == type(command).__name__


def test_f2_open_requests_are_bounded(make_rig: MakeRig) -> None:
    rig = make_rig(limits={"open_requests": 2})
    key = rig.open("a", blocks=0)
    rig.open("b", blocks=0)
    with pytest.raises(Busy, match="open requests is full: the limit is 2"):
        rig.send(OpenRequest(request_id="c"))
    rig.send(Finish(request=key))
    rig.open("c", blocks=0)


# ---- the life table


def test_g3_illegal_changes_of_life_are_refused_and_change_nothing(rig: CoreRig) -> None:
    key = rig.open()
    rig.upload(key, FIRST)
    view = rig.view(key)
    assert rig.send(Resume(request=key)).outcome == "refused"
    rig.send(Preempt(request=key))
    assert rig.send(Preempt(request=key)).outcome == "refused"
    assert rig.select(key, FIRST).outcome == "refused", "only a running request uploads"
    assert rig.free() == 16, "what was reserved for it came back"
    rig.send(Resume(request=key))
    assert rig.request(key).view is None
    rig.upload(key, FIRST)
    assert rig.view(key).generation > view.generation
    rig.send(Finish(request=key))
    assert rig.request(key).life == "CLOSED"
    for command in (Finish(request=key), Preempt(request=key), Resume(request=key)):
        assert rig.send(command).outcome == "refused"
    rig.lawful()


def test_g3_preemption_turns_an_open_upload_back_in_the_same_batch(rig: CoreRig) -> None:
    key = rig.open()
    rig.upload(key, FIRST)
    operation = rig.started(rig.select(key, SECOND))
    rig.done(operation, 0)
    mark = len(rig.events)
    rig.send(Preempt(request=key))
    assert rig.since(mark) == ["UploadAborted", "RequestPreempted", "BlocksRetired"]
    assert rig.last(e.BlocksRetired).cause == "preempt"
    rig.send(Resume(request=key))
    rig.done(operation, 1)
    assert rig.request(key).current == 0, "a completion after the preemption commits nothing"
    assert rig.free() == 16
    rig.lawful()


def test_b6_finish_returns_all_blocks_and_only_after_that_the_request_is_closed(rig: CoreRig) -> None:
    key = rig.open()
    rig.upload(key, FIRST)
    step = rig.begin_step(key)
    turn = rig.send(Finish(request=key))
    assert turn.holds_blocks, "an open step still reads the view"
    assert rig.request(key).life == "FINISHING"
    assert rig.pools.cpu.free == (32, 8)
    rig.end_step(step)
    assert rig.request(key).life == "CLOSED"
    assert rig.free() == 16
    rig.lawful()


def test_b6_a_finish_that_holds_nothing_says_so(rig: CoreRig) -> None:
    key = rig.open()
    rig.upload(key, FIRST)
    turn = rig.send(Finish(request=key))
    assert not turn.holds_blocks
    assert rig.request(key).life == "CLOSED"


def test_g1_a_request_is_not_closed_while_a_step_is_open_on_it(rig: CoreRig) -> None:
    """Even where the step was handed neither a view nor a tail."""
    key = rig.open(blocks=0)
    step = rig.begin_step(key)
    rig.send(Finish(request=key))
    assert rig.request(key).life == "FINISHING"
    rig.end_step(step)
    assert rig.request(key).life == "CLOSED"


@pytest.mark.parametrize("order", list(permutations(("rank 0", "rank 1", "step", "ack"))))
def test_b6_whatever_ends_last_closes_the_request_and_each_thing_goes_back_once(
    rig: CoreRig, order: tuple[str, ...]
) -> None:
    """A committed retain, an open step on the view before it, and a store in flight, ended in every order."""
    key = rig.open()
    rig.upload(key, FIRST)
    rig.send(OpenTail(request=key, until=9))
    store = rig.started(rig.send(SealTail(request=key, confirmed_tokens=36)))
    step = rig.begin_step(key)
    kept = rig.started(rig.start_retain(key, rig.keep(key, {0: [0], 1: [1]})))
    rig.all_done(kept)
    rig.send(Finish(request=key))
    acknowledged = False
    for what in order:
        assert rig.request(key).life == "FINISHING"
        match what:
            case "rank 0" | "rank 1":
                rig.done(store, int(what[-1]), "cancelled")
            case "step":
                rig.end_step(step)
                if acknowledged:
                    rig.acknowledge(kept)
            case _:
                acknowledged = rig.acknowledge(kept).outcome == "ignored"  # not retired yet: asked for again
        rig.lawful()
    assert rig.request(key).life == "CLOSED"
    assert (rig.free(), rig.pools.cpu.free) == (16, (32, 8))


# ---- two requests


def test_b6_two_requests_never_own_the_same_block_and_one_ends_without_the_other(rig: CoreRig) -> None:
    a, b = rig.open("a"), rig.open("b")
    first = rig.started(rig.select(a, FIRST))
    rig.upload(b, SECOND)
    assert not set(rig.owned(a)) & set(rig.owned(b))
    rig.send(Abort(operation=first, reason="x"))
    rig.send(Finish(request=b))
    rig.upload(b2 := rig.open("b"), SECOND)
    assert b2.request_epoch == 2
    quarantined = set(rig.owned(a))
    assert quarantined
    assert not quarantined & set(rig.owned(b2)), "rank 0 and 1 may still write for a"
    rig.all_done(first, outcome="cancelled")
    rig.lawful()


# ---- turns


def test_g3_nothing_changes_until_the_turn_is_adopted_and_a_second_message_waits(rig: CoreRig) -> None:
    key = rig.open()
    before = frozen(rig.state)
    turn = rig.core.handle(Preempt(request=key))
    assert frozen(rig.state) == before
    with pytest.raises(UsageError, match="a turn is staged: adopt or discard it"):
        rig.core.handle(Resume(request=key))
    with pytest.raises(UsageError, match="a turn is staged"):
        rig.core.end_step(1)
    rig.core.discard(turn)
    assert frozen(rig.state) == before
    rig.send(Preempt(request=key))
    assert rig.request(key).life == "PREEMPTED"


# ---- steps


def test_g1_a_step_is_handed_committed_generations_only(rig: CoreRig) -> None:
    key = rig.open()
    rig.upload(key, FIRST)
    operation = rig.started(rig.select(key, SECOND))
    rig.done(operation, 0)
    _, handed = rig.core.begin_step([key])
    assert (handed[key].generation, handed[key].row) == (1, rig.view(key).row)
    rig.done(operation, 1)
    _, handed = rig.core.begin_step([key])
    assert handed[key].generation == 2
    assert handed[key].row != rig.request(key).views[0].row


def test_g1_a_step_ends_once_and_only_running_requests_are_stepped(rig: CoreRig) -> None:
    key = rig.open()
    step = rig.begin_step(key)
    rig.end_step(step)
    with pytest.raises(UsageError, match=r"step 1: expected one of the open steps \[\]"):
        rig.end_step(step)
    rig.send(Preempt(request=key))
    with pytest.raises(Refused, match="only a running request is stepped"):
        rig.begin_step(key)
    with pytest.raises(Refused, match="no such request"):
        rig.begin_step(RequestKey("b", 1))
    assert len(rig.core.steps) == 0


def test_f2_open_steps_are_bounded(make_rig: MakeRig) -> None:
    rig = make_rig(limits={"open_steps": 2})
    key = rig.open()
    first = rig.begin_step(key)
    rig.begin_step(key)
    with pytest.raises(Busy, match="open steps is full"):
        rig.begin_step(key)
    rig.end_step(first)
    rig.begin_step(key)


def test_g2_pending_gives_reasons_until_all_is_settled(rig: CoreRig) -> None:
    key = rig.open()
    assert rig.core.pending() == []
    operation = rig.started(rig.select(key, FIRST))
    assert rig.core.pending(key) == ["a: upload operation 1 is open: ranks [0, 1] have not reported"]
    rig.done(operation, 0)
    assert rig.core.pending() == ["a: upload operation 1 is open: ranks [1] have not reported"]
    rig.done(operation, 1)
    assert rig.core.pending() == ["a: upload operation 1 is open: the producer has not acknowledged"]
    rig.acknowledge(operation)
    step = rig.begin_step(key)
    rig.upload(key, SECOND)
    assert rig.core.pending() == [f"a: view 1 is read by steps ({step},)"]
    aborted = rig.started(rig.select(key, {0: [0, 2, 7], 1: [1]}))
    rig.send(Abort(operation=aborted, reason="x"))
    rig.done(aborted, 1, "cancelled")
    assert "a: operation 3 settles: ranks [0] are not terminal" in rig.core.pending()
    rig.end_step(step)
    rig.done(aborted, 0, "cancelled")
    assert rig.core.pending() == []
