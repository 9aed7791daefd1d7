"""Many messages in one turn: each comes to what it comes to alone, and one that is refused touches no other."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from tests.runtime.rig import PRODUCER, RANKS, CoreRig, Ids, frozen, make_layout, selection

from kvsweep.ledger import events as e
from kvsweep.ledger.errors import KvsweepError, UsageError
from kvsweep.ledger.events import Event
from kvsweep.ledger.fold import apply_all
from kvsweep.ledger.ids import Operation, RequestKey, int32_bytes, no_rows
from kvsweep.ledger.messages import (
    Abort,
    Acknowledged,
    AttachPrefix,
    Done,
    EvictPrefix,
    Finish,
    OpenRequest,
    OpenTail,
    Preempt,
    ProcessLost,
    ProcessStarted,
    PublishPrefix,
    RegisterSources,
    Release,
    Reserve,
    Reserved,
    Resume,
    Retain,
    SealTail,
    Select,
    Turn,
)
from kvsweep.runtime.core.core import Core, Message, Turns, _by_kind
from kvsweep.runtime.driver import Asked

VIEW: Ids = {0: [0, 2, 5], 1: [0, 2, 5]}
OTHER: Ids = {0: [0, 1], 1: [2, 5]}
NOBODY = RequestKey("nobody", 1)


class Crowd(CoreRig):
    """Four requests, each with a view; messages are made from what they are now."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(device_blocks=64, cpu=(64, 72), **settings)
        self.a, self.b, self.c, self.d = (self.open(name) for name in "abcd")
        for key in (self.a, self.b, self.c, self.d):
            self.upload(key, VIEW)

    def want(self, key: RequestKey, want: Ids = OTHER, name: str = "") -> Select:
        revision = self.request(key).selection_revision + 1
        return Select(selection=selection(self.layout, key, revision, want), idempotency_key=name)

    def keeping(self, key: RequestKey, want: Ids, **fields: Any) -> Retain:
        request = self.request(key)
        return Retain(**{
            "request": key, "keep": self.keep(key, want), "adopt": no_rows(self.layout.active_layers),
            "map_revision": request.map_revision, "selection_revision": request.selection_revision,
            "idempotency_key": "", **fields,
        })  # fmt: skip

    def word(self, operation: Operation, rank: int, outcome: str = "completed", **fields: Any) -> Done:
        return Done(**{
            "operation": operation, "rank": rank, "process_epoch": dict(RANKS)[rank], "outcome": outcome, **fields
        })  # fmt: skip

    def batch(self, messages: Sequence[Message]) -> Turns:
        """In one turn, adopted; what is free goes back to the pools."""
        turns = self.core.handle_all(messages, Asked(self.pools))
        self.core.adopt(turns)
        self.events += turns.events
        for effect in turns.effects:
            if isinstance(effect, Release):
                self.pools.release(effect)
        return turns


def alone(rig: Crowd, messages: Sequence[Message], order: Sequence[int] = ()) -> list[Turn]:
    """The same one by one, in the order in which a batch takes them; what is free goes back when all are through."""
    turns: dict[int, Turn] = {}
    order = order or _by_kind(messages)
    for at in order:
        try:
            turn = rig.core.handle(messages[at], Asked(rig.pools))
        except KvsweepError as error:
            turns[at] = Turn(outcome="refused", refusal=error)  # type: ignore[arg-type]  # compared below
            continue
        rig.core.adopt(turn)
        turns[at] = turn
        rig.events += turn.events
    for at in order:
        for effect in turns[at].effects:
            if isinstance(effect, Release):
                rig.pools.release(effect)
    return [turns[at] for at in sorted(order)]


def told(*turns: Turn | Turns) -> list[Any]:
    """What ranks and the producer are told, but for the floors."""
    effects = [effect for turn in turns for effect in turn.effects if not isinstance(effect, Release)]
    return [replace(effect, floor=0) if hasattr(effect, "floor") else effect for effect in effects]


def floors(*turns: Turn | Turns) -> list[int]:
    """Below them ranks forget."""
    return [effect.floor for turn in turns for effect in turn.effects if hasattr(effect, "floor")]


def streams(events: Sequence[Event]) -> dict[RequestKey, list[Event]]:
    found: dict[RequestKey, list[Event]] = {}
    for event in events:
        found.setdefault(event.request, []).append(event)
    return found


def expect_alike(make: Callable[[], Crowd], say: Callable[[Crowd], Sequence[Message]]) -> tuple[Crowd, Turns]:
    """One batch and its messages alone come to the same: state, streams, words to others, each turn, the pools."""
    rig, twin = make(), make()
    messages, same = say(rig), say(twin)
    state, events = rig.state, len(rig.events)
    assert frozen(rig.state) == frozen(twin.state)
    was = frozen(state)
    turns, apart = rig.batch(messages), alone(twin, same)
    assert frozen(state) == was, "a state that was handed out before"
    assert frozen(rig.state) == frozen(twin.state)
    assert streams(rig.events[events:]) == streams(twin.events[events:]) == streams(turns.events)
    assert frozen(apply_all(state, turns.events)) == frozen(rig.state)
    for key, stream in streams(turns.events).items():
        known = state.request(key)
        first = state.pool.seq if key.request_id == "@pool" else known.seq if known else 0
        assert [event.seq for event in stream] == list(range(first, first + len(stream)))
    for one, lonely in zip(turns.turns, apart, strict=True):
        if isinstance(lonely.refusal, KvsweepError):
            assert (one.outcome, one.events) == ("refused", ())
            assert (one.refusal.what, one.refusal.reason) == (type(lonely.refusal).__name__, str(lonely.refusal))  # type: ignore[union-attr]
            continue
        assert (one.outcome, one.refusal, one.operation) == (lonely.outcome, lonely.refusal, lonely.operation)
        assert (one.events, one.holds_blocks) == (lonely.events, lonely.holds_blocks)
        assert told(one) == told(lonely)
    in_order = [apart[at] for at in _by_kind(messages)]
    assert told(turns) == told(*in_order)
    assert all(low <= high for low, high in zip(floors(turns), floors(*in_order), strict=True))
    assert rig.pools.device.free == twin.pools.device.free
    assert rig.pools.cpu.free == twin.pools.cpu.free
    rig.lawful()
    return rig, turns


# ---- equal to one by one


def test_many_uploads_in_one_turn() -> None:
    rig, turns = expect_alike(Crowd, lambda rig: [rig.want(key) for key in (rig.a, rig.b, rig.c, rig.d)])
    numbers = [turn.operation.operation_id for turn in turns.turns if turn.operation]
    assert numbers == list(range(numbers[0], numbers[0] + 4)), "in the order of the messages"
    assert all(rig.request(key).upload.phase == "MOVING" for key in (rig.a, rig.b, rig.c, rig.d))
    assert floors(turns) == [numbers[0]] * 4, "a rank that hears the last first does not forget the others"


def test_every_word_of_a_round_in_one_turn() -> None:
    """Both ranks' words on every upload, in any order: the last one commits."""

    def say(rig: Crowd) -> list[Message]:
        turns = rig.batch([rig.want(key) for key in (rig.a, rig.b, rig.c)])
        words = [rig.word(turn.operation, rank) for rank in (1, 0) for turn in turns.turns]  # type: ignore[arg-type]
        said = [Acknowledged(operation=turn.operation, process_epoch=PRODUCER) for turn in turns.turns]  # type: ignore[arg-type]
        return [*words, *said]

    rig, turns = expect_alike(Crowd, say)
    assert {turn.outcome for turn in turns.turns} == {"accepted"}
    assert [rig.view(key).logical.as_lists() for key in (rig.a, rig.b, rig.c)] == [OTHER] * 3 or all(
        rig.request(key).upload.phase == "IDLE" for key in (rig.a, rig.b, rig.c)
    )


def test_all_kinds_of_messages_in_one_turn() -> None:
    def say(rig: Crowd) -> list[Message]:
        upload = rig.started(rig.send(rig.want(rig.d)))
        return [
            rig.keeping(rig.a, {0: [0, 2], 1: [0, 5]}),
            OpenRequest(request_id="e"),
            OpenTail(request=rig.b, until=10),
            rig.word(upload, 0),
            rig.want(rig.c),
            SealTail(request=rig.b, confirmed_tokens=36),
            PublishPrefix(request=rig.b, keys=((8, "p"),)),
            Preempt(request=rig.c),
            rig.word(upload, 1),
            Acknowledged(operation=upload, process_epoch=PRODUCER),
            EvictPrefix(blocks=1),
            Resume(request=rig.c),
            Abort(operation=upload, reason="too late"),
            Finish(request=rig.d),
            ProcessStarted(process_epoch=PRODUCER + 1),
            OpenRequest(request_id="f"),
            OpenTail(request=rig.a, until=9),
            RegisterSources(request=rig.b, logical=int32_bytes([9, 10]), source=int32_bytes([50, 40])),
        ]

    _, turns = expect_alike(Crowd, say)
    refused = [at for at, turn in enumerate(turns.turns) if turn.outcome != "accepted"]
    assert refused == [12], "an abort of what has committed"


def test_messages_about_one_request_keep_their_order_and_the_others_are_taken_kind_by_kind() -> None:
    a, b, c = (RequestKey(name, 1) for name in "abc")
    messages: list[Message] = [
        OpenTail(request=a, until=1), SealTail(request=a, confirmed_tokens=4), Finish(request=c),
        OpenTail(request=b, until=1), SealTail(request=b, confirmed_tokens=4), OpenTail(request=c, until=1),
        EvictPrefix(blocks=1), Finish(request=a), OpenRequest(request_id="b"), Finish(request=b),
        OpenRequest(request_id="d"),
    ]  # fmt: skip
    order = _by_kind(messages)
    assert sorted(order) == list(range(len(messages)))
    # First those that come first for their request, kind by kind, then the second ones; what is about nobody stays.
    assert order == [0, 3, 2, 5, 1, 4, 6, 7, 8, 10, 9]
    for name in "abcd":
        about = [at for at, m in enumerate(messages) if getattr(m, "request_id", None) == name
                 or getattr(getattr(m, "request", None), "request_id", None) == name]  # fmt: skip
        assert [at for at in order if at in about] == about, name


def test_nothing_is_no_turn() -> None:
    rig = Crowd()
    before = frozen(rig.state)
    turns = rig.batch([])
    assert (turns.turns, turns.events, turns.effects) == ((), (), ())
    assert frozen(rig.state) == before


# ---- each refusal alone


def malformed(rig: Crowd) -> Message:
    return OpenTail(request=rig.b, until="9")  # type: ignore[arg-type]


def busy(rig: Crowd) -> Message:
    while len(rig.state.requests) < rig.core.settings.limits.open_requests:
        rig.open(f"more {len(rig.state.requests)}", blocks=0)
    return OpenRequest(request_id="one too many")


def illegal(rig: Crowd) -> Message:
    return Resume(request=rig.b)


def no_space(rig: Crowd) -> Message:
    return OpenTail(request=rig.b, until=900)


def no_row(rig: Crowd) -> Message:
    rig.begin_step(rig.b)  # reads row 0
    rig.retain(rig.b, {0: [0, 2], 1: [0, 2]})
    return rig.want(rig.b)


def another_revision(rig: Crowd) -> Message:
    return rig.keeping(rig.b, VIEW, map_revision=7)


def unknown(rig: Crowd) -> Message:
    return Finish(request=NOBODY)


def closed(rig: Crowd) -> Message:
    key = rig.open("e")
    rig.send(Finish(request=key))
    return Finish(request=key)


def stale_word(rig: Crowd) -> Message:
    operation = rig.started(rig.send(rig.want(rig.b)))
    rig.send(Abort(operation=operation, reason="x"))
    rig.done(operation, 0, "cancelled")
    rig.done(operation, 1, "cancelled")
    rig.upload(rig.b, OTHER)
    return rig.word(operation, 0)


def future_word(rig: Crowd) -> Message:
    operation = rig.started(rig.send(rig.want(rig.b)))
    return rig.word(replace(operation, operation_id=900), 0)


def conflicting_word(rig: Crowd) -> Message:
    operation = rig.started(rig.send(rig.want(rig.b)))
    rig.done(operation, 0)
    return rig.word(operation, 0, "failed")


def repeated_word(rig: Crowd) -> Message:
    operation = rig.started(rig.send(rig.want(rig.b)))
    rig.done(operation, 0)
    return rig.word(operation, 0)


def word_of_an_old_process(rig: Crowd) -> Message:
    operation = rig.started(rig.send(rig.want(rig.b)))
    return rig.word(operation, 0, process_epoch=3)


def unawaited(rig: Crowd) -> Message:
    return Acknowledged(operation=rig.started(rig.send(rig.want(rig.b))), process_epoch=PRODUCER)


def repeated_key(rig: Crowd) -> Message:
    message = rig.want(rig.b, name="once")
    rig.started(rig.send(message))
    return message


def aborted_key(rig: Crowd) -> Message:
    message = rig.want(rig.b, name="aborted")
    rig.send(Abort(operation=rig.started(rig.send(message)), reason="x"))
    return message


def reused_key(rig: Crowd) -> Message:
    rig.started(rig.send(rig.want(rig.b, name="reused")))
    return rig.want(rig.b, VIEW, name="reused")


def another_process(rig: Crowd) -> Message:
    return ProcessLost(rank=0, process_epoch=99)


def late(rig: Crowd) -> Message:
    """Its first block is attached before the second is refused: all that the message has changed has to go."""
    rig.open("e", blocks=0)
    rig.clean_tail(RequestKey("e", 1), 2)
    rig.send(PublishPrefix(request=RequestKey("e", 1), keys=((0, "p0"), (1, "p1"))))
    key = rig.open("f", blocks=0)
    rig.register(key, [1], [60])
    return AttachPrefix(request=key, keys=("p0", "p1"))


def late_with_blocks(rig: Crowd) -> Message:
    """Refused by the fold when it holds blocks already: what was reserved for it goes back."""
    rig.send(Preempt(request=rig.b))
    return rig.want(rig.b)


REFUSED: list[tuple[Callable[[Crowd], Message], str]] = [
    (malformed, "refused"), (busy, "refused"), (illegal, "refused"), (no_space, "refused"), (no_row, "refused"),
    (another_revision, "refused"), (unknown, "refused"), (closed, "refused"), (stale_word, "ignored"),
    (future_word, "refused"), (conflicting_word, "refused"), (repeated_word, "repeated"),
    (word_of_an_old_process, "ignored"), (unawaited, "ignored"), (repeated_key, "repeated"),
    (aborted_key, "repeated"), (reused_key, "refused"), (another_process, "refused"), (late, "refused"),
    (late_with_blocks, "refused"),
]  # fmt: skip


def limited() -> Crowd:
    return Crowd(limits={"open_requests": 6}, retain={"table_rows": 2})


@pytest.mark.parametrize(("bad", "outcome"), REFUSED, ids=[bad.__name__ for bad, _ in REFUSED])
@pytest.mark.parametrize("at", [0, 2, 4])
def test_one_that_is_refused_changes_nothing_for_its_neighbours(
    bad: Callable[[Crowd], Message], outcome: str, at: int
) -> None:
    """The same neighbours without it come to the same, whether it stands first, between or last."""

    def others(rig: Crowd) -> list[Message]:
        tail: list[Message] = [OpenTail(request=rig.a, until=10), SealTail(request=rig.a, confirmed_tokens=36)]
        return [*tail, rig.want(rig.c), OpenTail(request=rig.d, until=9)]

    def say(rig: Crowd) -> list[Message]:
        message, messages = bad(rig), others(rig)
        return [*messages[:at], message, *messages[at:]]

    rig, turns = expect_alike(limited, say)
    found = list(turns.turns)
    assert found.pop(at).outcome == outcome
    assert [turn.outcome for turn in found] == ["accepted"] * 4
    # Without it, in the same order.
    twin = limited()
    messages = say(twin)
    plain = alone(twin, messages, [place for place in _by_kind(messages) if place != at])
    assert [kinds(turn.events) for turn in found] == [kinds(turn.events) for turn in plain]
    if bad is not late_with_blocks:  # they got other blocks: some were reserved in between
        for key in (rig.a, rig.c, rig.d):
            assert rig.request(key) == twin.request(key), key
            assert rig.state.ownership.holders(key) == twin.state.ownership.holders(key), key
    assert rig.pools.device.free == twin.pools.device.free
    assert rig.pools.cpu.free == twin.pools.cpu.free


def kinds(events: Sequence[Event]) -> list[str]:
    return [type(event).__name__ for event in events]


def test_all_refusals_in_one_turn() -> None:
    def say(rig: Crowd) -> list[Message]:
        makers = [bad for bad, _ in REFUSED if bad not in (no_row, late, busy, closed, late_with_blocks)]
        found: list[Message] = []
        for bad in makers:
            if rig.request(rig.b).upload.phase != "IDLE":
                opened = rig.request(rig.b).upload.open
                assert opened is not None
                for rank, _ in RANKS:
                    rig.done(opened.operation, rank)
                rig.acknowledge(opened.operation)
            found.append(bad(rig))
        return [late(rig), *found, rig.want(rig.c), OpenTail(request=rig.a, until=9)]

    _, turns = expect_alike(Crowd, say)
    assert [turn.outcome for turn in turns.turns[-2:]] == ["accepted", "accepted"]
    assert turns.turns[0].outcome == "refused"


def test_g3_what_begins_after_a_rank_is_lost_in_the_same_turn_is_refused_by_name() -> None:
    def say(rig: Crowd) -> list[Message]:
        return [
            rig.want(rig.a), ProcessLost(rank=1, process_epoch=11), Resume(request=rig.b), rig.want(rig.b),
            OpenTail(request=rig.b, until=9),
        ]  # fmt: skip

    rig, turns = expect_alike(Crowd, say)
    assert [turn.outcome for turn in turns.turns] == ["accepted", "accepted", "accepted", "refused", "accepted"]
    (refused,) = turns.turns[3].events
    assert isinstance(refused, e.PlanRefused)
    assert refused.reason == "rank_lost"
    assert rig.request(rig.a).life == "PREEMPTED"


# ---- pools, discard, steps


class Counting(Asked):
    def __init__(self, rig: Crowd) -> None:
        super().__init__(rig.pools)
        self.asked: list[Reserve] = []
        self.gave_back = 0

    def __call__(self, ask: Reserve) -> Reserved:
        self.asked.append(ask)
        return super().__call__(ask)

    def give_back(self) -> None:
        self.gave_back += 1
        super().give_back()


@pytest.mark.parametrize("bad", [late, late_with_blocks, no_space, illegal])
def test_pools_get_back_what_was_given_for_one_that_is_refused(bad: Callable[[Crowd], Message]) -> None:
    rig = Crowd()
    messages = [OpenTail(request=rig.a, until=10), bad(rig), rig.want(rig.c)]
    answer = Counting(rig)
    turns = rig.core.handle_all(messages, answer)
    rig.core.adopt(turns)
    for effect in turns.effects:
        if isinstance(effect, Release):
            rig.pools.release(effect)
    assert [turn.outcome for turn in turns.turns] == ["accepted", "refused", "accepted"]
    assert answer.gave_back == (bad is late), "given again, message by message"
    rig.lawful()


@pytest.mark.parametrize("bad", [illegal, late, busy, malformed])
def test_discarding_a_batch_undoes_all_of_it(bad: Callable[[Crowd], Message]) -> None:
    """State, index, steps and pools; the same batch afterwards comes to the same."""
    rig = limited()
    message = bad(rig)
    rig.begin_step(rig.a, rig.d)
    messages = [
        OpenTail(request=rig.a, until=10), rig.want(rig.c), Preempt(request=rig.d), message,
        SealTail(request=rig.a, confirmed_tokens=36), OpenTail(request=rig.b, until=9), Finish(request=rig.b),
    ]  # fmt: skip
    before, records = frozen(rig.state), dict(rig.state.requests)
    free = rig.pools.device.free, rig.pools.cpu.free
    steps, found = rig.core.steps.described(), []
    for _ in range(3):
        answer = Asked(rig.pools)
        found.append(rig.core.handle_all(messages, answer))
        rig.core.discard()
        answer.give_back()
        assert frozen(rig.state) == before
        assert all(rig.state.requests[name] is record for name, record in records.items())
        assert (rig.pools.device.free, rig.pools.cpu.free) == free
        assert rig.core.steps.described() == steps
    assert found[0] == found[1] == found[2]
    assert rig.batch(messages) == found[0]
    rig.lawful()
    other = Core(rig.core.settings, state=rig.state)  # an index made anew says the same
    for core in (rig.core, other):
        turn = core.handle(OpenTail(request=rig.c, until=12), Asked(copy.deepcopy(rig.pools)))
        assert turn.outcome == "accepted"
        core.discard()


def test_what_a_kernel_raises_leaves_no_trace_of_the_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Crowd()
    before, free = frozen(rig.state), rig.pools.device.free
    messages = [OpenTail(request=rig.a, until=10), rig.want(rig.c), Finish(request=rig.b)]

    def raises(*_: Any, **__: Any) -> Any:
        raise RuntimeError("planted")

    answer = Asked(rig.pools)
    with monkeypatch.context() as patched:
        patched.setattr("kvsweep.runtime.core.upload.place", raises)
        with pytest.raises(RuntimeError, match="planted"):
            rig.core.handle_all(messages, answer)
    rig.core.discard()
    answer.give_back()
    assert (frozen(rig.state), rig.pools.device.free) == (before, free)
    assert [turn.outcome for turn in rig.batch(messages).turns] == ["accepted"] * 3
    rig.lawful()


def test_a_batch_waits_until_the_one_before_it_is_adopted_or_discarded() -> None:
    rig = Crowd()
    turns = rig.core.handle_all([OpenTail(request=rig.a, until=9)], Asked(rig.pools))
    for call in (
        lambda: rig.core.handle_all([], Asked(rig.pools)),
        lambda: rig.core.handle(Finish(request=rig.a), Asked(rig.pools)),
        lambda: rig.core.fork(),
        lambda: rig.core.end_step(1),
    ):
        with pytest.raises(UsageError, match="a turn is staged"):
            call()
    assert rig.request(rig.a).tail == ()
    rig.core.adopt(turns)
    assert len(rig.request(rig.a).tail) == 1
    with pytest.raises(UsageError, match="no turn is staged"):
        rig.core.adopt(turns)


@pytest.mark.parametrize("together", [False, True])
def test_b4_a_fence_of_a_batch_waits_for_the_steps_that_are_open(together: bool) -> None:
    """Also for a fence that another message of the batch asks about before it is bound."""
    rig = Crowd()
    rig.send(OpenTail(request=rig.a, until=9))
    step, later = rig.begin_step(rig.a), rig.begin_step(rig.b)
    messages: list[Message] = [Finish(request=rig.a), OpenTail(request=rig.b, until=9), Finish(request=rig.c)]
    if together:
        operation = rig.started(rig.send(rig.want(rig.d)))
        messages += [rig.word(operation, 0), rig.word(operation, 1), AttachPrefix(request=rig.a, keys=())]
    turns = rig.batch(messages)
    assert "FenceOpened" not in kinds(turns.events)
    assert rig.request(rig.a).fences == (1,)
    assert rig.request(rig.c).life == "CLOSED", "nobody reads it"
    rig.end_step(later)
    assert rig.request(rig.a).fences == (1,)
    turn = rig.end_step(step)
    assert {"FenceOpened", "RequestClosed"} <= {*kinds(turn.events)}
    rig.lawful()


def test_b4_a_fence_that_nobody_waits_for_opens_in_its_batch_and_may_be_asked_for_by_the_next_message() -> None:
    rig = Crowd()
    rig.send(OpenTail(request=rig.a, until=9))
    turns = rig.batch([Preempt(request=rig.a), Resume(request=rig.a), OpenTail(request=rig.a, until=10)])
    assert [turn.outcome for turn in turns.turns] == ["accepted"] * 3
    assert rig.request(rig.a).fences == ()
    rig.lawful()


def test_two_layers_and_sliding_windows_slide_in_a_batch() -> None:
    class Sliding(Crowd):
        def __init__(self) -> None:
            CoreRig.__init__(self, make_layout(2, sliding=1), device_blocks=64, cpu=(64, 72))
            self.a, self.b, self.c, self.d = (self.open(name, blocks=0) for name in "abcd")

    def say(rig: Crowd) -> list[Message]:
        keys = (rig.a, rig.b)
        rig.batch([OpenTail(request=key, until=6) for key in keys])
        sealed = rig.batch([SealTail(request=key, confirmed_tokens=16) for key in keys])
        rig.batch([rig.word(turn.operation, rank) for turn in sealed.turns for rank in (0, 1)])  # type: ignore[arg-type]
        rig.begin_step(rig.b)
        return [SealTail(request=key, confirmed_tokens=24) for key in keys]

    _, turns = expect_alike(Sliding, say)
    assert ["FenceOpened" in kinds(turn.events) for turn in turns.turns] == [True, False]
