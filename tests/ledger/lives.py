"""Lives of requests, written and folded, and the ledgers that they are written to."""

from collections.abc import Callable

from tests.ledger.small_run import LAYOUT, RANKS

from kvsweep.ledger import events as e
from kvsweep.ledger.events import Event
from kvsweep.ledger.fold import apply
from kvsweep.ledger.ids import POOL, RequestKey
from kvsweep.ledger.state import EMPTY, State
from kvsweep.ledger.store.digest import Digest
from kvsweep.ledger.store.log import LogStore, Rotation, Snapshot

NEVER = 10**15
EVERY_SNAPSHOT = Rotation(snapshot_events=1, file_bytes=1, keep_bytes=NEVER, keep_s=NEVER)


class Life:
    """Writes lives of requests, folds them, and keeps a snapshot when it is asked to."""

    def __init__(self, log: LogStore) -> None:
        self.log, self.state, self.digest, self.events = log, EMPTY, Digest(), list[Event]()
        self.emit(
            e.RunConfigured(
                request=POOL, seq=0, layout=LAYOUT, ranks=RANKS, producer_epoch=7, device_blocks=(8, 4),
                cpu_full_blocks=32, cpu_total_blocks=32, evidence="{}",
            )
        )  # fmt: skip

    def emit(self, *events: Event) -> None:
        self.log.append(events)
        for event in events:
            self.state = apply(self.state, event)
            self.digest.update(event)
            self.events.append(event)

    def open(self, name: str) -> None:
        self.emit(e.RequestOpened(request=RequestKey(name, 1), seq=0, pool_generation=1, rows=2))

    def note(self, name: str, count: int = 1) -> None:
        key = RequestKey(name, 1)
        for _ in range(count):
            seq = self.state.requests[name].seq
            self.emit(e.CommandRefused(request=key, seq=seq, command="c", state="s", reason="r" * 200))

    def end(self, name: str) -> None:
        key, seq = RequestKey(name, 1), self.state.requests[name].seq
        self.emit(e.RequestFinished(request=key, seq=seq), e.RequestClosed(request=key, seq=seq + 1))

    def snapshot(self) -> Snapshot:
        return Snapshot(
            position=len(self.events),
            digest=self.digest.value(self.state),
            chain=self.digest.chain,
            state=self.state,
        )

    def keep(self) -> None:
        self.log.keep_snapshot(self.snapshot())


Make = Callable[..., Life]


def fold(log: LogStore) -> tuple[State, str]:
    """As a reader does who knows nothing but the ledger."""
    snapshot = log.snapshot(max(log.header.first - 1, 0)) if log.header.first > 1 else None
    state = EMPTY if snapshot is None else snapshot.state
    digest = Digest(b"" if snapshot is None else snapshot.chain)
    for record in log.read(after=0 if snapshot is None else snapshot.position):
        state = apply(state, record.event)
        digest.update(record.event)
    return state, digest.value(state)
