"""Identities and id spaces.

Every id space is a marker type, so that `Rows[Logical]` is never taken for `Rows[Physical]`.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from kvsweep.ledger import compiled
from kvsweep.ledger.errors import LayoutError

Int32: TypeAlias = npt.NDArray[np.int32]

HOLE = -1
"""Marker of an empty slot in a resident table."""

POOL_STREAM = "@pool"
"""Stream of the pool's facts. Its epoch is 0 and lives of requests begin at epoch 1, so no request id collides."""

_WIRE = np.dtype("<i4")


class Logical:
    """Token position // block_size in the original sequence: never renumbered."""


class Slot:
    """Index in a layer's resident table."""


class Physical:
    """Block id in the device allocator's pool of one group; it has one area per layer of the group."""


class Source:
    """Block id in the CPU pool: [0, K) holds full KV, [K, N) are copy destinations."""


class Token:
    """A token's position in the sequence; or its place in the CPU pool, block * block_size + offset."""


S = TypeVar("S", Logical, Slot, Physical, Source, Token)


class RequestKey(Struct, frozen=True, array_like=True, gc=False, order=True):
    """One life of one request. The id is opaque and whole: nothing is parsed out of it."""

    request_id: str
    request_epoch: int  # +1 for a new life of the same id


POOL = RequestKey(POOL_STREAM, 0)


class Operation(Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """One attempt of an upload, retain or store. A retry after an abort is a new operation."""

    request: RequestKey
    operation_id: int  # one counter of the coordinator, never reused
    pool_generation: int
    map_revision: int  # the residency it was planned on


def int32_bytes(values: npt.ArrayLike) -> bytes:
    """Little-endian int32 bytes of a flat list of ids; floats and values outside int32 are refused."""
    array = np.asarray(values)
    if array.size == 0:
        return b""
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise LayoutError("ids", "a flat list of integers", f"{array.dtype} of shape {array.shape}")
    if int(array.max()) > 2**31 - 1 or int(array.min()) < -(2**31):
        raise LayoutError("ids", "values that fit int32", f"{int(array.min())} … {int(array.max())}")
    return array.astype(_WIRE).tobytes()


def int32_view(data: bytes) -> Int32:
    """Read-only int32 view of wire bytes."""
    return np.frombuffer(data, dtype=_WIRE)


class Rows(Struct, Generic[S], frozen=True, kw_only=True, array_like=True, gc=False):
    """Ragged ids, one row an active layer (CSR).

    The bytes inside are immutable, hashable and encoded as they are: `layer` ascending, `row_ptr[r + 1]`, `id[n]`,
    all little-endian int32. Layers without a row are absent: no empty row stands in for a sliding-window layer.
    """

    layer_bytes: bytes
    row_ptr_bytes: bytes
    id_bytes: bytes

    @classmethod
    def of(cls, rows: Mapping[int, npt.ArrayLike]) -> "Rows[S]":
        """Build from layer -> ids: the one place where lists are converted."""
        layers = sorted(rows)
        parts = [np.asarray(rows[layer]) for layer in layers]
        for layer, part in zip(layers, parts, strict=True):
            if part.ndim != 1 or (part.size and part.dtype.kind not in "iu"):
                raise LayoutError(f"rows[{layer}]", "a flat list of integers", f"{part.dtype} of shape {part.shape}")
        counts = np.fromiter((part.size for part in parts), dtype=np.int64, count=len(parts))
        filled = [part for part in parts if part.size]
        return cls.from_csr(
            layers=np.asarray(layers, dtype=np.int64),
            row_ptr=np.concatenate(([0], np.cumsum(counts))),
            ids=np.concatenate(filled) if filled else np.empty(0, dtype=np.int32),
        )

    @classmethod
    def from_csr(cls, *, layers: npt.ArrayLike, row_ptr: npt.ArrayLike, ids: npt.ArrayLike) -> "Rows[S]":
        """Copy int32 buffers into immutable rows. Raises LayoutError naming the argument."""
        rows: Rows[S] = cls(
            layer_bytes=int32_bytes(layers), row_ptr_bytes=int32_bytes(row_ptr), id_bytes=int32_bytes(ids)
        )
        rows.check()
        return rows

    def fits(self) -> bool:
        """Whether the three buffers fit each other."""
        try:
            if compiled.sets is not None:
                return bool(compiled.sets.rows_fit(self.layer_bytes, self.row_ptr_bytes, self.id_bytes))
            self.check()
        except (LayoutError, TypeError, ValueError):
            return False
        return True

    def check(self) -> None:
        """Raise LayoutError unless the three buffers fit each other. Decoded rows go through this too."""
        for name, data in (("layers", self.layer_bytes), ("row_ptr", self.row_ptr_bytes), ("ids", self.id_bytes)):
            if len(data) % 4:
                raise LayoutError(name, "whole int32 values", f"{len(data)} bytes")
        layers, row_ptr, ids = self.layers, self.row_ptr, self.ids
        if layers.size and (int(layers[0]) < 0 or bool(np.any(layers[1:] <= layers[:-1]))):
            raise LayoutError("layers", "ascending layer indices without repeats", str(layers.tolist()))
        if row_ptr.size != layers.size + 1:
            raise LayoutError("row_ptr", f"{layers.size + 1} values, one more than layers", f"{row_ptr.size} values")
        if int(row_ptr[0]) != 0 or int(row_ptr[-1]) != ids.size or bool(np.any(row_ptr[1:] < row_ptr[:-1])):
            raise LayoutError("row_ptr", f"0 ascending to {ids.size} ids", str(row_ptr.tolist()))

    @property
    def layers(self) -> Int32:
        """int32[rows]: decoder layer of each row, ascending."""
        return int32_view(self.layer_bytes)

    @property
    def row_ptr(self) -> Int32:
        """int32[rows + 1]."""
        return int32_view(self.row_ptr_bytes)

    @property
    def ids(self) -> Int32:
        """int32[n], row after row."""
        return int32_view(self.id_bytes)

    @property
    def counts(self) -> Int32:
        """int32[rows]: ids in each row; read-only."""
        row_ptr = self.row_ptr
        counts: Int32 = row_ptr[1:] - row_ptr[:-1]
        counts.setflags(write=False)
        return counts

    def __len__(self) -> int:
        return len(self.layer_bytes) // 4

    @property
    def size(self) -> int:
        """Ids over all rows."""
        return len(self.id_bytes) // 4

    def row(self, layer: int) -> Int32:
        """int32[n] ids of one layer, read-only. An absent layer raises LayoutError."""
        layers = self.layers
        at = int(np.searchsorted(layers, layer))
        if at == layers.size or int(layers[at]) != layer:
            raise LayoutError("layer", f"one of {layers.tolist()}", str(layer))
        row_ptr = self.row_ptr
        return self.ids[int(row_ptr[at]) : int(row_ptr[at + 1])]

    def items(self) -> Iterator[tuple[int, Int32]]:
        """(layer, ids) pairs in layer order."""
        layers, row_ptr, ids = self.layers.tolist(), self.row_ptr.tolist(), self.ids
        for at, layer in enumerate(layers):
            yield layer, ids[row_ptr[at] : row_ptr[at + 1]]

    def as_lists(self) -> dict[int, list[int]]:
        """layer -> ids as plain lists, for messages and tests."""
        return {layer: ids.tolist() for layer, ids in self.items()}


def no_rows(layers: Iterable[int] = ()) -> "Rows[S]":
    """Rows without ids: an empty row for each of `layers`."""
    return _no_rows(tuple(layers))


@lru_cache(maxsize=64)
def _no_rows(layers: tuple[int, ...]) -> "Rows[Any]":
    return Rows.of({layer: np.empty(0, dtype=np.int32) for layer in layers})
