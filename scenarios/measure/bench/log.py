"""The ledger against the disk and its peers: what an append costs, a commit, a replay, a look and an opening."""

from __future__ import annotations

import gc
import os
import platform
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from kvsweep.ledger.events import Event
from kvsweep.ledger.fold import apply
from kvsweep.ledger.state import EMPTY, State
from kvsweep.ledger.store.codec import decode_group, encode_batch, encode_group
from kvsweep.ledger.store.digest import Digest
from kvsweep.ledger.store.encoding import encode_part, why_not_native
from kvsweep.ledger.store.folding import Folding
from kvsweep.ledger.store.log import Piece, Snapshot
from kvsweep.ledger.store.open import open_log
from kvsweep.ledger.store.sqlite import SqliteLog
from kvsweep.runtime.recovery import fold_log
from kvsweep.scenarios.measure.bench.log_busy import NO_BOUND, Done, Ledger, Nothing, Threaded, serve
from kvsweep.scenarios.measure.bench.log_events import batches, endless, life_key, plain_lives, rounds, rounds_of
from kvsweep.scenarios.measure.bench.log_peers import (
    APPLICATION,
    RECORDER,
    Application,
    Raw,
    Recorder,
    RowByRow,
    available,
)
from kvsweep.scenarios.measure.bench.measure import CLOCKS, Clock

SEED = 20260916
GROUP = 160
"""Events that are stored together: what gathers in a few milliseconds at 30,000 events a second."""


class Sizes(Struct, frozen=True):
    rounds: int = 5  # repetitions, interleaved over the contenders
    appended: int = 40_000  # events a rate
    groups: int = 60  # groups of GROUP events a round
    lives: int = 10_000
    life: int = 100  # events of a life
    peer_lives: int = 2_000
    requests: int = 64  # of the recorded run


class LogRow(Struct, frozen=True, kw_only=True):
    """Ours against one peer, medians or the named quantile over the same rounds of one run.

    `limit` is the goal in words and `limit_ms` the most that ours may take by it; 1 and more of `of_limit` meets it.
    """

    path: str
    size: str
    ours_ms: float
    peer: str
    peer_ms: float
    ratio: float  # peer_ms / ours_ms
    limit: str
    limit_ms: float
    of_limit: float  # limit_ms / ours_ms


class LogReport(Struct, frozen=True, kw_only=True):
    """`figures` has what is no time: bytes, events a second and losses. `not_run` says why a peer was left out."""

    machine: dict[str, str | int]
    rows: list[LogRow]
    figures: dict[str, float]
    not_run: dict[str, str]


QUICK = Sizes(rounds=1, appended=2_000, groups=4, lives=40, life=20, peer_lives=10, requests=2)


class LogBench:
    """One run. Everything happens in a folder of its own, on the disk where temporary files are."""

    def __init__(self, sizes: Sizes, *, clock: Clock, progress: Callable[[str], None], folder: str | None) -> None:
        self._sizes, self._now, self._progress, self._folder = sizes, CLOCKS[clock], progress, folder
        self._run = rounds(3, requests=sizes.requests, layers=32, keep=18, seed=SEED)
        self._large = rounds(3, requests=2, layers=80, keep=512, seed=SEED)
        self.rows: list[LogRow] = []
        self.figures: dict[str, float] = {}
        self.not_run: dict[str, str] = {}

    def run(self) -> None:
        for step in (self._appends, self._beside_a_busy_thread, self._throughput, self._replay, self._million):
            self._progress(step.__name__.strip("_").replace("_", " "))
            gc.collect()
            step()

    # ---- what the serving thread pays

    def _appends(self) -> None:
        for rate in (30_000, 100_000):
            with self._place() as folder:
                log = open_log(f"sqlite:{folder / 'ledger.db'}", queue=NO_BOUND)
                ours = self._paced(rate, log.append)
                log.close()
            alone = self._paced(rate, _encode_only)
            for name, part, limit in (("p50", 0.5, 1e-6), ("p99", 0.99, 5e-6)):
                self._row(
                    f"append, {name} an event", f"turns of 1 to 4 events, {rate:,} events/s", _at(ours, part),
                    "encode only", _at(alone, part), f"{limit * 1e6:g} µs", limit,
                )  # fmt: skip

    def _paced(self, rate: int, append: Callable[[Sequence[Event]], object]) -> list[float]:
        """Seconds an event of every round of 18 events, at this rate, on a thread that does nothing else."""
        turns = list(islice(rounds_of(self._run.turns), self._sizes.appended // 18))
        taken, due = [], time.perf_counter()
        for turn in turns:
            due += sum(map(len, turn)) / rate
            while time.perf_counter() < due:
                pass
            started = self._now()
            for batch in turn:
                append(batch)
            taken.append((self._now() - started) / sum(map(len, turn)))
        return sorted(taken)

    def _beside_a_busy_thread(self) -> None:
        makers: dict[str, Callable[[Path], Callable[[Done], Any]]] = {
            "ours": lambda folder: lambda done: Ledger(folder, done),
            "encode only": lambda folder: lambda done: Nothing(),
            "a row an event": lambda folder: lambda done: Threaded(RowByRow(folder), done),
            RECORDER: lambda folder: lambda done: Threaded(Recorder(folder), done),
        }
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in makers}
        for _ in range(self._sizes.rounds):
            for name, make in makers.items():
                with self._place() as folder:
                    try:
                        groups = batches(endless(self._run.turns), GROUP)
                        found[name].append(serve(make(folder), groups, self._sizes.groups))
                    except ImportError as error:
                        self.not_run[name] = str(error)
        took = {name: statistics.median(one[0] for one in rows) for name, rows in found.items() if rows}
        rates = {name: statistics.median(one[1] for one in rows) for name, rows in found.items() if rows}
        size = f"{GROUP} events every 10 ms, serving thread 100 % busy"
        for name in ("a row an event", RECORDER):
            if name in took:
                self._row("commit beside", size, took["ours"], name, took[name], "15 ms", 15e-3)
        alone = 1 / rates["encode only"]
        for name in ("encode only", "a row an event", RECORDER):
            if name in rates:
                self._row(
                    "turn of the busy loop", size, 1 / rates["ours"], name, 1 / rates[name], "5 % loss", 1.05 * alone
                )
        self.figures["loss of the busy loop"] = 1 - rates["ours"] / rates["encode only"]

    # ---- what the disk takes

    def _throughput(self) -> None:
        for name, turns, groups in (
            ("500 B events", self._run.turns, self._sizes.groups),
            ("82 kB bodies", self._large.turns, max(2, self._sizes.groups // 10)),
        ):
            made = [(group, encode_batch(group)) for group in islice(batches(endless(turns), GROUP), groups)]
            payload = sum(len(body) for _, bodies in made for body in bodies)
            took: dict[str, list[float]] = {}
            cpu: dict[str, list[float]] = {}
            for _ in range(self._sizes.rounds):
                with self._place() as folder:
                    peers, missing = available(
                        {"write + fdatasync": Raw, RECORDER: Recorder, APPLICATION: Application}, folder
                    )
                    self.not_run |= missing
                    path = folder / "ledger.db"
                    ours = SqliteLog(str(path))
                    for label, store in {"ours": None, **peers}.items():
                        started, worked = time.perf_counter(), time.thread_time()
                        for group, bodies in made:
                            if store is None:
                                ours.append(group, level="power")
                            else:
                                store.store(group, bodies)
                        took.setdefault(label, []).append((time.perf_counter() - started) / len(made))
                        cpu.setdefault(label, []).append((time.thread_time() - worked) / len(made))
                    ours.close()
                    for store in peers.values():
                        store.close()
                    self.figures[f"disk bytes a payload byte, {name}"] = path.stat().st_size / payload
            self.figures[f"events/s durable, {name}"] = GROUP / _median(took["ours"])
            self.figures[f"of raw write + fdatasync, {name}"] = _median(took["write + fdatasync"]) / _median(
                took["ours"]
            )
            size = f"{GROUP} {name}, {payload / len(made) / GROUP:,.0f} B each"
            raw, limits = _median(took["write + fdatasync"]), {RECORDER: 1.2, APPLICATION: 5.0}
            self._row("durable group", size, _median(took["ours"]), "write + fdatasync", raw, "0.20 of raw", raw / 0.2)
            for label, factor in limits.items():
                if label in took:
                    peer = min(cpu[label])
                    self._row(
                        "CPU of a durable group", size, min(cpu["ours"]), label, peer, f"{factor} × it", peer / factor
                    )
                    peer = _median(took[label])
                    self._row(
                        "durable group", size, _median(took["ours"]), label, peer, f"{factor} × it", peer / factor
                    )

    # ---- looking back

    def _replay(self) -> None:
        """Decode and fold of the recorded run, from bodies in memory; to hand the state over is another matter."""
        groups = list(batches(iter(self._run.turns), min(GROUP, sum(map(len, self._run.turns)))))
        made = [encode_group(group).data for group in groups]
        count = sum(map(len, groups))
        folded, decoded, reference, handed = [], [], [], []
        for _ in range(self._sizes.rounds):
            started = self._now()
            for body in made:
                decode_group(body)
            decoded.append(self._now() - started)
            state, started = EMPTY, self._now()
            for body in made:
                for event in decode_group(body) or ():
                    state = apply(state, event)
            reference.append(self._now() - started)
            folding, started = Folding(), self._now()
            for body, group in zip(made, groups, strict=True):
                folding.take(_piece(folding.position + 1, body, group))
            folded.append(self._now() - started)
            started = self._now()
            found = folding.state
            handed.append(self._now() - started)
            if found != state:
                raise AssertionError("the two forms of the fold give different states")
        ours, alone = min(folded), min(decoded)
        self.figures["events/s decoded"] = count / alone
        self.figures["events/s decoded and folded"] = count / ours
        self.figures["events/s decoded and folded by the reference"] = count / min(reference)
        self.figures["ms to hand the folded state over"] = min(handed) * 1e3
        size = f"{count:,} events of rounds"
        for peer, theirs in (("decode only", alone), ("the reference", min(reference))):
            self._row("replay", size, ours, peer, theirs, "1,000,000 events/s", count * 1e-6)

    def _million(self) -> None:
        """Many lives of plain facts: opening, recovering, and one life among them."""
        sizes = self._sizes
        with self._place() as folder:
            path = str(folder / "ledger.db")
            count = self._write_lives(path)
            label = f"{count:,} events, {sizes.lives:,} lives"
            taken = []
            for _ in range(max(1, sizes.rounds - 2)):
                started = time.perf_counter()
                log = open_log(f"sqlite:{path}")
                folded = fold_log(log)
                taken.append(time.perf_counter() - started)
                log.close()
            if len(folded.state.requests) < 1:
                raise AssertionError("the recovered state is empty")
            whole = time.perf_counter()
            Path(path).read_bytes()
            whole = time.perf_counter() - whole
            self._row("open and recover", label, _median(taken), "reading the file", whole, "1 s", 1.0)
            self._one_life(path, folder, label)

    def _write_lives(self, path: str) -> int:
        """Lives that run side by side, 160 events a group; a snapshot as the defaults have it."""
        log, state, digest, group, written = SqliteLog(path), EMPTY, Digest(), list[Event](), 0

        def store(state: State) -> None:
            log.append_parts([encode_part(group)], level="process")
            log.pace.added(len(group), 500 * len(group))
            if log.snapshot_due():
                log.keep_snapshot(
                    Snapshot(position=log.durable(), digest=digest.value(state), chain=digest.chain, state=state)
                )
            group.clear()

        for event in plain_lives(self._sizes.lives, self._sizes.life, self._run.turns[0][0]):
            state = apply(state, event)
            digest.update(event)
            group.append(event)
            written += 1
            if len(group) == GROUP:
                store(state)
        store(state)
        log.close()
        return written

    def _one_life(self, path: str, folder: Path, label: str) -> None:
        sizes = self._sizes
        log = open_log(f"sqlite:{path}", read_only=True)
        log.durable()
        keys = [life_key(number * 7919 % sizes.lives) for number in range(min(200, sizes.lives))]
        taken = []
        for key in keys:
            started = time.perf_counter()
            found = list(log.read(key))
            taken.append(time.perf_counter() - started)
            if len(found) != sizes.life:
                raise AssertionError(f"expected {sizes.life} events of {key}, got {len(found)}")
        log.close()
        try:
            peer = Recorder(folder)
        except ImportError as error:
            self.not_run[RECORDER] = str(error)
            self._row("one life", label, _median(taken), "none", _median(taken), "1 ms", 1e-3)
            return
        events = plain_lives(sizes.peer_lives, sizes.life, self._run.turns[0][0])
        for group in batches(([event] for event in events), 4096):
            peer.store(group, encode_batch(group))
        theirs = []
        for key in keys[: sizes.peer_lives]:
            name = life_key(int(key.request_id.removeprefix("life-")) % sizes.peer_lives).request_id
            started = time.perf_counter()
            peer.read(name)
            theirs.append(time.perf_counter() - started)
        peer.close()
        self._row(
            "one life", label, _median(taken), f"{RECORDER}, {sizes.peer_lives:,} lives", _median(theirs), "1 ms", 1e-3
        )

    # ---- inside

    @contextmanager
    def _place(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(dir=self._folder, prefix="kvsweep-bench-") as folder:
            yield Path(folder)

    def _row(self, path: str, size: str, ours: float, peer: str, theirs: float, limit: str, limit_s: float) -> None:
        self.rows.append(
            LogRow(
                path=path,
                size=size,
                ours_ms=ours * 1e3,
                peer=peer,
                peer_ms=theirs * 1e3,
                ratio=theirs / ours,
                limit=limit,
                limit_ms=limit_s * 1e3,
                of_limit=limit_s / ours,
            )
        )


def _piece(first: int, body: bytes, events: Sequence[Event]) -> Piece:
    return Piece(first, len(events), body, lambda: (decode_group(body) or [], None))


def _encode_only(events: Sequence[Event]) -> object:
    return [_ENCODER.encode(event) for event in events]


_ENCODER = msgspec.msgpack.Encoder()


def _median(values: list[float]) -> float:
    return statistics.median(values)


def _at(ordered: list[float], part: float) -> float:
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def run_log_bench(
    *, quick: bool, rounds: int, clock: Clock = "wall", progress: Callable[[str], None] = lambda step: None,
    folder: str | None = None,
) -> LogReport:  # fmt: skip
    """Measure. Needs about 2 GiB in `folder` (None: where temporary files are), and the extra 'bench' for two peers.

    clock  of what the serving thread pays; everything that waits for a disk or another thread is wall time
    """
    sizes = QUICK if quick else Sizes(rounds=min(rounds, 5))
    bench = LogBench(sizes, clock=clock, progress=progress, folder=folder)
    bench.run()
    return LogReport(
        machine={
            "cores": os.cpu_count() or 0,
            "python": platform.python_version(),
            "sqlite": sqlite3.sqlite_version,
            "system": f"{platform.system()} {platform.release()}",
            "seed": SEED,
            "clock": clock,
            "rounds": sizes.rounds,
            "ledger": "python" if why_not_native() else "native",
        },
        rows=bench.rows,
        figures=bench.figures,
        not_run=bench.not_run,
    )
