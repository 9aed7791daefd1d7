"""Whole-array questions about ragged rows: one pass over all ids, no loop over layers."""

import contextlib
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from kvsweep.ledger import compiled
from kvsweep.ledger.ids import Int32, Rows, S, Slot, int32_view


def first_unsorted(rows: Rows[S]) -> int | None:
    """Layer of the first row that is not strictly ascending; None where all are."""
    if compiled.sets is not None:
        return _layer(rows, compiled.sets.first_unsorted(rows.row_ptr_bytes, rows.id_bytes))
    ids, ptr = rows.ids, rows.row_ptr
    if ids.size < 2:
        return None
    wrong = ids[1:] <= ids[:-1]
    starts = ptr[1:-1]
    wrong[starts[(starts > 0) & (starts < ids.size)] - 1] = False  # a row may begin lower than the last one ended
    if not wrong.any():
        return None
    return _layer_at(rows, int(np.flatnonzero(wrong)[0]) + 1)


def first_outside(rows: Rows[S], limit: int) -> int | None:
    """Layer of the first id that is not in [0, limit); None where all are."""
    if compiled.sets is not None:
        return _layer(rows, compiled.sets.first_outside(rows.row_ptr_bytes, rows.id_bytes, limit))
    ids = rows.ids
    # As unsigned, a negative id is above every limit: one comparison instead of two.
    if not ids.size or int(ids.view(np.uint32).max()) < limit:
        return None
    return _layer_at(rows, int(np.flatnonzero((ids < 0) | (ids >= limit))[0]))


def first_beyond(rows: Rows[Slot], others: Rows[Any]) -> int | None:
    """Layer of the first slot that the row of `others` has not; None where all are there. The same layers."""
    if compiled.sets is not None:
        return _layer(rows, compiled.sets.first_beyond(rows.row_ptr_bytes, rows.id_bytes, others.row_ptr_bytes))
    wrong = rows.ids.view(np.uint32) >= np.repeat(others.counts.astype(np.uint32), rows.counts)
    return _layer_at(rows, int(np.flatnonzero(wrong)[0])) if wrong.any() else None


def first_repeated(rows: Rows[S]) -> int | None:
    """Layer of the first row that names an id twice; None where none does. Every id is 0 or more."""
    if compiled.sets is not None:
        with contextlib.suppress(ValueError):
            return _layer(rows, compiled.sets.first_repeated(rows.row_ptr_bytes, rows.id_bytes))
    ids = rows.ids
    if ids.size < 2:
        return None
    limit = int(ids.max()) + 1
    marks = np.zeros(len(rows) * limit, dtype=np.bool_)
    marks[_keys(rows, limit)] = True
    if int(np.count_nonzero(marks)) == ids.size:
        return None
    return next(layer for layer, row in rows.items() if np.unique(row).size != row.size)


def first_common(first: Rows[S], second: Rows[S]) -> int | None:
    """Layer of the first row that has an id in both; None where none has. The same layers; every id is 0 or more."""
    if not first.id_bytes or not second.id_bytes:
        return None
    if compiled.sets is not None:
        with contextlib.suppress(ValueError):
            row = compiled.sets.first_common(first.row_ptr_bytes, first.id_bytes, second.row_ptr_bytes, second.id_bytes)
            return _layer(second, row)
    limit = max(int(first.ids.max()), int(second.ids.max())) + 1
    marks = np.zeros(len(first) * limit, dtype=np.bool_)
    marks[_keys(first, limit)] = True
    both = marks[_keys(second, limit)]
    return _layer_at(second, int(np.flatnonzero(both)[0])) if both.any() else None


def distinct(ids: bytes) -> bytes:
    """'<i4' ids from 0 on, each once, ascending."""
    if compiled.sets is not None:
        found: bytes = compiled.sets.distinct((ids,))
        return found
    return np.unique(int32_view(ids)).astype("<i4").tobytes()


def joined_rows(first: Rows[S], second: Rows[S]) -> Rows[S]:
    """Row after row: the ids of the first, then those of the second. A layer may stand in either one alone."""
    if not second.id_bytes and second.layer_bytes == first.layer_bytes:
        return first
    if not first.layer_bytes:
        return second
    if first.layer_bytes != second.layer_bytes:
        rows = {layer: [ids] for layer, ids in first.items()}
        for layer, ids in second.items():
            rows.setdefault(layer, []).append(ids)
        return Rows.of({layer: np.concatenate(parts) for layer, parts in rows.items()})
    if compiled.sets is not None:
        ptr, ids_of_both = compiled.sets.join(
            first.row_ptr_bytes, first.id_bytes, second.row_ptr_bytes, second.id_bytes
        )
        return Rows(layer_bytes=first.layer_bytes, row_ptr_bytes=ptr, id_bytes=ids_of_both)
    ends = first.row_ptr + second.row_ptr
    one, two = memoryview(first.id_bytes), memoryview(second.id_bytes)
    parts: list[memoryview] = []
    a = b = 0
    for end_a, end_b in zip((first.row_ptr[1:] * 4).tolist(), (second.row_ptr[1:] * 4).tolist(), strict=True):
        parts += (one[a:end_a], two[b:end_b])
        a, b = end_a, end_b
    return Rows(layer_bytes=first.layer_bytes, row_ptr_bytes=ends.astype("<i4").tobytes(), id_bytes=b"".join(parts))


def ids_at(rows: Rows[S], slots: Rows[Slot]) -> Rows[S]:
    """The ids that stand at these slots, row for row. The same layers; every slot is inside its row."""
    if compiled.sets is not None:
        ids = compiled.sets.take(rows.row_ptr_bytes, rows.id_bytes, slots.row_ptr_bytes, slots.id_bytes)
        return Rows(layer_bytes=slots.layer_bytes, row_ptr_bytes=slots.row_ptr_bytes, id_bytes=ids)
    return rows_like(slots, rows.ids[slots.ids + np.repeat(rows.row_ptr[:-1], slots.counts)])


def slots_of(rows: Rows[S], wanted: Rows[S]) -> Rows[Slot]:
    """Slots whose id is wanted, row for row, ascending. `rows` has every row of `wanted`; every id is 0 or more."""
    if rows.layer_bytes != wanted.layer_bytes:
        slots = {layer: np.flatnonzero(np.isin(rows.row(layer), ids)) for layer, ids in wanted.items()}
        return Rows.of(slots)
    if not rows.id_bytes or not wanted.id_bytes:
        return empty_like(rows.layer_bytes)
    if compiled.sets is not None:
        with contextlib.suppress(ValueError):
            ptr, slots_found = compiled.sets.slots_of(
                rows.row_ptr_bytes, rows.id_bytes, wanted.row_ptr_bytes, wanted.id_bytes
            )
            return Rows(layer_bytes=rows.layer_bytes, row_ptr_bytes=ptr, id_bytes=slots_found)
    limit = max(int(rows.ids.max()), int(wanted.ids.max())) + 1
    marks = np.zeros(len(rows) * limit, dtype=np.bool_)
    marks[_keys(wanted, limit)] = True
    at = np.flatnonzero(marks[_keys(rows, limit)])
    ends = np.searchsorted(at, rows.row_ptr)
    slots_at = at - np.repeat(rows.row_ptr[:-1], np.diff(ends))
    return Rows(
        layer_bytes=rows.layer_bytes,
        row_ptr_bytes=ends.astype("<i4").tobytes(),
        id_bytes=slots_at.astype("<i4").tobytes(),
    )


def rows_like(rows: Rows[Slot], ids: Int32) -> Rows[S]:
    """Rows of the same shape with other ids. ids int32[n], as many as `rows` has."""
    return Rows(layer_bytes=rows.layer_bytes, row_ptr_bytes=rows.row_ptr_bytes, id_bytes=_wire(ids))


def _wire(ids: Int32) -> bytes:
    return ids.astype("<i4", copy=False).tobytes()


def _keys(rows: Rows[S], limit: int) -> Int32:
    """One number an id, different in every row."""
    return rows.ids + np.repeat(np.arange(len(rows), dtype=np.int32) * np.int32(limit), rows.counts)


def _layer(rows: Rows[S], row: int) -> int | None:
    """Layer of a row that was found; none was where it is below 0."""
    return None if row < 0 else int(rows.layers[row])


def _layer_at(rows: Rows[S], index: int) -> int:
    """Layer of the row in which the id at `index` stands."""
    return int(rows.layers[int(np.searchsorted(rows.row_ptr, index, side="right")) - 1])


def even_rows(layers: Sequence[int], table: Int32) -> Rows[S]:
    """A row a layer, all of one length. layers ascending; table int32[rows, n]."""
    count = table.shape[1]
    return Rows(
        layer_bytes=np.asarray(layers, dtype="<i4").tobytes(),
        row_ptr_bytes=(np.arange(len(layers) + 1, dtype="<i4") * np.int32(count)).tobytes(),
        id_bytes=table.astype("<i4").tobytes(),
    )


def ends_of(counts: Int32) -> Int32:
    """int32[rows + 1]: the row pointers of rows with so many ids. counts int32[rows]."""
    ends = np.zeros(counts.size + 1, dtype="<i4")
    np.cumsum(counts, out=ends[1:])
    return ends


def empty_like(layer_bytes: bytes) -> Rows[S]:
    """A row without ids for each of the layers."""
    return Rows(layer_bytes=layer_bytes, row_ptr_bytes=bytes(len(layer_bytes) + 4), id_bytes=b"")


def same_rows(rows: Rows[S], layers: Collection[int]) -> bool:
    """Whether the rows of these layers are equal, id for id; layers without a row are passed over."""
    ptr, ids = (rows.row_ptr * 4).tolist(), memoryview(rows.id_bytes)
    first: memoryview | None = None
    for at, layer in enumerate(rows.layers.tolist()):
        if layer not in layers:
            continue
        row = ids[ptr[at] : ptr[at + 1]]
        if first is None:
            first = row
        elif row != first:
            return False
    return True
