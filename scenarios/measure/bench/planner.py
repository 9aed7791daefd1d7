"""Diff planner: what a selection uploads over what is held."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from kvsweep.kernels import Csr, reference
from kvsweep.kernels.compiled import NativeKernels
from kvsweep.scenarios.measure.bench.measure import Case, copy_of

SIZES = ((32, 256, 2_048), (80, 2_048, 32_768))
QUICK = ((2, 16, 256),)
SHORT = (1, 8, 2_048)


def cases(native: NativeKernels, rng: np.random.Generator, *, quick: bool) -> Iterator[Case]:
    """Selections are ascending, as the selector gives them; residents in slot order; half of what is wanted is held."""
    for rows, count, blocks in (*(QUICK if quick else SIZES), SHORT):
        want = np.stack([np.sort(rng.permutation(blocks)[:count]) for _ in range(rows)]).astype(np.int32)
        held = want.copy()
        for row in range(rows):
            others = np.setdiff1d(np.arange(blocks), want[row]).astype(np.int32)
            held[row] = rng.permutation(
                np.concatenate((want[row, : count // 2], rng.permutation(others)[: count - count // 2]))
            )
        yield _case(native, want, held, blocks)


def _case(native: NativeKernels, want: np.ndarray, held: np.ndarray, blocks: int) -> Case:
    rows, count = want.shape
    pointers = np.arange(0, rows * count + 1, count, dtype=np.int32)
    none = Csr(np.zeros(rows + 1, dtype=np.int32), np.empty(0, dtype=np.int32))
    wanted, resident = Csr(pointers, want.reshape(-1)), Csr(pointers, held.reshape(-1))
    lists = [(want[row].tolist(), held[row].tolist()) for row in range(rows)]
    torch_want, torch_held = torch.from_numpy(want).long(), torch.from_numpy(held).long()
    base = (np.arange(rows, dtype=np.int64) * blocks)[:, None]

    def ours() -> object:
        return native.plan_diff(wanted, none, resident, sequence_blocks=blocks, shared_table=False)

    def mask() -> object:
        marks = np.zeros(rows * blocks, dtype=np.bool_)
        marks[(want + base).reshape(-1)] = True
        marks[(held + base).reshape(-1)] = False
        found = np.flatnonzero(marks)
        return (found % blocks).astype(np.int32), np.searchsorted(found, base[:, 0])

    def lookup() -> object:
        """Not a plan of any input: it relies on want being ascending."""
        marks = np.zeros(rows * blocks, dtype=np.bool_)
        marks[(held + base).reshape(-1)] = True
        left = ~marks[(want + base).reshape(-1)].reshape(rows, count)
        return want[left], left.sum(axis=1)

    def table() -> object:
        return [np.sort(w[~np.isin(w, h, kind="table")]) for w, h in zip(want, held, strict=True)]

    def sets() -> object:
        return [sorted(set(w).difference(h)) for w, h in lists]

    def with_torch() -> object:
        marks = torch.zeros((rows, blocks), dtype=torch.bool)
        marks.scatter_(1, torch_want, True).scatter_(1, torch_held, False)
        return marks.nonzero()

    def check() -> bool:
        mine = native.plan_diff(wanted, none, resident, sequence_blocks=blocks, shared_table=False)
        plain = reference.plan_diff(wanted, none, resident, sequence_blocks=blocks, shared_table=False)
        return mine.upload.lists() == plain.upload.lists()

    return Case(
        path="diff planner",
        size=f"{rows} x {count:,} of {blocks:,}",
        ours=ours,
        check=check,
        peers={
            "numpy mask": mask,
            "numpy mask lookup": lookup,
            "numpy isin(table)": table,
            "python sets": sets,
            "torch": with_torch,
        },
        reads=[want, held],
        copy=copy_of(want.nbytes),
        limit="one read",
    )
