"""Plans that cannot be made now or ever: each is refused by name, and nothing of the request changes."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from tests.runtime.rig import RANKS, CoreRig, Ids, rows

from kvsweep.ledger import events as e
from kvsweep.ledger.errors import Refused
from kvsweep.ledger.ids import RequestKey, int32_bytes, int32_view
from kvsweep.ledger.messages import (
    EvictPrefix,
    Finish,
    MoveBlocks,
    OpenRequest,
    OpenTail,
    Preempt,
    ProcessLost,
    ProcessStarted,
    Resume,
    SealTail,
    StoreBlocks,
    Transfer,
    Turn,
)
from kvsweep.runtime.core.core import Message

MakeRig = Callable[..., CoreRig]
VIEW: Ids = {0: [0, 2, 5], 1: [0, 2, 5]}


@pytest.fixture
def key(rig: CoreRig) -> RequestKey:
    found = rig.open()
    rig.upload(found, VIEW)
    return found


def reason(turn: Turn) -> str:
    assert turn.outcome == "refused"
    assert turn.refusal is not None
    return turn.refusal.reason


# ---- which view, which lane


def test_g1_a_retain_beside_an_upload_is_refused_as_a_busy_lane_also_where_no_row_is_free(make_rig: MakeRig) -> None:
    """A missing row may come back while nothing changes; a busy lane has to end first."""
    rig = make_rig(retain={"table_rows": 2})
    key = rig.open()
    rig.upload(key, VIEW)
    rig.started(rig.select(key, {0: [0, 7], 1: [0]}))
    before = rig.request(key)
    turn = rig.start_retain(key, rig.keep(key, {0: [0], 1: [0]}))
    assert reason(turn) == "the upload lane is busy (MOVING): one view-changing operation at a time"
    assert isinstance(rig.last(e.CommandRefused), e.CommandRefused)
    assert rig.effects_of(MoveBlocks) == []
    assert replace(rig.request(key), seq=before.seq) == before


def test_g1_a_retain_planned_on_another_revision_is_refused_and_names_both(rig: CoreRig, key: RequestKey) -> None:
    """Slots are ordinals of one residency: on the next one the same numbers are other blocks."""
    keep = rig.keep(key, {0: [2, 5], 1: [2, 5]})
    for planned in (0, 2, -1):
        expected = f"map_revision: expected 1, the current one, got {planned}"
        assert reason(rig.start_retain(key, keep, map_revision=planned)) == expected
    rig.retain(key, {0: [0, 5], 1: [0, 5]})
    before = rig.view(key)
    refused = "map_revision: expected 2, the current one, got 1"
    assert reason(rig.start_retain(key, rows({0: [1], 1: [1]}), map_revision=1)) == refused
    assert rig.view(key) == before
    rig.lawful()


# ---- one table for layers that differ in number


@pytest.mark.parametrize("layer_tables", [False, True])
def test_e6_a_full_plan_that_one_table_cannot_serve_is_refused_by_name(make_rig: MakeRig, layer_tables: bool) -> None:
    """The selections differ in size and the shorter layer has no candidates: some of its slots would hold nothing."""
    rig = make_rig(retain={"layer_tables": layer_tables})
    key = rig.open()
    rig.upload(key, VIEW)
    before, free = rig.request(key), rig.free()
    turn = rig.select(key, {0: [0, 1, 3, 6], 1: [7]}, tail={0: [], 1: [4]})
    if layer_tables:
        assert turn.outcome == "accepted", "rows of their own may differ in length"
        return
    (refused,) = turn.events
    assert isinstance(refused, e.PlanRefused)
    assert (refused.lane, refused.reason, refused.needed, refused.selection_revision) == (
        "upload",
        "unequal_layers",
        2,  # of the four slots layer 1 can fill two: block 7 and candidate 4
        2,
    )
    assert turn.effects == ()
    assert rig.free() == free
    assert replace(rig.request(key), seq=before.seq) == before
    assert rig.select(key, {0: [0, 1, 3, 6], 1: [7]}, tail={0: [], 1: [4, 2, 3]}).outcome == "accepted"


# ---- a rank that is lost


def lose(rig: CoreRig, rank: int = 1) -> None:
    assert rig.send(ProcessLost(rank=rank, process_epoch=dict(RANKS)[rank])).outcome == "accepted"


def expect_rank_lost(rig: CoreRig, turn: Turn, lane: str) -> None:
    (refused,) = turn.events
    assert isinstance(refused, e.PlanRefused)
    assert (turn.outcome, refused.lane, refused.reason) == ("refused", lane, "rank_lost")
    assert turn.effects == ()


def test_g3_nothing_new_is_started_while_a_rank_is_lost_and_all_of_it_once_it_is_back(
    rig: CoreRig, key: RequestKey
) -> None:
    lose(rig)
    rig.send(Resume(request=key))
    marks = [len(rig.effects_of(kind)) for kind in (Transfer, MoveBlocks, StoreBlocks)]
    expect_rank_lost(rig, rig.select(key, VIEW), "upload")
    expect_rank_lost(rig, rig.select(key, {0: [], 1: []}), "upload")
    expect_rank_lost(rig, rig.start_retain(key, rows({0: [], 1: []})), "retain")
    rig.send(OpenTail(request=key, until=9))
    expect_rank_lost(rig, rig.send(SealTail(request=key, confirmed_tokens=36)), "store")
    assert rig.request(key).tail[0].phase == "open", "a lost rank cannot have written it: it is not sealed"
    with pytest.raises(Refused, match=r"ranks \[1\] are lost"):
        rig.begin_step(key)
    rig.send(Preempt(request=key))
    assert [len(rig.effects_of(kind)) for kind in (Transfer, MoveBlocks, StoreBlocks)] == marks
    rig.send(ProcessStarted(rank=1, process_epoch=12))
    rig.send(Resume(request=key))
    upload = rig.started(rig.select(key, VIEW))
    rig.done(upload, 0)
    rig.done(upload, 1, process_epoch=12)
    assert rig.view(key).logical.as_lists() == VIEW
    rig.lawful()


def test_g3_no_running_request_has_a_view_of_an_older_pool_generation(rig: CoreRig, key: RequestKey) -> None:
    """So nothing can be planned on one."""
    other = rig.open("b")
    rig.upload(other, VIEW)
    rig.send(Preempt(request=other))
    lose(rig)
    assert rig.state.pool.pool_generation == 2
    for request in rig.state.requests.values():
        assert (request.life, request.view) == ("PREEMPTED", None)
    rig.lawful()


# ---- what the CPU holds


@pytest.mark.parametrize("want", [[9], [1, 9], [9, 10], [1, 2, 9]])
def test_e5_d1_one_block_without_a_source_refuses_the_whole_plan_and_names_the_reason(
    rig: CoreRig, want: list[int]
) -> None:
    """Some of the wanted blocks have a CPU block and some have none: nothing is sent, and it may be tried again."""
    key = rig.open()
    rig.register(key, [11], [20])  # so that 9 and 10 are gaps, and not beyond the end
    turn = rig.select(key, {0: want, 1: [1]}, whole=12)
    (refused,) = turn.events
    assert isinstance(refused, e.PlanRefused)
    assert (refused.lane, refused.reason, refused.needed) == ("upload", "invalid_source", len(want) + 1)
    assert rig.effects_of(Transfer) == []


# ---- what is claimed


def test_a1_registered_sources_are_claimed_from_the_pool_and_refused_ones_go_back(rig: CoreRig) -> None:
    """A block that nobody holds is given away once; a refused registration keeps nothing."""
    key = rig.open(blocks=2)
    free = rig.pools.cpu.free
    for logical, source, said in (
        ([5, 5], [20, 21], "logical: expected each block once, got [5, 5]"),
        ([5, 6], [20, 20], "source: expected each block once, got [20, 20]"),
        ([5, 6], [20], "source: expected 2 blocks, one for each logical block, got 1"),
        ([5, 6], [20, 40], "source: expected block ids in [0, 32), the CPU pool's size, got 40"),
        ([5, 6], [20, -1], "source: expected block ids in [0, 32), the CPU pool's size, got -1"),
        ([5, 32], [20, 21], "logical: expected block ids in [0, 32), the CPU pool's size, got 32"),
        ([5], [0], "source: CPU block 0 is held for a"),  # its own already
    ):
        turn = rig.register(key, logical, source)
        assert turn.outcome == "refused"
        assert turn.refusal is not None
        assert turn.refusal.reason == said
        assert isinstance(rig.last(e.CommandRefused), e.CommandRefused), "no lack of space: it never fits"
        assert rig.pools.cpu.free == free, f"{source} leaked"
    rig.register(key, [2], [20])
    assert rig.pools.cpu.free == (free[0] - 1, free[1])
    other = rig.open("b", blocks=0)
    turn = rig.register(other, [0], [20])
    assert turn.refusal is not None
    assert turn.refusal.reason == "source: CPU block 20 is held for a"
    rig.lawful()


def test_a1_a_source_that_is_on_its_way_back_to_the_pool_lacks_space_and_may_be_tried_again(rig: CoreRig) -> None:
    """Nobody holds it and the pool has not got it yet: the one case that waiting can help."""
    key = rig.open(blocks=0)
    assert rig.pools.cpu.full.claim(int32_view(int32_bytes([20])))
    turn = rig.register(key, [0], [20])
    assert turn.refusal is not None
    assert (turn.outcome, turn.refusal.what) == ("refused", "no_space")
    rig.pools.cpu.release(int32_view(int32_bytes([20])))
    assert rig.register(key, [0], [20]).outcome == "accepted"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (lambda key: EvictPrefix(blocks=-1), "blocks: expected 0 or more, got -1"),
        (lambda key: OpenTail(request=key, until=-1), "until: expected 0 or more, got -1"),
        (lambda key: SealTail(request=key, confirmed_tokens=-4), "confirmed_tokens: expected 0 or more, got -4"),
    ],
)
def test_a_count_below_zero_is_refused_by_name(
    rig: CoreRig, command: Callable[[RequestKey], Message], said: str
) -> None:
    """A slice takes a negative count for one from the other end: all but the newest prefix would be evicted."""
    key = rig.open()
    turn = rig.send(command(key))
    assert turn.outcome == "refused"
    assert turn.refusal is not None
    assert turn.refusal.reason == said
    assert [type(event) for event in turn.events] == [e.CommandRefused]


def test_f5_an_id_that_is_open_already_is_named_by_its_refusal(rig: CoreRig) -> None:
    """The refusal stands in the stream of the life that is open, not in the pool's."""
    key = rig.open()
    turn = rig.send(OpenRequest(request_id="a"))
    assert [(type(event), event.request) for event in turn.events] == [(e.CommandRefused, key)]
    assert reason(turn) == "the earlier life is not closed"


def test_g3_a_closed_request_takes_no_command(rig: CoreRig) -> None:
    key = rig.open()
    rig.send(Finish(request=key))
    assert rig.request(key).life == "CLOSED"
    free = rig.pools.cpu.free
    for turn in (rig.register(key, [9], [20]), rig.register(key, [9], [40]), rig.select(key, {0: [0], 1: [0]})):
        assert turn.outcome == "refused"
        assert turn.refusal is not None
        assert turn.refusal.reason == "the request is closed"
    assert rig.pools.cpu.free == free
