"""A rank's device over vLLM's memory: operations wait in a queue and run, whole, between two steps of the model."""

import time
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kvsweep.ledger.errors import Busy, LayoutError
from kvsweep.ledger.ids import Int32, Operation, RequestKey
from kvsweep.ledger.messages import MoveBlocks, StoreBlocks, Transfer
from kvsweep.transports.chunks import check_apart, check_pair
from kvsweep.transports.device import Completion, DeviceWork
from kvsweep.transports.tables import TableRows
from kvsweep.transports.vllm.memory import RankMemory

DIGESTS_KEPT = 4096


@dataclass
class _Queued:
    work: DeviceWork
    at: float


class LayerTables:
    """One view, as attention needs it.

    counts  int32[layers]: blocks of each layer
    blocks  int32[layers, most blocks of any layer]: physical ids in slot order, 0 behind a layer's last
    even    whether every layer has equally many
    """

    def __init__(self, rows: Sequence[Int32]) -> None:
        self.counts: Int32 = np.asarray([row.size for row in rows], dtype=np.int32)
        self.even = bool((self.counts == self.counts[0]).all())
        self.blocks: Int32 = np.zeros((len(rows), int(self.counts.max())), dtype=np.int32)
        for at, row in enumerate(rows):
            self.blocks[at, : row.size] = row


class EngineDevice:
    """Device of one rank in vLLM's worker process: one thread, no stream; `advance` runs what is queued.

    memory  both tiers of the rank
    digests digest of what an operation copied, for the last 4096 operations that copied anything
    """

    def __init__(
        self,
        memory: RankMemory,
        *,
        operations: int = 4096,
        rows: int = 65536,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """operations: queued at most; rows: table rows over all requests; clock: seconds, for wait_s only."""
        if operations < 1:
            raise LayoutError("operations", "at least 1", str(operations))
        self.memory = memory
        self.digests: dict[int, str] = {}
        self._tables = TableRows(rows)
        self._limit = operations
        self._clock = clock
        self._queue: deque[_Queued] = deque()
        self._completed: list[Completion] = []
        self._stacked: dict[tuple[RequestKey, int], tuple[int, LayerTables]] = {}

    # ---- the queue

    @property
    def room(self) -> int:
        """Operations that `queue` would still take."""
        return self._limit - len(self._queue) - len(self._completed)

    @property
    def queued(self) -> int:
        """Operations that have not run."""
        return len(self._queue)

    def queue(self, work: DeviceWork) -> None:
        """Take one operation; nothing is copied yet. Raises LayoutError for ids that do not fit, Busy without room."""
        if self.room < 1:
            raise Busy("device queue", self._limit)
        self._check(work)
        if not isinstance(work, StoreBlocks):
            self._tables.claim(work.operation.request, work.row)
        self._queue.append(_Queued(work, self._clock()))

    def cancel(self, operation_id: int) -> bool:
        """Drop an operation that has not run (True); one that has, or is unknown, is left (False)."""
        for queued in self._queue:
            if queued.work.operation.operation_id == operation_id:
                self._queue.remove(queued)
                return True
        return False

    def advance(self, steps: int | None = None) -> int:
        """Run at most that many operations, in order. Returns how many ran."""
        ran = 0
        while self._queue and (steps is None or ran < steps):
            self._run(self._queue.popleft())
            ran += 1
        return ran

    def poll(self) -> list[Completion]:
        """Completions since the last call."""
        completed, self._completed = self._completed, []
        return completed

    # ---- tables

    def table(self, request: RequestKey, row: int, generation: int, layer: int) -> Int32:
        """int32[slots], read-only. Raises LayoutError unless the row shows this generation."""
        return self._tables.read(request, row, generation, layer)

    def tables(self, request: RequestKey, row: int, generation: int) -> LayerTables:
        """The tables of every layer, in layer order. Raises LayoutError unless the row shows this generation."""
        known = self._stacked.get((request, row))
        if known is not None and known[0] == generation:
            return known[1]
        found = LayerTables(
            [self._tables.read(request, row, generation, layer) for layer in range(len(self.memory.layers))]
        )
        self._stacked[request, row] = (generation, found)
        return found

    def try_forget(self, request: RequestKey) -> bool:
        """Give up the table rows of a closed request. False, with nothing done, while an operation of it is queued."""
        if any(queued.work.operation.request == request for queued in self._queue):
            return False
        self._tables.forget(request)
        for key in [key for key in self._stacked if key[0] == request]:
            del self._stacked[key]
        return True

    # ---- bytes

    def read(self, layer: int, blocks: Int32) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
        """uint8[n, block_bytes] in the order in which vLLM keeps them: a copy."""
        return self.memory.layers[layer][blocks]

    def poison(self, group: int, blocks: Int32) -> None:
        """Overwrite freed blocks with what no model computes. Raises LayoutError for another group than 0."""
        if group != 0:
            raise LayoutError("group", "0, the only one", str(group))
        self.memory.poison(blocks.tolist())

    def close(self) -> None:
        """Nothing to give back: the tensors are vLLM's."""

    # ---- inside

    def _check(self, work: DeviceWork) -> None:
        memory = self.memory
        check_pair(work.source, work.destination)
        device, cpu = memory.blocks, memory.cpu_blocks
        limits = (cpu if isinstance(work, Transfer) else device, cpu if isinstance(work, StoreBlocks) else device)
        for layer, ids in work.source.items():
            memory.check_ids("source", layer, ids, limits[0])
        for layer, ids in work.destination.items():
            memory.check_ids("destination", layer, ids, limits[1])
        if isinstance(work, StoreBlocks):
            return
        for layer, ids in work.table.items():
            memory.check_ids("table", layer, ids, device)
        if not isinstance(work, Transfer):
            check_apart(work.source, work.destination)

    def _run(self, queued: _Queued) -> None:
        """Copy layer by layer; the row is written after every copy, and only then is the operation completed."""
        work, memory = queued.work, self.memory
        copy = {StoreBlocks: memory.store, Transfer: memory.upload, MoveBlocks: memory.move}[type(work)]
        wrong, sums = memory.wrong, []
        for (layer, source), (_, destination) in zip(work.source.items(), work.destination.items(), strict=True):
            sums += copy(layer, source, destination)
        copied = work.source.size * memory.block_bytes
        outcome: Literal["completed", "failed"] = "completed"
        reason = ""
        if memory.wrong > wrong:
            outcome, reason = "failed", f"{memory.wrong - wrong} blocks differ from what was stored"
        tables = 0
        if not isinstance(work, StoreBlocks) and outcome == "completed":
            tables = self._tables.write(work.operation.request, work.row, work.generation, work.table)
        if sums:
            self._note_digest(work.operation, sums)
        self._completed.append(
            Completion(
                operation=work.operation,
                outcome=outcome,
                reason=reason,
                h2d_bytes=copied if isinstance(work, Transfer) else 0,
                d2h_bytes=copied if isinstance(work, StoreBlocks) else 0,
                resident_moved_bytes=copied if not isinstance(work, Transfer | StoreBlocks) else 0,
                table_updates=tables,
                wait_s=self._clock() - queued.at,
            )
        )

    def _note_digest(self, operation: Operation, sums: list[int]) -> None:
        self.digests[operation.operation_id] = f"{zlib.crc32(np.asarray(sums, dtype='<u4').tobytes()):08x}"
        if len(self.digests) > DIGESTS_KEPT:
            del self.digests[next(iter(self.digests))]
