"""The host device: late copies, order between streams, bytes, figures, tables, bounds."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kvsweep.ledger.errors import Busy, LayoutError, NotSettled

MakeWorld = Callable[..., Any]
EVERY = range(5)


def every_layer(*ids: int) -> dict[int, list[int]]:
    return {layer: list(ids) for layer in EVERY}


# ---- late


def test_a_transfer_copies_when_its_stream_runs_not_when_it_is_queued(world: Any) -> None:
    world.device.queue(world.transfer(1, {0: [4]}, {0: [2]}))
    assert world.device.poll() == []
    world.cpu.areas(0)[4] = 11  # after queueing, before the copy
    world.device.advance()
    assert world.device_bytes(0, 2) == bytes([11]) * 192
    assert [done.operation.operation_id for done in world.device.poll()] == [1]


def test_a_move_and_a_store_read_their_sources_when_they_run(world: Any) -> None:
    world.device.queue(world.move(1, {0: [1]}, {0: [2]}))
    world.device.queue(world.store(2, every_layer(3), every_layer(9)))
    world.device.memory.areas(0)[1] = 21
    for layer in EVERY:
        world.device.memory.areas(layer)[3] = 30 + layer
    world.device.advance()
    assert world.device_bytes(0, 2) == bytes([21]) * 192
    for layer in EVERY:
        assert set(world.cpu_bytes(layer, 9)) == {30 + layer}


def test_nothing_is_written_by_queue(world: Any) -> None:
    before = [group.copy() for group in (*world.device.memory.groups, *world.cpu.groups)]
    world.device.queue(world.transfer(1, {0: [4]}, {0: [2]}))
    world.device.queue(world.move(2, {0: [1]}, {0: [3]}, row=1))
    world.device.queue(world.store(3, every_layer(3), every_layer(9)))
    after = (*world.device.memory.groups, *world.cpu.groups)
    assert all((old == new).all() for old, new in zip(before, after, strict=True))
    with pytest.raises(LayoutError, match="nothing"):
        world.device.table(world.operation(1).request, 0, 1, 0)


def test_g2_the_row_is_written_after_every_copy_and_then_the_operation_is_done(world: Any) -> None:
    request = world.operation(1).request
    world.device.queue(world.transfer(1, {0: [4, 5, 6], 2: [7]}, {0: [0, 1, 2], 2: [0]}))
    while world.device.queued > 1:
        assert world.device.advance(1) == 1
        assert world.device.poll() == []
        with pytest.raises(LayoutError):
            world.device.table(request, 0, 1, 0)
    for layer, block, source in ((0, 0, 4), (0, 1, 5), (0, 2, 6), (2, 0, 7)):
        assert world.device_bytes(layer, block) == world.cpu_bytes(layer, source)
    world.device.advance(1)
    assert world.device.table(request, 0, 1, 0).tolist() == [0, 1, 2]
    [done] = world.device.poll()
    assert done.outcome == "completed"
    assert world.device.poll() == []


# ---- order


def completion_order(make_world: MakeWorld, seed: int) -> list[int]:
    world = make_world(seed=seed)
    world.device.queue(world.transfer(1, {0: [4]}, {0: [0]}))
    world.device.queue(world.move(2, {0: [1]}, {0: [2]}, row=1))
    world.device.queue(world.store(3, every_layer(3), every_layer(9)))
    world.device.queue(world.transfer(4, {0: [5]}, {0: [4]}, row=2))
    order = []
    while world.device.advance(1):
        order += [done.operation.operation_id for done in world.device.poll()]
    return order


def test_completions_are_out_of_order_between_streams_and_in_order_inside_one(make_world: MakeWorld) -> None:
    orders = {seed: completion_order(make_world, seed) for seed in range(20)}
    assert all(sorted(order) == [1, 2, 3, 4] for order in orders.values())
    assert any(order != [1, 2, 3, 4] for order in orders.values()), orders
    assert all(order.index(1) < order.index(4) for order in orders.values()), orders
    assert len(set(map(tuple, orders.values()))) > 3
    assert completion_order(make_world, 3) == orders[3]  # the seed alone decides


def test_a_held_operation_waits_and_so_does_what_is_behind_it_in_its_stream(world: Any) -> None:
    world.device.faults.hold.add(1)
    world.device.queue(world.transfer(1, {0: [4]}, {0: [0]}))
    world.device.queue(world.transfer(2, {0: [5]}, {0: [1]}, row=1))
    world.device.queue(world.move(3, {0: [2]}, {0: [3]}, row=2))
    world.device.advance()
    assert [done.operation.operation_id for done in world.device.poll()] == [3]
    world.device.faults.hold.discard(1)
    world.device.advance()
    assert [done.operation.operation_id for done in world.device.poll()] == [1, 2]


def test_d8_advance_stops_rather_than_reuse_a_slot_that_waits_for_its_unpack(world: Any) -> None:
    """Six blocks go through two slots of two blocks: the third chunk is staged only when one has been unpacked."""
    world.device.queue(world.transfer(1, {0: [0, 1, 2, 3, 4, 5]}, {0: [0, 1, 2, 3, 4, 5]}))
    staged_ahead = 0
    while world.device.advance(1):
        ahead = (world.cpu.traffic.read_bytes - world.device.memory.traffic.written_bytes) // (2 * 192)
        staged_ahead = max(staged_ahead, ahead)
        assert ahead <= 2
    assert staged_ahead == 2  # the limit was reached, so the wait was needed
    assert all(world.device_bytes(0, block) == world.cpu_bytes(0, block) for block in range(6))


# ---- bytes and figures


def test_a4_ragged_rows_of_layers_never_cross(world: Any) -> None:
    source = {0: [1, 2, 3], 2: [4], 3: [], 4: [5, 6, 7, 8, 9]}
    destination = {0: [7, 0, 3], 2: [7], 3: [], 4: [1, 7, 2, 3, 0]}
    before = {(layer, block): world.device_bytes(layer, block) for layer in EVERY for block in range(8)}
    world.device.queue(world.transfer(1, source, destination))
    world.device.advance()
    expected = dict(before)
    for layer, ids in source.items():
        for at, block in zip(ids, destination[layer], strict=True):
            expected[layer, block] = world.cpu_bytes(layer, at)
    assert {key: world.device_bytes(*key) for key in before} == expected


def test_a2_a3_figures_are_counted_apart_and_agree_with_the_memories_own_counters(world: Any) -> None:
    device = world.device
    device.queue(world.transfer(1, {0: [4, 5, 6], 3: [7]}, {0: [0, 1, 2], 3: [0]}))
    device.queue(world.move(2, {2: [1]}, {2: [2]}, row=1))
    device.queue(world.store(3, every_layer(6), every_layer(9)))
    world.clock[0] = 2.5
    device.advance()
    done = {one.operation.operation_id: one for one in device.poll()}
    upload = 3 * 192 + 96  # a block is 2 × heads × 4 tokens × 3 × 4 bytes: 192 in group 0, 96 in groups 1 and 2
    store = 2 * 192 + 3 * 96
    assert (done[1].h2d_bytes, done[1].unpack_bytes, done[1].resident_moved_bytes, done[1].d2h_bytes) == (
        upload,
        upload,
        0,
        0,
    )
    assert (done[2].h2d_bytes, done[2].unpack_bytes, done[2].resident_moved_bytes) == (0, 0, 192)
    assert (done[3].d2h_bytes, done[3].h2d_bytes, done[3].table_updates) == (store, 0, 0)
    assert (done[1].table_updates, done[2].table_updates) == (2, 1)
    assert {one.wait_s for one in done.values()} == {2.5}
    assert world.cpu.traffic.read_bytes == upload
    assert world.cpu.traffic.written_bytes == store
    assert device.memory.traffic.written_bytes == upload
    assert device.memory.traffic.moved_bytes == 192
    assert device.memory.traffic.read_bytes == store


def test_f1_a_transfer_of_zero_bytes_writes_its_row_and_completes(world: Any) -> None:
    world.device.queue(world.transfer(1, {0: [], 2: []}, {0: [], 2: []}, table={0: [5], 2: [6, 7]}, generation=9))
    assert world.device.poll() == []
    world.device.advance()
    [done] = world.device.poll()
    assert (done.outcome, done.h2d_bytes, done.table_updates) == ("completed", 0, 2)
    assert world.device.table(done.operation.request, 0, 9, 2).tolist() == [6, 7]


def test_b7_a_remap_moves_no_byte_and_writes_its_row(world: Any) -> None:
    world.device.queue(world.move(1, {0: []}, {0: []}, table={0: [3, 1]}, generation=4, row=1))
    world.device.advance()
    [done] = world.device.poll()
    assert (done.resident_moved_bytes, done.table_updates) == (0, 1)
    assert world.device.memory.traffic.moved_bytes == 0
    assert world.device.table(done.operation.request, 1, 4, 0).tolist() == [3, 1]


def test_c2_a_packed_upload_equals_a_natural_one_after_unpack_and_a_store_packs_again(
    packed_world: Any, vnni_by_element: Callable[[npt.NDArray[np.uint16]], npt.NDArray[np.uint16]]
) -> None:
    rng = np.random.default_rng(20260916)
    natural = rng.integers(0, 2**16, (2, 2, 2, 32, 32), dtype=np.uint16)  # [layer, K or V, head, token, dim]
    for layer in range(2):
        packed_world.cpu.areas(layer)[1] = vnni_by_element(natural[layer]).view(np.uint8)
    packed_world.device.queue(packed_world.transfer(1, {0: [1], 1: [1]}, {0: [2], 1: [0]}))
    packed_world.device.advance()
    assert (packed_world.device.typed(0)[2] == natural[0]).all()
    assert (packed_world.device.typed(1)[0] == natural[1]).all()
    packed_world.device.typed(1)[2] = natural[1]
    packed_world.device.queue(packed_world.store(2, {0: [2], 1: [2]}, {0: [0], 1: [0]}))
    packed_world.device.advance()
    for layer in range(2):
        assert (packed_world.cpu.areas(layer)[0].view(np.uint16) == vnni_by_element(natural[layer])).all()
    first, second = packed_world.device.poll()
    assert (first.unpack_bytes, second.d2h_bytes) == (2 * 8192, 2 * 8192)


# ---- tables


def test_a_row_that_shows_another_generation_is_an_error(world: Any) -> None:
    world.device.queue(world.transfer(1, {0: [4]}, {0: [2]}, generation=1))
    world.device.advance()
    request = world.operation(1).request
    with pytest.raises(LayoutError) as caught:
        world.device.table(request, 0, 2, 0)
    assert str(caught.value) == "generation: expected what row 0 of 'a-b-c' shows (generation 1), got 2"
    with pytest.raises(LayoutError, match="layer: expected one of"):
        world.device.table(request, 0, 1, 2)
    world.device.queue(world.transfer(2, {0: [4]}, {0: [3]}, generation=2))
    world.device.advance()
    assert world.device.table(request, 0, 2, 0).tolist() == [3]
    with pytest.raises(LayoutError, match="generation 2"):
        world.device.table(request, 0, 1, 0)


def test_g3_a_row_shows_its_generation_until_the_next_one_is_written(world: Any) -> None:
    world.device.queue(world.transfer(1, {0: [4]}, {0: [2]}, generation=1))
    world.device.advance()
    request = world.operation(1).request
    world.device.queue(world.transfer(2, {0: [4]}, {0: [3]}, generation=2))
    assert world.device.table(request, 0, 1, 0).tolist() == [2]
    assert world.device.cancel(2) is True
    assert world.device.table(request, 0, 1, 0).tolist() == [2]


def test_f5_two_lives_of_one_id_have_rows_of_their_own(world: Any) -> None:
    world.device.queue(world.transfer(1, {0: [4]}, {0: [2]}))
    world.device.advance()
    with pytest.raises(LayoutError, match="nothing"):
        world.device.table(world.operation(1, epoch=2).request, 0, 1, 0)


def test_table_rows_are_bounded_and_come_back_when_a_request_is_forgotten(make_world: MakeWorld) -> None:
    world = make_world(rows=2)
    world.device.queue(world.transfer(1, {0: [1]}, {0: [1]}, request="a"))
    world.device.queue(world.transfer(2, {0: [1]}, {0: [2]}, request="b"))
    with pytest.raises(Busy, match="table rows is full: the limit is 2"):
        world.device.queue(world.transfer(3, {0: [1]}, {0: [3]}, request="c"))
    with pytest.raises(NotSettled, match="operation 1 is queued"):
        world.device.forget(world.operation(1, "a").request)
    world.device.advance()
    assert [done.operation.operation_id for done in world.device.poll()] == [1, 2]
    world.device.forget(world.operation(1, "a").request)
    with pytest.raises(LayoutError, match="nothing"):
        world.device.table(world.operation(1, "a").request, 0, 1, 0)
    world.device.queue(world.transfer(3, {0: [1]}, {0: [3]}, request="c"))


def test_the_queue_is_bounded_and_polling_makes_room(make_world: MakeWorld) -> None:
    world = make_world(operations=2)
    world.device.queue(world.move(1, {}, {}))
    world.device.queue(world.move(2, {}, {}, row=1))
    assert world.device.room == 0
    with pytest.raises(Busy, match="device queue is full: the limit is 2"):
        world.device.queue(world.move(3, {}, {}, row=1))
    world.device.advance()
    with pytest.raises(Busy):
        world.device.queue(world.move(3, {}, {}, row=1))
    assert len(world.device.poll()) == 2
    world.device.queue(world.move(3, {}, {}, row=1))
