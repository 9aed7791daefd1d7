"""The rank's side of the protocol: it remembers what it answered, refuses what is too old, forgets below the floor."""

from collections import deque
from collections.abc import Iterable

from msgspec import Struct, structs

from kvsweep.ledger.errors import Busy, LayoutError
from kvsweep.ledger.ids import Int32, Operation, RequestKey
from kvsweep.ledger.messages import Cancel, Done, Effect, MoveBlocks, RankWork, StoreBlocks, ToRank, Transfer
from kvsweep.transports.device import Completion, Device

NOTES_KEPT = 256


class Note(Struct, frozen=True, kw_only=True):
    """Something that a rank did not do, or that went wrong, and why. For people; the protocol does not need it."""

    operation: Operation | None  # None: the frame could not be read
    what: str


class RankWorker:
    """Performs the effects that name this rank and process, and sends one final report on each operation.

    A peer's mistake raises nothing: it is noted, or answered as failed. The report on an operation is written once:
    a repeated start does no work and repeats it; a cancel that comes first promises that no start will be obeyed.
    A report is forgotten when the floor (the lowest operation that may still be open) has passed it; from then on
    every command on that operation is refused without an answer.

    notes  the last 256 refusals and failures, oldest first
    """

    def __init__(self, device: Device, *, rank: int, process_epoch: int, operations: int = 4096) -> None:
        """operations: how many it remembers, running and answered. Raises LayoutError below 1."""
        if operations < 1:
            raise LayoutError("operations", "at least 1", str(operations))
        self.device = device
        self.rank = rank
        self.process_epoch = process_epoch
        self.floor = 0
        self.notes: deque[Note] = deque(maxlen=NOTES_KEPT)
        self._limit = operations
        self._running: set[int] = set()
        self._reports: dict[int, Done] = {}
        self._unacknowledged: set[int] = set()
        self._outbox: dict[int, Done] = {}  # by operation: a report waits once, however often it is asked for

    @property
    def remembered(self) -> int:
        """Operations in memory, running and answered."""
        return len(self._running) + len(self._reports)

    @property
    def unheard(self) -> bool:
        """Whether a report waits to be heard."""
        return bool(self._unacknowledged)

    def note_frame(self, what: str) -> None:
        """Note a frame of which nothing is performed."""
        self.notes.append(Note(operation=None, what=what))

    def perform(self, effects: Iterable[Effect | ToRank]) -> None:
        """Start or cancel what names this rank; other effects are somebody else's and passed over.

        Raises Busy, with nothing performed, where the memory or the device's queue cannot take all of them.
        """
        ours = [effect for effect in effects if isinstance(effect, RankWork) and self._is_ours(effect)]
        self._raise_floor(max((work.floor for work in ours if not isinstance(work, Cancel)), default=0))
        new = {n for n in (work.operation.operation_id for work in ours) if n >= self.floor and not self._knows(n)}
        if self.remembered + len(new) > self._limit:
            raise Busy("rank memory", self._limit)
        starts = {work.operation.operation_id for work in ours if not isinstance(work, Cancel)} & new
        if len(starts) > self.device.room:
            raise Busy("device queue", self.device.room)
        for work in ours:
            if work.operation.operation_id < self.floor:
                self._note(work.operation, f"{type(work).__name__} refused: below the floor {self.floor}")
            elif isinstance(work, Cancel):
                self._cancel(work)
            else:
                self._start(work)

    def poll(self) -> list[Done]:
        """Final reports that are due: new ones, and those asked for again. Each report once a call; never waits."""
        for completion in self.device.poll():
            self._finish(completion)
        due, self._outbox = list(self._outbox.values()), {}
        return due

    def acknowledge(self, operation_id: int) -> None:
        """The coordinator has this report: `probe` need not repeat it. It is remembered until the floor passes."""
        self._unacknowledged.discard(operation_id)

    def probe(self) -> int:
        """Make the next `poll` repeat every report that nobody acknowledged. Returns how many."""
        for number in sorted(self._unacknowledged):
            self._outbox[number] = self._reports[number]
        return len(self._unacknowledged)

    def table(self, request: RequestKey, row: int, generation: int, layer: int) -> Int32:
        """int32[slots], read-only. Raises LayoutError unless the row shows this generation."""
        return self.device.table(request, row, generation, layer)

    # ---- inside

    def _is_ours(self, work: RankWork) -> bool:
        named = dict(work.ranks)
        if self.rank not in named:
            return False
        if named[self.rank] != self.process_epoch:
            self._note(work.operation, f"{type(work).__name__} refused: for process epoch {named[self.rank]}")
            return False
        return True

    def _knows(self, operation_id: int) -> bool:
        return operation_id in self._running or operation_id in self._reports

    def _raise_floor(self, floor: int) -> None:
        self.floor = max(self.floor, floor)
        for number in [number for number in self._reports if number < self.floor]:
            self._forget(number)

    def _forget(self, operation_id: int) -> None:
        del self._reports[operation_id]
        self._unacknowledged.discard(operation_id)
        self._outbox.pop(operation_id, None)

    def _start(self, work: Transfer | MoveBlocks | StoreBlocks) -> None:
        number = work.operation.operation_id
        if number in self._reports:
            self._outbox[number] = self._reports[number]
            return
        if number in self._running:
            return
        try:
            self.device.queue(work)
        except (LayoutError, Busy) as error:
            self._note(work.operation, f"{type(work).__name__} failed: {error}")
            self._say(self._report(work.operation, "failed"))
            return
        self._running.add(number)

    def _cancel(self, work: Cancel) -> None:
        number = work.operation.operation_id
        if number in self._reports:
            self._outbox[number] = self._reports[number]
        elif number not in self._running or self.device.cancel(number):
            self._running.discard(number)
            self._say(self._report(work.operation, "cancelled"))

    def _finish(self, completion: Completion) -> None:
        number = completion.operation.operation_id
        if number not in self._running:
            self._note(
                completion.operation, f"device reports {completion.outcome} for an operation that is not running"
            )
            return
        self._running.remove(number)
        if completion.reason:
            self._note(completion.operation, f"failed: {completion.reason}")
        report = structs.replace(
            self._report(completion.operation, completion.outcome),
            h2d_bytes=completion.h2d_bytes,
            unpack_bytes=completion.unpack_bytes,
            d2h_bytes=completion.d2h_bytes,
            resident_moved_bytes=completion.resident_moved_bytes,
            table_updates=completion.table_updates,
            wait_s=completion.wait_s,
        )
        self._say(report)

    def _report(self, operation: Operation, outcome: str) -> Done:
        return Done(operation=operation, rank=self.rank, process_epoch=self.process_epoch, outcome=outcome)

    def _say(self, report: Done) -> None:
        number = report.operation.operation_id
        self._reports[number] = self._outbox[number] = report
        self._unacknowledged.add(number)

    def _note(self, operation: Operation, what: str) -> None:
        self.notes.append(Note(operation=operation, what=what))
