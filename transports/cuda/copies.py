"""Queueing one operation's copies on the device's streams: each function yields after every part it has queued.

It yields False where it has to wait (a slot of a ring is still in use) and queues nothing then; nobody waits in here.
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np

from kvsweep.kernels import Packing
from kvsweep.kernels.cuda.api import CudaDriver, Event, PinnedMemory, Stream
from kvsweep.kernels.cuda.launch import Launcher
from kvsweep.kernels.cuda.rows import (
    Pool,
    RowBatch,
    Staged,
    descriptor_bytes,
    gather_rows,
    join,
    move_rows,
    scatter_rows,
    transfer_rows,
    write_descriptor,
)
from kvsweep.ledger.errors import LayoutError
from kvsweep.ledger.messages import MoveBlocks, StoreBlocks, Transfer
from kvsweep.transports.blocks import BlockMemory
from kvsweep.transports.chunks import AnyRows, Chunk, split
from kvsweep.transports.cuda.memory import CudaMemory
from kvsweep.transports.cuda.paths import PathChoice, merge_runs
from kvsweep.transports.cuda.staging import EventRing, RingSlot, mark, passed

Queueing: TypeAlias = Generator[bool, None, None]
Turn: TypeAlias = Literal["copy", "pack", "unpack"]


@dataclass(slots=True)
class Figures:
    """What one operation has queued so far: bytes, and the streams that its work is on."""

    streams: list[Stream] = field(default_factory=list)
    h2d_bytes: int = 0
    unpack_bytes: int = 0
    d2h_bytes: int = 0
    resident_moved_bytes: int = 0

    def uses(self, stream: Stream) -> Stream:
        """The stream, from now on one of those whose end is the operation's end."""
        if stream not in self.streams:
            self.streams.append(stream)
        return stream


@dataclass(frozen=True, slots=True)
class StreamSet:
    """One stream a direction: CPU memory to device, staging to areas, area to area, device to CPU memory."""

    h2d: Stream
    unpack: Stream
    move: Stream
    d2h: Stream


class Copies:
    """The rings, streams and pools that copies go through.

    descriptors  ring of launch descriptors: a batch has at most as many blocks as one slot describes
    staging      ring of blocks that have to be unpacked, or that the CPU gathered; None where none are
    returning    ring of blocks on their way to a CPU that takes them from pinned staging; None where kernels write
                 CPU memory in place
    """

    def __init__(
        self,
        driver: CudaDriver,
        launcher: Launcher,
        memory: CudaMemory,
        cpu: BlockMemory,
        *,
        paths: PathChoice | None,
        descriptors: EventRing,
        staging: EventRing | None,
        returning: EventRing | None = None,
    ) -> None:
        """paths: None has the CPU gather blocks into pinned staging, and reads no CPU memory in place."""
        self.streams = StreamSet(driver.stream(), driver.stream(), driver.stream(), driver.stream())
        self.descriptors = descriptors
        self.staging = staging
        self.returning = returning
        self._driver, self._launcher, self._memory, self._cpu, self._paths = driver, launcher, memory, cpu, paths
        self._rings = [ring for ring in (descriptors, staging, returning) if ring is not None]
        self._packed = cpu.packing is Packing.VNNI
        self._registered: list[PinnedMemory] = []
        self._cpu_pools: list[Pool] = []
        if paths is not None:
            self._register(cpu)
        self._ready: Event = driver.event()
        self._most_blocks = _described(descriptors.slot_bytes, len(memory.layout.layers))

    def _register(self, cpu: BlockMemory) -> None:
        for array, shape in zip(cpu.groups, cpu.shapes, strict=True):
            self._registered.append(self._driver.register(array))
            layers, blocks, block_bytes = array.shape
            self._cpu_pools.append(Pool(self._registered[-1].address, layers, blocks, block_bytes, shape))

    def close(self) -> None:
        """Let go of the CPU's memory and the rings. Nothing that is queued may still use them."""
        while self._registered:
            self._driver.unregister(self._registered.pop())
        for ring in self._rings:
            ring.close()

    def transfer(self, work: Transfer, figures: Figures) -> Queueing:
        """CPU blocks into areas."""
        if self.staging is not None:
            for chunk in self._chunks(work.source, work.destination, self.staging.slot_bytes):
                while (slot := self.staging.acquire()) is None:
                    yield False
                yield from self._through(self.staging, slot, chunk, figures)
            return
        if self._paths is None:
            raise LayoutError("staging", "a ring for blocks that the CPU gathers", "none")
        stream = self.streams.h2d
        for batch in self._batches(work.source, work.destination, self._cpu_pools, self._memory.pools):
            yield from self._over_link(batch, figures.uses(stream), self._paths)
            # The same bytes cross the link and reach their areas in one step.
            self._count_upload(batch.nbytes, figures)
            self._count_unpack(batch.nbytes, figures)
            yield True

    def move(self, work: MoveBlocks, figures: Figures) -> Queueing:
        """Areas into other areas of their layer."""
        for chunks in self._groups(work.source, work.destination):
            batch = join([self._move_rows(chunk) for chunk in chunks])
            yield from self._launch(batch, figures.uses(self.streams.move))
            figures.resident_moved_bytes += batch.nbytes
            self._memory.traffic.moved_bytes += batch.nbytes
            yield True

    def store(self, work: StoreBlocks, figures: Figures) -> Queueing:
        """Areas into CPU blocks, in the CPU's packing."""
        turn: Turn = "pack" if self._packed else "copy"
        if self.returning is not None:
            for chunk in self._chunks(work.source, work.destination, self.returning.slot_bytes):
                while (slot := self.returning.acquire()) is None:
                    yield False
                yield from self._back_through(self.returning, slot, chunk, figures, turn)
            return
        for batch in self._batches(work.source, work.destination, self._memory.pools, self._cpu_pools):
            yield from self._launch(batch, figures.uses(self.streams.d2h), over_link=True, turn=turn)
            figures.d2h_bytes += batch.nbytes
            self._memory.traffic.read_bytes += batch.nbytes
            self._cpu.traffic.written_bytes += batch.nbytes
            yield True

    # ---- one part

    def _launch(self, batch: RowBatch, stream: Stream, *, over_link: bool = False, turn: Turn = "copy") -> Queueing:
        """The batch in one launch, once a slot for its descriptor is free; yields only while none is."""
        while (slot := self.descriptors.acquire()) is None:
            yield False
        try:
            placed, used = write_descriptor(batch, slot.pinned.array, slot.device.address)
            self._driver.copy(slot.device.address, slot.pinned.address, used, stream)
            getattr(self._launcher, turn)(placed, stream, over_link=over_link)
        finally:
            self.descriptors.release(slot, stream)

    def _over_link(self, batch: RowBatch, stream: Stream, paths: PathChoice) -> Queueing:
        """The batch by the copy engine or by a kernel, whichever is faster for its sizes."""
        runs = merge_runs(batch)
        if paths.choose(batch.largest_block, batch.entries, runs.nbytes.size) == "batch":
            self._driver.copy_batch(runs.destination, runs.source, runs.nbytes, stream)
        else:
            yield from self._launch(batch, stream, over_link=True)

    def _through(self, ring: EventRing, slot: RingSlot, chunk: Chunk, figures: Figures) -> Queueing:
        """One chunk through a slot of the staging ring: into it on one stream, out of it on the next."""
        last = figures.uses(self.streams.h2d)
        try:
            size = self._memory.shapes[chunk.group].block_bytes
            staged = Staged(slot.device.address, chunk.blocks, size)
            if self._paths is None:
                room = slot.pinned.array[: staged.nbytes].reshape(chunk.blocks, size)
                self._cpu.gather(chunk.group, chunk.layers, chunk.row_ptr, chunk.source, room)
                self._driver.copy(slot.device.address, slot.pinned.address, staged.nbytes, last)
                figures.h2d_bytes += staged.nbytes
            else:
                pool = self._cpu_pools[chunk.group]
                into = gather_rows(pool, chunk.layers, chunk.row_ptr, chunk.source, staged)
                yield from self._over_link(into, last, self._paths)
                self._count_upload(staged.nbytes, figures)
            mark(self._driver, self._ready, last)
            last = figures.uses(self.streams.unpack)
            self._driver.wait(last, self._ready)
            yield True
            out = scatter_rows(staged, self._memory.pools[chunk.group], chunk.layers, chunk.row_ptr, chunk.destination)
            yield from self._launch(out, last, turn="unpack" if self._packed else "copy")
            self._count_unpack(staged.nbytes, figures)
            yield True
        finally:
            ring.release(slot, last)

    def _back_through(self, ring: EventRing, slot: RingSlot, chunk: Chunk, figures: Figures, turn: Turn) -> Queueing:
        """One chunk of areas into pinned staging, and from there by the CPU into its blocks when it has arrived."""
        stream = figures.uses(self.streams.d2h)
        try:
            size = self._memory.shapes[chunk.group].block_bytes
            staged = Staged(slot.device.address, chunk.blocks, size)
            into = gather_rows(self._memory.pools[chunk.group], chunk.layers, chunk.row_ptr, chunk.source, staged)
            yield from self._launch(into, stream, turn=turn)
            self._driver.copy(slot.pinned.address, slot.device.address, staged.nbytes, stream)
            mark(self._driver, slot.event, stream)
            yield True
            while not passed(self._driver, slot.event):
                yield False
            arrived = slot.pinned.array[: staged.nbytes].reshape(chunk.blocks, size)
            self._cpu.scatter(chunk.group, chunk.layers, chunk.row_ptr, chunk.destination, arrived)
            figures.d2h_bytes += staged.nbytes
            self._memory.traffic.read_bytes += staged.nbytes
            yield True
        finally:
            ring.release(slot, stream)

    def _count_upload(self, nbytes: int, figures: Figures) -> None:
        figures.h2d_bytes += nbytes
        self._cpu.traffic.read_bytes += nbytes

    def _count_unpack(self, nbytes: int, figures: Figures) -> None:
        figures.unpack_bytes += nbytes
        self._memory.traffic.written_bytes += nbytes

    # ---- rows

    def _chunks(self, source: AnyRows, destination: AnyRows, slot_bytes: int) -> Iterator[Chunk]:
        """Parts of one group each, that a slot holds and a descriptor describes."""
        return split(self._memory, source, destination, slot_bytes, most_blocks=self._most_blocks)

    def _groups(self, source: AnyRows, destination: AnyRows) -> Iterator[list[Chunk]]:
        """Chunks of any groups, as many as one launch takes."""
        together: list[Chunk] = []
        for chunk in self._chunks(source, destination, np.iinfo(np.int64).max):
            if together and sum(one.blocks for one in together) + chunk.blocks > self._most_blocks:
                yield together
                together = []
            together.append(chunk)
        if together:
            yield together

    def _batches(
        self, source: AnyRows, destination: AnyRows, origin: Sequence[Pool], target: Sequence[Pool]
    ) -> Iterator[RowBatch]:
        for chunks in self._groups(source, destination):
            yield join(
                [
                    transfer_rows(
                        origin[one.group], target[one.group], one.layers, one.row_ptr, one.source, one.destination
                    )
                    for one in chunks
                ]
            )

    def _move_rows(self, chunk: Chunk) -> RowBatch:
        pool = self._memory.pools[chunk.group]
        return move_rows(pool, chunk.layers, chunk.row_ptr, chunk.source, chunk.destination)


def _described(slot_bytes: int, layers: int) -> int:
    """Blocks that a descriptor of at most that many bytes and rows describes."""
    return max((slot_bytes - descriptor_bytes(layers, 0)) // 8 - 8, 1)
