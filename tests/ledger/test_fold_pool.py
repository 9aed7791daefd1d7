"""The pool stream: configuration, restarts of ranks and of the producer, and identities that no request shares."""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.ledger.worlds import PRODUCER, RANKS, TWO_LAYERS, A, B, World, frozen, rows

from kvsweep.ledger import events as e
from kvsweep.ledger.errors import LayoutError, SequenceConflict
from kvsweep.ledger.fold import apply
from kvsweep.ledger.ids import HOLE, POOL, RequestKey, int32_bytes
from kvsweep.ledger.state import CLOSED_KEPT, EMPTY

LOGICAL, TO = {0: [2], 1: [2]}, {0: [5], 1: [5]}
GOOD: dict[str, Any] = {
    "layout": TWO_LAYERS, "ranks": RANKS, "producer_epoch": 5, "device_blocks": (6,), "cpu_full_blocks": 4,
    "cpu_total_blocks": 4, "evidence": "{}",
}  # fmt: skip


def unconfigured() -> World:
    w = World(opened=False)
    w.state = EMPTY
    return w


# ---- configuration


def test_j1_a_ledger_begins_with_its_configuration_and_has_one() -> None:
    w = unconfigured()
    w.refuse("illegal in an unconfigured pool; legal here: RunConfigured", e.RequestOpened, pool_generation=1, rows=2)
    w.refuse("illegal in an unconfigured pool", e.ProducerRestarted, POOL, process_epoch=9)
    w.emit(e.RunConfigured, POOL, **GOOD)
    w.refuse("configured already", e.RunConfigured, POOL, **GOOD)


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"ranks": ()}, "expected ranks 0, 1"),
        ({"ranks": ((1, 10), (0, 11))}, "expected ranks 0, 1"),
        ({"ranks": ((1, 10),)}, "expected ranks 0, 1"),
        ({"device_blocks": ()}, "a pool size for each of 1 groups"),
        ({"device_blocks": (6, 6)}, "a pool size for each of 1 groups"),
        ({"device_blocks": (0,)}, "a pool size for each of 1 groups"),
        ({"cpu_full_blocks": 0}, "expected 0 < K <= N, got K=0, N=4"),
        ({"cpu_full_blocks": 5}, "expected 0 < K <= N, got K=5, N=4"),
    ],
)
def test_d4_a_configuration_that_cannot_be_meant_is_refused(wrong: dict[str, Any], match: str) -> None:
    unconfigured().refuse(match, e.RunConfigured, POOL, **{**GOOD, **wrong})


def test_a_decoded_layout_is_checked_too() -> None:
    w = unconfigured()
    layout = replace(TWO_LAYERS, block_size=0)
    w.refuse("block_size: expected at least 1 token, got 0", e.RunConfigured, POOL, error=LayoutError,
             **{**GOOD, "layout": layout})  # fmt: skip


# ---- streams


def test_facts_of_a_request_and_of_the_pool_do_not_mix() -> None:
    w = World()
    w.refuse("RequestResumed is illegal in the pool stream", e.RequestResumed, POOL)
    w.refuse("a fact of the pool, not of a request", e.ProducerRestarted, A, process_epoch=9)
    w.refuse("a fact of the pool, not of a request", e.DigestRecorded, A, position=1, digest="")


@pytest.mark.parametrize("key", [A, POOL])
@pytest.mark.parametrize("shift", [-1, 1])
def test_f2_every_stream_is_dense_in_its_sequence(key: RequestKey, shift: int) -> None:
    w = World()
    seq = (w.of().seq if key == A else w.state.pool.seq) + shift
    fields = {"command": "x", "state": "s", "reason": "r", "seq": seq}
    w.refuse(f"expected sequence {seq - shift}, found {seq}", e.CommandRefused, key, error=SequenceConflict, **fields)


@pytest.mark.parametrize("name", ["@pool", "", "a/1", "a", "0", "req-7:2", "nul\0"])
def test_f5_ids_are_opaque_whole_and_collide_with_nothing(name: str) -> None:
    w = World(opened=False)
    names = ["@pool", "", "a/1", "a", "0", "req-7:2", "nul\0"]
    for other in names:
        w.open(RequestKey(other, 1), blocks=0)
    w.emit(e.RequestPreempted, RequestKey(name, 1))
    assert {other: w.of(RequestKey(other, 1)).life for other in names} == {
        other: "PREEMPTED" if other == name else "RUNNING" for other in names
    }
    assert w.state.pool.seq == 1


def test_f5_the_first_life_of_an_unknown_id_is_epoch_1() -> None:
    w = World()
    for epoch in (0, 2):
        w.refuse("expected sequence request_epoch 1", e.RequestOpened, RequestKey("x", epoch), error=SequenceConflict,
                 pool_generation=1, rows=2, seq=0)  # fmt: skip


def test_f5_a_forgotten_life_raises_the_floor_so_no_epoch_comes_twice() -> None:
    """Closed lives are remembered up to a bound; ids beyond it start above every forgotten epoch."""
    w = World(opened=False)
    for epoch in (1, 2, 3):
        w.open(RequestKey("old", epoch), blocks=0)
        w.emit(e.RequestFinished, RequestKey("old", epoch))
        w.emit(e.RequestClosed, RequestKey("old", epoch))
    filler = {f"r{number}": RequestKey(f"r{number}", 1) for number in range(CLOSED_KEPT)}
    closed = replace(w.state.requests["old"], seq=0)
    kept = {name: replace(closed, key=key) for name, key in list(filler.items())[1:]}
    w.state = replace(
        w.state, pool=replace(w.state.pool, closed=("old", *kept)), requests={"old": w.state.requests["old"], **kept}
    )
    last = filler["r0"]
    w.open(last, blocks=0)
    w.emit(e.RequestFinished, last)
    w.emit(e.RequestClosed, last)
    assert "old" not in w.state.requests
    assert (len(w.state.pool.closed), w.state.pool.epoch_floor) == (CLOSED_KEPT, 3)
    w.refuse("expected sequence request_epoch 4", e.RequestOpened, RequestKey("old", 1), error=SequenceConflict,
             pool_generation=1, rows=2, seq=0)  # fmt: skip
    w.open(RequestKey("old", 4), blocks=0)


def test_f5_a_life_that_was_opened_again_is_not_among_the_closed_ones_that_may_be_forgotten() -> None:
    w = World(opened=False)
    w.open(blocks=0)
    w.emit(e.RequestFinished)
    w.emit(e.RequestClosed)
    assert w.state.pool.closed == ("a",)
    second = RequestKey("a", 2)
    w.open(second, blocks=0)
    assert w.state.pool.closed == ()
    w.emit(e.RequestFinished, second)
    w.emit(e.RequestClosed, second)
    assert w.state.pool.closed == ("a",)


# ---- a rank restarts


def test_a_lost_rank_raises_the_pool_generation_and_so_does_its_return() -> None:
    w = World()
    w.refuse("expected pool generation 2, got 3", e.RankLost, POOL, rank=1, process_epoch=11, pool_generation=3)
    w.refuse("does not live in process epoch 12", e.RankLost, POOL, rank=1, process_epoch=12, pool_generation=2)
    w.refuse("does not live in process epoch 11", e.RankLost, POOL, rank=2, process_epoch=11, pool_generation=2)
    w.emit(e.RankLost, POOL, rank=1, process_epoch=11, pool_generation=2)
    assert (w.state.pool.pool_generation, w.state.pool.lost, w.state.pool.ranks) == (2, (1,), RANKS)
    w.refuse("does not live", e.RankLost, POOL, rank=1, process_epoch=11, pool_generation=3)
    w.refuse("a process epoch above 11, got 11", e.RankRestarted, POOL, rank=1, process_epoch=11, pool_generation=3)
    w.refuse("expected pool generation 3, got 2", e.RankRestarted, POOL, rank=1, process_epoch=12, pool_generation=2)
    w.refuse("a process epoch above None", e.RankRestarted, POOL, rank=2, process_epoch=12, pool_generation=3)
    w.emit(e.RankRestarted, POOL, rank=1, process_epoch=12, pool_generation=3)
    assert (w.state.pool.pool_generation, w.state.pool.lost) == (3, ())
    assert w.state.pool.ranks == ((0, 10), (1, 12))


def test_a_restart_leaves_ownership_to_the_aborts_of_its_batch() -> None:
    """What the dead epoch could still write is held until it is terminal in each settling operation."""
    w = World()
    op = w.upload(LOGICAL, TO, [5])
    owners = w.state.ownership.canonical()
    w.emit(e.RankRestarted, POOL, rank=1, process_epoch=12, pool_generation=2)
    assert w.state.ownership.canonical() == owners
    w.emit(e.UploadAborted, operation=op, reason="rank 1 restarted")
    w.settle(op, 1, "epoch_ended", epoch=11)
    assert w.owned() == [5], "rank 0 settles for itself"
    w.settle(op, 0, "cancelled")
    assert w.owned() == []
    w.lawful()


def test_f2_after_a_restart_operations_are_of_the_new_generation_and_epochs() -> None:
    w = World()
    old = w.operation()
    w.emit(e.RankRestarted, POOL, rank=1, process_epoch=12, pool_generation=2)
    w.select()
    fields = {"kind": "diff", "source_kind": "source_only"}

    w.refuse("expected a new operation", e.UploadPlanned, operation=old, logical=rows(LOGICAL), **fields)
    w.emit(e.UploadPlanned, operation=w.operation(), logical=rows(LOGICAL), **fields)
    w.emit(e.BlocksLeased, **w.lease(TO, [5]))
    op = w.opened("upload")
    assert op.pool_generation == 2
    w.refuse("expected every rank", e.TransferStarted, operation=op, ranks=RANKS)
    w.emit(e.TransferStarted, operation=op, ranks=((0, 10), (1, 12)))
    w.refuse("pool generation is 2, got 1", e.RequestOpened, B, pool_generation=1, rows=2)


# ---- the producer restarts


def test_i_a_producer_restart_invalidates_every_source_but_drops_no_lease() -> None:
    w = World()
    w.open(B, first_source=4)
    op = w.upload({0: [0], 1: [2]}, {0: [5], 1: [5]}, [5])
    w.refuse("a process epoch above 5, got 5", e.ProducerRestarted, POOL, process_epoch=PRODUCER)
    w.emit(e.ProducerRestarted, POOL, process_epoch=6)
    assert [w.of(key).source_of(0) for key in (A, B)] == [HOLE, HOLE]
    assert (w.sources_held(A), w.sources_held(B)) == ([0, 1, 2, 3], [4, 5, 6, 7]), "the blocks stay held"
    w.lawful()
    w.refuse("CPU block 2 is held for a", e.SourcesRegistered, B, logical=int32_bytes([0]), source=int32_bytes([2]))
    w.emit(e.UploadAborted, operation=op, reason="the producer restarted")
    w.settle(op, 0)
    w.emit(e.RequestFinished)
    assert w.sources_held(A) == [0, 2], "a rank may still read the old mapping"
    w.settle(op, 1)
    assert w.sources_held(A) == []
    w.lawful()


def test_i_after_a_producer_restart_an_upload_needs_registered_sources() -> None:
    w = World()
    w.emit(e.ProducerRestarted, POOL, process_epoch=6)
    w.plan(LOGICAL)

    w.refuse("has no CPU block", e.BlocksLeased, **w.lease(TO, [5], source=rows(LOGICAL)))
    w.register([2], [9])
    w.emit(e.BlocksLeased, **w.lease(TO, [5]))


def test_i_what_was_committed_stands_and_is_acknowledged_to_the_new_producer() -> None:
    w = World()
    op = w.upload(LOGICAL, TO, [5])
    w.commit(op, acknowledged=False)
    table = w.table()
    w.emit(e.ProducerRestarted, POOL, process_epoch=6)
    assert w.table() == table
    w.refuse("expected producer epoch 6, got 5", e.UploadAcknowledged, operation=op, process_epoch=PRODUCER)
    w.emit(e.UploadAcknowledged, operation=op, process_epoch=6)


def test_a_digest_names_a_position() -> None:
    w = World()
    w.refuse("expected a position from 0, got -1", e.DigestRecorded, POOL, position=-1, digest="x")
    before = frozen(w.state)
    w.emit(e.DigestRecorded, POOL, position=0, digest="x")
    assert frozen(replace(w.state, pool=replace(w.state.pool, seq=w.state.pool.seq - 1))) == before


def test_f2_verdicts_on_unknown_requests_are_recorded_in_the_pool_stream_and_change_nothing() -> None:
    w = World()
    ack = {"operation": w.operation(), "rank": 0, "process_epoch": 1, "outcome": "completed", "rule": "r"}
    before = w.state
    w.emit(e.AckIgnored, POOL, **ack, verdict="stale")
    w.emit(e.AckRefused, POOL, **ack, verdict="future", expected="x", got="y")
    w.emit(e.CommandRefused, POOL, command="Resume", state="unknown", reason="x")
    assert w.state.pool.seq == before.pool.seq + 3
    assert frozen(replace(w.state, pool=before.pool)) == frozen(before)


def test_apply_never_changes_the_state_it_was_given() -> None:
    """Immutable to the bottom: an old state still folds the same, whatever was folded from it since."""
    w = World()
    start, kept = w.state, frozen(w.state)
    w.resident()
    w.clean_tail(4, [5], 4)
    w.retained({0: [0], 1: [1]}, freed=[])
    w.emit(e.ProducerRestarted, POOL, process_epoch=6)
    assert frozen(start) == kept
    finished = apply(start, w.event(e.RequestFinished, A, {"seq": start.requests["a"].seq}))
    assert finished.ownership.holders(A) == {}
    assert frozen(start) == kept
