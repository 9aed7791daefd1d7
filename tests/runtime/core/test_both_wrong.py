"""Selections and retentions with one thing wrong, asked of both cores: they refuse the same, with the same words."""

from contextlib import suppress
from typing import Any

import pytest
from msgspec.structs import replace
from tests.runtime.core import both_cores
from tests.runtime.rig import RANKS, CoreRig, make_layout, rows, selection

from kvsweep.ledger import compiled
from kvsweep.ledger.errors import LayoutError
from kvsweep.ledger.ids import RequestKey, int32_bytes
from kvsweep.ledger.messages import OpenTail, ProcessLost, Reserve, Reserved, Resume, Retain, SealTail, Select, Transfer

pytestmark = pytest.mark.skipif(compiled.fold is None, reason="the compiled fold was not built")

FIRST = {0: [0, 2, 5], 1: [1, 2, 7]}
WANTED: dict[str, Any] = {
    "block_size": 5,
    "selection_revision": 1,
    "whole_blocks": 7,  # block 7 is resident
    "effective_budget_blocks": 9,
    "group_by_layer": int32_bytes([0, 1]),
    "tokens_by_layer": rows({0: [0], 1: [0]}),
    "logical_blocks_by_layer": [
        {0: [0, 2]}, {0: [2, 0], 1: [1]}, {0: [0, 0], 1: [1]}, {0: [-1, 2], 1: [1]}, {0: [0, 8], 1: [1]},
        {0: [0, 2**31 - 1], 1: [1]}, {0: [0], 1: [1], 2: [1]}, {},
    ],
    "ranked_tail_by_layer": [
        {0: [4]}, {0: [4, 4], 1: []}, {0: [-1], 1: []}, {0: [8], 1: []}, {0: [4, 0], 1: []}, {0: [], 1: [2**31 - 1]},
        {},
    ],
}  # fmt: skip
"""What a selection of 8 whole blocks that wants {0: [0, 2], 1: [1]} must not say over that view."""

KEPT: dict[str, Any] = {
    "map_revision": 0,
    "keep": [
        {0: [0]}, {0: [1, 0], 1: []}, {0: [1, 1], 1: []}, {0: [-1, 1], 1: []}, {0: [3], 1: []}, {0: [2**31 - 1], 1: []},
        {0: [0], 1: [0], 2: [0]}, {},
    ],
    "adopt": [{0: [9], 1: []}, {0: [3], 1: []}, {0: [8, 8], 1: []}, {0: [-1], 1: []}, {0: [8], 1: [8], 2: [8]}],
    "pack": True,
}  # fmt: skip
"""What a retain must not say there, where block 8 is clean and block 9 is dirty."""


def one_by_one(told: dict[str, Any]) -> list[Any]:
    """(field, value) of each."""
    return [
        pytest.param(field, rows(value) if isinstance(value, dict) else value, id=f"{field}-{at}")
        for field, values in told.items()
        for at, value in enumerate(values if isinstance(values, list) else [values])
    ]


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> CoreRig:
    both_cores.never_given_up(monkeypatch)
    return CoreRig(make_layout(2, sliding=1))


def with_tail(rig: CoreRig) -> RequestKey:
    """A request with a view, of which block 8 is clean in the tail and block 9 is dirty."""
    key = rig.open()
    rig.upload(key, FIRST)
    rig.clean_tail(key, 9)
    rig.send(OpenTail(request=key, until=10))
    rig.send(SealTail(request=key, confirmed_tokens=10 * rig.layout.block_size))
    return key


@pytest.mark.parametrize(("field", "value"), one_by_one(WANTED))
def test_a_selection_with_one_thing_wrong_is_refused_by_both(rig: CoreRig, field: str, value: Any) -> None:
    key = rig.open()
    rig.upload(key, FIRST)
    right = selection(rig.layout, key, 2, {0: [0, 2], 1: [1]}, tail={0: [4], 1: []})
    wrong = replace(right, **{field: value})
    assert rig.send(Select(selection=wrong, idempotency_key="")).outcome == "refused"
    assert rig.send(Select(selection=right, idempotency_key="")).outcome == "accepted"


@pytest.mark.parametrize(("field", "value"), one_by_one(KEPT))
def test_a_retain_with_one_thing_wrong_is_refused_by_both(rig: CoreRig, field: str, value: Any) -> None:
    key = with_tail(rig)
    right = Retain(
        request=key,
        keep=rows({0: [0, 1], 1: [2]}),
        adopt=rows({0: [8], 1: []}),
        map_revision=1,
        selection_revision=1,
        idempotency_key="",
    )
    assert rig.send(replace(right, **{field: value})).outcome == "refused"
    assert rig.send(right).outcome == "accepted"


@pytest.mark.parametrize("adopt", [True, False])
def test_only_what_is_clean_in_the_tail_is_adopted(rig: CoreRig, adopt: bool) -> None:
    key = with_tail(rig)
    for want in ({0: [8, 9], 1: [8]}, {0: [8], 1: [1, 8]}):
        chosen = selection(rig.layout, key, 2, want, whole=10)
        turn = rig.send(Select(selection=chosen, idempotency_key="", adopt=adopt))
    assert turn.outcome == "accepted"


# ---- room that is not what was asked for


def asked(rig: CoreRig, key: RequestKey, want: dict[int, list[int]]) -> Reserved:
    """The pools' answer to a selection, not handed over yet."""
    chosen = selection(rig.layout, key, rig.request(key).selection_revision + 1, want)
    turn = rig.core.handle(Select(selection=chosen, idempotency_key=""))
    (ask,) = turn.effects
    assert isinstance(ask, Reserve)
    return rig.pools.reserve(ask)


def test_room_that_came_after_the_state_had_changed_is_planned_for_anew(rig: CoreRig) -> None:
    key = rig.open()
    rig.upload(key, FIRST)
    step = rig.begin_step(key)
    rig.upload(key, {0: [0, 3], 1: [1, 4]})
    answer = asked(rig, key, {0: [0, 4, 6], 1: [1, 5, 6]})
    rig.end_step(step)  # the table row of the view before is free now
    turn = rig.core.handle(answer)
    (sent,) = turn.effects
    assert isinstance(sent, Transfer)
    assert sent.row == 0


@pytest.mark.parametrize("wrong", [{"cpu_copy": int32_bytes([33])}, {"device": (b"", b"")}, {"device": (b"",)}])
def test_other_room_than_was_asked_for_is_refused_by_both(rig: CoreRig, wrong: dict[str, Any]) -> None:
    answer = asked(rig, rig.open(), FIRST)
    with suppress(IndexError, ValueError, LayoutError):
        assert rig.core.handle(replace(answer, **wrong)).outcome == "refused"


def test_nothing_begins_while_a_rank_is_lost(rig: CoreRig) -> None:
    key = rig.open()
    rig.upload(key, FIRST)
    rank, epoch = RANKS[1]
    rig.send(ProcessLost(rank=rank, process_epoch=epoch))
    rig.send(Resume(request=key))  # it was preempted
    assert rig.select(key, {0: [1], 1: [2]}).outcome == "refused"
    assert rig.start_retain(key, rig.keep(key, FIRST)).outcome == "refused"
