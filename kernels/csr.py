"""Ragged rows of ids: one row an active layer, no empty row standing in for a layer that is not active."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Csr:
    """Ragged rows of int32 ids. The arrays are borrowed, never copied, and checked by the kernel that takes them.

    row_ptr  int32[rows+1], row r is ids[row_ptr[r]:row_ptr[r+1]]
    ids      int32[n]
    """

    row_ptr: Int32
    ids: Int32

    @classmethod
    def of(cls, rows: Iterable[Sequence[int] | Int32]) -> "Csr":
        """Copy lists or arrays of ids, one a row. An id that does not fit int32 raises OverflowError."""
        arrays = [np.array(row, dtype=np.int32) for row in rows]
        row_ptr = np.zeros(len(arrays) + 1, dtype=np.int32)
        np.cumsum([array.size for array in arrays], out=row_ptr[1:])
        return cls(row_ptr, np.concatenate(arrays) if arrays else np.empty(0, dtype=np.int32))

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.row_ptr.size - 1

    @property
    def counts(self) -> Int32:
        """int32[rows], ids in each row."""
        return np.diff(self.row_ptr)

    def row(self, index: int) -> Int32:
        """int32[n], a view of row `index` in [0, rows); IndexError outside it."""
        if not 0 <= index < self.rows:
            raise IndexError(f"row {index} of {self.rows} rows")
        return self.ids[self.row_ptr[index] : self.row_ptr[index + 1]]

    def lists(self) -> list[list[int]]:
        """The rows as lists, for messages and comparison."""
        return [self.row(index).tolist() for index in range(self.rows)]
