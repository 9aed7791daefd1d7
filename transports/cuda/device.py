"""A rank's device on CUDA: operations in lanes, copies on streams, completions by events.

Nothing is queued on the GPU by `queue` and nothing waits: `advance` queues what the rings have room for and asks the
events of what is under way. What a failed operation had queued still runs, so its completion comes when that has ended.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy.typing as npt

from kvsweep.kernels import Packing
from kvsweep.kernels.cuda.api import CudaDriver, Event, Stream
from kvsweep.kernels.cuda.errors import CudaError
from kvsweep.kernels.cuda.launch import Launcher
from kvsweep.kernels.cuda.rows import descriptor_bytes
from kvsweep.ledger.errors import Busy, KvsweepError, LayoutError
from kvsweep.ledger.ids import Int32, Operation, RequestKey
from kvsweep.ledger.layout import Layout
from kvsweep.ledger.messages import MoveBlocks, StoreBlocks, Transfer
from kvsweep.transports.blocks import BlockMemory, UInt8
from kvsweep.transports.chunks import check_work
from kvsweep.transports.cuda.copies import Copies, Figures, Queueing
from kvsweep.transports.cuda.memory import CudaMemory
from kvsweep.transports.cuda.options import DEFAULTS, CudaOptions
from kvsweep.transports.cuda.paths import PathChoice, calibrate
from kvsweep.transports.cuda.staging import EventRing, mark, passed
from kvsweep.transports.cuda.tables import CudaTables, TableAddress
from kvsweep.transports.device import Completion, DeviceLost, DeviceWork
from kvsweep.transports.host import FAILURES_KEPT, Faults
from kvsweep.transports.tables import ServedRows, TableRows

LEAST_BLOCKS = 32
"""Blocks that a descriptor holds at least."""
_FAILURES = (CudaError, KvsweepError, ValueError, LookupError)
"""What ends one operation; DeviceLost, which is among them, ends all."""


@dataclass(slots=True, eq=False)
class _Running:
    """One operation between `queue` and its completion.

    ends  events behind all that it queued, once that is known
    """

    work: DeviceWork
    lane: "_Lane"
    queued_at: float
    queueing: Queueing | None = None
    figures: Figures = field(default_factory=Figures)
    ends: list[Event] = field(default_factory=list)
    reason: str | None = None

    @property
    def operation(self) -> Operation:
        return self.work.operation


@dataclass(slots=True, eq=False)
class _Lane:
    """Operations of one direction, queued on the GPU one after the other."""

    name: Literal["transfer", "move", "store"]
    streams: tuple[Stream, ...]
    waiting: deque[_Running] = field(default_factory=deque)


class CudaDevice(ServedRows):
    """One rank's device over CUDA memory.

    memory    the device's blocks; `memory.traffic` counts bytes apart from what completions say
    faults    for tests and scenarios
    failures  (operation, reason) of the last failed operations, oldest first, at most 256
    options   as given; for the path "auto" with what was measured
    """

    def __init__(
        self,
        driver: CudaDriver,
        layout: Layout,
        *,
        cpu: BlockMemory,
        device_blocks: Sequence[int] | None = None,
        borrowed: Sequence[object] | None = None,
        engine_stream: Stream | None = None,
        options: CudaOptions = DEFAULTS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises LayoutError naming the argument, CudaError (OutOfDeviceMemory) where the device refuses.

        cpu            memory that transfers read and stores write, of the same layout; page-locked in place
        device_blocks  pool size of each group, in memory of our own
        borrowed       or the engine's pools, see CudaMemory
        engine_stream  where the engine writes blocks: copies wait for what is on it when they are queued
        clock          seconds, monotonic; used for wait_s only
        """
        if cpu.layout != layout:
            raise LayoutError("cpu", "memory of the device's layout", "another layout")
        options.check(cpu)
        self.layout = layout
        self.driver = driver
        self.faults = Faults()
        self.failures: deque[tuple[Operation, str]] = deque(maxlen=FAILURES_KEPT)
        cap = options.blocks_per_multiprocessor
        self.memory = CudaMemory(driver, layout, device_blocks, borrowed=borrowed, blocks_per_multiprocessor=cap)
        self._cpu = cpu
        self._launcher = Launcher(driver, blocks_per_multiprocessor=cap)
        if options.path == "auto" and not options.measured:
            options = replace(options, measured=calibrate(driver, self._launcher, time.perf_counter))
        self.options = options
        most = max(self.memory.blocks(group) for group in range(layout.groups))
        slots = most if options.table_slots is None else options.table_slots
        self._tables: CudaTables = CudaTables(driver, layout.active_layers, rows=options.rows, slots=slots)
        least = max(self._tables.upload_bytes, descriptor_bytes(len(layout.layers), LEAST_BLOCKS))
        staged = options.path == "staged"
        self._copies = Copies(
            driver,
            self._launcher,
            self.memory,
            cpu,
            paths=None if options.path == "staged" else PathChoice(options.path, options.measured),
            returning=self._ring(pinned=True) if staged else None,
            descriptors=EventRing(
                driver, slots=options.descriptor_slots, slot_bytes=max(options.descriptor_bytes, least)
            ),
            staging=self._ring(pinned=staged) if staged or cpu.packing is Packing.VNNI else None,
        )
        self._engine = None if engine_stream is None else (engine_stream, driver.event())
        streams = self._copies.streams
        self._lanes = (
            _Lane("transfer", (streams.h2d, streams.unpack)),
            _Lane("move", (streams.move,)),
            _Lane("store", (streams.d2h,)),
        )
        self._turn = 0
        self._clock = clock
        self._running: dict[int, _Running] = {}
        self._ending: list[_Running] = []
        self._events: list[Event] = []  # free ones, at most two an operation
        self._completed: list[Completion] = []
        self._lost: str | None = None

    # ---- the queue

    @property
    def room(self) -> int:
        """Operations that `queue` would still take."""
        return self.options.operations - len(self._running) - len(self._completed)

    @property
    def queued(self) -> int:
        """Operations that have not completed."""
        return len(self._running)

    def queue(self, work: DeviceWork) -> None:
        """Take one operation; nothing of it reaches the GPU yet.

        Raises LayoutError for rows that do not fit the layout, the pools or the tables, Busy when `operations` or
        `rows` is reached; nothing is queued then.
        """
        if self.room < 1:
            raise Busy("device queue", self.options.operations)
        number = work.operation.operation_id
        if number in self._running:
            raise LayoutError("operation_id", "an operation that is not queued", str(number))
        check_work(work, self.layout, device=self.memory, cpu=self._cpu)
        if not isinstance(work, StoreBlocks):
            self._tables.check(work.table)
            self._tables.claim(work.operation.request, work.row)
        lane = self._lanes[0 if isinstance(work, Transfer) else 1 if isinstance(work, MoveBlocks) else 2]
        running = self._running[number] = _Running(work, lane, self._clock())
        lane.waiting.append(running)

    def cancel(self, operation_id: int) -> bool:
        """Drop an operation of which nothing has been queued on the GPU (True); any other is left (False)."""
        running = self._running.get(operation_id)
        if running is None or running.queueing is not None or running.reason is not None:
            return False
        running.lane.waiting.remove(running)
        del self._running[operation_id]
        return True

    def advance(self, steps: int | None = None) -> int:
        """Queue parts of operations and complete what has ended, at most that many (None: what can be done now).

        Never waits. A failure ends its own operation, and no other. Raises DeviceLost where an event cannot be
        recorded or asked for.
        """
        if self._lost is not None:
            raise DeviceLost(self._lost)
        done = 0
        try:
            while steps is None or done < steps:
                if not (self._end_one() or self._queue_one()):
                    break
                done += 1
        except DeviceLost as error:
            self._lost = error.what
            raise
        return done

    def poll(self) -> list[Completion]:
        """Completions since the last call."""
        completed, self._completed = self._completed, []
        return completed

    # ---- what a step reads and writes

    @property
    def tables(self) -> TableRows:
        """What readers on the host are shown, to be looked at without asking for a generation."""
        return self._tables.shown

    def table_address(self, request: RequestKey, row: int) -> TableAddress:
        """Where the row lies in device memory, from its first write until the request is forgotten."""
        return self._tables.address(request, row)

    def write_rows(self, layer: int, physical: int, first_token: int, k: npt.NDArray[Any], v: npt.NDArray[Any]) -> None:
        """Write n tokens of one block: k, v [kv_heads, n, head_dim]; waits. See CudaMemory.write_tokens."""
        self.memory.write_tokens(layer, physical, first_token, k, v)

    def read(self, layer: int, blocks: Int32) -> UInt8:
        """uint8[n, block_bytes], natural order: a copy of what the blocks hold now; waits."""
        return self.memory.peek(layer, blocks)

    def typed(self, layer: int) -> Any:
        """[blocks, 2, kv_heads, block_size, head_dim]: the layer's memory itself; see CudaMemory.typed."""
        return self.memory.typed(layer)

    def poison(self, group: int, blocks: Int32) -> None:
        """Overwrite blocks that were freed with bytes that read as NaN, where that is switched on; waits then."""
        if self.options.poison_freed:
            self.memory.poison(group, blocks)

    def close(self) -> None:
        """Wait for what is queued, then give all memory back. Nothing of the device is used afterwards.

        A lost device gives nothing back: what it holds goes with the process.
        """
        for running in self._running.values():
            if running.queueing is not None:
                with suppress(DeviceLost, CudaError):
                    running.queueing.close()
        if self._lost is not None:
            return
        self._lost = "closed"
        for lane in self._lanes:
            for stream in lane.streams:
                self.driver.synchronize(stream)
        self._copies.close()
        self._tables.close()
        self.memory.close()

    # ---- inside

    def _ring(self, *, pinned: bool) -> EventRing:
        options = self.options
        return EventRing(self.driver, slots=options.staging_slots, slot_bytes=options.slot_bytes, pinned=pinned)

    def _end_one(self) -> bool:
        """Complete one operation whose work has ended."""
        for running in self._ending:
            if all(passed(self.driver, event) for event in running.ends):
                self._ending.remove(running)
                self._events.extend(running.ends)
                self._close(running)
                return True
        return False

    def _queue_one(self) -> bool:
        """Queue one part of the first operation of some lane, the lanes taking turns."""
        for offset in range(len(self._lanes)):
            lane = self._lanes[(self._turn + offset) % len(self._lanes)]
            head = lane.waiting[0] if lane.waiting else None
            if head and head.operation.operation_id not in self.faults.hold and self._step(head):
                self._turn = (self._turn + offset + 1) % len(self._lanes)
                return True
        return False

    def _step(self, running: _Running) -> bool:
        """Whether something was queued, or the operation's queueing came to its end."""
        try:
            self.faults.check(running.operation.operation_id)
            if running.queueing is None:
                running.queueing = self._queue_all(running)
            return next(running.queueing)
        except StopIteration:
            pass
        except DeviceLost:
            raise
        except _FAILURES as error:
            running.reason = f"{type(error).__name__}: {error}"
            if running.queueing is not None:
                running.queueing.close()  # a slot that it holds goes back to its ring
        running.lane.waiting.popleft()
        for stream in running.figures.streams:
            event = self._events.pop() if self._events else self._new_event()
            mark(self.driver, event, stream)
            running.ends.append(event)
        self._ending.append(running)
        return True

    def _queue_all(self, running: _Running) -> Queueing:
        work, figures = running.work, running.figures
        if not isinstance(work, StoreBlocks):
            # First of all: an operation without room for its table copies nothing.
            self._tables.reserve(work.operation.request, work.row)
        if self._engine is not None:
            stream, event = self._engine
            mark(self.driver, event, stream)
            for own in running.lane.streams:
                self.driver.wait(own, event)
        if isinstance(work, StoreBlocks):
            yield from self._copies.store(work, figures)
            return
        if isinstance(work, Transfer):
            yield from self._copies.transfer(work, figures)
        else:
            yield from self._copies.move(work, figures)
        # On the stream of the last copies, behind them.
        last = figures.uses(figures.streams[-1] if figures.streams else running.lane.streams[0])
        while (slot := self._copies.descriptors.acquire()) is None:
            yield False
        try:
            self._tables.queue_write(
                self._launcher,
                slot,
                last,
                request=work.operation.request,
                row=work.row,
                generation=work.generation,
                table=work.table,
            )
        finally:
            self._copies.descriptors.release(slot, last)
        yield True

    def _new_event(self) -> Event:
        try:
            return self.driver.event()
        except CudaError as error:
            raise DeviceLost(str(error)) from error

    def _close(self, running: _Running) -> None:
        work, figures, updates = running.work, running.figures, 0
        if running.reason is None and not isinstance(work, StoreBlocks):
            updates = self._tables.show(work.operation.request, work.row, work.generation, work.table)
        if running.reason is not None:
            self.failures.append((work.operation, running.reason))
        del self._running[work.operation.operation_id]
        self._completed.append(
            Completion(
                operation=work.operation,
                outcome="completed" if running.reason is None else "failed",
                reason=running.reason or "",
                h2d_bytes=figures.h2d_bytes,
                unpack_bytes=figures.unpack_bytes,
                d2h_bytes=figures.d2h_bytes,
                resident_moved_bytes=figures.resident_moved_bytes,
                table_updates=updates,
                wait_s=self._clock() - running.queued_at,
            )
        )
