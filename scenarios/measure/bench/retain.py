"""Retention planner: the tables of kept slots, which rows are equal, and which blocks nobody reads any more."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kvsweep.kernels import Csr, reference
from kvsweep.kernels.compiled import NativeKernels
from kvsweep.scenarios.measure.bench.measure import Case, copy_of


def cases(native: NativeKernels, rng: np.random.Generator, *, quick: bool) -> Iterator[Case]:
    rows, slots = (3, 64) if quick else (80, 8_192)
    shared = np.sort(rng.permutation(4 * slots)[:slots]).astype(np.int32)
    equal = np.repeat(shared[None, :], rows, axis=0)
    yield _classes(native, "all rows equal", equal)
    late = equal.copy()
    late[:, -1] += np.arange(rows, dtype=np.int32)
    yield _classes(native, "rows differ at the end", late)
    yield _classes(native, "short", equal[:1, :8].copy())
    blocks, owned, referenced = (4_096, 1_000, 300) if quick else (1 << 20, 328_000, 82_000)
    mine = rng.permutation(blocks)[:owned].astype(np.int32)
    yield _retired(native, "scattered", mine, rng.permutation(mine)[:referenced].copy(), blocks)
    yield _retired(native, "ascending", np.sort(mine), np.sort(rng.permutation(mine)[:referenced]), blocks)
    yield _retired(native, "short", mine[:8].copy(), mine[:2].copy(), 2_048 if int(mine[:8].max()) < 2_048 else blocks)


def _classes(native: NativeKernels, what: str, table: np.ndarray) -> Case:
    rows, slots = table.shape
    ragged = Csr(np.arange(0, rows * slots + 1, slots, dtype=np.int32), table.reshape(-1))

    def row_bytes() -> object:
        first: dict[bytes, int] = {}
        return [first.setdefault(table[row].tobytes(), row) for row in range(rows)]

    def equality() -> object:
        """Only whether all rows equal the first."""
        return (table == table[0]).all(axis=1)

    return Case(
        path=f"classes of rows, {what}",
        size=f"{rows} x {slots:,}",
        ours=lambda: native.row_classes(ragged),
        check=lambda: bool((native.row_classes(ragged) == reference.row_classes(ragged)).all()),
        peers={"dict of row bytes": row_bytes, "numpy equality": equality},
        reads=[table],
        copy=copy_of(table.nbytes),
        limit="one read",
    )


def _retired(native: NativeKernels, what: str, owned: np.ndarray, referenced: np.ndarray, blocks: int) -> Case:
    mine, theirs = owned.tolist(), referenced.tolist()

    def mask() -> object:
        marks = np.zeros(blocks, dtype=np.bool_)
        marks[owned] = True
        marks[referenced] = False
        return np.flatnonzero(marks).astype(np.int32)

    return Case(
        path=f"retired blocks, {what}",
        size=f"{owned.size:,} less {referenced.size:,} of {blocks:,}",
        ours=lambda: native.retired_blocks(owned, referenced, blocks=blocks),
        check=lambda: np.array_equal(
            native.retired_blocks(owned, referenced, blocks=blocks),
            reference.retired_blocks(owned, referenced, blocks=blocks),
        ),
        peers={"numpy mask": mask, "python sets": lambda: sorted(set(mine).difference(theirs))},
        reads=[owned, referenced],
        copy=copy_of(owned.nbytes),
        limit="one read",
    )
