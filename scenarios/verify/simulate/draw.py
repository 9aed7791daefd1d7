"""One seed, one scenario: one to three ranks, few layers, tight pools, links that lose, repeat and delay."""

from __future__ import annotations

from random import Random

from kvsweep.scenarios.verify.script import steps as s
from kvsweep.scenarios.verify.script.format import Expect, Script
from kvsweep.scenarios.verify.script.world import Group, Links, ScenarioWorld
from kvsweep.scenarios.verify.simulate.random_faults import RandomFaults
from kvsweep.scenarios.verify.simulate.workload import LONGEST, Workload

BLOCK_SIZES = (1, 2, 4, 8, 16)


def random_world(random: Random, requests: int) -> ScenarioWorld:
    """Sizes such that `requests` requests do not always fit at once, neither the device nor the CPU."""
    block_size = random.choice(BLOCK_SIZES)
    groups = [Group(kind="full", layers=random.choice((1, 2, 2, 3, 4)))]
    if random.random() < 0.35:
        groups.append(Group(kind="sliding", layers=random.randint(1, 2), window=random.randint(1, 3 * block_size)))
    if random.random() < 0.15:
        groups.append(Group(kind="full", layers=1))
    copy, one_table = random.random() < 0.2, random.random() < 0.3
    return ScenarioWorld(
        ranks=random.choices((1, 2, 3), (3, 5, 2))[0],
        block_size=block_size,
        groups=tuple(groups),
        device_blocks=random.randint(LONGEST, LONGEST + 5 * requests),
        cpu_blocks=random.randint(LONGEST + 2, 2 * LONGEST + 6 * requests),
        cpu_copy_blocks=random.randint(2, 3 * LONGEST) if copy else 0,
        source="copy" if copy else "source_only",
        tables="group" if one_table else "layer",
        union=one_table and random.random() < 0.3,
        rows=random.choices((2, 3, 4), (3, 5, 1))[0],
        deadline=random.choice((40, 80, 400)),
        staging_slots=random.randint(1, 2),
        staging_blocks=random.choice((1, 2, 8)),
        links=_links(random),
    )


def _links(random: Random) -> Links:
    if random.random() < 0.4:
        return Links()
    return Links(
        duplicate=random.choice((0.0, 0.1, 0.3)),
        lose=random.choice((0.0, 0.0, 0.05, 0.2)),
        delay=random.choice((0, 2, 6)),
    )


FEWEST_STEPS, MOST_STEPS, MOST_FAULTS, MOST_REQUESTS = 5, 60, 8, 6


def random_script(seed: int) -> Script:
    """A scenario in the format of files: world, steps and faults are drawn from the seed and from nothing else."""
    random = Random(seed)
    requests = random.choices(range(1, MOST_REQUESTS + 1), (6, 6, 3, 1, 1, 1))[0]
    world = random_world(random, requests)
    steps = Workload(random, world, requests=requests).steps(
        round(random.triangular(FEWEST_STEPS, MOST_STEPS, MOST_STEPS))
    )
    opened = tuple(sorted({step.request for step in steps if isinstance(step, s.Open)}))
    faults = RandomFaults(random, world, opened).faults(random.randint(0, MOST_FAULTS))
    return Script(
        title=f"Random scenario {seed}", seed=seed, world=world, step=steps, fault=faults, expect=Expect(steps="free")
    )
