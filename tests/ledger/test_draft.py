"""A draft: it copies before it changes, sees what it did, and a refused event or a dropped draft has never been."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.ledger.test_laws import busy, sharing
from tests.ledger.worlds import A, B, World, rows, whole

from kvsweep.ledger import events as e
from kvsweep.ledger.draft import Draft
from kvsweep.ledger.errors import KvsweepError, Refused, SequenceConflict
from kvsweep.ledger.events import Event
from kvsweep.ledger.fold import emit, emit_in, take
from kvsweep.ledger.ids import POOL, RequestKey, int32_bytes, int32_view
from kvsweep.ledger.ownership import Holder, Holding
from kvsweep.ledger.standing import Standing
from kvsweep.ledger.state import Lane, PoolState, RequestState

VIEW = Holder("view", 2)  # of a, in the busy world


def stamp(standing: Standing) -> tuple[Any, ...]:
    """All that a draft could have touched."""
    index = standing.index()
    return whole(standing.state), [bytes(marks) for marks in index.device], bytes(index.cpu), list(standing.live)


def request_of(draft: Draft, key: RequestKey = A) -> RequestState:
    found = draft.known(key)
    assert found is not None
    return found


def store(draft: Draft) -> None:
    a, ranks, wire = draft.mine(A), draft.pool.ranks, int32_bytes([5])
    emit(draft, e.StoreStarted, a, operation=draft.next_operation(a), logical=wire, source=wire, ranks=ranks)


def next_of(standing: Standing, fact: type[Event], key: RequestKey = A, /, **fields: Any) -> Event:
    known = standing.request(key)
    seq = standing.pool.seq if key == POOL else known.seq if known else 0
    return fact(**{"request": key, "seq": seq, **fields})


# ---- refused: no trace


C = RequestKey("c", 1)
OPENED = {"pool_generation": 1, "rows": 2}
ILLEGAL: list[tuple[str, type[e.Event], RequestKey, dict[str, Any], str]] = [
    ("nobody", e.RequestFinished, C, {}, "a life of no such request"),
    ("another life", e.RequestFinished, RequestKey("a", 2), {}, "a life of RequestKey"),
    ("its number", e.RequestPreempted, A, {"seq": 1}, "expected sequence"),
    ("its phase", e.RequestResumed, A, {}, "is illegal in running"),
    ("a lane's phase", e.TransferCompleted, B, {"operation": None}, "ranks .* have not completed|the open operation"),
    ("a joint rule", e.RequestFinished, A, {}, "turn back before the life changes"),
    ("a new life", e.RequestOpened, C, {**OPENED, "rows": 1}, "at least 2 table rows"),
    ("a new life's epoch", e.RequestOpened, RequestKey("c", 2), OPENED, "request_epoch 1"),
    ("a life that is there", e.RequestOpened, RequestKey("a", 2), OPENED, "the earlier life is not closed"),
    ("what is freed", e.FenceOpened, A, {"fence": 1, "freed": (int32_bytes([5]),)}, "those that lost"),
    ("a block that is held", e.TailOpened, A, {"logical": 9, "physical_by_group": int32_bytes([0])}, "is owned by a"),
    ("the pool's number", e.ProducerRestarted, POOL, {"process_epoch": 6, "seq": 0}, "sequence"),
    ("a rank", e.RankLost, POOL, {"rank": 7, "process_epoch": 1, "pool_generation": 2}, "does not live"),
]  # fmt: skip


each_illegal = pytest.mark.parametrize(
    ("fact", "key", "fields", "said"), [row[1:] for row in ILLEGAL], ids=[row[0] for row in ILLEGAL]
)


@each_illegal
def test_f2_a_refused_event_leaves_no_trace(
    fact: type[e.Event], key: RequestKey, fields: dict[str, Any], said: str
) -> None:
    standing = Standing(busy().state)
    before, records = stamp(standing), dict(standing.requests)
    draft = standing.draft()
    with pytest.raises(KvsweepError, match=said):
        take(draft, next_of(standing, fact, key, **fields))
    assert draft.base is standing
    assert (draft.events, draft.effects, draft.freed_device, draft.freed_cpu) == ([], [], [], [])
    assert draft.requests == {name: records[name] for name in draft.requests}, "what it copied is equal"
    assert (draft.began, draft.ended, draft.held, draft.areas) == ([], [], {}, {})
    draft.drop()
    assert stamp(standing) == before
    assert all(standing.requests[name] is record for name, record in records.items())
    assert standing.journalled == 0


@each_illegal
def test_f2_what_a_draft_did_before_and_after_a_refused_event_stands(
    fact: type[e.Event], key: RequestKey, fields: dict[str, Any], said: str
) -> None:
    """One that is refused changes nothing for its neighbours in the same draft."""
    plain, beside = Standing(busy().state), Standing(busy().state)
    for standing in (plain, beside):
        draft = standing.draft()
        store(draft)
        if standing is beside:
            after = {"seq": request_of(draft).seq} if key == A and "seq" not in fields else {}
            with pytest.raises(KvsweepError, match=said):
                take(draft, next_of(standing, fact, key, **{**after, **fields}))
        emit(draft, e.FenceOpened, draft.mine(A), fence=1, freed=draft.freed_by(A, Holder("fence", 1)).freed)
        standing.stage(draft)
        standing.adopt()
    assert stamp(beside) == stamp(plain)


def test_f4_a_refusal_names_the_phase_before_the_event() -> None:
    """Never one that the request did not have: the reducer refuses before the machine moves."""
    w = World()
    w.plan({0: [0], 1: [0]})
    lease = w.lease({0: [1], 1: [2]}, [1])
    with pytest.raises(Refused, match="BlocksLeased is illegal in running/staged/idle/idle; ") as refused:
        w.emit(e.BlocksLeased, **lease)
    assert refused.value.state == "running/staged/idle/idle"
    assert w.of().upload.phase == "STAGED"
    w = World()
    w.resident()
    w.refuse(
        "RetainPlanned is illegal in running/idle/idle/idle; ", e.RetainPlanned,
        **{**w.retain_fields({0: [0], 1: [0]}), "generation": 9},
    )  # fmt: skip
    w.refuse("OwnersCommitted is illegal in running/idle/applying/idle; ", e.OwnersCommitted,
             operation=w.retain({0: [0], 1: [0]}), generation=2)  # fmt: skip


# ---- dropped: it has never been


def test_a_dropped_draft_has_never_been() -> None:
    standing = Standing(busy().state)
    before, records, holders = stamp(standing), dict(standing.requests), {k: id(v) for k, v in standing.held.items()}
    draft = standing.draft()
    store(draft)
    emit(draft, e.UploadAborted, draft.mine(B), operation=request_of(draft, B).upload.open.operation, reason="x")  # type: ignore[union-attr]
    emit(draft, e.FenceOpened, draft.mine(A), fence=1, freed=draft.freed_by(A, Holder("fence", 1)).freed)
    emit(draft, e.TailOpened, draft.mine(B), logical=9, physical_by_group=int32_bytes([5]))
    emit_in(draft, e.RequestOpened, C, pool_generation=1, rows=2)
    emit_in(draft, e.ProducerRestarted, POOL, process_epoch=6)
    assert draft.freed_device != []
    assert stamp(standing)[0] == before[0], "nothing is staged"
    assert stamp(standing) != before, "the index is changed in place"
    draft.drop()
    assert stamp(standing) == before
    assert all(standing.requests[name] is record for name, record in records.items())
    assert {key: id(value) for key, value in standing.held.items()} == holders
    assert standing.request(C) is None


# ---- what it copies, and what it sees


def test_a_record_is_copied_once_and_only_what_is_changed() -> None:
    standing = Standing(busy().state)
    draft, known = standing.draft(), standing.requests["a"]
    mine = draft.mine(A)
    assert mine is not known
    assert mine == known
    assert draft.own(mine) is draft.own(known) is draft.mine(A) is draft.known(A) is mine
    assert draft.known(B) is standing.requests["b"]
    lanes = {name: known.lane(name) for name in ("upload", "retain", "store")}  # type: ignore[arg-type]
    operation = known.upload.open.operation  # type: ignore[union-attr]
    emit(draft, e.UploadAborted, mine, operation=operation, reason="x")
    assert mine.upload is not lanes["upload"], "a lane that moves is copied first"
    assert (known.upload, known.upload.phase) == (lanes["upload"], "MOVING")
    assert mine.retain is lanes["retain"]
    assert draft.pool is standing.pool
    assert draft.own_pool() is draft.own_pool() is draft.pool is not standing.pool


def test_records_that_change_are_no_keys_of_anything() -> None:
    for record in (RequestState(key=A), Lane(), PoolState()):
        with pytest.raises(TypeError, match="unhashable"):
            hash(record)


def test_a_draft_sees_what_it_did_and_its_base_does_not() -> None:
    standing = Standing(sharing().state)
    draft = standing.draft()
    assert draft.living == 2
    emit_in(draft, e.RequestOpened, C, pool_generation=1, rows=2)
    emit_in(draft, e.SourcesRegistered, C, logical=int32_bytes([0]), source=int32_bytes([7]))
    assert [one.key.request_id for one in draft.everybody()] == ["a", "b", "c"]
    assert (draft.living, draft.known(C), draft.latest("c")) == (3, request_of(draft, C), request_of(draft, C))
    assert draft.held_source(int32_bytes([6, 7])) == 7
    assert draft.holds_source(7) == "c"
    assert draft.holders(C) == {Holder("owner"): Holding(sources=int32_bytes([7]))}
    emit_in(draft, e.RequestFinished, C)
    emit_in(draft, e.RequestClosed, C)
    assert (draft.living, draft.pool.closed, draft.holders(C)) == (2, ("c",), {})
    assert draft.held_source(int32_bytes([6, 7])) == -1
    with pytest.raises(LookupError, match="is not known"):
        draft.request(RequestKey("c", 2))
    assert standing.request(C) is None
    assert standing.pool.closed == ()


def test_events_of_the_pool_and_of_lives_are_numbered_in_their_own_streams() -> None:
    standing = Standing(busy().state)
    draft = standing.draft()
    emit_in(draft, e.RequestOpened, C, pool_generation=1, rows=2)
    emit_in(draft, e.RequestPreempted, C)
    emit_in(draft, e.RankLost, POOL, rank=0, process_epoch=10, pool_generation=2)
    emit_in(draft, e.RankLost, POOL, rank=1, process_epoch=11, pool_generation=3)
    assert [event.seq for event in draft.events] == [0, 1, standing.pool.seq, standing.pool.seq + 1]
    with pytest.raises(SequenceConflict):
        take(draft, draft.events[1])


# ---- what is freed


def test_what_a_holder_frees_is_asked_anew_once_something_has_changed() -> None:
    standing = Standing(busy().state)
    draft = standing.draft()
    fence = Holder("fence", 1)
    assert draft.freed_by(A, fence) is draft.freed_by(A, fence)
    assert [int32_view(blocks).tolist() for blocks in draft.freed_by(A, fence).freed] == [[2]]
    draft.change(A, put={Holder("view", 9): Holding(areas=rows({0: [2], 1: []}))})
    assert [int32_view(blocks).tolist() for blocks in draft.freed_by(A, fence).freed] == [[]]
    with pytest.raises(KeyError):
        draft.freed_by(A, Holder("fence", 7))


def test_what_was_worked_out_before_a_block_was_shared_does_not_undo_the_sharing() -> None:
    w = World(opened=False)
    w.open()
    w.open(B, first_source=8)
    w.clean_tail(4, [2], 4)
    w.resident(B, blocks=(0,))
    w.emit(e.RequestPreempted, B)
    draft = Standing(w.state).draft()
    draft.freed_by(B, Holder("view", 1))
    draft.share(A, Holder("prefix", 1), (2,), 4)
    kept = draft.shared
    draft.change(B, drop=(Holder("view", 1),))
    assert draft.shared == kept != ()


CHANGES: list[tuple[str, Callable[[Draft], None], type[Exception]]] = [
    ("a holder that is not there", lambda draft: draft.change(A, drop=(Holder("view", 77),)), KeyError),
    ("a block that is held already", lambda draft: draft.change(
        A, put={Holder("view", 9): Holding(areas=rows({0: [0], 1: []}))}, reserve=(int32_bytes([0]),)), ValueError),
    ("a block of somebody else", lambda draft: draft.change(
        A, put={Holder("view", 9): Holding(areas=rows({0: [4], 1: []}))}, reserve=(int32_bytes([4]),)), ValueError),
    ("a block outside", lambda draft: draft.change(
        A, put={Holder("view", 9): Holding(areas=rows({0: [66], 1: []}))}, reserve=(int32_bytes([66]),)), ValueError),
    ("a CPU block outside", lambda draft: draft.change(
        A, put={Holder("src", 9): Holding(sources=int32_bytes([99]))}), ValueError),
]  # fmt: skip


@pytest.mark.parametrize(("change", "error"), [row[1:] for row in CHANGES], ids=[row[0] for row in CHANGES])
def test_a_change_that_cannot_be_is_raised_and_a_dropped_draft_is_as_if_it_had_not_been(
    change: Callable[[Draft], None], error: type[Exception]
) -> None:
    standing = Standing(busy().state)
    before = stamp(standing)
    draft = standing.draft()
    with pytest.raises(error):
        change(draft)
    draft.drop()
    assert stamp(standing) == before
