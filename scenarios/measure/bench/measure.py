"""How a row is measured: every contender in turn, round after round, in one process; the minimum counts."""

from __future__ import annotations

import ctypes
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from kvsweep.kernels import _native

UInt8 = npt.NDArray[np.uint8]
Call = Callable[[], object]

Clock = Literal["wall", "cpu"]
CLOCKS: dict[Clock, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.thread_time}
LONG_ENOUGH_S = 1e-3  # a shorter call is repeated, so that reading the clock does not count


@dataclass(frozen=True, slots=True)
class Case:
    """One path at one size: what is measured, against what, and which of the machine's limits holds for it.

    ours   the call of the native kernel, and what it must equal, checked once before anything is measured
    peers  name -> call
    reads  arrays that every correct implementation must read at least once
    copy   source and destination of a copy as large as the result, apart from the case's own memory
    limit  which of the two limits `of_limit` compares with
    """

    path: str
    size: str
    ours: Call
    check: Callable[[], bool]
    peers: dict[str, Call]
    reads: Sequence[npt.NDArray[Any]]
    copy: tuple[UInt8, UInt8]
    limit: Literal["stream copy", "one read"]


class Row(Struct, frozen=True, kw_only=True):
    """Ours against one peer. Times are milliseconds, minima of the same rounds; bytes are resident memory."""

    path: str
    size: str
    ours_ms: float
    peer: str
    peer_ms: float
    ratio: float  # peer_ms / ours_ms
    limit: str
    limit_ms: float
    of_limit: float  # limit_ms / ours_ms
    memcpy_ms: float  # a copy of the result's size
    stream_copy_ms: float  # the same past the caches
    read_ms: float  # one read of the inputs
    ours_peak_bytes: int | None  # above the start of the call, its result included; None where it cannot be read
    peer_peak_bytes: int | None
    threads: int = 1


def rows_of(case: Case, *, rounds: int, isa: int, threads: int = 1, clock: Clock = "wall") -> Iterator[Row]:
    """Check, measure and yield one row a peer. Raises AssertionError where ours gives another result."""
    if not case.check():
        raise AssertionError(f"{case.path} {case.size}: the native kernel gives another result than the reference")
    source, target = case.copy
    flat = [array.reshape(-1).view(np.uint8) for array in case.reads]

    def read() -> None:
        for array in flat:
            _native.read_all(array, isa)

    best = race(
        {
            "ours": case.ours,
            "memcpy": lambda: np.copyto(target, source),
            "stream copy": lambda: _native.stream_copy(source, target, isa),
            "one read": read,
            **{f"peer {name}": call for name, call in case.peers.items()},
        },
        rounds=rounds,
        clock=clock,
    )
    ours_peak = peak_bytes(case.ours)
    for name, call in case.peers.items():
        ours, peer, limit = best["ours"], best[f"peer {name}"], best[case.limit]
        yield Row(
            path=case.path,
            size=case.size,
            ours_ms=ours * 1e3,
            peer=name,
            peer_ms=peer * 1e3,
            ratio=peer / ours,
            limit=case.limit,
            limit_ms=limit * 1e3,
            of_limit=limit / ours,
            memcpy_ms=best["memcpy"] * 1e3,
            stream_copy_ms=best["stream copy"] * 1e3,
            read_ms=best["one read"] * 1e3,
            ours_peak_bytes=ours_peak,
            peer_peak_bytes=peak_bytes(call),
            threads=threads,
        )


def race(contenders: dict[str, Call], *, rounds: int, clock: Clock = "wall") -> dict[str, float]:
    """Seconds a call, the minimum over the rounds. In each round every contender runs once, in the same order."""
    now = CLOCKS[clock]
    repeats = {}
    for name, call in contenders.items():
        took = _time(call, 1, now)
        repeats[name] = 1 if took > LONG_ENOUGH_S else max(1, int(LONG_ENOUGH_S / max(_time(call, 3, now), 1e-7)))
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(rounds):
        for name, call in contenders.items():
            best[name] = min(best[name], _time(call, repeats[name], now))
    return best


def _time(call: Call, repeats: int, now: Callable[[], float]) -> float:
    started = now()
    for _ in range(repeats):
        call()
    return (now() - started) / repeats


@contextmanager
def one_core(threads: int) -> Iterator[None]:
    """Keep this process on as many cores as threads are measured, so that no contender moves while it runs."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[-threads:])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def peak_bytes(call: Call) -> int | None:
    """Resident memory that one call adds at its highest, in a thread of its own so that scratch counts too.

    Includes the result if it is new memory, and what a library keeps for later calls. None where the system does not
    let the high-water mark be reset.
    """
    status, clear = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    try:
        ctypes.CDLL(None).malloc_trim(0)
        clear.write_text("5")
    except (OSError, AttributeError):
        return None
    before = _kilobytes(status, "VmRSS")
    worker = threading.Thread(target=call)
    worker.start()
    worker.join()
    return max(0, _kilobytes(status, "VmHWM") - before) * 1024


def _kilobytes(status: Path, name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+)", status.read_text())
    return int(found[1]) if found else 0


def aligned(shape: tuple[int, ...], dtype: type[np.generic] = np.uint8) -> npt.NDArray[Any]:
    """New memory, touched, at a multiple of 64 bytes: what pools and staging buffers are in a server."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    room = np.zeros(size + 64, dtype=np.uint8)
    start = -room.ctypes.data % 64
    room[...] = 1
    return room[start : start + size].view(dtype).reshape(shape)


def copy_of(size: int) -> tuple[UInt8, UInt8]:
    """Source and destination for the copies that a result of `size` bytes is compared with."""
    return aligned((max(size, 1),)), aligned((max(size, 1),))
