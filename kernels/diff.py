"""Planning an upload: which selected blocks are not resident yet, and how a shared table gets equal counts."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from kvsweep.kernels.checks import check_ids, check_integer, check_row_ptr, check_unique
from kvsweep.kernels.csr import Csr, Int32
from kvsweep.kernels.errors import KernelArgumentError

HOLE = -1
"""Marks an empty slot of a resident table."""


@dataclass(frozen=True, slots=True, eq=False)
class DiffPlan:
    """What one revision uploads, row by row. Every list of ids is ascending.

    kind                "diff": what is held stays. "full": some row could not be filled, so held is ignored and
                        the whole selection goes to new destinations
    upload              ids to upload: the new ones and the padding together
    pad                 the part of upload that is not wanted, only there to make the counts equal
    new_per_row         int32[rows], wanted ids in upload
    truncated_per_row   int32[rows], wanted ids that were left out: always 0, in both kinds
    unfilled_per_row    int32[rows], slots a row stays below common_new_slots: all 0 in a diff; above 0 only in a
                        full plan whose selections differ in size and whose tail is too short. A shared table
                        cannot serve such a plan
    common_new_slots    slots that each row of a shared table gets; 0 where rows are ragged
    largest_id          the largest id in want, tail and valid held, −1 where there is none: what sizes a bitmap
    """

    kind: Literal["diff", "full"]
    upload: Csr
    pad: Csr
    new_per_row: Int32
    truncated_per_row: Int32
    unfilled_per_row: Int32
    common_new_slots: int
    largest_id: int


def plan_diff(want: Csr, tail: Csr, held: Csr, *, sequence_blocks: int, shared_table: bool) -> DiffPlan:
    """Plan the upload of one selection over what is held.

    want             selected ids, each once in a row
    tail             the other candidates of the row, best first (not in id order), each once in a row
    held             resident ids by slot, each once in a row; HOLE marks an empty slot
    sequence_blocks  blocks of the sequence; every id is in [0, sequence_blocks)
    shared_table     True: one table serves all rows, so each row gets the same number of new slots, the largest
                     |want − held|; a row with fewer is filled from its tail with ids in neither want nor held. If
                     one row's tail is too short the plan is a full one: as if nothing were held, filled up to the
                     largest |want| as far as the tail goes. False: rows are ragged and nothing is filled
    Returns new arrays. Raises KernelArgumentError naming the list for rows that differ in number, an id outside
    the sequence or an id twice in a row.
    """
    limit = check_integer("sequence_blocks", sequence_blocks, least=0)
    for argument, rows in (("want", want), ("tail", tail), ("held", held)):
        check_row_ptr(f"{argument}.row_ptr", rows.row_ptr, f"{argument}.ids", rows.ids)
        if rows.rows != want.rows:
            raise KernelArgumentError(argument, f"{want.rows} rows, as many as want", f"{rows.rows} rows")
    held = _without_holes(held)
    for argument, rows in (("want", want), ("tail", tail), ("held", held)):
        check_ids(f"{argument}.ids", rows.row_ptr, rows.ids, limit)
        check_unique(f"{argument}.ids", rows.row_ptr, rows.ids)

    largest = max((int(each.ids.max()) for each in (want, tail, held) if each.ids.size), default=-1)
    new = [_absent(want.row(row), [held.row(row)], largest) for row in range(want.rows)]
    if not shared_table:
        return _plan("diff", new, [_EMPTY] * want.rows, 0, largest)

    common = max((row.size for row in new), default=0)
    pad = [
        _absent(tail.row(row), [want.row(row), held.row(row)], largest)[: common - new[row].size]
        for row in range(want.rows)
    ]
    if all(new[row].size + pad[row].size == common for row in range(want.rows)):
        return _plan("diff", new, pad, common, largest)

    whole = [want.row(row) for row in range(want.rows)]
    common = max(row.size for row in whole)
    pad = [_absent(tail.row(row), [want.row(row)], largest)[: common - whole[row].size] for row in range(want.rows)]
    return _plan("full", whole, pad, common, largest)


_EMPTY: Int32 = np.empty(0, dtype=np.int32)


def _without_holes(held: Csr) -> Csr:
    valid = held.ids != HOLE
    kept_before = np.concatenate(([0], np.cumsum(valid))).astype(np.int32)
    return Csr(kept_before[held.row_ptr], held.ids[valid])


def _absent(ids: Int32, present: list[Int32], largest: int) -> Int32:
    """The ids that are in none of the lists, in the order given. The bitmap has room for every id there is."""
    bitmap: npt.NDArray[np.bool_] = np.zeros(largest + 1, dtype=np.bool_)
    for each in present:
        bitmap[each] = True
    return ids[~bitmap[ids]]


def _plan(kind: Literal["diff", "full"], new: list[Int32], pad: list[Int32], common: int, largest: int) -> DiffPlan:
    upload = Csr.of(np.sort(np.concatenate(pair)) for pair in zip(new, pad, strict=True))
    new_per_row = np.array([row.size for row in new], dtype=np.int32)
    short = np.maximum(common - upload.counts, 0).astype(np.int32)
    return DiffPlan(
        kind=kind,
        upload=upload,
        pad=Csr.of(np.sort(row) for row in pad),
        new_per_row=new_per_row,
        truncated_per_row=np.zeros_like(new_per_row),
        unfilled_per_row=short,
        common_new_slots=common,
        largest_id=largest,
    )
