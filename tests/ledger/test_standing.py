"""What stands: a state that was handed out stays what it was, whatever is staged, adopted or discarded after it."""

import re
from typing import Any

import numpy as np
import pytest
from tests.ledger.test_draft import next_of, stamp
from tests.ledger.test_laws import busy, sharing
from tests.ledger.walks import Walk
from tests.ledger.worlds import TWO_LAYERS, WITH_SLIDING, A, B, World, frozen, whole

from kvsweep.ledger import events as e
from kvsweep.ledger.draft import Draft
from kvsweep.ledger.errors import KvsweepError, Refused, SequenceConflict
from kvsweep.ledger.events import Event
from kvsweep.ledger.fold import apply, apply_all, emit, emit_in, fold, fold_all
from kvsweep.ledger.ids import POOL, RequestKey, int32_bytes
from kvsweep.ledger.ownership import Holder
from kvsweep.ledger.standing import Standing
from kvsweep.ledger.state import EMPTY, State
from kvsweep.ledger.store.digest import parts_digest

SEED = 20260916
C = RequestKey("c", 1)


def unfence(draft: Draft) -> None:
    """Device block 2 is free."""
    emit(draft, e.FenceOpened, draft.mine(A), fence=1, freed=draft.freed_by(A, Holder("fence", 1)).freed)


def store(draft: Draft) -> None:
    """An operation begins, CPU block 5 is held."""
    a, ranks = draft.mine(A), draft.pool.ranks
    wire = int32_bytes([5])
    emit(draft, e.StoreStarted, a, operation=draft.next_operation(a), logical=wire, source=wire, ranks=ranks)


def abort(draft: Draft) -> None:
    b = draft.mine(B)
    opened = b.upload.open
    assert opened is not None
    emit(draft, e.UploadAborted, b, operation=opened.operation, reason="x")
    for rank, epoch in opened.ranks:
        emit(
            draft, e.TransferSettled, b, operation=opened.operation, rank=rank, process_epoch=epoch, outcome="cancelled"
        )


def begin(draft: Draft) -> None:
    emit_in(draft, e.RequestOpened, C, pool_generation=draft.pool.pool_generation, rows=2)
    emit_in(draft, e.SourcesRegistered, C, logical=int32_bytes([0]), source=int32_bytes([7]))


def tail(draft: Draft) -> None:
    emit(draft, e.TailOpened, draft.mine(B), logical=9, physical_by_group=int32_bytes([5]))


STEPS = (unfence, store, abort, begin, tail)


def staged(standing: Standing, *steps: Any) -> None:
    for step in steps:
        draft = standing.draft()
        step(draft)
        standing.stage(draft)


def expect_index(standing: Standing) -> None:
    """The index is the one that the relation gives."""
    fresh = Standing(standing.state).index()
    assert (standing.index().device, standing.index().cpu) == (fresh.device, fresh.cpu)


# ---- staged, adopted, discarded


def test_what_is_staged_is_no_part_of_the_state_until_it_is_adopted() -> None:
    standing = Standing(busy().state)
    before = whole(standing.state)
    for count in range(1, len(STEPS) + 1):
        staged(standing, STEPS[count - 1])
        assert standing.staged
        assert whole(standing.state) == before
    standing.adopt()
    assert not standing.staged
    draft = Standing(busy().state).draft()
    for step in STEPS:
        step(draft)
    assert whole(standing.state) == whole(apply_all(busy().state, draft.events)) != before
    expect_index(standing)


def test_a_later_draft_stands_on_what_is_staged() -> None:
    standing = Standing(busy().state)
    staged(standing, begin)
    draft = standing.draft()
    assert draft.known(C) is not None
    assert draft.held_source(int32_bytes([7])) == 7
    assert standing.state.request(C) is None


@pytest.mark.parametrize("count", range(1, len(STEPS) + 1))
@pytest.mark.parametrize("seen", [False, True])
def test_discarding_takes_back_all_that_is_staged(count: int, seen: bool) -> None:
    """However many drafts; the index and the operations under way too, also where somebody looked in between."""
    standing = Standing(busy().state)
    before, kept, records = stamp(standing), standing.state, dict(standing.requests)
    staged(standing, *STEPS[:count])
    if seen:
        assert whole(standing.state) == before[0]
    standing.discard()
    assert not standing.staged
    assert stamp(standing) == before
    assert all(standing.requests[name] is record for name, record in records.items())
    assert whole(kept) == before[0]
    standing.adopt()
    assert stamp(standing) == before, "nothing of it is adopted later"
    staged(standing, *STEPS)
    standing.adopt()
    expect_index(standing)
    again = Standing(busy().state)
    staged(again, *STEPS)
    again.adopt()
    assert stamp(standing) == stamp(again)


def test_operations_under_way_are_known_once_they_are_adopted() -> None:
    standing = Standing(busy().state)
    was = list(standing.live)
    staged(standing, unfence, store, abort)
    assert list(standing.live) == was
    standing.adopt()
    assert list(standing.live) == list(Standing(standing.state).live) != was


def test_discarding_nothing_changes_nothing() -> None:
    standing = Standing(busy().state)
    before = stamp(standing)
    standing.discard()
    standing.adopt()
    assert stamp(standing) == before


# ---- the index


@pytest.mark.parametrize("forgotten", [0, 1, 2])
@pytest.mark.parametrize("kept", ["adopt", "discard"])
def test_an_index_that_was_forgotten_is_made_again_equal(forgotten: int, kept: str) -> None:
    """Whenever something stops in the middle of a change: also with drafts staged before that may be discarded yet."""
    standing = Standing(busy().state)
    standing.index()
    for at, steps in enumerate(((unfence, store), (begin,), (tail,))):
        if at == forgotten:
            standing.forget_index()
        staged(standing, *steps)
    getattr(standing, kept)()
    expect_index(standing)
    standing.forget_index()
    expect_index(standing)


def test_without_a_configured_pool_there_is_no_index() -> None:
    with pytest.raises(LookupError, match="not configured"):
        Standing(EMPTY).index()


def test_shared_blocks_are_in_the_index_once() -> None:
    standing = Standing(sharing().state)
    index = standing.index()
    assert [at for at, held in enumerate(index.device[0]) if held] == [0, 2]
    counts = np.frombuffer(index.cpu, dtype="<u2").tolist()
    assert counts[4] == 3, "the cache and both readers"


# ---- what was handed out


class Kept:
    """States that were handed out, forks, and what each was then."""

    def __init__(self) -> None:
        self.states: list[tuple[State, bytes, str]] = []

    def keep(self, state: State) -> None:
        self.states.append((state, whole(state), parts_digest(state)))

    def expect_same(self, where: str) -> None:
        for state, was, digest in self.states:
            assert whole(state) == was, where
            assert parts_digest(state) == digest, where


@pytest.mark.parametrize("number", range(4))
def test_no_turn_changes_a_state_that_was_handed_out_before(number: int) -> None:
    """The digest of each, before and after every turn: a reducer that changes what it did not copy is seen here."""
    walk = Walk(SEED + number, WITH_SLIDING if number % 2 else TWO_LAYERS, spoil=0.15)
    kept, sampled = Kept(), []
    forks: list[tuple[Standing, tuple[Any, ...]]] = []
    for turn in range(400):
        where = f"seed {SEED + number}, turn {turn}"
        state = walk.standing.state
        before = whole(state), parts_digest(state)
        if turn % 40 == 0:
            kept.keep(state)
            twin = walk.standing.fork()
            forks.append((twin, stamp(twin)))
        walk.take(walk.batch())
        assert (whole(state), parts_digest(state)) == before, where
        if turn % 20 == 19:
            kept.expect_same(where)
            assert all(stamp(twin) == was for twin, was in forks), where
        sampled.append(before[1])
    kept.expect_same("at the end")
    assert len({*sampled}) > 100, "the walk went somewhere"


def gone(*steps: Any) -> Standing:
    """A busy world that has gone these steps, and that nobody has looked at since."""
    standing = Standing(busy().state)
    standing.index()
    staged(standing, *steps)
    standing.adopt()
    return standing


def test_a_fork_and_its_origin_go_their_own_ways() -> None:
    origin = gone(unfence)
    twin = origin.fork()
    staged(twin, store, begin)
    twin.adopt()
    staged(origin, abort, tail)
    origin.adopt()
    assert stamp(twin) == stamp(gone(unfence, store, begin))
    assert stamp(origin) == stamp(gone(unfence, abort, tail))
    for standing in (origin, twin):
        expect_index(standing)
        assert list(standing.live) == list(Standing(standing.state).live)


def test_nobody_s_state_is_changed_under_him_where_drafts_are_staged_and_discarded() -> None:
    standing = Standing(busy().state)
    first = standing.state
    was = whole(first)
    staged(standing, unfence)
    second = standing.state
    standing.discard()
    staged(standing, store)
    standing.adopt()
    third, then = standing.state, whole(standing.state)
    staged(standing, begin, tail)
    standing.discard()
    assert [whole(state) for state in (first, second, third, standing.state)] == [was, was, then, then]


# ---- folding many


def world_events() -> list[Event]:
    """A life in one list, from the configuration on."""
    heard: list[Event] = []

    class Heard(World):
        def event(self, *args: Any) -> Event:
            heard.append(super().event(*args))
            return heard[-1]

    w = Heard()
    w.resident()
    w.retained({0: [0], 1: [1]}, freed=[])
    w.clean_tail(4, [2], 4)
    w.open_fence(w.drop([4]), [2])
    return heard


def test_folding_all_at_once_is_folding_one_by_one() -> None:
    configured, *events = world_events()
    one, every = Standing(apply(EMPTY, configured)), Standing(apply(EMPTY, configured))
    for event in events:
        fold(one, event)
    seen = [(event, whole(every.state)) for event in fold_all(every, events)]
    assert [event for event, _ in seen] == events
    assert {was for _, was in seen} == {whole(one.state)}, "each is given when all stand"
    assert stamp(every) == stamp(one)
    assert whole(every.state) == whole(apply_all(EMPTY, [configured, *events]))
    assert len([*fold_all(Standing(), [configured, *events])]) == 1 + len(events), "a whole ledger as well"


@pytest.mark.parametrize("at", [0, 1, 7, 20, -1])
def test_an_illegal_event_in_the_middle_leaves_those_before_it(at: int) -> None:
    """Each of these is given, and stands, before the refusal is raised; nothing of those after it does."""
    events = world_events()
    illegal = e.RequestResumed(request=A, seq=99)
    spoiled = [*events[:at], illegal, *events[at:]]
    one, every, given = Standing(), Standing(), list[Event]()

    def fold_each() -> None:
        for event in spoiled:
            fold(one, event)

    def fold_together() -> None:
        for event in fold_all(every, spoiled):
            given.append(event)
            assert frozen(every.state) == frozen(apply_all(EMPTY, given)), "one by one then"

    with pytest.raises(KvsweepError) as alone:
        fold_each()
    with pytest.raises(type(alone.value), match=re.escape(str(alone.value))):
        fold_together()
    assert given == spoiled[: spoiled.index(illegal)]
    assert whole(every.state) == whole(one.state) == whole(apply_all(EMPTY, given))
    assert not every.staged
    if given:
        expect_index(every)


def test_a_refused_event_is_folded_into_nothing() -> None:
    standing = Standing(busy().state)
    before, state = stamp(standing), standing.state
    with pytest.raises(Refused):
        fold(standing, next_of(standing, e.RequestResumed))
    with pytest.raises(SequenceConflict):
        fold(standing, next_of(standing, e.RequestResumed, seq=0))
    assert stamp(standing) == before
    assert standing.state is state
    assert standing.pool.seq == next_of(standing, e.ProducerRestarted, POOL, process_epoch=6).seq
