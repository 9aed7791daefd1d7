"""Random queues of transfers, moves, stores and cancels against a table of bytes that knows no stream."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

MakeWorld = Callable[..., Any]
Area = tuple[int, int]
GROUP = {0: 0, 1: 1, 2: 0, 3: 2, 4: 2}
ACTIVE = (0, 2, 3, 4)
BLOCKS, SOURCES = 10, 12


@dataclass
class Plan:
    """One queued operation in plain lists, and what it must not share with others while it is open."""

    work: Any
    copies: list[tuple[str, Area, str, Area]]  # from side, (layer, block), to side, (layer, block)
    figure: str
    table: dict[int, list[int]] | None
    reads: set[tuple[str, Area]] = field(init=False)
    writes: set[tuple[str, Area]] = field(init=False)

    def __post_init__(self) -> None:
        self.reads = {(side, area) for side, area, _, _ in self.copies}
        self.writes = {(side, area) for _, _, side, area in self.copies}

    def clashes(self, other: "Plan") -> bool:
        return bool(self.writes & (other.writes | other.reads) or self.reads & other.writes)


def pick(rng: np.random.Generator, limit: int, count: int) -> list[int]:
    return [int(one) for one in rng.permutation(limit)[:count]]


def ragged(rng: np.random.Generator) -> dict[int, int]:
    return {layer: int(rng.integers(0, 5)) for layer in ACTIVE if rng.random() < 0.8}


def make_plan(world: Any, rng: np.random.Generator, number: int, row: int) -> Plan:
    kind = ("transfer", "move", "store")[int(rng.integers(3))]
    if kind == "store":
        count = int(rng.integers(1, 3))
        by_group = {group: pick(rng, BLOCKS, count) for group in range(3)}
        full = pick(rng, SOURCES, count)
        source = {layer: by_group[group] for layer, group in GROUP.items()}
        copies = [
            ("device", (layer, block), "cpu", (layer, at))
            for layer in GROUP
            for block, at in zip(source[layer], full, strict=True)
        ]
        return Plan(world.store(number, source, dict.fromkeys(GROUP, full)), copies, "d2h_bytes", None)
    counts = ragged(rng)
    destination = {layer: pick(rng, BLOCKS, count) for layer, count in counts.items()}
    if kind == "transfer":
        source = {layer: pick(rng, SOURCES, count) for layer, count in counts.items()}
        side, figure, make = "cpu", "h2d_bytes", world.transfer
    else:
        source = {}
        for layer, count in counts.items():
            rest = [block for block in range(BLOCKS) if block not in destination[layer]]
            source[layer] = [rest[int(at)] for at in rng.integers(0, len(rest), count)]
        side, figure, make = "device", "resident_moved_bytes", world.move
    copies = [
        (side, (layer, at), "device", (layer, block))
        for layer in counts
        for at, block in zip(source[layer], destination[layer], strict=True)
    ]
    work = make(number, source, destination, generation=number, row=row)
    return Plan(work, copies, figure, destination)


@pytest.mark.parametrize("seed", range(20260916, 20260940))
def test_d8_a4_any_interleaving_of_streams_gives_the_bytes_of_a_plain_table(
    make_world: MakeWorld, rounds: int, seed: int
) -> None:
    world = make_world(blocks=BLOCKS, sources=SOURCES, seed=seed, slot_blocks=1 + seed % 3)
    rng = np.random.default_rng(seed)
    table: dict[tuple[str, Area], bytes] = {}
    for layer in GROUP:
        table.update({("device", (layer, block)): world.device_bytes(layer, block) for block in range(BLOCKS)})
        table.update({("cpu", (layer, block)): world.cpu_bytes(layer, block) for block in range(SOURCES)})
    open_plans: dict[int, Plan] = {}
    rows: dict[int, int] = {}
    counts = {"queued": 0, "cancelled": 0, "failed": 0}
    traffic = world.device.memory.traffic

    def settle() -> None:
        for done in world.device.poll():
            number = done.operation.operation_id
            plan = open_plans.pop(number)
            if done.outcome == "failed":
                counts["failed"] += 1
                for side, (layer, block) in plan.writes:  # whatever a part of the copies left there
                    if side == "device":
                        table["device", (layer, block)] = world.device_bytes(layer, block)
                    else:
                        table["cpu", (layer, block)] = world.cpu_bytes(layer, block)
                continue
            # Nothing open shares what this one writes, so its sources still are what they were when it was queued.
            fresh = {(to, area): table[side, at] for side, at, to, area in plan.copies}
            table.update(fresh)
            assert getattr(done, plan.figure) == sum(map(len, (table[to, area] for _, _, to, area in plan.copies)))
            if plan.table is not None:
                for layer, ids in plan.table.items():
                    shown = world.device.table(done.operation.request, rows[number], number, layer)
                    assert shown.tolist() == ids
                assert done.table_updates == len(plan.table)

    for number in range(1, rounds):
        free_rows = sorted(set(range(8)) - {rows[one] for one in open_plans})
        plan = make_plan(world, rng, number, free_rows[0] if free_rows else 0)
        if free_rows and not any(plan.clashes(other) for other in open_plans.values()):
            world.device.queue(plan.work)
            open_plans[number], rows[number] = plan, free_rows[0]
            counts["queued"] += 1
        if open_plans and rng.random() < 0.1:  # some before their first copy, some half way
            world.device.faults.fail.add(int(rng.choice(sorted(open_plans))))
        if open_plans and rng.random() < 0.2:
            some = int(rng.choice(sorted(open_plans)))
            if world.device.cancel(some):
                del open_plans[some]
                counts["cancelled"] += 1
        world.device.advance(int(rng.integers(0, 6)))
        settle()
    world.device.advance()
    settle()
    assert open_plans == {}
    assert world.device.queued == 0
    assert counts["queued"] > 20, counts
    assert min(counts["cancelled"], counts["failed"]) > 0, counts
    assert min(traffic.read_bytes, traffic.written_bytes, traffic.moved_bytes) > 1000  # each kind did copy
    found = {
        (side, (layer, block)): (world.device_bytes if side == "device" else world.cpu_bytes)(layer, block)
        for side, (layer, block) in table
    }
    assert found == table
