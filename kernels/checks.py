"""Checks that every kernel makes once, at its edge, before it reads or writes anything."""

from typing import Any

import numpy as np
import numpy.typing as npt

from kvsweep.kernels.csr import Int32
from kvsweep.kernels.errors import KernelArgumentError


def check_integer(argument: str, value: object, *, least: int, most: int | None = None) -> int:
    """The value as an int in [least, most]; a bool is not a number here."""
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        number = int(value)
        if number >= least and (most is None or number <= most):
            return number
    limits = f"an integer of at least {least}" if most is None else f"an integer in [{least}, {most}]"
    raise KernelArgumentError(argument, limits, repr(value))


def check_array(argument: str, value: object, dtype: type[np.generic], dimensions: int) -> None:
    """Refuse anything but a C-contiguous array of that dtype and number of dimensions."""
    if not isinstance(value, np.ndarray):
        got = type(value).__name__
    elif value.dtype != dtype:
        got = f"dtype {value.dtype}"
    elif value.ndim != dimensions:
        got = f"shape {value.shape}"
    elif not value.flags.c_contiguous:
        got = f"strides {value.strides} for shape {value.shape}"
    else:
        return
    raise KernelArgumentError(argument, f"a C-contiguous {np.dtype(dtype)} array with {dimensions} axes", got)


def check_shape(argument: str, value: npt.NDArray[Any], shape: tuple[int, ...]) -> None:
    """Refuse another shape."""
    if value.shape != shape:
        raise KernelArgumentError(argument, f"shape {shape}", f"shape {value.shape}")


def check_writable(argument: str, value: npt.NDArray[Any]) -> None:
    """Refuse a read-only array where the kernel writes."""
    if not value.flags.writeable:
        raise KernelArgumentError(argument, "a writable array", "a read-only array")


def check_apart(argument: str, value: npt.NDArray[Any], other: str, against: npt.NDArray[Any]) -> None:
    """Refuse two arrays that share memory. Both are C-contiguous, so comparing their bounds is exact."""
    if np.may_share_memory(value, against):
        raise KernelArgumentError(argument, f"memory apart from {other}", f"memory that overlaps {other}")


def check_row_ptr(argument: str, row_ptr: Int32, ids_argument: str, ids: Int32) -> None:
    """Refuse row pointers and ids that are not ragged rows: int32, from 0, never falling, up to the number of ids."""
    check_array(argument, row_ptr, np.int32, 1)
    check_array(ids_argument, ids, np.int32, 1)
    if row_ptr.size == 0:
        raise KernelArgumentError(argument, "rows + 1 entries", "an empty array")
    if row_ptr[0] != 0:
        raise KernelArgumentError(argument, "0 as the first entry", str(row_ptr[0]))
    falls = np.flatnonzero(row_ptr[1:] < row_ptr[:-1])
    if falls.size:
        at = int(falls[0])
        raise KernelArgumentError(
            argument, "entries that never fall", f"{row_ptr[at + 1]} after {row_ptr[at]} at entry {at + 1}"
        )
    if row_ptr[-1] != ids.size:
        raise KernelArgumentError(argument, f"{ids.size} (the size of {ids_argument}) last", str(row_ptr[-1]))


def check_layers(layers: Int32, row_ptr: Int32, pool_layers: int) -> None:
    """Refuse a row→layer map that is not one ascending layer index a row, inside the pool."""
    check_array("layers", layers, np.int32, 1)
    check_shape("layers", layers, (row_ptr.size - 1,))
    outside = np.flatnonzero((layers < 0) | (layers >= pool_layers))
    if outside.size:
        at = int(outside[0])
        raise KernelArgumentError("layers", f"layers in [0, {pool_layers})", f"{layers[at]} in row {at}")
    falls = np.flatnonzero(layers[1:] <= layers[:-1])
    if falls.size:
        at = int(falls[0])
        raise KernelArgumentError("layers", "ascending layers, each once", f"{layers[at + 1]} after {layers[at]}")


def row_of_each(row_ptr: Int32) -> npt.NDArray[np.int64]:
    """int64[n], the row that each id belongs to."""
    return np.repeat(np.arange(row_ptr.size - 1), np.diff(row_ptr))


def check_ids(argument: str, row_ptr: Int32, ids: Int32, limit: int) -> None:
    """Refuse an id outside [0, limit)."""
    outside = np.flatnonzero((ids < 0) | (ids >= limit))
    if outside.size:
        at = int(outside[0])
        raise KernelArgumentError(argument, f"ids in [0, {limit})", f"{ids[at]} in row {row_of_each(row_ptr)[at]}")


def check_unique(argument: str, row_ptr: Int32, ids: Int32) -> None:
    """Refuse an id that stands twice in one row."""
    rows = row_of_each(row_ptr)
    order = np.lexsort((ids, rows))
    twice = np.flatnonzero((ids[order][1:] == ids[order][:-1]) & (rows[order][1:] == rows[order][:-1]))
    if twice.size:
        at = order[twice[0]]
        raise KernelArgumentError(argument, "each id once in a row", f"{ids[at]} twice in row {rows[at]}")
