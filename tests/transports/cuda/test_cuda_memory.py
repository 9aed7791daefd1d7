"""Tables at stable addresses, pools of our own and an engine's, and the options of a CUDA device."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from tests.transports.conftest import World, packed_layout, small_layout
from tests.transports.cuda.conftest import SteppedDevice
from tests.transports.cuda.test_cuda_device import EVERY, driver_of, outcomes, own_steps

from kvsweep.kernels.cuda.errors import CudaError, OutOfDeviceMemory
from kvsweep.kernels.cuda.simulated import SimulatedDriver
from kvsweep.ledger.errors import LayoutError
from kvsweep.transports.blocks import BlockMemory
from kvsweep.transports.cuda.device import CudaDevice
from kvsweep.transports.cuda.memory import CudaMemory
from kvsweep.transports.cuda.options import CudaOptions
from kvsweep.transports.device import DeviceLost

MakeWorld = Callable[..., World]


# ---- tables at stable addresses


def test_a_row_keeps_its_address_and_the_generation_says_what_it_shows(make_world: MakeWorld) -> None:
    world: Any = make_world(table_slots=6)
    device, driver = world.device, driver_of(world)
    request = world.operation(1).request
    with pytest.raises(LayoutError, match=r"row: expected a row of 'a-b-c' that has been written, got 0"):
        device.table_address(request, 0)
    seen = []
    for generation, table in ((5, {0: [3, 1, 2], 3: [4]}), (6, {0: [7], 2: [0, 5]})):
        device.queue(world.move(generation, {0: []}, {0: []}, table=table, generation=generation))
        device.advance()
        at = device.table_address(request, 0)
        stream = driver.stream()
        shown = int(driver.read(at.generation, 8, stream).view(np.int64)[0])
        lengths = driver.read(at.lengths, 4 * len(at.layers), stream).view(np.int32).tolist()
        slots = driver.read(at.slots, 4 * len(at.layers) * at.slots_per_layer, stream).view(np.int32).reshape(-1, 6)
        assert shown == generation
        assert dict(zip(at.layers, lengths, strict=True)) == {
            layer: len(table.get(layer, ())) for layer in (0, 2, 3, 4)
        }
        for layer, row in zip(at.layers, slots.tolist(), strict=True):
            wanted = table.get(layer, [])
            assert row == wanted + [-1] * (6 - len(wanted))
        seen.append(at)
    assert seen[0] == seen[1]


def test_a_table_of_more_slots_than_a_row_has_is_refused(make_world: MakeWorld) -> None:
    world: Any = make_world(table_slots=2)
    with pytest.raises(LayoutError, match=r"table\[0\]: expected at most 2 slots, got 3"):
        world.device.queue(world.move(1, {0: []}, {0: []}, table={0: [1, 2, 3]}))
    assert world.device.queued == 0


def test_rows_of_closed_requests_serve_the_next_ones(make_world: MakeWorld) -> None:
    world: Any = make_world(rows=2)
    driver, before = driver_of(world), 0
    for life in range(1, 6):
        for row in (0, 1):
            number = 10 * life + row
            world.device.queue(world.transfer(number, {0: [4]}, {0: [2]}, row=row, request=f"life-{life}"))
        world.device.advance()
        taken = driver.calls["allocate"]
        world.device.forget(world.operation(10 * life, request=f"life-{life}").request)
        if life > 1:
            assert taken == before
        before = taken


# ---- memory


def test_pools_of_an_engine_are_borrowed_without_a_copy_and_reach_16_bytes(make_world: MakeWorld) -> None:
    """torch tensors by DLPack: what the device writes is in the engine's own tensor."""
    layout = small_layout()
    cpu = BlockMemory.of_cpu(layout, 12)
    tensors = [torch.zeros((layers, 8, size), dtype=torch.uint8) for layers, size in ((2, 192), (1, 96), (2, 96))]
    driver = SimulatedDriver(seed=1, automatic=False)
    device = SteppedDevice(driver, layout, borrowed=tensors, cpu=cpu, options=CudaOptions(path="pull"))
    world: Any = World(layout, cpu, device)  # type: ignore[arg-type]
    cpu.groups[0][...] = 9
    device.queue(world.transfer(1, {0: [4]}, {0: [2]}))
    device.advance()
    assert outcomes(world)[1] == ("completed", "")
    assert tensors[0][0, 2].tolist() == [9] * 192
    assert int(tensors[0].sum()) == 9 * 192
    device.close()
    assert tensors[0][0, 2].tolist() == [9] * 192  # not ours to free


def borrowed(dtype: Any = np.uint8, group: int = 0, **shapes: Any) -> list[npt.NDArray[Any]]:
    sizes = {0: (2, 8, 192), 1: (1, 8, 96), 2: (2, 8, 96)}
    arrays = [np.zeros(size, dtype=np.uint8) for size in sizes.values()]
    arrays[group] = np.zeros(shapes.get("shape", sizes[group]), dtype=dtype)
    return arrays


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (borrowed(np.int8), "borrowed[0]: expected a C-contiguous, writable uint8[layers, blocks, block_bytes]"),
        (borrowed(shape=(3, 8, 192)), "borrowed[0]: expected shape (2, 8, 192), got shape (3, 8, 192)"),
        (borrowed(group=1, shape=(1, 8, 97)), "borrowed[1]: expected shape (1, 8, 96), got shape (1, 8, 97)"),
        (borrowed()[:2], "blocks: expected at least 1 block for each of 3 groups"),
        ([*borrowed()[:2], "text"], "borrowed[2]: expected a C-contiguous, writable uint8"),
    ],
)
def test_arrays_that_are_no_pools_are_refused(arrays: list[Any], message: str) -> None:
    with pytest.raises(LayoutError) as caught:
        CudaMemory(SimulatedDriver(seed=1), small_layout(), borrowed=arrays)
    assert str(caught.value).startswith(message)


def test_memory_is_ours_or_borrowed_and_new_memory_reads_as_nan() -> None:
    driver, layout = SimulatedDriver(seed=1), small_layout()
    for given in ({}, {"blocks": (2, 2, 2), "borrowed": borrowed()}):
        with pytest.raises(LayoutError, match="pools: expected either sizes or borrowed arrays"):
            CudaMemory(driver, layout, **given)  # type: ignore[arg-type]
    memory = CudaMemory(driver, layout, (2, 3, 2))
    assert all(np.isnan(memory.typed(layer)).all() for layer in EVERY)
    free = driver.free_bytes
    memory.close()
    assert driver.free_bytes == free + 2 * 2 * 192 + 3 * 96 + 2 * 2 * 96


def test_everything_is_given_back_when_the_process_ends(make_world: MakeWorld) -> None:
    world: Any = make_world(packed_layout(), blocks=3, sources=3)
    driver = driver_of(world)
    world.device.queue(world.transfer(1, {0: [1]}, {0: [2]}))
    own_steps(world)
    world.device.queue(world.transfer(2, {0: [1, 2]}, {0: [1, 0]}, row=1))
    CudaDevice.advance(world.device, 1)  # under way when it ends
    world.device.close()
    assert driver.free_bytes == 1 << 34
    assert driver.queued == 0
    CudaDevice(
        driver, world.layout, cpu=world.cpu, device_blocks=(3,), options=CudaOptions(path="pull")
    )  # the CPU's memory can be locked again
    with pytest.raises(DeviceLost):
        world.device.advance()


def test_poison_is_a_choice(make_world: MakeWorld) -> None:
    world: Any = make_world(poison_freed=False)
    before = world.device_bytes(0, 1)
    world.device.poison(0, np.array([1], dtype=np.int32))
    assert world.device_bytes(0, 1) == before


def test_a_pool_that_does_not_fit_is_refused() -> None:
    driver, layout = SimulatedDriver(seed=1, memory_bytes=1000), small_layout()
    with pytest.raises(OutOfDeviceMemory, match="allocate: 3072 bytes, 1000 are free"):
        CudaMemory(driver, layout, (8, 8, 8))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"operations": 0}, "operations: expected at least 1, got 0"),
        ({"staging_slots": 0}, "staging_slots: expected at least 1, got 0"),
        ({"descriptor_slots": 0}, "descriptor_slots: expected at least 1, got 0"),
        ({"path": "fast"}, "path: expected auto or pull or batch or staged, got 'fast'"),
        ({"table_slots": 0}, "table_slots: expected at least 1, got 0"),
        (
            {"staging_bytes": 383},
            "staging_bytes: expected at least 384 (one block of 192 bytes in each of 2 slots), got 383",
        ),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options: dict[str, Any], message: str) -> None:
    layout = small_layout()
    with pytest.raises(LayoutError) as caught:
        CudaDevice(
            SimulatedDriver(seed=1),
            layout,
            cpu=BlockMemory.of_cpu(layout, 2),
            device_blocks=(2, 2, 2),
            options=CudaOptions(**{"path": "pull", **options}),
        )
    assert str(caught.value) == message


def test_the_cpu_memory_must_have_the_devices_layout() -> None:
    layout, other = small_layout(), packed_layout()
    with pytest.raises(LayoutError, match="cpu: expected memory of the device's layout"):
        CudaDevice(SimulatedDriver(seed=1), layout, cpu=BlockMemory.of_cpu(other, 2), device_blocks=(2, 2, 2))


def test_errors_of_the_driver_name_the_call() -> None:
    assert str(CudaError("copy", "invalid argument")) == "copy: invalid argument"
