"""A device in CPU memory that behaves like an accelerator where it hurts: late, out of order, poisoned."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from kvsweep.kernels import Packing
from kvsweep.kernels.table import Kernels
from kvsweep.ledger.errors import Busy, KvsweepError, LayoutError
from kvsweep.ledger.ids import Int32, Operation
from kvsweep.ledger.layout import Layout
from kvsweep.ledger.messages import MoveBlocks, StoreBlocks, Transfer
from kvsweep.transports.blocks import BlockMemory, UInt8
from kvsweep.transports.chunks import Chunk, check_work, split
from kvsweep.transports.device import Completion, DeviceWork
from kvsweep.transports.staging import StagingRing, StagingSlot
from kvsweep.transports.streams import Item, Streams
from kvsweep.transports.tables import ServedRows, TableRows

STREAMS = ("h2d", "unpack", "move", "d2h")
FAILURES_KEPT = 256


@dataclass(slots=True)
class Faults:
    """What goes wrong on purpose. All hold operation ids and may be changed at any time."""

    fail: set[int] = field(default_factory=set)  # the next copy or row of these raises
    fail_after: dict[int, int] = field(default_factory=dict)  # so many copies run first
    hold: set[int] = field(default_factory=set)  # nothing of these runs, nor what is queued behind them

    def check(self, operation_id: int) -> None:
        """Raise InjectedFault where the operation's next copy is to fail."""
        left = self.fail_after.get(operation_id)
        if left:
            self.fail_after[operation_id] = left - 1
        elif left == 0 or operation_id in self.fail:
            raise InjectedFault(f"operation {operation_id} was told to fail")


@dataclass(slots=True)
class _Running:
    """One operation between `queue` and its completion."""

    operation: Operation
    queued_at: float
    started: bool = False
    slots: dict[int, StagingSlot] = field(default_factory=dict)  # by chunk, from its copy in to its copy out
    h2d_bytes: int = 0
    unpack_bytes: int = 0
    d2h_bytes: int = 0
    resident_moved_bytes: int = 0
    table_updates: int = 0


class InjectedFault(KvsweepError):
    """A copy failed because a test or scenario asked for it."""


class HostDevice(ServedRows):
    """One rank's device over NumPy memory.

    Nothing is copied by `queue`: `advance` runs the streams, and a copy reads its sources then. Four streams: CPU
    memory → staging (h2d), staging → areas (unpack), area → area (move), areas → CPU memory (d2h).

    memory    the device's blocks; `memory.traffic` counts bytes apart from what completions say
    faults    for tests and scenarios
    failures  (operation, reason) of the last failed operations, oldest first, at most 256
    """

    def __init__(
        self,
        layout: Layout,
        *,
        device_blocks: Sequence[int],
        cpu: BlockMemory,
        seed: int,
        staging_bytes: int = 64 << 20,
        staging_slots: int = 2,
        rows: int = 4096,
        operations: int = 1024,
        clock: Callable[[], float] = time.monotonic,
        kernels: Kernels | None = None,
    ) -> None:
        """Raises LayoutError naming the argument.

        device_blocks  pool size of each group
        cpu            memory that transfers read and stores write; of the same layout
        seed           of the order between streams
        staging_bytes  of all slots together; a slot must hold one block of every group
        rows           table rows over all requests
        operations     queued or completed and not yet polled, at most
        clock          seconds, monotonic; used for wait_s only
        kernels        what copies and packs; None takes the native ones where they were built
        """
        if cpu.layout != layout:
            raise LayoutError("cpu", "memory of the device's layout", "another layout")
        if operations < 1:
            raise LayoutError("operations", "at least 1", str(operations))
        self.layout = layout
        self.memory = BlockMemory.of_device(layout, device_blocks, kernels)
        self.faults = Faults()
        self.failures: deque[tuple[Operation, str]] = deque(maxlen=FAILURES_KEPT)
        self._cpu = cpu
        if staging_slots < 1:
            raise LayoutError("staging_slots", "at least 1", str(staging_slots))
        largest = max(shape.block_bytes for shape in self.memory.shapes)
        if staging_bytes // staging_slots < largest:
            raise LayoutError(
                "staging_bytes",
                f"at least {largest * staging_slots} (one block of {largest} bytes in each of {staging_slots} slots)",
                str(staging_bytes),
            )
        self._staging = StagingRing(slots=staging_slots, slot_bytes=staging_bytes // staging_slots)
        self._tables: TableRows = TableRows(rows)
        self._streams = Streams(STREAMS, seed)
        self._limit = operations
        self._clock = clock
        self._running: dict[int, _Running] = {}
        self._completed: list[Completion] = []

    # ---- the queue

    @property
    def room(self) -> int:
        """Operations that `queue` would still take."""
        return self._limit - len(self._running) - len(self._completed)

    @property
    def queued(self) -> int:
        """Stream items that have not run."""
        return len(self._streams)

    def queue(self, work: DeviceWork) -> None:
        """Take one operation; nothing is copied yet.

        Raises LayoutError for rows that do not fit the layout or the pools, Busy when `operations` or `rows` is
        reached; nothing is queued then.
        """
        if self.room < 1:
            raise Busy("device queue", self._limit)
        number = work.operation.operation_id
        if number in self._running:
            raise LayoutError("operation_id", "an operation that is not queued", str(number))
        check_work(work, self.layout, device=self.memory, cpu=self._cpu)
        if not isinstance(work, StoreBlocks):
            self._tables.claim(work.operation.request, work.row)
        running = self._running[number] = _Running(work.operation, self._clock())
        if isinstance(work, Transfer):
            self._queue_transfer(work, running)
        else:
            name, copy = ("move", self._move) if isinstance(work, MoveBlocks) else ("d2h", self._store)
            for chunk in split(self.memory, work.source, work.destination, self._staging.slot_bytes):
                self._add(name, running, partial(copy, running, chunk))
            self._add(name, running, partial(self._complete, running, work))

    def cancel(self, operation_id: int) -> bool:
        """Drop an operation of which nothing has run (True). One that has started, or is unknown, is left (False)."""
        running = self._running.get(operation_id)
        if running is None or running.started:
            return False
        self._streams.drop(operation_id)
        del self._running[operation_id]
        return True

    def advance(self, steps: int | None = None) -> int:
        """Run at most `steps` stream items (None: until none can run). Returns how many ran.

        A copy that fails ends its own operation as failed, and no other.
        """
        ran = 0
        while steps is None or ran < steps:
            item = self._streams.take(self.faults.hold)
            if item is None:
                break
            ran += 1
            running = self._running[item.operation_id]
            running.started = True
            try:
                self.faults.check(item.operation_id)
                item.run()
            except (KvsweepError, ValueError, LookupError) as error:
                self._fail(running, f"{type(error).__name__}: {error}")
        return ran

    def poll(self) -> list[Completion]:
        """Completions since the last call."""
        completed, self._completed = self._completed, []
        return completed

    # ---- what a step reads and writes: at once, as it runs on the compute stream

    def write_rows(self, layer: int, physical: int, first_token: int, k: npt.NDArray[Any], v: npt.NDArray[Any]) -> None:
        """Write n tokens of one block: k, v [kv_heads, n, head_dim]; see BlockMemory.write_tokens."""
        self.memory.write_tokens(layer, physical, first_token, k, v)

    def read(self, layer: int, blocks: Int32) -> UInt8:
        """uint8[n, block_bytes], natural order: a copy of what the blocks hold now."""
        return self.memory.peek(layer, blocks)

    def typed(self, layer: int) -> npt.NDArray[Any]:
        """[blocks, 2, kv_heads, block_size, head_dim]: the layer's memory itself; see BlockMemory.typed."""
        return self.memory.typed(layer)

    @property
    def tables(self) -> TableRows:
        """The table rows themselves, to be read or spoilt without asking which generation they show."""
        return self._tables

    def poison(self, group: int, blocks: Int32) -> None:
        """Overwrite blocks that were freed with bytes that read as NaN."""
        self.memory.poison(group, blocks)

    def close(self) -> None:
        """Nothing to give back but the memory, which goes with the last reference."""

    # ---- inside

    def _add(
        self, stream: str, running: _Running, run: Callable[[], None], ready: Callable[[], bool] = lambda: True
    ) -> None:
        self._streams.add(stream, Item(operation_id=running.operation.operation_id, run=run, ready=ready))

    def _queue_transfer(self, work: Transfer, running: _Running) -> None:
        for number, chunk in enumerate(split(self.memory, work.source, work.destination, self._staging.slot_bytes)):
            self._add("h2d", running, partial(self._stage, running, number, chunk), lambda: self._staging.ready)
            # The unpack of chunk n waits for the event of its copy into staging.
            self._add(
                "unpack",
                running,
                partial(self._unpack, running, number, chunk),
                partial(running.slots.__contains__, number),
            )
        self._add("unpack", running, partial(self._complete, running, work))

    def _stage(self, running: _Running, number: int, chunk: Chunk) -> None:
        slot = running.slots[number] = self._staging.acquire()
        staged = slot.blocks(chunk.blocks, self.memory.shapes[chunk.group].block_bytes)
        self._cpu.gather(chunk.group, chunk.layers, chunk.row_ptr, chunk.source, staged)
        running.h2d_bytes += staged.nbytes

    def _unpack(self, running: _Running, number: int, chunk: Chunk) -> None:
        slot, shape = running.slots[number], self.memory.shapes[chunk.group]
        staged = slot.blocks(chunk.blocks, shape.block_bytes)
        if self._cpu.packing is Packing.VNNI:
            natural = np.empty_like(staged)
            self.memory.kernels.unpack_vnni(staged, shape, natural)
            staged = natural
        self.memory.scatter(chunk.group, chunk.layers, chunk.row_ptr, chunk.destination, staged)
        running.unpack_bytes += staged.nbytes
        # From here on the slot may belong to somebody else, so this operation lets go of it.
        del running.slots[number]
        slot.complete()

    def _move(self, running: _Running, chunk: Chunk) -> None:
        self.memory.move(chunk.group, chunk.layers, chunk.row_ptr, chunk.source, chunk.destination)
        running.resident_moved_bytes += chunk.blocks * self.memory.shapes[chunk.group].block_bytes

    def _store(self, running: _Running, chunk: Chunk) -> None:
        shape = self.memory.shapes[chunk.group]
        natural = np.empty((chunk.blocks, shape.block_bytes), dtype=np.uint8)
        self.memory.gather(chunk.group, chunk.layers, chunk.row_ptr, chunk.source, natural)
        packed = natural
        if self._cpu.packing is Packing.VNNI:
            packed = np.empty_like(natural)
            self.memory.kernels.pack_vnni(natural, shape, packed)
        self._cpu.scatter(chunk.group, chunk.layers, chunk.row_ptr, chunk.destination, packed)
        running.d2h_bytes += packed.nbytes

    def _complete(self, running: _Running, work: DeviceWork) -> None:
        """Last item of an operation: the row is written after every copy, and only then is it completed."""
        if not isinstance(work, StoreBlocks):
            running.table_updates += self._tables.write(work.operation.request, work.row, work.generation, work.table)
        self._close(running, "completed", "")

    def _fail(self, running: _Running, reason: str) -> None:
        self._streams.drop(running.operation.operation_id)
        self.failures.append((running.operation, reason))
        for slot in running.slots.values():
            slot.complete()
        self._close(running, "failed", reason)

    def _close(self, running: _Running, outcome: Literal["completed", "failed"], reason: str) -> None:
        del self._running[running.operation.operation_id]
        self._completed.append(
            Completion(
                operation=running.operation,
                outcome=outcome,
                reason=reason,
                h2d_bytes=running.h2d_bytes,
                unpack_bytes=running.unpack_bytes,
                d2h_bytes=running.d2h_bytes,
                resident_moved_bytes=running.resident_moved_bytes,
                table_updates=running.table_updates,
                wait_s=self._clock() - running.queued_at,
            )
        )
