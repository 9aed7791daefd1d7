"""The cases of contract I, one test each, on devices that copy late: right bytes, or a refusal that changes nothing."""

from collections.abc import Callable

import numpy as np
import pytest
from msgspec.structs import replace
from tests.runtime.device_rig import DeviceRig
from tests.runtime.rig import PRODUCER, RANKS, CoreRig, make_layout

from kvsweep.kernels.errors import KernelArgumentError
from kvsweep.kernels.whole import validate_whole_blocks
from kvsweep.ledger import events as e
from kvsweep.ledger import laws
from kvsweep.ledger.errors import Refused
from kvsweep.ledger.ids import Int32, RequestKey, int32_bytes
from kvsweep.ledger.layout import LayerLayout, Layout
from kvsweep.ledger.messages import OpenTail, ProcessStarted, RegisterSources, SealTail
from kvsweep.ledger.ownership import Holder

MakeRig = Callable[..., CoreRig]


def ids(*blocks: int) -> Int32:
    return np.asarray(blocks, dtype=np.int32)


def want(rig: DeviceRig, *blocks: int) -> dict[int, Int32]:
    """The same blocks in every active layer."""
    return {layer: ids(*blocks) for layer in rig.layout.active_layers}


def round_of(rig: DeviceRig, key: RequestKey, wanted: dict[int, Int32]) -> None:
    rig.select(key, wanted)
    rig.quiet()
    rig.retain(key, wanted)
    rig.quiet()
    rig.check_bytes(key)


def drained(rig: DeviceRig, key: RequestKey) -> None:
    rig.finish(key)
    rig.quiet()
    assert rig.request(key).life == "CLOSED"
    assert laws.check(rig.driver.state) == []
    for pool in rig.driver.pools.device.groups:
        assert pool.free == pool.blocks


@pytest.mark.parametrize("block_size", [1, 2, 32, 64])
def test_i_block_sizes(block_size: int) -> None:
    rig = DeviceRig(make_layout(2, block_size=block_size), ranks=2, whole=8, staging_bytes=1 << 16)
    key = rig.open()
    round_of(rig, key, want(rig, 0, 3, 7))
    round_of(rig, key, {0: ids(1, 3), 1: ids(2, 7)})
    assert rig.view(key).logical.as_lists() == {0: [3, 1], 1: [7, 2]}
    drained(rig, key)


def test_i_empty_selection() -> None:
    """Nothing selected of nothing, and nothing new: zero bytes, the residency stays, and the keep map is published."""
    rig = DeviceRig(ranks=2)
    key = rig.open()
    rig.select(key, want(rig))
    rig.quiet()
    assert rig.request(key).view is None
    round_of(rig, key, want(rig, 1, 2))
    before, written = rig.view(key), [device.memory.traffic.written_bytes for device in rig.devices]
    rig.select(key, want(rig, 1, 2))
    rig.quiet()
    assert rig.view(key) == before
    assert [device.memory.traffic.written_bytes for device in rig.devices] == written
    published = [event for event in rig.events if isinstance(event, e.KeepMapPublished)]
    assert [event.selection_revision for event in published] == [1, 3]
    drained(rig, key)


def test_i_every_layer_empty() -> None:
    """A retain that keeps nothing in any layer leaves a view without slots, and every block goes back."""
    rig = DeviceRig(ranks=2)
    key = rig.open()
    round_of(rig, key, want(rig, 1, 2))
    rig.retain(key, want(rig))
    rig.quiet()
    assert rig.view(key).logical.as_lists() == {0: [], 1: []}
    assert rig.owned(key) == 0
    round_of(rig, key, want(rig, 5))
    drained(rig, key)


def test_i_tail_exhausted() -> None:
    """One table for all layers, and a layer without candidates: nothing wanted is cut, the whole selection moves."""
    rig = DeviceRig(retain={"layer_tables": False})
    key = rig.open()
    rig.select(key, want(rig, 1, 2))
    rig.quiet()
    rig.select(key, {0: ids(3, 4), 1: ids(1, 3)}, tail={0: ids(9), 1: ids()})
    rig.quiet()
    plan = [event for event in rig.events if isinstance(event, e.UploadPlanned)][-1]
    assert (plan.kind, plan.logical.as_lists()) == ("full", {0: [3, 4], 1: [1, 3]})
    rig.check_bytes(key)
    drained(rig, key)


def test_i_unequal_counts() -> None:
    rig = DeviceRig(make_layout(3), ranks=2)
    key = rig.open()
    round_of(rig, key, {0: ids(), 1: ids(4), 2: ids(0, 5, 9)})
    assert rig.view(key).logical.counts.tolist() == [0, 1, 3]
    drained(rig, key)


@pytest.mark.parametrize(
    ("tail", "said"),
    [
        ({0: ids(4, 4), 1: ids()}, "ranked_tail_by_layer[0]: a block is named twice in [4, 4]"),
        ({0: ids(), 1: ids(-1)}, "ranked_tail_by_layer[1]: expected blocks in [0, 32), got [-1]"),
        ({0: ids(32), 1: ids()}, "ranked_tail_by_layer[0]: expected blocks in [0, 32), got [32]"),
        ({0: ids(9, 32, 4), 1: ids()}, "ranked_tail_by_layer[0]: expected blocks in [0, 32), got [9, 32, 4]"),
        ({0: ids(31, 4, 9), 1: ids(2)}, ""),  # in score order, and not in id order
    ],
)
def test_i_bad_tail_ids(tail: dict[int, Int32], said: str) -> None:
    """Token ids beside: a position that is no block's first one is refused before there is a selection."""
    with pytest.raises(KernelArgumentError, match="blocks that start at a multiple of 4"):
        validate_whole_blocks([1, 2, 3, 4], 4)
    rig = DeviceRig()
    key = rig.open()
    state = rig.driver.state
    if not said:
        rig.select(key, want(rig, 1), tail=tail)
        rig.quiet()
        rig.check_bytes(key)
        return
    with pytest.raises(Refused) as error:
        rig.select(key, want(rig, 1), tail=tail)
    assert error.value.reason == said
    assert rig.driver.state.ownership == state.ownership
    assert rig.request(key).upload.phase == "IDLE"


@pytest.mark.parametrize(("tokens", "whole"), [(3, 0), (4, 1), (5, 1)])
def test_i_partial_sequence(make_rig: MakeRig, tokens: int, whole: int) -> None:
    """B − 1, B and B + 1 tokens: only whole blocks are sealed, stored and may be selected."""
    rig = make_rig()
    key = rig.open(blocks=0)
    rig.send(OpenTail(request=key, until=2))
    turn = rig.send(SealTail(request=key, confirmed_tokens=tokens))
    assert [block.phase for block in rig.request(key).tail] == ["dirty"] * whole + ["open"] * (2 - whole)
    if whole:
        rig.all_done(rig.started(turn))
    assert [rig.request(key).source_of(block) >= 0 for block in range(2)] == [True] * whole + [False] * (2 - whole)
    refused = rig.select(key, {0: [1], 1: [1]}, whole=2)
    assert refused.refusal is not None
    assert refused.refusal.what == "invalid_source"


def test_i_groups() -> None:
    """Two full groups with pools of their own, beside a sliding one whose layers are never selected."""
    layers = tuple(
        LayerLayout(
            layer=n, group=group, kind=kind, kv_heads=2, head_dim=2, window_tokens=8 if kind == "sliding" else 0
        )
        for n, (group, kind) in enumerate([(0, "full"), (1, "sliding"), (2, "full"), (0, "full")])  # type: ignore[arg-type]
    )
    layout = Layout.of(model_hash="groups", dtype="float32", block_size=4, layers=layers)
    rig = DeviceRig(layout, ranks=1)
    key = rig.open()
    round_of(rig, key, {0: ids(1, 2), 2: ids(5), 3: ids(1, 2)})
    round_of(rig, key, {0: ids(2, 9), 2: ids(6, 7), 3: ids(0, 2)})
    owned = [int(blocks.size) for blocks in rig.driver.state.ownership.owned(key, layout)]
    assert (owned[1], min(owned[0], owned[2]) >= 2) == (0, True)
    drained(rig, key)


def test_i_wrong_source_owner() -> None:
    rig = DeviceRig()
    first = rig.open("a", blocks=4)
    second = rig.driver.open_request("b")
    taken = rig.request(first).source_of(2)
    with pytest.raises(Refused) as error:
        rig.driver.handle(RegisterSources(request=second, logical=int32_bytes([0]), source=int32_bytes([taken])))
    assert error.value.reason == f"source: CPU block {taken} is held for a"
    assert rig.request(second).source == b""
    assert laws.check(rig.driver.state) == []


def test_i_ack_order(make_rig: MakeRig) -> None:
    """A report that is late, repeated or stale: recorded as what it is, and only the late one changes anything."""
    rig = make_rig()
    key = rig.open()
    first = rig.started(rig.select(key, {0: [1], 1: [1]}))
    assert rig.done(first, 0).outcome == "accepted"
    assert rig.done(first, 0).outcome == "repeated"
    assert rig.request(key).upload.phase == "MOVING"
    assert rig.done(first, 1).outcome == "accepted"  # late
    rig.acknowledge(first)
    second = rig.started(rig.select(key, {0: [1, 2], 1: [1]}))
    assert rig.done(first, 1).outcome == "repeated"  # of the lane's last operation
    rig.all_done(second)
    rig.acknowledge(second)
    assert rig.done(first, 1).outcome == "ignored"  # of an older one
    assert rig.done(replace(second, operation_id=9), 1).outcome == "refused"  # of none
    assert [event.verdict for event in rig.events if isinstance(event, e.AckIgnored | e.AckRefused)] == [
        "duplicate",
        "duplicate",
        "stale",
        "future",
    ]
    rig.lawful()


def test_i_finish_after_enqueue() -> None:
    """Its copies wait on the devices when the request ends: all it holds is held until they have run or are stopped."""
    rig = DeviceRig(ranks=2)
    key = rig.open()
    rig.select(key, want(rig, 1, 2))
    rig.perform(rig.driver.poll())
    rig.devices[0].advance(1)
    rig.finish(key)
    held = rig.owned(key)
    assert held > 0
    assert rig.request(key).life == "FINISHING"
    rig.quiet()
    assert rig.request(key).life == "CLOSED"
    assert rig.driver.pools.device.free == (64,)


def test_i_finish_last() -> None:
    """Nothing runs any more, and there is still work until everything has come back."""
    rig = DeviceRig(ranks=2)
    key = rig.open()
    round_of(rig, key, want(rig, 1, 2))
    rig.select(key, want(rig, 3))
    rig.finish(key)
    assert rig.driver.pending() != []
    rig.quiet()
    assert rig.driver.pending() == []
    assert rig.driver.pools.device.free == (64,)
    assert rig.driver.pools.cpu.free[0] == 128


def test_i_producer_restart(make_rig: MakeRig) -> None:
    """An upload in flight turns back though one rank has read all: its sources stay leased until both are quiet."""
    rig = make_rig()
    key = rig.open()
    operation = rig.started(rig.select(key, {0: [1], 1: [1]}))
    rig.done(operation, 0)
    rig.send(ProcessStarted(process_epoch=PRODUCER + 1))
    request = rig.request(key)
    assert (request.upload.phase, len(request.settling)) == ("IDLE", 1)
    assert Holder("src", operation.operation_id) in rig.state.ownership.holders(key)
    refused = rig.select(key, {0: [1], 1: [1]})
    assert refused.refusal is not None
    assert refused.refusal.what == "invalid_source"
    rig.done(operation, 1, "cancelled")
    assert Holder("src", operation.operation_id) not in rig.state.ownership.holders(key)
    rig.lawful()


@pytest.mark.parametrize("late", [(1,), (0, 1)])
def test_i_rank_delay(late: tuple[int, ...]) -> None:
    """The completion of all ranks waits for one of them, or for all; until then the old residency stands."""
    rig = DeviceRig(ranks=2)
    key = rig.open()
    round_of(rig, key, want(rig, 1, 2))
    before = rig.view(key)
    number = rig.driver.state.pool.next_operation_id
    for rank in late:
        rig.devices[rank].faults.hold.add(number)
    rig.select(key, want(rig, 1, 2, 3))
    rig.quiet()
    assert rig.view(key) == before
    opened = rig.request(key).upload.open
    assert opened is not None
    assert [rank for rank, _ in opened.outcomes] == [rank for rank, _ in RANKS if rank not in late]
    for device in rig.devices:
        device.faults.hold.clear()
    rig.quiet()
    assert rig.view(key).logical.as_lists() == {0: [1, 2, 3], 1: [1, 2, 3]}
    rig.check_bytes(key)
    drained(rig, key)


def test_i_table_during_replay() -> None:
    """A captured step keeps the row and generation it was handed; two replacements later both still read right."""
    rig = DeviceRig(ranks=2, retain={"table_rows": 4})
    key = rig.open()
    round_of(rig, key, want(rig, 1, 2))
    number, handed = rig.driver.begin_step([key])
    captured = rig.view(key).logical
    for blocks in ((1, 2, 3), (1, 2, 3, 4)):
        rig.select(key, want(rig, *blocks))
        rig.quiet()
        rig.check_reader(key, handed[key], captured)
    assert rig.view(key).logical.as_lists()[0] == [1, 2, 3, 4]
    rig.check_bytes(key)
    rig.driver.end_step(number)
    rig.quiet()
    assert [view.generation for view in rig.request(key).views] == [rig.request(key).current]
    drained(rig, key)


def test_i_source_freed() -> None:
    """The owner of the sources ends while a rank still reads them: nobody else gets them before it has stopped."""
    rig = DeviceRig(ranks=2)
    key = rig.open(blocks=32)
    sources = set(np.frombuffer(rig.request(key).source, dtype="<i4").tolist())
    number = rig.driver.state.pool.next_operation_id
    rig.devices[1].faults.hold.add(number)
    rig.select(key, want(rig, 1, 2))
    rig.perform(rig.driver.poll())
    rig.devices[1].faults.hold.clear()
    rig.devices[1].advance(1)  # it has begun, so it cannot be stopped
    rig.devices[1].faults.hold.add(number)
    rig.finish(key)
    rig.quiet()
    assert rig.request(key).life == "FINISHING"
    held = set(rig.driver.state.ownership.sources(key).tolist())
    assert held
    assert held < sources
    other = rig.driver.pools.cpu.full.reserve(rig.driver.pools.cpu.full.free)
    assert other is not None
    assert not held & set(other.tolist())
    rig.driver.pools.cpu.release(other)
    rig.devices[1].faults.hold.clear()
    rig.quiet()
    assert rig.request(key).life == "CLOSED"
    assert rig.driver.pools.cpu.free[0] == 128
