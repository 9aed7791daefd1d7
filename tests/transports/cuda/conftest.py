"""The world of the transport tests, with a CUDA device over the simulated driver in place of the host device."""

import shutil
from collections.abc import Callable
from typing import Any

import pytest
from tests.transports.conftest import SEED, World, packed_layout, small_layout

from kvsweep.kernels.cuda.simulated import SimulatedDriver
from kvsweep.ledger.layout import Layout
from kvsweep.transports.blocks import BlockMemory
from kvsweep.transports.cuda.device import CudaDevice
from kvsweep.transports.cuda.options import CudaOptions

if shutil.which("c++") is None and shutil.which("g++") is None:
    collect_ignore_glob = ["test_*.py"]

PATHS = ("pull", "batch", "staged")


class SteppedDevice(CudaDevice):
    """The GPU runs only here: in each step the device does one thing and the GPU up to two, in either order."""

    driver: SimulatedDriver

    def advance(self, steps: int | None = None) -> int:
        done = 0
        while steps is None or done < steps:
            most = 1 + self.driver.draw(2)
            first = self.driver.step(most) if self.driver.draw(2) else 0
            if not first + super().advance(1) + self.driver.step(most - first):
                break
            done += 1
        return done


MakeWorld = Callable[..., World]


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> str:
    """How blocks cross the link."""
    return str(request.param)


@pytest.fixture
def rounds() -> int:
    """Of the random queues; an operation is more steps here than on the host device."""
    return 400


@pytest.fixture
def make_world(path: str) -> MakeWorld:
    def make(
        layout: Layout | None = None,
        *,
        blocks: int = 8,
        sources: int = 12,
        seed: int = SEED,
        slot_blocks: int = 2,
        order: int = 0,
        **options: Any,
    ) -> World:
        layout = small_layout() if layout is None else layout
        cpu = BlockMemory.of_cpu(layout, sources)
        largest = max(shape.block_bytes for shape in cpu.shapes)
        clock = [0.0]
        defaults = {
            "path": path,
            "staging_bytes": 2 * slot_blocks * largest,
            "descriptor_bytes": 1024,
            "poison_freed": True,
        }
        device = SteppedDevice(
            SimulatedDriver(seed=seed, order=order, automatic=False),
            layout,
            device_blocks=(blocks,) * layout.groups,
            cpu=cpu,
            options=CudaOptions(**{**defaults, **options}),
            clock=lambda: clock[0],
        )
        world = World(layout, cpu, device, clock)  # type: ignore[arg-type]
        world.fill()
        return world

    return make


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    return make_world()


@pytest.fixture
def packed_world(make_world: MakeWorld) -> World:
    return make_world(packed_layout(), blocks=3, sources=3)
