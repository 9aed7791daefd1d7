"""Writes a ledger of a million events, or asks one that is there every question of `kvsweep log` and measures each.

python scripts/large_ledger.py write PATH [--events N] [--requests N]
python scripts/large_ledger.py ask PATH

The events are those of real lives (a short soak), told again under other ids, operations and blocks, many at a time.
Every one is folded, so that its digests and snapshots are those of a coordinator.
"""

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_type_hints

import anyio
import numpy as np
from msgspec.structs import replace

from kvsweep.ledger import events as e
from kvsweep.ledger.events import BlocksByGroup, Event
from kvsweep.ledger.fold import apply
from kvsweep.ledger.ids import POOL, Operation, Physical, RequestKey, Rows, Source, int32_bytes, int32_view
from kvsweep.ledger.inspect.lives import OPENS_OPERATION
from kvsweep.ledger.state import EMPTY
from kvsweep.ledger.store.digest import Digest
from kvsweep.ledger.store.log import Snapshot
from kvsweep.ledger.store.open import open_log
from kvsweep.scenarios.verify import soak

LAYERS, BLOCKS, ROUNDS = 8, 32, 60
BATCH, DIGEST_EVERY = 18, 200  # events
BLOCKS_OF_GROUP = ("reserved", "freed", "physical_by_group")


class Template(soak.Soak):
    """One request's lives, one after another, with every event heard."""

    def __init__(self) -> None:
        soak.LAYERS, soak.BLOCKS = LAYERS, BLOCKS
        super().__init__(requests=1, rounds=ROUNDS, ranks=2, seed=20260916)
        self.heard: list[Event] = []

    async def _request(self, index: int) -> None:
        self.driver.watch(self.heard.append)
        await super()._request(index)

    def whole_lives(self) -> list[list[Event]]:
        """Whole lives, each with an acknowledgement in five said twice."""
        found: dict[RequestKey, list[Event]] = {}
        for event in self.heard:
            if event.request != POOL:
                life = found.setdefault(event.request, [])
                life.append(event)
                if isinstance(event, e.RankTransferred) and event.operation.operation_id % 5 == 0:
                    life.append(said_again(event))
        return [life for life in found.values() if isinstance(life[-1], e.RequestClosed)]


def said_again(event: e.RankTransferred) -> Event:
    rule = "rank already recorded with this outcome"
    return e.AckIgnored(
        request=event.request, seq=0, operation=event.operation, rank=event.rank, process_epoch=event.process_epoch,
        outcome="completed", verdict="duplicate", rule=rule,
    )  # fmt: skip


class Life:
    """One life told again in a place of its own: its blocks, CPU blocks and operations are moved there."""

    def __init__(self, events: list[Event], key: RequestKey, blocks: int, sources: int) -> None:
        self.left, self.key, self.blocks, self.sources = iter(events), key, blocks, sources
        self.seq, self.operations = 0, dict[int, int]()

    def batch(self, following: int) -> tuple[list[Event], int]:
        """The next events, and the number of the next operation."""
        found: list[Event] = []
        for event in self.left:
            operation: Operation | None = getattr(event, "operation", None)
            if isinstance(event, OPENS_OPERATION) and operation is not None:
                self.operations[operation.operation_id] = following
                following += 1
            found.append(self._moved(event))
            if len(found) == BATCH:
                break
        return found, following

    def _moved(self, event: Event) -> Event:
        changes: dict[str, Any] = {"request": self.key, "seq": self.seq}
        self.seq += 1
        for name, kind in HINTS[type(event)].items():
            value = getattr(event, name)
            if kind is Operation:
                number = self.operations[value.operation_id]
                changes[name] = replace(value, request=self.key, operation_id=number)
            elif kind == Rows[Physical]:
                changes[name] = replace(value, id_bytes=moved(value.id_bytes, self.blocks))
            elif kind == Rows[Source]:
                changes[name] = replace(value, id_bytes=moved(value.id_bytes, self.sources))
            elif name in BLOCKS_OF_GROUP and kind == BlocksByGroup:
                changes[name] = tuple(moved(ids, self.blocks) for ids in value)
            elif name == "physical_by_group":
                changes[name] = moved(value, self.blocks)
            elif name == "source":
                changes[name] = moved(value, self.sources)
        return replace(event, **changes)


HINTS = {kind: get_type_hints(kind) for kind in e.AnyEvent.__args__}


def moved(ids: bytes, by: int) -> bytes:
    return int32_bytes(int32_view(ids) + np.int32(by)) if ids else ids


def told(template: Template, requests: int, floor: Callable[[], int]) -> Iterator[list[Event]]:
    """Batches without end, begun with the configuration: `requests` lives at a time, each in its own blocks.

    floor  highest epoch of the lives that are forgotten: the next life begins above it
    """
    run = template.driver.state.pool.run
    if run is None:
        raise SystemExit("the soak recorded no configuration")
    size = run.device_blocks[0]
    pool = {
        "device_blocks": (size * requests,),
        "cpu_full_blocks": size * requests,
        "cpu_total_blocks": size * requests,
    }
    yield [replace(run, seq=0, **pool)]
    lives, following, begun = template.whole_lives(), 1, 0
    places: list[Life | None] = [None] * requests
    while True:
        for place in range(requests):
            life = places[place]
            batch, following = life.batch(following) if life else ([], following)
            if not batch:
                key = RequestKey(f"request/{begun}", floor() + 1)
                places[place] = life = Life(lives[begun % len(lives)], key, place * size, place * size)
                begun += 1
                batch, following = life.batch(following)
            yield batch


def write(path: str, events: int, requests: int) -> None:
    template = Template()
    anyio.run(template.run)
    log, state, digest = open_log(f"sqlite:{path}"), EMPTY, Digest()
    group: list[Event] = []
    floor = [0]
    position, recorded, started = 0, 0, time.perf_counter()
    for batch in told(template, requests, lambda: floor[0]):
        if position - recorded >= DIGEST_EVERY:
            seq, recorded = state.pool.seq, position
            value = digest.value(state)
            batch = [*batch, e.DigestRecorded(request=POOL, seq=seq, position=position, digest=value)]
            if log.snapshot_due():
                log.append(group, level="process")
                group = []
                log.keep_snapshot(Snapshot(position=position, digest=value, chain=digest.chain, state=state))
        for event in batch:
            state = apply(state, event)
            digest.update(event)
        floor[0] = state.pool.epoch_floor
        position += len(batch)
        group += batch
        if len(group) >= 160 or position >= events:
            log.append(group, level="process")
            group = []
        if position >= events:
            break
    log.close()
    print(f"{position} events in {time.perf_counter() - started:.0f} s")


def ask(path: str) -> None:
    from kvsweep.ledger.inspect.replay import Ledger

    with Ledger.open(f"sqlite:{path}") as ledger:
        last = ledger.last()
        middle = next(ledger.events(types=["BlocksLeased"], after=last // 2))
        ack = next(ledger.events(types=["AckIgnored"], after=last * 3 // 4))
        request = middle.event.request.request_id
        opened = next(ledger.events(types=["TailOpened"], after=last // 2)).event
        block = int(int32_view(getattr(opened, "physical_by_group"))[0])  # noqa: B009 - of that type alone
        times = [one.time / 1e6 for one in (middle, ack)]
    stamp = [time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(one)) for one in times]
    questions: list[list[object]] = [
        ["requests"],
        ["requests", "--request", request],
        ["events", "--limit", 100],
        ["events", "--request", request],
        ["events", "--type", "RequestFinished"],
        ["events", "--operation", getattr(middle.event, "operation").operation_id],  # noqa: B009
        ["events", "--rank", 1],
        ["events", "--block", f"0:{block}"],
        ["events", "--since", stamp[0], "--before", stamp[1], "--type", "AckIgnored"],
        ["tail"],
        ["explain", ack.position],
        ["explain", middle.position],
        ["explain", "--type", "RetainPlanned"],
        ["why-block", f"0:{block}"],
        ["why-block", f"0:{block}", "--at", last // 2],
        ["replay"],
        ["replay", "--until", last // 2],
        ["replay", "--until", last // 2, "--request", request],
        ["stats"],
        ["diff", path],
    ]
    for verb, *options in questions:
        command = [Path(sys.executable).with_name("kvsweep"), "log", verb, path, *options, "--json"]
        found = []
        for _ in range(3):
            before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
            subprocess.run([str(word) for word in command], check=True, capture_output=True)
            wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
            found.append((wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))
        wall, cpu = min(one for one, _ in found), min(one for _, one in found)
        print(f"{wall:6.2f} s  {cpu:6.2f} s of CPU  {verb} {' '.join(map(str, options))}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["write", "ask"])
    parser.add_argument("path")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--requests", type=int, default=32)
    chosen = parser.parse_args()
    if chosen.what == "write":
        write(chosen.path, chosen.events, chosen.requests)
    else:
        ask(chosen.path)


if __name__ == "__main__":
    main()
