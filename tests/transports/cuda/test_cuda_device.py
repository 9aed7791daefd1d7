"""The CUDA device's own logic: rings, streams, failures, memory. The GPU is simulated: late, and out of order."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.transports.conftest import World, packed_layout
from tests.transports.cuda.conftest import SteppedDevice

from kvsweep.kernels.cuda.simulated import Failure, SimulatedDriver
from kvsweep.ledger.errors import LayoutError
from kvsweep.transports.blocks import BlockMemory
from kvsweep.transports.cuda.device import CudaDevice
from kvsweep.transports.cuda.options import CudaOptions
from kvsweep.transports.cuda.staging import EventRing
from kvsweep.transports.device import DeviceLost

MakeWorld = Callable[..., World]
EVERY = range(5)


def every_layer(*ids: int) -> dict[int, list[int]]:
    return {layer: list(ids) for layer in EVERY}


def driver_of(world: Any) -> SimulatedDriver:
    driver: SimulatedDriver = world.device.driver
    return driver


def own_steps(world: Any) -> None:
    """What the device does while the GPU does nothing."""
    while CudaDevice.advance(world.device, 1):
        pass


def outcomes(world: Any) -> dict[int, tuple[str, str]]:
    return {done.operation.operation_id: (done.outcome, done.reason) for done in world.device.poll()}


# ---- D8: what is reused, and when


def test_d8_a_slot_is_not_handed_out_before_its_event_has_happened() -> None:
    driver = SimulatedDriver(seed=1, automatic=False)
    ring, stream = EventRing(driver, slots=2, slot_bytes=64), driver.stream()
    first, second = ring.acquire(), ring.acquire()
    assert first is not None
    assert second is not None
    assert ring.acquire() is None  # held by their users
    ring.release(first, stream)
    assert ring.acquire() is None  # released, and what was queued before that has not run
    driver.step()
    assert ring.acquire() is first


def test_d8_pinned_bytes_stay_until_the_gpu_has_read_them(world: Any, path: str) -> None:
    """More operations than slots, and a GPU that has not begun: nothing that is queued may be overwritten."""
    for number in range(1, 20):
        world.device.queue(world.transfer(number, {0: [number % 12]}, {0: [number % 8]}, row=number, generation=number))
    own_steps(world)
    assert world.device.queued == 19
    pending = driver_of(world).queued
    assert pending > 0
    own_steps(world)
    assert driver_of(world).queued == pending, "something was queued although every slot is in use"
    world.device.advance()
    assert {outcome for outcome, _ in outcomes(world).values()} == {"completed"}
    for number in range(12, 20):  # the last writer of each block
        assert world.device_bytes(0, number % 8) == world.cpu_bytes(0, number % 12)
        shown = world.device.table(world.operation(number).request, number, number, 0)
        assert shown.tolist() == [number % 8]


def test_d8_staged_chunks_wait_for_the_slot_they_go_through(make_world: MakeWorld, path: str) -> None:
    """Packed blocks, one a slot: the third chunk enters the ring when the first has been unpacked."""
    world: Any = make_world(packed_layout(), blocks=6, sources=6, slot_blocks=1)
    world.device.queue(world.transfer(1, {0: [0, 1, 2, 3], 1: [4, 5]}, {0: [5, 4, 3, 2], 1: [1, 0]}))
    own_steps(world)
    assert world.cpu.traffic.read_bytes == 2 * 8192  # two slots' worth, and the GPU has not moved
    world.device.advance()
    [done] = world.device.poll()
    assert (done.outcome, done.h2d_bytes, done.unpack_bytes) == ("completed", 6 * 8192, 6 * 8192)
    for layer, pairs in {0: [(0, 5), (1, 4), (2, 3), (3, 2)], 1: [(4, 1), (5, 0)]}.items():
        for source, block in pairs:
            natural = world.cpu.peek(layer, np.array([source], dtype=np.int32))
            assert world.device_bytes(layer, block) == natural.tobytes()


@pytest.mark.parametrize("seed", range(8))
def test_g2_a_completion_says_that_the_gpu_has_ended_not_that_it_was_told(make_world: MakeWorld, seed: int) -> None:
    world: Any = make_world(seed=seed)
    world.device.queue(world.transfer(1, {0: [4, 5], 2: [6]}, {0: [1, 2], 2: [3]}))
    own_steps(world)
    assert world.device.poll() == []
    driver = driver_of(world)
    while driver.queued > 1:  # all but the last mark
        driver.step(1)
        own_steps(world)
        assert world.device.poll() == []
        with pytest.raises(LayoutError):
            world.device.table(world.operation(1).request, 0, 1, 0)
    world.device.advance()
    assert outcomes(world)[1] == ("completed", "")
    assert world.device.table(world.operation(1).request, 0, 1, 2).tolist() == [3]


def test_g1_a_reader_on_the_device_never_sees_a_table_before_its_bytes(make_world: MakeWorld) -> None:
    """Whoever polls the generation in device memory: when it shows, every block of the table is there."""
    for seed in range(6):
        world: Any = make_world(packed_layout(), blocks=6, sources=6, slot_blocks=2, seed=seed)
        driver = driver_of(world)
        world.device.queue(world.move(1, {0: []}, {0: []}, table={0: []}, generation=1))
        world.device.advance()
        at = world.device.table_address(world.operation(1).request, 0)
        shown = world.device._tables._memory[world.operation(1).request, 0].owner[:8].view(np.int64)
        wanted = [world.cpu.peek(0, np.array([block], dtype=np.int32)).tobytes() for block in range(4)]
        world.device.queue(world.transfer(2, {0: [0, 1, 2, 3]}, {0: [5, 4, 3, 2]}, generation=2))
        while shown[0] != 2:
            assert CudaDevice.advance(world.device, 1) + driver.step(1) > 0
        areas = world.device.memory.areas(0)
        assert [areas[block].tobytes() for block in (5, 4, 3, 2)] == wanted, f"seed {seed}"
        assert at == world.device.table_address(world.operation(2).request, 0)


# ---- order between streams


def test_copies_wait_for_what_the_engine_had_queued(make_world: MakeWorld) -> None:
    """The engine writes a block on its own stream; a move and a store that were queued later read it afterwards."""
    world: Any = make_world()
    driver = driver_of(world)
    engine = driver.stream()
    device = SteppedDevice(
        driver,
        world.layout,
        device_blocks=(8, 8, 8),
        cpu=BlockMemory.of_cpu(world.layout, 12),
        engine_stream=engine,
        options=CudaOptions(path="pull"),
    )
    world.device, world.cpu = device, device._cpu
    pinned = driver.pin(192)
    pinned.array[:] = 77
    pool = device.memory.pools[0]
    for block in (*[7] * 40, 1, 3):  # the engine is slow
        driver.copy(pool.layer(0) + block * 192, pinned.address, 192, engine)
    world.device.queue(world.move(1, {0: [1]}, {0: [2]}))
    world.device.queue(world.store(2, every_layer(3), every_layer(9)))
    own_steps(world)
    assert len(engine.items) == 44  # its copies and two marks: nothing of the engine's has run
    device.advance()
    assert world.device_bytes(0, 2) == bytes([77]) * 192
    assert world.cpu_bytes(0, 9) == bytes([77]) * 192


def test_nothing_on_the_serving_thread_waits_for_a_stream(make_world: MakeWorld) -> None:
    world: Any = make_world()
    driver = driver_of(world)
    before = {name: driver.calls.get(name, 0) for name in ("synchronize", "write", "read")}
    world.device.queue(world.transfer(1, {0: [4]}, {0: [2]}))
    world.device.queue(world.move(2, {0: [1]}, {0: [3]}, row=1))
    world.device.queue(world.store(3, every_layer(5), every_layer(9)))
    world.device.advance()
    assert {outcome for outcome, _ in outcomes(world).values()} == {"completed"}
    assert {name: driver.calls.get(name, 0) for name in before} == before


def test_a4_layers_of_all_groups_go_in_one_launch(make_world: MakeWorld) -> None:
    world: Any = make_world(blocks=8)
    driver = driver_of(world)
    before = dict(driver.launches)
    world.device.queue(world.move(1, {0: [1, 2], 2: [3], 3: [4], 4: [1, 0]}, {0: [5, 6], 2: [7], 3: [5], 4: [6, 7]}))
    world.device.advance()
    assert outcomes(world)[1] == ("completed", "")
    ran = {name: count - before[name] for name, count in driver.launches.items() if count != before[name]}
    assert ran == {"copy_blocks": 1, "write_tables": 1}


def test_more_blocks_than_a_descriptor_holds_take_several_launches(make_world: MakeWorld) -> None:
    world: Any = make_world(blocks=200, sources=200, table_slots=1, descriptor_bytes=1)
    driver = driver_of(world)
    before = driver.launches["copy_blocks"]
    ids = list(range(100))
    destination = {0: [100 + n for n in ids], 3: [199 - n for n in ids]}
    world.device.queue(world.move(1, {0: ids, 3: ids}, destination, table={0: [7]}))
    world.device.advance()
    assert outcomes(world)[1] == ("completed", "")
    assert driver.launches["copy_blocks"] - before > 1
    for n in ids:
        assert world.device_bytes(0, 100 + n) == world.device_bytes(0, n)
        assert world.device_bytes(3, 199 - n) == world.device_bytes(3, n)


# ---- failures


FAILING = {
    "pull": ("copy", "launch copy_blocks", "launch write_tables"),
    "batch": ("copy_batch", "launch write_tables"),
    "staged": ("copy", "launch copy_blocks", "wait", "launch write_tables"),
}


def test_g3_a_call_that_fails_ends_its_operation_when_what_was_queued_has_ended(
    make_world: MakeWorld, path: str
) -> None:
    for call in FAILING[path]:
        world: Any = make_world()
        driver = driver_of(world)
        driver.failures[call] = Failure()
        world.device.queue(world.transfer(1, {0: [0, 1, 2], 2: [3]}, {0: [4, 5, 6], 2: [7]}))
        world.device.queue(world.transfer(2, {0: [8]}, {0: [0]}, row=1))
        own_steps(world)
        assert [done for done in world.device.poll() if driver.queued and done.outcome == "completed"] == []
        world.device.advance()
        found = outcomes(world)
        assert found[1] == ("failed", f"CudaError: {call}: told to fail"), call
        assert found[2] == ("completed", ""), call
        assert world.device.failures[-1] == (world.operation(1), f"CudaError: {call}: told to fail")
        with pytest.raises(LayoutError, match="nothing"):
            world.device.table(world.operation(1).request, 0, 1, 0)
        assert world.device_bytes(0, 0) == world.cpu_bytes(0, 8)
        # Every slot is free again: as many operations as slots go through.
        for number in range(3, 14):
            world.device.queue(world.transfer(number, {0: [number - 3]}, {0: [number % 8]}, row=2))
        world.device.advance()
        assert {outcome for outcome, _ in outcomes(world).values()} == {"completed"}, call


def test_g3_a_failed_operation_is_not_reported_while_its_copies_still_run(make_world: MakeWorld) -> None:
    """Its copies write areas of a lease that the failure gives back: not before they have ended."""
    world: Any = make_world()
    driver = driver_of(world)
    driver.failures["launch write_tables"] = Failure()
    world.device.queue(world.move(1, {0: [1]}, {0: [2]}))
    own_steps(world)
    assert driver.queued > 0
    assert world.device.poll() == []
    while driver.queued > 1:
        driver.step(1)
        own_steps(world)
        assert world.device.poll() == []
    world.device.advance()
    assert outcomes(world)[1][0] == "failed"
    assert world.device_bytes(0, 2) == world.device_bytes(0, 1)  # they did run, and the figure says so


def test_g3_out_of_memory_aborts_the_operation_before_it_copies_and_keeps_what_was_there(
    make_world: MakeWorld,
) -> None:
    world: Any = make_world()
    world.device.queue(world.move(1, {0: [1]}, {0: [2]}, generation=3))
    world.device.advance()
    assert outcomes(world)[1] == ("completed", "")
    driver = driver_of(world)
    free, driver.free_bytes = driver.free_bytes, 0
    before = world.device_bytes(0, 5)
    world.device.queue(world.move(2, {0: [1]}, {0: [5]}, generation=4, row=1))
    world.device.advance()
    outcome, reason = outcomes(world)[2]
    assert outcome == "failed"
    assert reason.startswith("OutOfDeviceMemory: allocate: ")
    assert world.device_bytes(0, 5) == before
    assert world.device.table(world.operation(1).request, 0, 3, 0).tolist() == [2]
    driver.free_bytes = free
    world.device.queue(world.move(3, {0: [1]}, {0: [5]}, generation=4, row=1))
    world.device.advance()
    assert outcomes(world)[3] == ("completed", "")


@pytest.mark.parametrize("call", ["record", "done"])
def test_a_device_that_cannot_mark_or_tell_is_lost_and_completes_nothing(make_world: MakeWorld, call: str) -> None:
    """Whether queued copies have run could never be known again: no report on them is honest."""
    world: Any = make_world()
    world.device.queue(world.transfer(1, {0: [4]}, {0: [2]}))
    driver_of(world).failures[call] = Failure(lost=True)
    with pytest.raises(DeviceLost, match=f"device lost: {call}: the device was lost"):
        world.device.advance()
    assert world.device.poll() == []
    for _ in range(2):
        with pytest.raises(DeviceLost):
            world.device.advance()
        world.device.close()  # what it holds goes with the process, and no second error hides the first


def test_a_copy_that_fails_half_way_has_moved_what_came_before(make_world: MakeWorld) -> None:
    """What had been queued is counted, although the operation failed; its row shows nothing."""
    world: Any = make_world()
    world.device.faults.fail_after[1] = 1
    world.device.queue(world.transfer(1, {0: [4, 5], 2: [6]}, {0: [2, 3], 2: [4]}))
    world.device.advance()
    (done,) = world.device.poll()
    assert (done.outcome, done.reason) == ("failed", "InjectedFault: operation 1 was told to fail")
    assert done.h2d_bytes == world.cpu.traffic.read_bytes > 0
    assert done.unpack_bytes == world.device.memory.traffic.written_bytes
    assert done.table_updates == 0
    assert world.device.tables.shown(done.operation.request, 0) is None


def test_a_failure_between_two_parts_gives_the_slots_back(make_world: MakeWorld) -> None:
    """Told to fail half way, with a staging slot in hand."""
    world: Any = make_world(packed_layout(), blocks=6, sources=6, slot_blocks=1)
    world.device.queue(world.transfer(1, {0: [0, 1, 2]}, {0: [0, 1, 2]}))
    assert CudaDevice.advance(world.device, 1) == 1
    world.device.faults.fail.add(1)
    world.device.queue(world.transfer(2, {1: [0, 1, 2, 3, 4]}, {1: [0, 1, 2, 3, 4]}, row=1))
    world.device.advance()
    found = outcomes(world)
    assert found[1] == ("failed", "InjectedFault: operation 1 was told to fail")
    assert found[2] == ("completed", "")
