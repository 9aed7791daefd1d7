"""Restarts through the core: what a process that ended can no longer do, and what the next one is told again."""

import pytest
from tests.runtime.rig import PRODUCER, RANKS, CoreRig, Ids

from kvsweep.ledger import events as e
from kvsweep.ledger.ids import POOL, Operation, RequestKey, int32_view
from kvsweep.ledger.messages import (
    Abort,
    Acknowledge,
    Cancel,
    Finish,
    MoveBlocks,
    OpenTail,
    Preempt,
    ProcessLost,
    ProcessStarted,
    PublishKeepMap,
    Resume,
    SealTail,
    StoreBlocks,
    Transfer,
    Turn,
)

VIEW: Ids = {0: [0, 2, 5], 1: [0, 2, 5]}
MORE: Ids = {0: [0, 2, 5, 7], 1: [0, 2, 5]}
RANK, OLD, NEW = 1, RANKS[1][1], RANKS[1][1] + 1


@pytest.fixture
def key(rig: CoreRig) -> RequestKey:
    found = rig.open()
    rig.upload(found, VIEW)
    return found


def lost(rig: CoreRig) -> Turn:
    return rig.send(ProcessLost(rank=RANK, process_epoch=OLD))


def restarted(rig: CoreRig) -> Turn:
    return rig.send(ProcessStarted(rank=RANK, process_epoch=NEW))


def producer_restarted(rig: CoreRig) -> Turn:
    turn = rig.send(ProcessStarted(process_epoch=PRODUCER + 1))
    assert turn.outcome == "accepted"
    return turn


def start(rig: CoreRig, key: RequestKey, lane: str) -> Operation:
    """An operation of this lane whose ranks have not reported."""
    if lane == "upload":
        return rig.started(rig.select(key, MORE))
    if lane == "retain":
        return rig.started(rig.start_retain(key, rig.keep(key, {0: [0], 1: [0]})))
    rig.send(OpenTail(request=key, until=9))
    return rig.started(rig.send(SealTail(request=key, confirmed_tokens=36)))


def settling(rig: CoreRig, key: RequestKey) -> dict[int, dict[int, str]]:
    return {one.operation.operation_id: dict(one.outcomes) for one in rig.request(key).settling}


# ---- a rank ends


@pytest.mark.parametrize("how", [lost, restarted])
@pytest.mark.parametrize("lane", ["upload", "retain", "store"])
def test_g3_a_rank_that_ends_turns_back_what_is_open_and_is_terminal_in_it(
    rig: CoreRig, key: RequestKey, lane: str, how: object
) -> None:
    """One batch: abort, the dead process is quiet, preempted. The other rank may still copy: it settles itself."""
    operation, mark, free = start(rig, key, lane), len(rig.events), rig.free()
    assert how(rig).outcome == "accepted"  # type: ignore[operator]
    names = rig.since(mark)
    abort = {"upload": "UploadAborted", "retain": "RetainAborted", "store": "StoreAborted"}[lane]
    assert names[:3] == [abort, "TransferSettled", "RequestPreempted"]
    request = rig.request(key)
    assert (request.life, request.view, rig.state.pool.pool_generation) == ("PREEMPTED", None, 2)
    assert settling(rig, key) == {operation.operation_id: {RANK: "epoch_ended"}}
    assert rig.last(Cancel).operation == operation
    if lane == "upload":
        assert rig.free() == free + 3, "what only the view held; destinations wait for rank 0"
    rig.lawful()
    rig.done(operation, 0, "cancelled")
    assert settling(rig, key) == {}
    assert rig.free() == 16
    rig.lawful()


def test_g3_a_dead_process_is_terminal_in_what_settles_already_and_never_a_second_time(
    rig: CoreRig, key: RequestKey
) -> None:
    first = rig.started(rig.select(key, MORE))
    rig.done(first, RANK, "failed")
    second = rig.started(rig.select(key, MORE, revision=3))
    rig.send(Abort(operation=second, reason="test"))
    assert settling(rig, key) == {first.operation_id: {RANK: "failed"}, second.operation_id: {}}
    lost(rig)
    expected = {first.operation_id: {RANK: "failed"}, second.operation_id: {RANK: "epoch_ended"}}
    assert settling(rig, key) == expected
    mark = len(rig.events)
    restarted(rig)
    assert rig.since(mark) == ["RankRestarted"], "its end has been seen: nothing ends twice"
    assert settling(rig, key) == expected
    for operation in (first, second):
        rig.done(operation, 0)
    assert settling(rig, key) == {}
    rig.lawful()


@pytest.mark.parametrize("finishing", [False, True])
def test_g3_the_last_silent_rank_that_ends_lets_everything_go(rig: CoreRig, key: RequestKey, finishing: bool) -> None:
    operation = rig.started(rig.select(key, MORE))
    rig.done(operation, 0)
    rig.send(Finish(request=key) if finishing else Preempt(request=key))
    assert rig.free() < 16, "time frees nothing"
    lost(rig)
    assert rig.free() == 16
    assert rig.request(key).life == ("CLOSED" if finishing else "PREEMPTED")
    rig.lawful()


def test_f2_words_of_the_dead_process_are_stale_after_its_loss_and_after_its_return(
    rig: CoreRig, key: RequestKey
) -> None:
    operation = rig.started(rig.select(key, MORE))
    lost(rig)
    assert rig.done(operation, RANK).outcome == "ignored", "said before it ended, heard after"
    restarted(rig)
    assert rig.done(operation, RANK).outcome == "ignored"
    assert rig.last(e.AckIgnored).verdict == "stale"
    turn = rig.done(operation, RANK, process_epoch=NEW)
    assert turn.outcome == "refused", "the new process was never sent this"
    assert rig.last(e.AckRefused).verdict == "conflict"
    assert settling(rig, key) == {operation.operation_id: {RANK: "epoch_ended"}}
    rig.lawful()


def test_g3_what_has_committed_stands_and_goes_on_to_its_acknowledgement(rig: CoreRig, key: RequestKey) -> None:
    operation = rig.started(rig.select(key, MORE))
    rig.all_done(operation)
    assert rig.request(key).upload.phase == "COMMITTED"
    lost(rig)
    assert rig.request(key).upload.phase == "COMMITTED"
    assert rig.acknowledge(operation).outcome == "accepted"
    assert rig.request(key).upload.phase == "IDLE"
    assert rig.free() == 16
    rig.lawful()


def test_g4_blocks_that_were_written_and_not_stored_are_lost_with_a_rank_and_stored_ones_are_not(
    rig: CoreRig, key: RequestKey
) -> None:
    rig.clean_tail(key, 9)
    rig.send(OpenTail(request=key, until=11))
    store = rig.started(rig.send(SealTail(request=key, confirmed_tokens=40)))
    mark = len(rig.events)
    lost(rig)
    gone = [event for event in rig.events[mark:] if isinstance(event, e.BlockLost)]
    assert [(event.logical, event.reason) for event in gone] == [(9, "rank 1 ended"), (10, "rank 1 ended")]
    request = rig.request(key)
    assert request.source_of(8) >= 0, "every rank had stored it"
    assert (request.source_of(9), request.tail) == (-1, ())
    rig.done(store, 0)
    assert rig.request(key).source_of(9) == -1, "one part is not the block"
    assert rig.free() == 16
    rig.lawful()


def test_g1_steps_that_are_open_keep_what_they_were_handed_also_over_a_restart(rig: CoreRig, key: RequestKey) -> None:
    step = rig.begin_step(key)
    restarted(rig)
    assert rig.free() == 13
    rig.end_step(step)
    assert rig.free() == 16
    assert rig.last(e.BlocksRetired).cause == "preempt"


def test_g1_a_view_that_a_preemption_replaced_is_retired_as_such_whatever_the_life_is_then(
    rig: CoreRig, key: RequestKey
) -> None:
    """Preempted, resumed and loaded again before its last reader ends."""
    step = rig.begin_step(key)
    rig.send(Preempt(request=key))
    rig.send(Resume(request=key))
    rig.upload(key, MORE)
    other = rig.begin_step(key)
    rig.upload(key, {0: [0, 1, 2, 5, 7], 1: [0, 2, 5]})
    rig.send(Finish(request=key))
    for number in (other, step):
        rig.end_step(number)
    retired = [(event.generation, event.cause) for event in rig.events if isinstance(event, e.BlocksRetired)]
    assert sorted(retired) == [(1, "preempt"), (2, "upload"), (3, "finish")]
    rig.lawful()


def test_g3_after_a_restart_commands_name_the_new_process_and_its_words_count(rig: CoreRig, key: RequestKey) -> None:
    restarted(rig)
    rig.send(Resume(request=key))
    operation = rig.started(rig.select(key, VIEW))
    assert rig.last(Transfer).ranks == ((0, RANKS[0][1]), (RANK, NEW))
    assert operation.pool_generation == 2
    assert rig.done(operation, RANK).outcome == "ignored", "a word of the process before"
    rig.done(operation, 0)
    assert rig.request(key).view is None
    rig.done(operation, RANK, process_epoch=NEW)
    assert rig.view(key).logical.as_lists() == VIEW
    rig.lawful()


@pytest.mark.parametrize(
    ("message", "expected", "got"),
    [
        (ProcessStarted(rank=1, process_epoch=10), "above 11", "10"),
        (ProcessStarted(rank=7, process_epoch=10), "above None", "10"),
        (ProcessLost(rank=1, process_epoch=10), "11, alive", "10"),
        (ProcessLost(rank=1, process_epoch=12), "11, alive", "12"),
        (ProcessStarted(process_epoch=4), "above 5", "4"),
    ],
)
def test_d4_a_process_that_cannot_be_is_refused_with_both_values_and_recorded(
    rig: CoreRig, key: RequestKey, message: ProcessStarted | ProcessLost, expected: str, got: str
) -> None:
    start(rig, key, "upload")
    before = rig.request(key)
    turn = rig.send(message)
    assert turn.outcome == "refused"
    (event,) = turn.events
    assert isinstance(event, e.HandshakeRefused)
    assert event.request == POOL
    peer = "producer" if isinstance(message, ProcessStarted) and message.rank is None else f"rank {message.rank}"
    (difference,) = event.differences
    assert (event.peer, difference.field, difference.expected, difference.got) == (
        peer,
        "process_epoch",
        expected,
        got,
    )
    assert turn.refusal is not None
    assert turn.refusal.reason == f"{peer}: process_epoch: expected {expected}, got {got}"
    assert rig.request(key) == before


def test_d4_a_rank_that_returns_with_its_old_epoch_is_refused(rig: CoreRig, key: RequestKey) -> None:
    lost(rig)
    assert rig.send(ProcessStarted(rank=RANK, process_epoch=OLD)).outcome == "refused"
    again = lost(rig)
    assert (again.outcome, type(again.events[0])) == ("refused", e.HandshakeRefused), "it ended once"
    assert rig.state.pool.lost == (RANK,)
    assert rig.state.pool.pool_generation == 2
    assert restarted(rig).outcome == "accepted"
    assert rig.state.pool.lost == ()
    assert rig.state.pool.pool_generation == 3


def test_g3_what_was_opened_while_a_rank_was_lost_is_not_turned_back_when_it_returns(
    rig: CoreRig, key: RequestKey
) -> None:
    """Nothing of it stood on the dead process."""
    lost(rig)
    rig.send(Resume(request=key))
    rig.send(OpenTail(request=key, until=9))
    mark = len(rig.events)
    restarted(rig)
    assert rig.since(mark) == ["RankRestarted"]
    request = rig.request(key)
    assert (request.life, [block.phase for block in request.tail]) == ("RUNNING", ["open"])
    rig.lawful()


def test_f2_a_repeated_announcement_changes_nothing(rig: CoreRig, key: RequestKey) -> None:
    start(rig, key, "upload")
    before = rig.request(key)
    for message in (
        ProcessStarted(rank=RANK, process_epoch=OLD),
        ProcessStarted(process_epoch=PRODUCER),
    ):
        turn = rig.send(message)
        assert (turn.outcome, turn.events, turn.effects) == ("accepted", (), ())
    assert rig.request(key) == before


# ---- the producer ends


def test_i_an_upload_in_flight_aborts_with_the_producer_also_where_a_rank_has_completed(
    rig: CoreRig, key: RequestKey
) -> None:
    """One that reports later may have read lost memory. Its leases stay: ranks may still read the old mapping."""
    operation = rig.started(rig.select(key, MORE))
    leased = int32_view(rig.last(Transfer).source.id_bytes).tolist()
    rig.done(operation, 0)
    producer_restarted(rig)
    assert rig.last(e.UploadAborted).reason == "the producer restarted"
    assert rig.request(key).view is not None, "bytes on the devices stand: the request runs on"
    assert rig.request(key).life == "RUNNING"
    assert settling(rig, key) == {operation.operation_id: {0: "completed"}}
    assert set(leased) <= set(rig.state.ownership.sources(key).tolist())
    rig.send(Finish(request=key))
    assert not rig.pools.cpu.full.claim(int32_view(rig.last(Transfer).source.id_bytes)), "leased: not free yet"
    rig.done(operation, RANK)
    assert rig.request(key).life == "CLOSED"
    assert rig.pools.cpu.free == (32, 8)
    rig.lawful()


def test_i_a_store_in_flight_aborts_with_the_producer_and_is_tried_again(rig: CoreRig, key: RequestKey) -> None:
    operation = start(rig, key, "store")
    rig.done(operation, 0)
    producer_restarted(rig)
    assert rig.last(e.StoreAborted).reason == "the producer restarted"
    assert rig.request(key).tail[0].phase == "dirty"
    rig.done(operation, RANK)
    again = rig.started(rig.send(SealTail(request=key, confirmed_tokens=36)))
    rig.all_done(again)
    assert rig.request(key).source_of(8) >= 0
    assert len(rig.effects_of(StoreBlocks)) == 2
    rig.lawful()


def test_i_a_retain_goes_on_over_a_producer_restart(rig: CoreRig, key: RequestKey) -> None:
    operation = start(rig, key, "retain")
    rig.done(operation, 0)
    producer_restarted(rig)
    rig.done(operation, RANK)
    assert rig.view(key).logical.as_lists() == {0: [0], 1: [0]}
    assert len(rig.effects_of(MoveBlocks)) == 1
    assert rig.acknowledge(operation).outcome == "ignored", "the old process's word"
    assert rig.acknowledge(operation, process_epoch=PRODUCER + 1).outcome == "accepted"
    rig.lawful()


def test_i_no_cpu_block_is_valid_until_it_is_registered_again(rig: CoreRig, key: RequestKey) -> None:
    sources = int32_view(rig.request(key).source).copy()
    free = rig.pools.cpu.free
    producer_restarted(rig)
    assert rig.pools.cpu.free == free, "invalid, and held all the same"
    turn = rig.select(key, MORE)
    assert turn.refusal is not None
    assert turn.refusal.what == "invalid_source"
    rig.register(key, [7], [int(sources[7])])
    assert rig.pools.cpu.free == free, "its own block is claimed from nobody"
    rig.upload(key, MORE, producer_epoch=PRODUCER + 1)
    assert rig.select(key, {0: [0, 1], 1: [0]}).outcome == "refused", "block 1 is not registered yet"
    rig.lawful()


def test_i_a_word_that_the_old_producer_may_have_missed_is_said_to_the_new_one(rig: CoreRig, key: RequestKey) -> None:
    """A committed upload, a retired retain and a published keep map wait for their acknowledgement."""
    other, third = rig.open("b"), rig.open("c")
    for name in (other, third):
        rig.upload(name, VIEW)
    committed = rig.started(rig.select(key, MORE))
    rig.all_done(committed)
    retired = start(rig, other, "retain")
    rig.all_done(retired)
    published = rig.started(rig.select(third, {0: [0], 1: [2]}))
    mark = len(rig.effects)
    producer_restarted(rig)
    again = rig.effects[mark:]
    assert {effect.operation for effect in again if isinstance(effect, Acknowledge)} == {committed, retired}
    (keep,) = [effect for effect in again if isinstance(effect, PublishKeepMap)]
    assert (keep.operation, keep.keep.as_lists()) == (published, {0: [0], 1: [1]})
    for operation in (committed, retired, published):
        assert rig.acknowledge(operation).outcome == "ignored"
        assert rig.acknowledge(operation, process_epoch=PRODUCER + 1).outcome == "accepted"
    for name in (key, other, third):
        assert rig.request(name).open_operations() == ()
    rig.lawful()


@pytest.mark.parametrize("ends", [Preempt, Finish])
def test_i_a_keep_map_that_was_voided_is_acknowledged_by_the_new_producer_all_the_same(
    rig: CoreRig, key: RequestKey, ends: type[Preempt] | type[Finish]
) -> None:
    """Nothing is resident, so nothing is kept; without a word the lane would wait for the old process for ever."""
    operation = rig.started(rig.select(key, VIEW))
    rig.send(ends(request=key))
    producer_restarted(rig)
    said = rig.last(PublishKeepMap)
    assert (said.operation, said.keep.as_lists()) == (operation, {0: [], 1: []})
    assert rig.acknowledge(operation, process_epoch=PRODUCER + 1).outcome == "accepted"
    assert rig.core.pending(key) == []
