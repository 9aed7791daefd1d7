"""The token method through selection and core: a policy to compare with, which only ever copies (C1, D3, D6)."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from tests.runtime.rig import BLOCK, CoreRig, Ids, frozen, make_layout, make_settings, rows, selection

from kvsweep.ledger import events as e
from kvsweep.ledger.errors import LayoutError, NonFiniteScore, Refused, SettingsError
from kvsweep.ledger.fold import apply
from kvsweep.ledger.ids import RequestKey, int32_view
from kvsweep.ledger.messages import Gather, PackTokens, Select, Transfer, Turn
from kvsweep.runtime.selection import select_tokens
from kvsweep.runtime.settings import SelectionSettings

MakeRig = Callable[..., CoreRig]
COPY: dict[str, Any] = {"source": {"kind": "copy", "allow_copy": True}}
TOKEN: dict[str, Any] = {"selection": {"method": "token"}, **COPY}
CHOSEN: Ids = {0: [0, 3, 17, 18, 30], 1: [5]}  # of 8 blocks of 4 tokens


def select(rig: CoreRig, key: RequestKey, tokens: Ids, **changed: Any) -> Turn:
    packed = {layer: list(range(-(-len(row) // BLOCK))) for layer, row in tokens.items()}
    revision = rig.request(key).selection_revision + 1
    chosen = replace(
        selection(rig.layout, key, revision, changed.pop("packed", packed)), tokens_by_layer=rows(tokens), **changed
    )
    return rig.send(Select(selection=chosen, idempotency_key=f"t{revision}"))


def test_d6_tokens_are_packed_before_they_are_read_and_the_plan_says_how_many_are_valid(make_rig: MakeRig) -> None:
    rig = make_rig(**TOKEN)
    key = rig.open()  # logical block b lies in CPU block 7 - b
    rig.started(select(rig, key, CHOSEN))
    planned, leased = rig.last(e.UploadPlanned), rig.last(e.BlocksLeased)
    assert (planned.kind, planned.source_kind) == ("full", "copy")
    assert int32_view(planned.valid_tokens).tolist() == [5, 1]
    packing, sent = rig.last(PackTokens), rig.last(Transfer)
    assert packing.tokens.as_lists() == {0: [28, 31, 13, 14, 2], 1: [25]}
    assert (
        packing.destination.as_lists() == {0: [32, 33], 1: [32]} == sent.source.as_lists() == leased.source.as_lists()
    )
    assert int32_view(leased.copies).tolist() == [32, 33]
    assert rig.effects.index(packing) < rig.effects.index(sent), "packed before it is read"
    assert rig.effects_of(Gather) == []


def test_every_selection_replaces_the_whole_set_and_everything_comes_back(make_rig: MakeRig) -> None:
    rig = make_rig(**TOKEN)
    key = rig.open()
    for tokens in (CHOSEN, CHOSEN, {0: [1], 1: [2, 3, 4, 5, 6, 7, 8, 9, 10]}):
        operation = rig.started(select(rig, key, tokens))
        rig.all_done(operation)
        rig.acknowledge(operation)
        assert rig.view(key).logical.counts.tolist() == [-(-len(row) // BLOCK) for row in tokens.values()]
        assert rig.pools.cpu.free == (24, 8)
        rig.lawful()
    assert len(rig.owned(key)) <= 2 + 3, "no more than the last two sets together"


def test_d3_a_selection_of_the_other_method_is_refused(make_rig: MakeRig) -> None:
    rig = make_rig(**TOKEN)
    turn = rig.select(rig.open(), {0: [0], 1: [1]})
    assert turn.refusal is not None
    assert turn.refusal.reason == "method: expected a selection of the token method, got one of the block method"
    rig = make_rig(**COPY)
    turn = select(rig, rig.open(), CHOSEN)
    assert turn.refusal is not None
    assert turn.refusal.reason == "method: expected a selection of the block method, got one of the token method"


@pytest.mark.parametrize(
    ("tokens", "changed", "reason"),
    [
        ({0: [32], 1: []}, {}, "tokens_by_layer[0]: expected ascending positions in [0, 32), got [32]"),
        ({0: [], 1: [-1]}, {}, "tokens_by_layer[1]: expected ascending positions in [0, 32), got [-1]"),
        ({0: [4, 3], 1: []}, {}, "tokens_by_layer[0]: expected ascending positions in [0, 32), got [4, 3]"),
        ({0: [3, 3], 1: []}, {}, "tokens_by_layer[0]: expected ascending positions in [0, 32), got [3, 3]"),
        (
            {0: [1, 2], 1: []},
            {"packed": {0: [0, 1], 1: []}},
            "logical_blocks_by_layer[0]: expected the blocks that 2 tokens fill, from 0 on",
        ),
        (
            {0: [1, 2], 1: []},
            {"ranked_tail_by_layer": rows({0: [5], 1: []})},
            "ranked_tail_by_layer: expected none, since nothing is padded",
        ),
        (
            {0: [1, 2]},
            {"packed": {0: [0], 1: []}},
            "tokens_by_layer: expected a row for each active layer [0, 1], got [0]",
        ),
    ],
)
def test_bad_tokens_are_refused_by_name(make_rig: MakeRig, tokens: Ids, changed: Any, reason: str) -> None:
    rig = make_rig(**TOKEN)
    key = rig.open()
    turn = select(rig, key, tokens, **changed)
    assert turn.refusal is not None
    assert turn.refusal.reason == reason
    assert rig.effects == []


def test_a_token_whose_block_the_cpu_does_not_hold_is_no_plan(make_rig: MakeRig) -> None:
    rig = make_rig(**TOKEN)
    key = rig.open(blocks=6)
    assert select(rig, key, {0: [24], 1: []}).outcome == "refused"
    refused = rig.last(e.PlanRefused)
    assert (refused.lane, refused.reason) == ("upload", "invalid_source")


def test_without_copy_destinations_a_plan_is_refused_and_the_old_set_stays(make_rig: MakeRig) -> None:
    rig = make_rig(cpu=(32, 33), **TOKEN)
    key = rig.open()
    before = frozen(rig.state)
    assert select(rig, key, CHOSEN).outcome == "refused"
    assert rig.last(e.PlanRefused).reason == "no_space"
    assert rig.request(key).view is None
    assert before != frozen(rig.state), "the refusal is a fact"


def test_nothing_is_kept_but_a_pack_moves(make_rig: MakeRig) -> None:
    rig = make_rig(**TOKEN)
    key = rig.open()
    operation = rig.started(select(rig, key, CHOSEN))
    rig.all_done(operation)
    rig.acknowledge(operation)
    turn = rig.start_retain(key, rig.keep(key, {0: [0], 1: [0]}))
    assert turn.refusal is not None
    assert turn.refusal.reason.startswith("keep: expected pack, as the token method keeps no slots")
    rig.pack(key)
    assert rig.view(key).generation == 2


def test_a_log_with_tokens_that_do_not_fill_their_blocks_is_refused(make_rig: MakeRig) -> None:
    rig = make_rig(**TOKEN)
    key = rig.open()
    turn = rig.core.handle(
        Select(
            selection=replace(
                selection(rig.layout, key, 1, {0: [0], 1: []}), tokens_by_layer=rows({0: [1], 1: []}), whole_blocks=8
            ),
            idempotency_key="t",
        )
    )
    assert turn.outcome == "reserve"
    turn = rig.core.handle(rig.pools.reserve(turn.effects[0]))  # type: ignore[arg-type]
    planned = next(event for event in turn.events if isinstance(event, e.UploadPlanned))
    first = next(event for event in turn.events if isinstance(event, e.BlocksSelected))
    selected = apply(rig.state, first)
    for wrong in (
        replace(planned, valid_tokens=np.asarray([5, 0], dtype="<i4").tobytes()),
        replace(planned, valid_tokens=np.asarray([1], dtype="<i4").tobytes()),
        replace(planned, kind="diff"),
        replace(planned, source_kind="source_only"),
    ):
        with pytest.raises(Refused, match=r"packed tokens|do not fill"):
            apply(selected, wrong)
    apply(selected, planned)


def test_the_token_method_needs_copying() -> None:
    with pytest.raises(SettingsError, match=r"\$\.source\.kind: expected copy with the token method"):
        make_settings(selection={"method": "token"})


def test_tokens_by_score_then_position_with_sink_and_recent_blocks_in() -> None:
    """Against `sorted` alone; ties go to the lower position."""
    scores = np.asarray([np.random.default_rng(3).integers(0, 4, 32), np.zeros(32)], dtype=np.float32)
    policy = SelectionSettings(budget=0.5, sink_blocks=1, recent_blocks=1)
    chosen = select_tokens(scores, request=RequestKey("a", 1), revision=1, layout=make_layout(), policy=policy)
    assert chosen.tokens_by_layer is not None
    for row, layer in enumerate((0, 1)):
        middle = sorted(range(4, 28), key=lambda at, row=row: (-scores[row, at], at))[:8]
        assert chosen.tokens_by_layer.row(layer).tolist() == [0, 1, 2, 3, *sorted(middle), 28, 29, 30, 31]
    assert chosen.logical_blocks_by_layer.as_lists() == {0: [0, 1, 2, 3], 1: [0, 1, 2, 3]}
    assert (chosen.whole_blocks, chosen.effective_budget_blocks) == (8, 4)


def test_scores_of_tokens_are_checked() -> None:
    named: dict[str, Any] = {
        "request": RequestKey("a", 1),
        "revision": 1,
        "layout": make_layout(),
        "policy": SelectionSettings(),
    }
    with pytest.raises(LayoutError, match="scores: expected float32 of shape"):
        select_tokens(np.zeros((2, 30), dtype=np.float32), **named)
    scores = np.zeros((2, 32), dtype=np.float32)
    scores[1, 21] = np.inf
    with pytest.raises(NonFiniteScore, match="layer 1, block 5"):
        select_tokens(scores, **named)
