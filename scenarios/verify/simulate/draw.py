"""One seed, one scenario."""

from __future__ import annotations

from random import Random

from kvsweep.scenarios.verify.script import steps as s
from kvsweep.scenarios.verify.script.format import Expect, Script
from kvsweep.scenarios.verify.simulate.mishaps import Mishaps
from kvsweep.scenarios.verify.simulate.workload import Workload
from kvsweep.scenarios.verify.simulate.worlds import random_world

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
    faults = Mishaps(random, world, opened).faults(random.randint(0, MOST_FAULTS))
    return Script(
        title=f"Random scenario {seed}", seed=seed, world=world, step=steps, fault=faults, expect=Expect(steps="free")
    )
