"""A small world of one device and one CPU pool, and the messages that drive it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pytest

from kvsweep.ledger.ids import Operation, RequestKey, Rows
from kvsweep.ledger.layout import LayerLayout, Layout
from kvsweep.ledger.messages import Cancel, MoveBlocks, StoreBlocks, Transfer
from kvsweep.transports.blocks import BlockMemory
from kvsweep.transports.host import HostDevice

SEED = 20260916
RANK, EPOCH = 0, 7
Ids = Mapping[int, Sequence[int]]


def small_layout() -> Layout:
    """Two full groups of unequal block size with a sliding group between them: layers 0, 2 | 1 | 3, 4."""
    kinds = [(0, "full", 2), (1, "sliding", 1), (0, "full", 2), (2, "full", 1), (2, "full", 1)]
    layers = tuple(
        LayerLayout(
            layer=n, group=g, kind=kind, kv_heads=heads, head_dim=3, window_tokens=8 if kind == "sliding" else 0
        )
        for n, (g, kind, heads) in enumerate(kinds)
    )
    return Layout.of(model_hash="small", dtype="float32", block_size=4, layers=layers)


def packed_layout() -> Layout:
    """bfloat16 in VNNI order on the CPU: one full group of two layers, two kv heads."""
    layers = tuple(LayerLayout(layer=n, group=0, kind="full", kv_heads=2, head_dim=32) for n in range(2))
    return Layout.of(model_hash="packed", dtype="bfloat16", block_size=32, layers=layers, packing="vnni")


@dataclass
class World:
    layout: Layout
    cpu: BlockMemory
    device: HostDevice
    clock: list[float] = field(default_factory=lambda: [0.0])

    def operation(self, number: int, request: str = "a-b-c", epoch: int = 1) -> Operation:
        return Operation(request=RequestKey(request, epoch), operation_id=number, pool_generation=0, map_revision=0)

    def transfer(
        self,
        number: int,
        source: Ids,
        destination: Ids,
        *,
        table: Ids | None = None,
        generation: int = 1,
        row: int = 0,
        floor: int = 0,
        request: str = "a-b-c",
        ranks: tuple[tuple[int, int], ...] = ((RANK, EPOCH),),
    ) -> Transfer:
        return Transfer(
            operation=self.operation(number, request),
            ranks=ranks,
            generation=generation,
            row=row,
            source_kind="source_only",
            source=Rows.of(source),
            destination=Rows.of(destination),
            table=Rows.of(destination if table is None else table),
            floor=floor,
        )

    def move(
        self, number: int, source: Ids, destination: Ids, *, table: Ids | None = None, generation: int = 1, row: int = 0
    ) -> MoveBlocks:
        return MoveBlocks(
            operation=self.operation(number),
            ranks=((RANK, EPOCH),),
            generation=generation,
            row=row,
            mode="move",
            source=Rows.of(source),
            destination=Rows.of(destination),
            table=Rows.of(destination if table is None else table),
            floor=0,
        )

    def store(self, number: int, source: Ids, destination: Ids) -> StoreBlocks:
        return StoreBlocks(
            operation=self.operation(number),
            ranks=((RANK, EPOCH),),
            source=Rows.of(source),
            destination=Rows.of(destination),
            floor=0,
        )

    def cancel(self, number: int, epoch: int = EPOCH) -> Cancel:
        return Cancel(operation=self.operation(number), ranks=((RANK, epoch),))

    def fill(self, seed: int = SEED) -> None:
        """Random bytes everywhere on both sides."""
        rng = np.random.default_rng(seed)
        for memory in (self.cpu, self.device.memory):
            for group in memory.groups:
                group[...] = rng.integers(0, 255, group.shape, dtype=np.uint8)

    def device_bytes(self, layer: int, block: int) -> bytes:
        return self.device.read(layer, np.array([block], dtype=np.int32)).tobytes()

    def cpu_bytes(self, layer: int, block: int) -> bytes:
        return self.cpu.areas(layer)[block].tobytes()


MakeWorld = Callable[..., World]


@pytest.fixture
def rounds() -> int:
    """Of the random queues."""
    return 60


@pytest.fixture
def make_world() -> MakeWorld:
    def make(
        layout: Layout | None = None,
        *,
        blocks: int = 8,
        sources: int = 12,
        seed: int = SEED,
        slot_blocks: int = 2,
        **options: int,
    ) -> World:
        layout = small_layout() if layout is None else layout
        cpu = BlockMemory.of_cpu(layout, sources)
        largest = max(shape.block_bytes for shape in cpu.shapes)
        clock = [0.0]
        device = HostDevice(
            layout,
            device_blocks=(blocks,) * layout.groups,
            cpu=cpu,
            seed=seed,
            staging_bytes=2 * slot_blocks * largest,
            staging_slots=2,
            clock=lambda: clock[0],
            **options,
        )
        world = World(layout, cpu, device, clock)
        world.fill()
        return world

    return make


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    return make_world()


@pytest.fixture
def packed_world(make_world: MakeWorld) -> World:
    return make_world(packed_layout(), blocks=3, sources=3)


@pytest.fixture
def vnni_by_element() -> Callable[[npt.NDArray[np.uint16]], npt.NDArray[np.uint16]]:
    """Natural [2, heads, B, D] → the packed elements of one block, one element at a time."""

    def pack(block: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint16]:
        _, heads, size, dim = block.shape
        packed = np.zeros(block.size, dtype=np.uint16)
        for h in range(heads):
            k_at = h * 2 * size * dim
            v_at = k_at + size * dim
            for t in range(size):
                for d in range(dim):
                    packed[k_at + (t // 16) * 16 * dim + (d // 2) * 32 + (t % 16) * 2 + d % 2] = block[0, h, t, d]
                    packed[v_at + (d // 16) * 16 * size + (t // 2) * 32 + (d % 16) * 2 + t % 2] = block[1, h, t, d]
        return packed

    return pack
