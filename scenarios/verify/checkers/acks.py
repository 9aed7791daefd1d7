"""ACK oracle: what has to be recorded for each completion that arrived, from contract F2 and the decision table alone.

`arrived` says what a peer said, before the coordinator hears it; `see` takes the events that follow; `answered` closes
the turn. A completion nobody recorded, one recorded otherwise than it must be, and one recorded that nobody sent are
breaks. It also recounts the distinct ranks of every operation that is said to be complete.
"""

from collections import OrderedDict
from typing import Any, Final, Literal, NamedTuple

from kvsweep.ledger import events as e
from kvsweep.ledger.events import Event, LaneName
from kvsweep.ledger.ids import Operation, RequestKey
from kvsweep.ledger.messages import Acknowledged, Done
from kvsweep.scenarios.verify.checkers.breaks import Breaks
from kvsweep.scenarios.verify.checkers.lives import Attempt

LAW: Final = "acknowledgements"
PRODUCER: Final = -1
LIVES_KEPT: Final = 4096
OUTCOMES: Final = ("completed", "failed", "cancelled")
Expected = Literal["applied", "duplicate", "stale", "future", "conflict"]


class Arrived(NamedTuple):
    """A terminal report on its way in. rank is -1 for the producer."""

    operation: Operation
    rank: int
    process_epoch: int
    outcome: str
    expected: Expected


class _Books:
    """What F2 looks at for one request id: its latest life, its attempts, and the last closed one of each lane."""

    def __init__(self, key: RequestKey) -> None:
        self.key = key
        self.closed = False
        self.attempts: dict[int, Attempt] = {}
        self.last: dict[LaneName, Attempt] = {}
        self.awaited: dict[int, bool] = {}  # operations that the producer has to acknowledge now


class Acks(Breaks):
    """Feed it every arrival and every event. Keeps the latest life of the last 4096 request ids."""

    def __init__(self) -> None:
        super().__init__()
        self._books: OrderedDict[str, _Books] = OrderedDict()
        self._highest_epoch = 0  # of the lives that were forgotten
        self._next = 1
        self._ranks: dict[int, int] = {}
        self._lost: set[int] = set()
        self._producer = 0
        self._pending: Arrived | None = None

    # ---- arrivals

    def arrived(self, report: Done | Acknowledged) -> Expected:
        """A peer's report reached the coordinator. Returns what has to become of it."""
        if isinstance(report, Done):
            expected = self._of_rank(report)
            self._pending = Arrived(report.operation, report.rank, report.process_epoch, report.outcome, expected)
        else:
            expected = self._of_producer(report)
            self._pending = Arrived(report.operation, PRODUCER, report.process_epoch, "acknowledged", expected)
        return expected

    def answered(self) -> None:
        """The turn that heard the report is over: exactly one record of it has been made."""
        if self._pending is not None:
            left, self._pending = self._pending, None
            self.add(LAW, f"nothing was recorded for {_described(left)}, expected {left.expected}")

    def _of_rank(self, report: Done) -> Expected:
        operation, known = report.operation, self._ranks.get(report.rank)
        books = self._books.get(operation.request.request_id)
        latest = books.key.request_epoch if books else self._highest_epoch
        epoch = operation.request.request_epoch
        if books is not None and (epoch < latest or (epoch == latest and books.closed)):
            return "stale"
        if (
            operation.operation_id >= self._next
            or epoch > latest
            or (known is not None and report.process_epoch > known)
        ):
            return "future"
        attempt = books.attempts.get(operation.operation_id) if books else None
        if attempt is None:
            closed = list(books.last.values()) if books else []
            repeated = any(
                one.operation == operation and one.reports.get(report.rank) == report.outcome for one in closed
            )
            return "duplicate" if repeated else "stale"
        if attempt.operation != operation or report.rank not in attempt.ranks or report.outcome not in OUTCOMES:
            return "conflict"
        if known is not None and (report.process_epoch < known or report.rank in self._lost):
            return "stale"
        if report.process_epoch != attempt.ranks[report.rank]:
            return "conflict"
        if report.rank in attempt.reports:
            return "duplicate" if attempt.reports[report.rank] == report.outcome else "conflict"
        return "applied"

    def _of_producer(self, report: Acknowledged) -> Expected:
        operation = report.operation
        books = self._books.get(operation.request.request_id)
        latest = books.key.request_epoch if books else self._highest_epoch
        epoch = operation.request.request_epoch
        if operation.operation_id >= self._next or epoch > latest or report.process_epoch > self._producer:
            return "future"
        if books is None or books.key != operation.request:
            return "stale"
        attempt = books.attempts.get(operation.operation_id)
        waits = attempt is not None and attempt.operation == operation and books.awaited.get(operation.operation_id)
        if waits and report.process_epoch == self._producer:
            return "applied"
        closed = [one.operation for lane, one in books.last.items() if lane != "store"]
        return "duplicate" if operation in closed else "stale"

    # ---- events

    def see(self, event: Event) -> None:
        """The next event of the ledger."""
        self.position += 1
        self._judge(event)
        self._take(event)

    def remember(self, event: Event) -> None:
        """The next event of a history of which nobody knows what arrived."""
        self.position += 1
        self._take(event)

    def _take(self, event: Event) -> None:
        match event:
            case e.RunConfigured():
                self._ranks, self._producer = dict(event.ranks), event.producer_epoch
            case e.RankLost():
                self._lost.add(event.rank)
            case e.RankRestarted():
                self._lost.discard(event.rank)
                self._ranks[event.rank] = event.process_epoch
            case e.ProducerRestarted():
                self._producer = event.process_epoch
            case e.RequestOpened():
                self._books.pop(event.request.request_id, None)
                self._books[event.request.request_id] = _Books(event.request)
                self._forget()
            case _:
                books = self._books.get(event.request.request_id)
                if books is not None and books.key == event.request:
                    self._follow(books, event)

    def _forget(self) -> None:
        """Closed lives go first, oldest first; a life that is open is never forgotten."""
        if len(self._books) > LIVES_KEPT:
            name = next((name for name, books in self._books.items() if books.closed), None)
            if name is not None:
                self._highest_epoch = max(self._highest_epoch, self._books.pop(name).key.request_epoch)

    def _follow(self, books: _Books, event: Any) -> None:
        match event:
            case e.RequestClosed():
                books.closed = True
            case e.UploadPlanned():
                self._open(books, event.operation, "upload")
            case e.KeepMapPublished():
                self._open(books, event.operation, "upload")
                books.awaited[event.operation.operation_id] = True
            case e.RetainPlanned():
                self._open(books, event.operation, "retain")
            case e.StoreStarted():
                self._open(books, event.operation, "store").ranks = dict(event.ranks)
            case e.TransferStarted() | e.ReadersDrained():
                self._attempt(books, event).ranks = dict(event.ranks)
            case e.RankTransferred() | e.TablesApplied() | e.RankStored():
                self._record(self._attempt(books, event), event.rank, "completed")
            case e.TransferCompleted() | e.AllRanksApplied() | e.StoreCompleted():
                self._complete(books, event)
            case e.ResidencyCommitted():
                books.awaited[event.operation.operation_id] = True
            case e.BlocksRetired() if event.cause == "retain":
                for number, attempt in books.attempts.items():
                    if attempt.lane == "retain" and not attempt.settling:
                        books.awaited[number] = True
            case e.UploadAcknowledged() | e.RetainAcknowledged():
                self._close(books, event.operation.operation_id)
            case e.UploadAborted() | e.RetainAborted() | e.StoreAborted():
                attempt = self._attempt(books, event)
                attempt.settling = True
                if attempt.quiet:
                    self._close(books, event.operation.operation_id)
            case e.TransferSettled():
                attempt = self._attempt(books, event)
                self._record(attempt, event.rank, event.outcome)
                if attempt.quiet:
                    self._close(books, event.operation.operation_id)
            case _:
                pass

    def _open(self, books: _Books, operation: Operation, lane: LaneName) -> Attempt:
        if operation.operation_id != self._next:
            self.add(LAW, f"operation {operation.operation_id} begins, expected the next number {self._next}")
        self._next = max(self._next, operation.operation_id + 1)
        attempt = books.attempts[operation.operation_id] = Attempt(operation, lane)
        return attempt

    def _attempt(self, books: _Books, event: Any) -> Attempt:
        found = books.attempts.get(event.operation.operation_id)
        if found is None or found.operation != event.operation:
            self.add(LAW, f"{type(event).__name__} names {event.operation}, which is not open")
            return Attempt(event.operation, "upload")
        return found

    def _record(self, attempt: Attempt, rank: int, report: str) -> None:
        number = attempt.operation.operation_id
        if rank not in attempt.ranks:
            self.add(LAW, f"rank {rank} is recorded for operation {number}, which was sent to {sorted(attempt.ranks)}")
        if rank in attempt.reports:
            self.add(LAW, f"rank {rank} is recorded twice for operation {number}")
        attempt.reports[rank] = report

    def _complete(self, books: _Books, event: Any) -> None:
        attempt = self._attempt(books, event)
        missing = [rank for rank in attempt.ranks if attempt.reports.get(rank) != "completed"]
        if missing or not attempt.ranks:
            self.add(LAW, f"{type(event).__name__} while ranks {missing} of {sorted(attempt.ranks)} have not completed")
        if isinstance(event, e.StoreCompleted):
            self._close(books, event.operation.operation_id)

    def _close(self, books: _Books, number: int) -> None:
        attempt = books.attempts.pop(number, None)
        books.awaited.pop(number, None)
        if attempt is not None:
            books.last[attempt.lane] = attempt

    # ---- verdicts

    def _judge(self, event: Event) -> None:
        """Hold a record of an acknowledgement against the report that arrived."""
        found = _recorded(event)
        if found is None:
            return
        pending, self._pending = self._pending, None
        if pending is None:
            self.add(LAW, f"{type(event).__name__} is recorded and nothing had arrived")
            return
        if found[:4] != pending[:4]:
            self.add(LAW, f"{_described(pending)} arrived, recorded is {found[:4]}")
        if found.expected != pending.expected:
            self.add(LAW, f"{_described(pending)} is {found.expected}, expected {pending.expected}")


def _recorded(event: Any) -> Arrived | None:
    """The report that an event records, with the verdict it was given; None for events that record none."""
    match event:
        case e.RankTransferred() | e.TablesApplied() | e.RankStored():
            return Arrived(event.operation, event.rank, event.process_epoch, "completed", "applied")
        case e.TransferSettled() if event.outcome != "epoch_ended":
            return Arrived(event.operation, event.rank, event.process_epoch, event.outcome, "applied")
        case e.UploadAcknowledged() | e.RetainAcknowledged():
            return Arrived(event.operation, PRODUCER, event.process_epoch, "acknowledged", "applied")
        case e.AckIgnored() | e.AckRefused():
            return Arrived(event.operation, event.rank, event.process_epoch, event.outcome, event.verdict)
        case _:
            return None


def _described(report: Arrived) -> str:
    who = "the producer" if report.rank == PRODUCER else f"rank {report.rank}"
    return (
        f"{report.outcome} of {who}, process epoch {report.process_epoch}, on operation {report.operation.operation_id}"
    )
