"""A rank's device in which an area holds a label instead of bytes; work runs when the search lets it."""

from collections.abc import Sequence
from typing import Final, NoReturn

from kvsweep.ledger.errors import LayoutError
from kvsweep.ledger.ids import Int32, Physical, RequestKey, Rows
from kvsweep.ledger.messages import MoveBlocks, StoreBlocks, Transfer
from kvsweep.scenarios.verify.explore.world import LOGICAL_BLOCKS, World
from kvsweep.transports.blocks import UInt8
from kvsweep.transports.device import Completion, DeviceWork

NOTHING: Final = 0
UNCONFIRMED: Final = 0x80
"""Added to a label while decoding still writes the block."""

LIVES: Final = 2
"""Lives of one request id that are told apart."""


def label(world: World, request: RequestKey, logical: int) -> int:
    """The content of one logical block, in 1 … 127. A text that requests share has one label."""
    if logical < world.shared_text:
        return 1 + logical
    names = [asker.name for asker in world.askers]
    text = 1 + names.index(request.request_id) * LIVES + (request.request_epoch - 1) % LIVES
    return 1 + text * LOGICAL_BLOCKS + logical


def say(content: int) -> str:
    """A label for people."""
    if content == NOTHING:
        return "nothing"
    text, logical = divmod((content & ~UNCONFIRMED) - 1, LOGICAL_BLOCKS)
    which = "the shared text" if text == 0 else f"text {text}"
    return f"block {logical} of {which}{', unconfirmed' if content & UNCONFIRMED else ''}"


Cell = tuple[int, int]
"""(layer, block)."""


class LabelDevice:
    """Serves the device protocol. Copies read their sources when they run; a table row is written after them.

    memory, cpu  a label an area, [layer * blocks + block]; `cpu` is this rank's part of the producer's memory
    tables       (request, row) → (generation, table)
    queued       operation id → (work, pieces that have run)
    """

    def __init__(self, world: World) -> None:
        self.blocks, self.cpu_blocks = world.blocks, world.total_cpu_blocks
        self.by_layer = world.by_layer
        self.memory = bytearray(len(world.layout.layers) * self.blocks)
        self.cpu = bytearray(len(world.layout.layers) * self.cpu_blocks)
        self.tables: dict[tuple[RequestKey, int], tuple[int, Rows[Physical]]] = {}
        self.queued: dict[int, tuple[DeviceWork, int]] = {}
        self._completed: list[Completion] = []

    def fork(self) -> "LabelDevice":
        """Another device in this state."""
        twin = LabelDevice.__new__(LabelDevice)
        twin.blocks, twin.cpu_blocks, twin.by_layer = self.blocks, self.cpu_blocks, self.by_layer
        twin.memory, twin.cpu = bytearray(self.memory), bytearray(self.cpu)
        twin.tables, twin.queued = dict(self.tables), dict(self.queued)
        twin._completed = list(self._completed)
        return twin

    def canonical(self) -> object:
        queued = [(number, done, work) for number, (work, done) in sorted(self.queued.items())]
        return [self.memory, self.cpu, sorted(self.tables.items()), queued]

    # ---- the device protocol

    @property
    def room(self) -> int:
        return 1024

    def queue(self, work: DeviceWork) -> None:
        self.queued[work.operation.operation_id] = (work, 0)

    def cancel(self, operation_id: int) -> bool:
        if operation_id not in self.queued or self.queued[operation_id][1]:
            return False
        del self.queued[operation_id]
        return True

    def poll(self) -> Sequence[Completion]:
        completed, self._completed = self._completed, []
        return completed

    def table(self, request: RequestKey, row: int, generation: int, layer: int) -> Int32:
        shown = self.tables.get((request, row))
        if shown is None or shown[0] != generation:
            raise LayoutError("generation", f"what row {row} shows", str(generation))
        return shown[1].row(layer)

    def read(self, layer: int, blocks: Int32) -> UInt8:
        return _no_bytes()

    # ---- what the search does

    def run(self, operation_id: int) -> None:
        """The next piece of an operation: all of it, or the copies of one layer, or its end."""
        work, done = self.queued[operation_id]
        layers = work.source.layers.tolist()
        if self.by_layer and done < len(layers):
            self._copy(work, layers[done])
            self.queued[operation_id] = (work, done + 1)
            return
        if not self.by_layer:
            for layer in layers:
                self._copy(work, layer)
        if not isinstance(work, StoreBlocks):
            self.tables[work.operation.request, work.row] = (work.generation, work.table)
        self._end(work, "completed")

    def fail(self, operation_id: int) -> None:
        """The operation ends as it stands: what was copied stays, its row is not written."""
        self._end(self.queued[operation_id][0], "failed")

    def _end(self, work: DeviceWork, outcome: str) -> None:
        del self.queued[work.operation.operation_id]
        self._completed.append(
            Completion(operation=work.operation, outcome="completed" if outcome == "completed" else "failed")
        )

    def _copy(self, work: DeviceWork, layer: int) -> None:
        device, cpu = layer * self.blocks, layer * self.cpu_blocks
        for source, destination in zip(
            work.source.row(layer).tolist(), work.destination.row(layer).tolist(), strict=True
        ):
            match work:
                case Transfer():
                    self.memory[device + destination] = self.cpu[cpu + source]
                case MoveBlocks():
                    self.memory[device + destination] = self.memory[device + source]
                case StoreBlocks():
                    self.cpu[cpu + destination] = self.memory[device + source]

    def end_process(self) -> "LabelDevice":
        """What the next process of this rank finds: empty device memory, the producer's memory as it was."""
        twin = self.fork()
        twin.memory = bytearray([NOTHING]) * len(self.memory)
        twin.tables, twin.queued, twin._completed = {}, {}, []
        return twin


def _no_bytes() -> NoReturn:
    raise NotImplementedError("labels have no bytes")
