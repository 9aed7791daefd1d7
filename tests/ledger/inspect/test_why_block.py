"""The life of one block, held against a recount of the relation after every event of the whole ledger."""

from typing import Any

import pytest
from tests.ledger.inspect.test_lives import Apart, walked
from tests.ledger.walks import Walk

from kvsweep.ledger.errors import LayoutError
from kvsweep.ledger.ids import int32_view
from kvsweep.ledger.inspect.replay import Ledger
from kvsweep.ledger.inspect.why_block import BlockLife, why_block
from kvsweep.ledger.state import State
from kvsweep.ledger.store.memory import MemoryLog
from kvsweep.ledger.store.query import Block

SEED = 20260916
KINDS = {"dst": "destination", "src": "source"}


def recounted(state: State, block: Block) -> tuple[set[Any], set[Any]]:
    """(who holds which area of the block, who owns it), read off the relation pair by pair."""
    if state.pool.run is None:
        return set(), set()
    layers = state.pool.layout.group_layers(block.group)
    holds = {
        (key.request_id, key.request_epoch, KINDS.get(holder.kind, holder.kind), holder.number, layer)
        for key, holders in state.ownership.held.items()
        for holder, holding in holders.items()
        for layer, ids in holding.areas.items()
        if layer in layers and block.block in ids
    }
    owners = {
        (key.request_id, key.request_epoch)
        for key, blocks in state.ownership.own.items()
        if block.block in int32_view(blocks[block.group])
    }
    return holds, owners


def answered(life: BlockLife, position: int) -> tuple[set[Any], set[Any]]:
    holds = {(one.request, one.epoch, one.kind, one.number, one.layer) for one in life.at(position)}
    owners = {
        (one.request, one.epoch)
        for one in life.owners
        if one.since <= position and (one.until is None or one.until > position)
    }
    return holds, owners


@pytest.mark.parametrize("kind", [Apart, Walk])
@pytest.mark.parametrize("seed", [SEED, SEED + 1])
def test_b6_every_holder_and_owner_of_every_block_is_told_at_every_position(kind: type[Walk], seed: int) -> None:
    """B6: owners, leases, fences, prefixes and views, layer by layer."""
    log = walked(kind, seed)
    run = next(iter(log.read())).event
    sizes: tuple[int, ...] = run.device_blocks  # type: ignore[attr-defined]
    told: set[str] = set()
    states = [(frame.position, frame.after) for frame in Ledger(log).replay() if frame.position % 3 == 0]
    for group, size in enumerate(sizes):
        for number in range(size):
            life, block = why_block(log, Block(group, number), lives=10**6, events=10**9), Block(group, number)
            assert life.left_out == 0
            for position, state in states:
                assert answered(life, position) == recounted(state, block), f"seed {seed}, {block} at {position}"
            told |= {hold.kind for hold in life.holds}
    expected = {"view", "tail", "destination", "source", "fence"}
    assert told == expected | ({"prefix"} if kind is Walk else set())


def test_what_an_area_holds_is_what_the_view_says(written: Any) -> None:
    log = MemoryLog()
    log.append(written.events)
    for number in range(8):
        life = why_block(log, Block(0, number))
        for frame in Ledger(log).replay():
            for hold in life.at(frame.position):
                request = frame.after.requests[hold.request]
                if hold.kind == "view":
                    [view] = [one for one in request.views if one.generation == hold.number]
                    slot = view.physical.row(hold.layer).tolist().index(number)
                    assert view.logical.row(hold.layer)[slot] == hold.logical
                if hold.kind == "destination":
                    [opened] = [o for o in request.open_operations() if o.operation.operation_id == hold.number] or [
                        o for o in request.settling if o.operation.operation_id == hold.number
                    ]
                    slot = opened.destination.row(hold.layer).tolist().index(number)
                    assert opened.logical.row(hold.layer)[slot] == hold.logical
                if hold.kind in ("tail", "fence"):
                    assert hold.logical == 4


def test_a_write_names_who_had_the_area_before(written: Any) -> None:
    log = MemoryLog()
    log.append(written.events)
    life = why_block(log, Block(0, 0))
    assert [(write.hold.layer, write.hold.kind, write.before) for write in life.writes] == [
        (0, "destination", None),
        (2, "destination", None),
    ]
    for seed in (SEED, SEED + 1):
        walk = walked(Walk, seed)
        for number in range(6):
            life = why_block(walk, Block(0, number), lives=10**6, events=10**9)
            assert [w.hold.since for w in life.writes] == sorted(w.hold.since for w in life.writes)
            for write in life.writes:
                earlier = [h for h in life.holds if h.layer == write.hold.layer and h.since < write.hold.since]
                last = max(earlier, key=lambda hold: hold.until or 10**9, default=None)
                if last is None:
                    assert write.before is None
                else:
                    assert write.before is not None
                    assert write.before.until == last.until
                    assert (last.until or 10**9) <= write.hold.since, "an area is written only once it is vacant"


def test_reports_on_the_operations_that_hold_the_block_are_told(written: Any) -> None:
    log = MemoryLog()
    log.append(written.events)
    life = why_block(log, Block(0, 1))
    told = [fact.type for fact in life.events]
    assert told[:6] == [
        "BlocksLeased",
        "TransferStarted",
        "RankTransferred",
        "RankTransferred",
        "TransferCompleted",
        "ResidencyCommitted",
    ]
    assert told.count("BlocksRetired") == 2


def test_earlier_owners_are_counted_where_only_the_latest_are_looked_into() -> None:
    log = walked(Apart, SEED)
    whole = why_block(log, Block(0, 0), lives=10**6, events=10**9)
    lives = list(dict.fromkeys((owner.request, owner.epoch) for owner in reversed(whole.owners)))
    assert len(lives) > 3
    latest = why_block(log, Block(0, 0), lives=2)
    assert {(owner.request, owner.epoch) for owner in latest.owners} == set(lives[:2])
    assert latest.left_out == len(whole.owners) - len(latest.owners) > 0
    assert set(latest.holds) <= set(whole.holds)
    few = why_block(log, Block(0, 0), events=1)
    assert {(owner.request, owner.epoch) for owner in few.owners} == set(lives[:1])


def test_a_life_ends_at_a_position() -> None:
    log = walked(Apart, SEED)
    whole = why_block(log, Block(0, 2), lives=10**6, events=10**9)
    for until in (1, 100, 250):
        cut = why_block(log, Block(0, 2), until=until, lives=10**6, events=10**9)
        assert cut.until == until
        assert answered(cut, until) == answered(whole, until)
        assert [fact.position for fact in cut.events] == [f.position for f in whole.events if f.position <= until]


def test_a_block_that_nobody_had_has_no_life(written: Any) -> None:
    log = MemoryLog()
    log.append(written.events)
    life = why_block(log, Block(0, 7))
    assert (life.owners, life.holds, life.writes, life.events, life.left_out) == ((), (), (), (), 0)
    assert life.layers == (0, 2)


@pytest.mark.parametrize("block", [Block(0, 8), Block(2, 0), Block(1, 4)])
def test_a_block_outside_the_pool_is_refused(written: Any, block: Block) -> None:
    log = MemoryLog()
    log.append(written.events)
    expected = f"block: expected GROUP:ID within 0:0 to 0:7, 1:0 to 1:3, got {block.group}:{block.block}"
    with pytest.raises(LayoutError, match=expected):
        why_block(log, block)
    with pytest.raises(LayoutError, match="until: expected a position from 0 to"):
        why_block(log, Block(0, 0), until=10**6)


def test_a_ledger_without_a_configuration_has_no_pool() -> None:
    with pytest.raises(LayoutError, match="ledger: expected RunConfigured as its first event, got none"):
        why_block(MemoryLog(), Block(0, 0))
