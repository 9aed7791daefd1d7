"""Kills a ledger's writer at random moments and looks at what is left: for tests, and by hand before a release.

    python -m kvsweep.scenarios.verify.crash --kills 300 [--seed S] [--json]

A child writes batches that its seed gives and says over a pipe what is durable; the parent kills it. What it said must
be there, batch by batch and byte by byte; nothing torn is read; a new writer goes on. Then the write-ahead file of a
copy is cut or one bit of it is flipped: what is read is a prefix of whole batches or an error, and `repair` gives one.
"""

from __future__ import annotations

import argparse
import os
import select
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct

from kvsweep.ledger.errors import LogError
from kvsweep.ledger.events import CommandRefused, Event
from kvsweep.ledger.ids import RequestKey
from kvsweep.ledger.state import EMPTY
from kvsweep.ledger.store.log import Level, QueueBounds, Rotation, Snapshot
from kvsweep.ledger.store.open import open_log
from kvsweep.ledger.store.repair import repair

LONGEST_BATCH = 9
MOST_ACKS = 60  # before the kill
MOST_DELAY_S = 0.004  # after the last of them
QUEUE = QueueBounds(bytes=2**20, events=2**12)
WAYS: tuple[tuple[Level, str], ...] = (
    ("process", "inline"),
    ("power", "inline"),
    ("process", "thread"),
    ("power", "thread"),
)


class Outcome(Struct, kw_only=True):
    """What the kills left, added up. All but `lost`, `torn`, `refused` and `wrong` may be anything."""

    kills: int = 0
    acknowledged: int = 0  # events
    beyond: int = 0  # kills after which more was stored than had been acknowledged
    lost: int = 0  # events that were acknowledged and are gone
    torn: int = 0  # ledgers that did not end with a whole batch
    refused: int = 0  # ledgers that could not be read, or gone on with
    files: int = 0  # most files of one ledger
    cuts: int = 0  # tails cut or changed
    noticed: int = 0  # of those, by an error
    repaired: int = 0  # of those, by `repair`
    wrong: int = 0  # of those that gave events that were not written, or half a batch
    first_failure: str = ""

    @property
    def ok(self) -> bool:
        return not (self.lost or self.torn or self.refused or self.wrong)


def batches(seed: int) -> Iterator[list[Event]]:
    """Batches of 1 to 9 events of two requests, now and then with a body of 40 kB, the same for the same seed."""
    rng = np.random.default_rng(seed)
    numbers = {RequestKey("a-b", 1): 0, RequestKey("a", 2): 0}
    for _ in count():
        batch: list[Event] = []
        for _ in range(int(rng.integers(1, LONGEST_BATCH + 1))):
            key = list(numbers)[int(rng.integers(2))]
            size = 40_000 if rng.random() < 0.02 else int(rng.integers(0, 900))
            reason = bytes(rng.integers(97, 123, size=size, dtype=np.uint8)).decode()
            batch.append(CommandRefused(request=key, seq=numbers[key], command="c", state="s", reason=reason))
            numbers[key] += 1
        yield batch


def write(path: Path, seed: int, level: Level, writer: str, acks: int) -> None:
    """Append until killed, telling each durable position. Never returns by itself."""
    rotation = Rotation(snapshot_events=50, file_bytes=400_000 if seed % 2 else 2**40)
    log = open_log(f"sqlite:{path}", queue=QUEUE if writer == "thread" else None, rotation=rotation)

    def tell(position: int) -> None:
        os.write(acks, position.to_bytes(8, "little"))

    log.watch(tell)
    for batch in batches(seed):
        position = log.append(batch, level=level)
        if log.snapshot_due():  # the state does not matter here, what it begins does
            log.keep_snapshot(Snapshot(position=position, digest="", chain=b"", state=EMPTY))
        if log.full():
            log.flush()


def kill(path: Path, seed: int, level: Level, writer: str) -> int:
    """Last position that a writer acknowledged before it was killed at a moment that the seed gives."""
    rng = np.random.default_rng([seed, 1])
    wanted, delay = int(rng.integers(1, MOST_ACKS)), float(rng.random()) * MOST_DELAY_S
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        code = 1
        try:
            write(path, seed, level, writer, writing)
        except BaseException as error:  # noqa: BLE001 - said by the exit code: the child has no other voice
            os.write(2, f"the writer failed: {error!r}\n".encode())
        os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as told:
        acks = [told.read(8) for _ in range(wanted)]
        select.select([], [], [], delay)
        os.kill(child, signal.SIGKILL)
        rest = told.read()
    acks += [rest[at : at + 8] for at in range(0, len(rest) - len(rest) % 8, 8)]
    _, status = os.waitpid(child, 0)
    if os.WTERMSIG(status) != signal.SIGKILL:
        raise RuntimeError(f"seed {seed}: the writer ended by itself, with status {status}")
    return max(int.from_bytes(ack, "little") for ack in acks if len(ack) == 8)


def expected(seed: int, events: int) -> tuple[list[Event], set[int]]:
    """(the first events, the positions at which a batch ends)."""
    written: list[Event] = []
    ends = {0}
    for batch in batches(seed):
        if len(written) >= events:
            return written[:events], ends
        written += batch
        ends.add(len(written))
    raise AssertionError("the batches never end")


def read(path: Path) -> list[Event]:
    log = open_log(f"sqlite:{path}", read_only=True)
    try:
        found = [record.event for record in log.read()]
        damage = log.damage()
        if damage is not None:
            raise LogError(f"damage at position {damage[0]}: {damage[1]}")
        return found
    finally:
        log.close()


def one(folder: Path, seed: int, outcome: Outcome) -> None:
    """One kill, and what may happen to its files afterwards."""
    level, writer = WAYS[seed % len(WAYS)]
    path = folder / "ledger.db"
    where = f"seed {seed}, level {level}, writer {writer}"

    def failed(what: str) -> None:
        outcome.first_failure = outcome.first_failure or f"{where}: {what}"

    acknowledged = kill(path, seed, level, writer)
    outcome.kills += 1
    outcome.acknowledged += acknowledged
    damaged = folder / "damaged"
    damaged.mkdir()
    for file in folder.glob("ledger.db*"):
        if not file.name.endswith("-lock"):
            shutil.copy(file, damaged)
    outcome.files = max(outcome.files, len([file for file in damaged.iterdir() if not file.name.endswith(_BESIDE)]))
    try:
        found = read(path)
        written, ends = expected(seed, len(found))
        outcome.beyond += len(found) > acknowledged
        if len(found) < acknowledged:
            outcome.lost += acknowledged - len(found)
            failed(f"{acknowledged} acknowledged, {len(found)} found")
        if found != written or len(found) not in ends:
            outcome.torn += 1
            failed(f"{len(found)} events found that are no whole batches")
        log = open_log(f"sqlite:{path}")
        following = sum(event.request == RequestKey("a", 2) for event in found)
        more = CommandRefused(request=RequestKey("a", 2), seq=following, command="c", state="s", reason="after")
        log.append([more], expected=len(found))
        log.close()
        if read(path) != [*found, more]:
            raise LogError("what was appended afterwards is not read")
    except LogError as error:
        outcome.refused += 1
        failed(str(error))
        return
    _damage(damaged, seed, outcome, failed, len(found))


_BESIDE = ("-wal", "-shm", "-lock", "-new")


def _damage(folder: Path, seed: int, outcome: Outcome, failed: Callable[[str], None], stored: int) -> None:
    """Cut the newest file or its write-ahead file somewhere, or flip a bit of it, and read."""
    rng = np.random.default_rng([seed, 2])
    files = sorted(file for file in folder.iterdir() if not file.name.endswith(("-shm", "-lock", "-new")))
    victim = files[int(rng.integers(len(files)))]
    data = bytearray(victim.read_bytes())
    if not data:
        return
    at = int(rng.integers(len(data)))
    if rng.random() < 0.5:
        data = data[:at]
    else:
        data[at] ^= 1 << int(rng.integers(8))
    victim.write_bytes(bytes(data))
    outcome.cuts += 1
    path = folder / "ledger.db"
    try:
        found = read(path)
    except LogError:
        outcome.noticed += 1
        try:
            done = repair(str(path))
            found = read(path)
        except LogError:
            return  # the first file is no ledger any more: said, and left alone
        outcome.repaired += done.changed
    written, ends = expected(seed, len(found))
    if found != written or len(found) not in ends or len(found) > stored:
        outcome.wrong += 1
        failed(f"after damage to {victim.name} at byte {at}: {len(found)} events that are no whole batches")


def run(kills: int, seed: int) -> Outcome:
    """Kill as often, with seeds from this one on."""
    outcome = Outcome()
    for number in range(seed, seed + kills):
        with tempfile.TemporaryDirectory(prefix="kvsweep-crash-") as folder:
            one(Path(folder), number, outcome)
    return outcome


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m kvsweep.scenarios.verify.crash", description=__doc__.split("\n", 1)[0]
    )
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=20260916)
    parser.add_argument("--json", action="store_true", help="JSON on stdout")
    options = parser.parse_args(arguments)
    outcome = run(options.kills, options.seed)
    found = msgspec.structs.asdict(outcome)
    text = msgspec.json.encode(found).decode() if options.json else "\n".join(f"{k:>14} {v}" for k, v in found.items())
    sys.stdout.write(text + "\n")
    return 0 if outcome.ok else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
