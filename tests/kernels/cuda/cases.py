"""Random inputs for the kernels whose threads wait for each other, and what must come of them."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvsweep.kernels import Csr, DiffPlan, plan_diff, remap_rows
from kvsweep.kernels.cuda.kernels import CudaKernels

Int32 = npt.NDArray[np.int32]


@dataclass
class DiffCase:
    want: Csr
    tail: Csr
    held: Csr
    sequence_blocks: int


def random_diff(rng: np.random.Generator, *, rows: int, sequence: int, want: int, tail: int, held: int) -> DiffCase:
    """Ragged lists of at most those lengths; holes among the held ones, the tail not in order of ids."""

    def lists(most: int) -> list[list[int]]:
        return [rng.permutation(sequence)[: rng.integers(0, most + 1)].tolist() for _ in range(rows)]

    wanted, candidates, present = lists(want), lists(tail), lists(held)
    for row in present:
        for _ in range(int(rng.integers(0, 3))):
            row.insert(int(rng.integers(0, len(row) + 1)), -1)
    return DiffCase(Csr.of(wanted), Csr.of(candidates), Csr.of(present), sequence)


def plan(kernels: CudaKernels | None, case: DiffCase, *, shared: bool) -> DiffPlan:
    """By these kernels, or by the reference."""
    function = plan_diff if kernels is None else kernels.plan_diff
    return function(case.want, case.tail, case.held, sequence_blocks=case.sequence_blocks, shared_table=shared)


def plain_plan(plan: DiffPlan) -> dict[str, object]:
    return {
        "kind": plan.kind,
        "upload": plan.upload.lists(),
        "pad": plan.pad.lists(),
        "new": plan.new_per_row.tolist(),
        "truncated": plan.truncated_per_row.tolist(),
        "unfilled": plan.unfilled_per_row.tolist(),
        "common": plan.common_new_slots,
        "largest": plan.largest_id,
    }


@dataclass
class Tables:
    """[layers, slots] table, slots in use, generation."""

    table: Int32
    lengths: Int32
    generation: npt.NDArray[np.int64]

    def rows(self) -> list[list[int]]:
        return [row[:used].tolist() for row, used in zip(self.table, self.lengths.tolist(), strict=True)]


def random_tables(rng: np.random.Generator, *, layers: int, slots: int) -> tuple[Tables, Csr]:
    """Tables and the slots to keep: none, all and any in between."""
    lengths = rng.integers(0, slots + 1, layers).astype(np.int32)
    lengths[-1] = slots
    table = np.full((layers, slots), -1, dtype=np.int32)
    keep = []
    for layer, used in enumerate(lengths.tolist()):
        table[layer, :used] = rng.permutation(1 << 20)[:used]
        keep.append(np.sort(rng.permutation(used)[: rng.integers(0, used + 1)]).tolist())
    keep[-1] = list(range(1, slots))  # every kept slot moves by one
    if layers > 1:
        keep[0] = []
    return Tables(table, lengths, np.zeros(1, dtype=np.int64)), Csr.of(keep)


def remapped(tables: Tables, keep: Csr) -> list[list[int]]:
    """What the reference makes of them: rows of the new tables, holes behind."""
    slots = tables.table.shape[1]
    return [row + [-1] * (slots - len(row)) for row in remap_rows(Csr.of(tables.rows()), keep).lists()]
