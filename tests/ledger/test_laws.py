"""Each law holds in real histories and fails on a state broken by hand: a law that cannot fail is none."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from tests.ledger.worlds import A, B, World, rows

from kvsweep.ledger import events as e
from kvsweep.ledger import laws
from kvsweep.ledger.areas import Areas, Shared
from kvsweep.ledger.ids import HOLE, POOL, RequestKey, Rows, int32_bytes
from kvsweep.ledger.ownership import Holder, Holding
from kvsweep.ledger.state import CLOSED_KEPT, COMMANDS_KEPT, EMPTY, PREFIXES_KEPT, Remembered, State

BREAK = Callable[[State], State]


def busy() -> World:
    """Two requests; a has a view, a retired area, a tail block and a fence, an open upload and one that settles."""
    w = World(opened=False)
    w.open(row_count=4)
    w.open(B, first_source=8)
    w.resident(blocks=(0, 1))
    w.retained({0: [0], 1: [1]}, freed=[])
    w.clean_tail(4, [2], 4)
    w.drop([4])
    w.tail(5, [3])
    op = w.upload({0: [2], 1: []}, {0: [1], 1: []}, row=0)
    w.emit(e.UploadAborted, operation=op, reason="deadline")
    w.upload({0: [], 1: [2]}, {0: [], 1: [0]}, row=2)
    w.upload({0: [0], 1: [0]}, {0: [4], 1: [4]}, [4], key=B)
    return w


def held(state: State, change: Callable[[dict[Holder, Holding]], Any], key: RequestKey = A) -> State:
    """State with this request's pairs changed past the one function that may."""
    holders = dict(state.ownership.held[key])
    change(holders)
    return ownership(state, held={**state.ownership.held, key: holders})


def own(state: State, blocks: list[int], key: RequestKey = A) -> State:
    """State that says this request owns these blocks."""
    groups = (Areas(int32_bytes(blocks), bytes([1, 1] * len(blocks))),)
    return ownership(state, areas={**state.ownership.areas, key: groups})


def shared_blocks(state: State, blocks: list[int]) -> State:
    return ownership(state, shared=(Shared(int32_bytes(blocks), int32_bytes([1] * len(blocks))),))


def ownership(state: State, **changes: Any) -> State:
    return replace(state, ownership=replace(state.ownership, **changes))


def request(state: State, **changes: Any) -> State:
    return replace(state, requests={**state.requests, "a": replace(state.requests["a"], **changes)})


def dst(state: State, kind: Any = "dst", key: RequestKey = A) -> Holder:
    opened = state.requests[key.request_id].upload.open
    assert opened is not None
    return Holder(kind, opened.operation.operation_id)


def of(areas: dict[int, list[int]], *row: int, sources: tuple[int, ...] = ()) -> Holding:
    return Holding(areas=rows(areas), rows=row, sources=int32_bytes(list(sources)))


VIEW, OWNER = Holder("view", 2), Holder("owner")

BROKEN: list[tuple[str, str, BREAK]] = [
    ("owned blocks are the held blocks", "differ from the held blocks", lambda s: own(s, [0, 1, 2, 3, 5])),
    ("owned blocks are the held blocks", "differ from the held blocks", lambda s: own(s, [0, 1, 2])),
    ("owned blocks are the held blocks", "owned twice", lambda s: own(s, [0, 1, 2, 3, 4])),
    (
        "owned blocks are the held blocks", "is outside the pool",
        lambda s: own(held(s, lambda h: h.update({Holder("fence", 1): of({0: [2, 6]})})), [0, 1, 2, 3, 6]),
    ),
    (
        "an area has one owner", "is held for ['a', 'b']",
        lambda s: held(s, lambda h: h.update({Holder("tail", 6): of({0: [4]})})),
    ),
    (
        "a destination has exactly one holder", "destination area (1, 0) is held by",
        lambda s: held(s, lambda h: h.update({Holder("fence", 1): of({0: [2], 1: [2, 0]})})),
    ),
    (
        "a table row has exactly one holder", "a table row has two holders ([0, 1, 1])",
        lambda s: held(s, lambda h: h.update({dst(s): of({0: [], 1: [0]}, 1)})),
    ),
    ("a view holds what its table names", "view 2 does not hold", lambda s: held(s, lambda h: h.pop(VIEW))),
    (
        "a view holds what its table names", "view 2 does not hold",
        lambda s: held(s, lambda h: h.update({VIEW: of({0: [0], 1: [0]}, 1)})),
    ),
    (
        "a view holds what its table names", "view 2 does not hold",
        lambda s: held(s, lambda h: h.update({VIEW: of({0: [0], 1: [1]}, 3)})),
    ),
    ("a view holds what its table names", "current generation 9 is gone", lambda s: request(s, current=9)),
    ("a view holds what its table names", "layer 0: slots are not one",
     lambda s: view_of(s, {0: [5, 5], 1: [5]}, {0: [0, 1], 1: [1]})),
    ("a view holds what its table names", "layer 1: slots are not one",
     lambda s: view_of(s, {0: [5], 1: [5, 6]}, {0: [0], 1: [1]})),
    ("every holder stands for something", "kind='dst', number=99",
     lambda s: held(s, lambda h: h.update({Holder("dst", 99): of({})}))),
    ("every holder stands for something", "kind='src', number=99",
     lambda s: held(s, lambda h: h.update({Holder("src", 99): of({})}))),
    ("every holder stands for something", "kind='view', number=1",
     lambda s: held(s, lambda h: h.update({Holder("view", 1): of({})}))),
    ("every holder stands for something", "kind='fence', number=2",
     lambda s: held(s, lambda h: h.update({Holder("fence", 2): of({})}))),
    ("every holder stands for something", "kind='tail', number=4",
     lambda s: held(s, lambda h: h.update({Holder("tail", 4): of({})}))),
    ("every holder stands for something", "holds resources but is unknown",
     lambda s: replace(s, requests={"b": s.requests["b"]})),
    ("every holder stands for something", "stands for nothing", lambda s: request(s, settling=())),
    ("every holder stands for something", "stands for nothing", lambda s: request(s, tail=())),
    ("every holder stands for something", "stands for nothing", lambda s: request(s, fences=())),
    ("a valid CPU block has one owner", "its owner does not hold exactly", lambda s: request(s, source=b"")),
    (
        "a valid CPU block has one owner", "its owner does not hold exactly",
        lambda s: request(s, stale=int32_bytes([HOLE, 7])),
    ),
    ("a valid CPU block has one owner", "its owner does not hold exactly", lambda s: held(s, lambda h: h.pop(OWNER))),
    (
        "a valid CPU block has one owner", "CPU block 8 is held for a and b",
        lambda s: held(s, lambda h: h.update({Holder("fence", 1): of({0: [2], 1: [2]}, sources=(8,))})),
    ),
    ("every history is bounded", "1 views on 0 rows", lambda s: request(s, rows=0)),
    (
        "every history is bounded", f"{COMMANDS_KEPT + 1} commands",
        lambda s: request(s, commands={
            str(at): Remembered(what="w", operation=s.requests["a"].upload.open.operation)  # type: ignore[union-attr]
            for at in range(COMMANDS_KEPT + 1)
        }),
    ),
    ("a closed request holds nothing", "a is closed and holds resources", lambda s: request(s, life="CLOSED")),
]  # fmt: skip


def sharing() -> World:
    """a wrote and shared block 2; b attached it, reads it in layer 0 and has dropped the rest of it."""
    w = World(opened=False)
    w.open()
    w.open(B, first_source=8)
    w.clean_tail(4, [2], 4)
    w.attach(w.publish(4))
    w.resident(blocks=(0,))
    adopted: dict[int, list[int]] = {0: [4], 1: []}
    w.commit(w.upload({0: [], 1: []}, {0: [], 1: []}, key=B, adopted=rows(adopted)))
    w.open_fence(w.drop([4], B), key=B)
    return w


def prefix(change: Callable[[Holding], Holding]) -> BREAK:
    return lambda s: held(s, lambda h: h.update({PREFIX: change(h[PREFIX])}), POOL)


PREFIX = Holder("prefix", 1)
SHARED_BROKEN: list[tuple[str, str, BREAK]] = [
    ("owned blocks are the held blocks", "differ from the held blocks", lambda s: ownership(s, shared=())),
    ("owned blocks are the held blocks", "differ from", lambda s: shared_blocks(s, [2, 5])),
    ("owned blocks are the held blocks", "owned twice", lambda s: own(s, [0, 2])),
    (
        "an area has one owner", "area (0, 2) is held for ['@pool', 'a', 'b']",
        lambda s: own(ownership(s, shared=()), [0, 2]),
    ),
    (
        "a destination has exactly one holder", "destination area (1, 2) of ['b'] is in a shared block",
        lambda s: held(
            ownership(s, held={key: kept for key, kept in s.ownership.held.items() if key == B}),
            lambda h: h.update({Holder("dst", 9): of({0: [], 1: [2]})}), B,
        ),
    ),
    ("every holder stands for something", "the pool's holders are not its prefixes", lambda s: held(
        s, lambda h: h.update({Holder("prefix", 2): of({})}), POOL)),
    ("every holder stands for something", "the pool's holders are not its prefixes", lambda s: replace(
        s, pool=replace(s.pool, prefixes=()))),
    ("a valid CPU block has one owner", "CPU block 4 is held for a and b", lambda s: ownership(s, shared_sources=b"")),
    ("a prefix block is whole and shared", "layer 1 of block 2 is not held", prefix(
        lambda h: replace(h, areas=rows({0: [2], 1: []})))),
    ("a prefix block is whole and shared", "layer 0 of block 2 is not held", prefix(
        lambda h: replace(h, areas=rows({0: [3], 1: [2]})))),
    ("a prefix block is whole and shared", "layer 0 of block 2 is not held", lambda s: held(
        s, lambda h: h.pop(PREFIX), POOL)),
    ("a prefix block is whole and shared", "layer 0 of block 2 is not held", lambda s: ownership(s, shared=())),
    ("a prefix block is whole and shared", "CPU block 4 is not held", prefix(lambda h: replace(h, sources=b""))),
    ("a prefix block is whole and shared", "CPU block 4 is not held", lambda s: ownership(s, shared_sources=b"")),
    ("every history is bounded", f"{PREFIXES_KEPT + 1} prefixes", lambda s: replace(
        s, pool=replace(s.pool, prefixes=s.pool.prefixes * (PREFIXES_KEPT + 1)))),
    ("every history is bounded", f"{CLOSED_KEPT + 1} closed", lambda s: replace(
        s, pool=replace(s.pool, closed=("x",) * (CLOSED_KEPT + 1)))),
]  # fmt: skip


def view_of(state: State, logical: dict[int, list[int]], physical: dict[int, list[int]]) -> State:
    (view,) = state.requests["a"].views
    return request(state, views=(replace(view, logical=Rows.of(logical), physical=Rows.of(physical)),))


def test_all_laws_hold_in_a_busy_world() -> None:
    assert laws.check(busy().state) == []
    assert laws.check(sharing().state) == []


def test_all_laws_hold_where_nothing_is_held_and_where_an_area_is_rightly_held_twice() -> None:
    assert laws.check(EMPTY) == []
    w = World()
    w.lawful()
    w.clean_tail(4, [2], 4)
    w.switch(w.retain(w.none, row=0, adopted=rows({0: [4], 1: [4]})))
    assert {holder.kind for _, holder in laws.area_pairs(w.state)[0, 2]} == {"tail", "view"}
    w.lawful()
    w.open(B, blocks=0)
    w.emit(e.RequestFinished, B)
    w.emit(e.RequestClosed, B)
    w.lawful()


@pytest.mark.parametrize(("law", "detail", "broken"), BROKEN)
def test_each_law_fails_on_a_state_broken_by_hand(law: str, detail: str, broken: BREAK) -> None:
    found = laws.check(broken(busy().state))
    assert [line for line in found if line.startswith(f"{law}: ") and detail in line], found


@pytest.mark.parametrize(("law", "detail", "broken"), SHARED_BROKEN)
def test_each_law_of_shared_blocks_fails_on_a_state_broken_by_hand(law: str, detail: str, broken: BREAK) -> None:
    found = laws.check(broken(sharing().state))
    assert [line for line in found if line.startswith(f"{law}: ") and detail in line], found


def test_every_law_is_broken_here() -> None:
    assert {law for law, _, _ in (*BROKEN, *SHARED_BROKEN)} == {law.name for law in laws.LAWS}


def test_laws_are_data_with_a_name_and_a_clause() -> None:
    names = [law.name for law in laws.LAWS]
    assert len(set(names)) == len(names)
    assert all(law.clause[0] in "ABCDEFGHIJ" and law.clause[1:].isdigit() for law in laws.LAWS)
