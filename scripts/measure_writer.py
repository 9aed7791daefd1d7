"""What a ledger's writer thread costs a serving thread that computes: row by row, and in one statement.

    python scripts/measure_writer.py [BATCHES]

The serving thread runs pure Python without a pause and hands over a batch every 10 ms. For each way of storing: how
long a group takes beside it, the longest pause of the serving thread, and its loss against encoding alone. The
contenders take turns, the medians of the rounds are printed, and a number only means something beside the others.
"""

import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from kvsweep.ledger.codec import encode_batch
from kvsweep.ledger.event_base import Event
from kvsweep.ledger.events import CommandRefused
from kvsweep.ledger.ids import RequestKey
from kvsweep.ledger.sqlite import SqliteLog
from kvsweep.ledger.store import Level, Position, QueueBounds
from kvsweep.ledger.store_format import row_of
from kvsweep.ledger.store_queue import QueuedLog

ROWS = 160  # a batch: 16,000 events a second
EVERY_S = 0.01
ROUNDS = 5
SPIN = 2000  # turns of the loop between two looks at the clock


class RowByRow(SqliteLog):
    """As a database binding is used everywhere."""

    def append_encoded(self, batch: Sequence[Event], bodies: Sequence[bytes], *, level: Level) -> Position:
        db = self._expect_open()
        numbers, new = self._names.assign(event.request.request_id for event in batch)
        db.execute("BEGIN IMMEDIATE")
        db.executemany("INSERT INTO requests (rid, id) VALUES (?, ?)", new)
        rows = [
            row_of(position, numbers[event.request.request_id], event, body)
            for position, (event, body) in enumerate(zip(batch, bodies, strict=True), self._last + 1)
        ]
        db.executemany("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
        db.execute("COMMIT")
        self._names.keep(numbers, new)
        self._last += len(batch)
        return self._last


class Timed:
    """Seconds of every commit."""

    def __init__(self, kind: type[SqliteLog]) -> None:
        self.seconds: list[float] = []
        timed = self.seconds

        class Store(kind):  # type: ignore[misc, valid-type]
            def append_encoded(self, batch: Sequence[Event], bodies: Sequence[bytes], *, level: Level) -> Position:
                started = time.perf_counter()
                position: Position = super().append_encoded(batch, bodies, level=level)
                timed.append(time.perf_counter() - started)
                return position

        self.kind: type[SqliteLog] = Store


def compute() -> int:
    total = 0
    for number in range(SPIN):
        total += number & 7
    return total


def serve(log: QueuedLog | None, batches: int) -> tuple[float, float]:
    """(turns of the loop a second, longest pause between two in seconds). Without a log it encodes and drops."""
    key, seq, turns, longest = RequestKey("r", 1), 0, 0, 0.0
    started = before = time.perf_counter()
    due = started
    while seq < batches * ROWS:
        compute()
        turns += 1
        now = time.perf_counter()
        longest, before = max(longest, now - before), now
        if now >= due:
            due += EVERY_S
            batch = [
                CommandRefused(request=key, seq=seq + n, command="c", state="s", reason="r" * 460) for n in range(ROWS)
            ]
            if log is None:
                encode_batch(batch)
            else:
                log.append(batch, level="power")
            seq += ROWS
    return turns / (time.perf_counter() - started), longest


def measure(kind: type[SqliteLog] | None, batches: int) -> tuple[float, ...]:
    """(turns/s, longest pause ms, group p50 ms, group max ms, events behind at the end)."""
    if kind is None:
        turns, pause = serve(None, batches)
        return turns, pause * 1000, 0.0, 0.0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        path, timed = str(Path(folder) / "ledger.db"), Timed(kind)
        store = timed.kind(path, any_thread=True)
        log = QueuedLog(store, reader=lambda: SqliteLog(path, read_only=True), bounds=QueueBounds())
        turns, pause = serve(log, batches)
        behind = batches * ROWS - log.durable()
        log.close()
    return turns, pause * 1000, statistics.median(timed.seconds) * 1000, max(timed.seconds) * 1000, float(behind)


def main() -> None:
    batches = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    contenders = {"encode only": None, "one statement": SqliteLog, "row by row": RowByRow}
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in contenders}
    for _ in range(ROUNDS):
        for name, kind in contenders.items():
            found[name].append(measure(kind, batches))
    print(f"SQLite {sqlite3.sqlite_version}, {ROUNDS} rounds of {batches} batches of {ROWS} events every 10 ms")
    print(f"{'':>14} {'turns/s':>9} {'loss':>7} {'pause ms':>9} {'group p50':>10} {'group max':>10} {'behind':>8}")
    alone = statistics.median(row[0] for row in found["encode only"])
    for name, rows in found.items():
        turns, pause, middle, most, behind = (statistics.median(column) for column in zip(*rows, strict=True))
        loss = 1 - turns / alone
        print(f"{name:>14} {turns:9.0f} {loss:7.1%} {pause:9.1f} {middle:10.1f} {most:10.1f} {behind:8.0f}")


if __name__ == "__main__":
    main()
