"""One rank of a world: the production worker on a device of labels, and every report it ever sent."""

import copy
from collections.abc import Iterable
from typing import TypeAlias

from msgspec import Struct

from kvsweep.ledger.messages import Done, RankWork
from kvsweep.scenarios.verify.explore.device import NOTHING, LabelDevice
from kvsweep.scenarios.verify.explore.digest import unordered
from kvsweep.scenarios.verify.explore.world import FIRST_EPOCHS, World
from kvsweep.transports.rank import RankWorker


class Write(Struct, frozen=True, array_like=True):
    """A label is put where it belongs at once: by the producer, by decoding, or because a block was freed."""

    memory: str  # "device" | "cpu"
    layer: int
    block: int
    content: int
    over: int = -1  # written only where this stands; -1: over anything


class CopyCpu(Struct, frozen=True, array_like=True):
    """The producer gathers one area into a copy destination."""

    layer: int
    source: int
    destination: int


Poke: TypeAlias = Write | CopyCpu


class Rank:
    """Changed only through `fork`: a rank that the search knows stays as it is."""

    def __init__(self, world: World, rank: int) -> None:
        self.device = LabelDevice(world)
        self.worker = RankWorker(self.device, rank=rank, process_epoch=FIRST_EPOCHS[rank])
        self.said: frozenset[Done] = frozenset()

    def fork(self) -> "Rank":
        twin = Rank.__new__(Rank)
        twin.device, twin.said = self.device.fork(), self.said
        twin.worker = copy.copy(self.worker)
        for name, value in vars(self.worker).items():
            setattr(twin.worker, name, copy.copy(value))  # sets, dicts and queues of immutable reports
        twin.worker.device = twin.device
        return twin

    def canonical(self) -> object:
        """All that the worker remembers but its notes, which are for people."""
        worker = {
            name: sorted(value.items()) if isinstance(value, dict) else value
            for name, value in vars(self.worker).items()
            if name not in ("device", "notes")
        }
        return [worker, self.device.canonical(), unordered(self.said)]

    @property
    def number(self) -> int:
        return self.worker.rank

    @property
    def process_epoch(self) -> int:
        return self.worker.process_epoch

    # ---- what happens to a rank: each on a fork

    def receives(self, work: RankWork) -> "Rank":
        twin = self.fork()
        twin.worker.perform([work])
        return twin._listened()

    def runs(self, operation_id: int) -> "Rank":
        twin = self.fork()
        twin.device.run(operation_id)
        return twin._listened()

    def fails(self, operation_id: int) -> "Rank":
        twin = self.fork()
        twin.device.fail(operation_id)
        return twin._listened()

    def restarts(self) -> "Rank":
        """A new process in the place of the old one, whose reports may still be under way."""
        twin = Rank.__new__(Rank)
        twin.said, twin.device = self.said, self.device.end_process()
        twin.worker = RankWorker(twin.device, rank=self.number, process_epoch=self.process_epoch + 1)
        return twin

    def poked(self, pokes: Iterable[Poke]) -> "Rank":
        twin = self.fork()
        device = twin.device
        for poke in pokes:
            if isinstance(poke, CopyCpu):
                row = poke.layer * device.cpu_blocks
                device.cpu[row + poke.destination] = device.cpu[row + poke.source]
                continue
            memory, width = (
                (device.memory, device.blocks) if poke.memory == "device" else (device.cpu, device.cpu_blocks)
            )
            at = poke.layer * width + poke.block
            if poke.over in (-1, memory[at]):
                memory[at] = poke.content
        return twin

    def _listened(self) -> "Rank":
        self.said |= frozenset(self.worker.poll())
        return self


def freed(layers: Iterable[int], block: int) -> list[Write]:
    """A block that nobody holds is empty at once."""
    return [Write("device", layer, block, NOTHING) for layer in layers]
