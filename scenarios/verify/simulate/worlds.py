"""A random world: one to three ranks, few layers, tight pools, links that lose, repeat and delay."""

from __future__ import annotations

from random import Random

from kvsweep.scenarios.verify.script.world import Group, Links, World

BLOCK_SIZES = (1, 2, 4, 8, 16)
LENGTHS = (0, 1, 2, 3, 4, 5, 6, 6, 6)
"""Whole blocks that a request is opened with."""
LONGEST = max(LENGTHS)


def random_world(random: Random, requests: int) -> World:
    """Sizes such that `requests` requests do not always fit at once, neither the device nor the CPU."""
    block_size = random.choice(BLOCK_SIZES)
    groups = [Group(kind="full", layers=random.choice((1, 2, 2, 3, 4)))]
    if random.random() < 0.35:
        groups.append(Group(kind="sliding", layers=random.randint(1, 2), window=random.randint(1, 3 * block_size)))
    if random.random() < 0.15:
        groups.append(Group(kind="full", layers=1))
    copy, one_table = random.random() < 0.2, random.random() < 0.3
    return World(
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
