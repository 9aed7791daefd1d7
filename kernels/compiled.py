"""The compiled kernels behind the same functions as the reference: same results, same errors, bit for bit.

Every argument is checked in native code. What it refuses goes to the reference, which says why in full; so there is
one place where messages are written.
"""

from collections.abc import Callable
from typing import Any, Literal, NoReturn

import numpy as np

from kvsweep.kernels import _native, reference
from kvsweep.kernels.checks import check_integer
from kvsweep.kernels.csr import Csr, Int32
from kvsweep.kernels.diff import DiffPlan
from kvsweep.kernels.errors import KernelArgumentError
from kvsweep.kernels.layout import BlockShape, Packing
from kvsweep.kernels.moves import UInt8
from kvsweep.kernels.topk import Float32

Isa = Literal["scalar", "avx2", "avx512"]

ISAS: tuple[Isa, ...] = ("scalar", "avx2", "avx512")
_MOST_ID = 2**31
_HEADS_FIRST, _BOTH = 0, 3
_BEST_FIRST, _ASCENDING = 0, 1
# A refusal of the native code, or what an argument of another kind runs into before it gets there.
_REFUSALS = (ValueError, TypeError, AttributeError, IndexError)


def available_isas() -> tuple[Isa, ...]:
    """Instruction sets that this processor runs, plainest first."""
    return ISAS[: _native.best_isa() + 1]


class NativeKernels:
    """Every kernel that has a compiled form. Functions, arguments and errors are those of kvsweep.kernels.reference.

    threads  at most this many share the work of one call; large moves, unpacking and ranking only
    isa      instruction set; None takes the best one of this processor
    Arrays are borrowed for the length of a call, and long work releases the interpreter lock: nobody may change them
    meanwhile.
    Raises KernelArgumentError for a number of threads outside [1, 1024] or an instruction set that is not here.
    """

    name = "native"

    def __init__(self, *, threads: int = 1, isa: Isa | None = None) -> None:
        self.threads = check_integer("threads", threads, least=1, most=1024)
        here = available_isas()
        if isa is not None and isa not in here:
            raise KernelArgumentError("isa", " or ".join(here), repr(isa))
        self.isa: Isa = isa or here[-1]
        self._isa = ISAS.index(self.isa)

    def gather_blocks(self, pool: UInt8, layers: Int32, row_ptr: Int32, source: Int32, out: UInt8) -> None:
        """See kvsweep.kernels.moves.gather_blocks."""
        try:
            _native.gather_blocks(pool, layers, row_ptr, source, out, self._isa, self.threads)
        except _REFUSALS as refusal:
            _explain(refusal, reference.gather_blocks, pool, layers, row_ptr, source, out)

    def scatter_blocks(self, staging: UInt8, pool: UInt8, layers: Int32, row_ptr: Int32, destination: Int32) -> None:
        """See kvsweep.kernels.moves.scatter_blocks."""
        try:
            _native.scatter_blocks(staging, pool, layers, row_ptr, destination, self._isa, self.threads)
        except _REFUSALS as refusal:
            _explain(refusal, reference.scatter_blocks, staging, pool, layers, row_ptr, destination)

    def move_blocks(self, pool: UInt8, layers: Int32, row_ptr: Int32, source: Int32, destination: Int32) -> None:
        """See kvsweep.kernels.moves.move_blocks."""
        try:
            _native.move_blocks(pool, layers, row_ptr, source, destination, self._isa, self.threads)
        except _REFUSALS as refusal:
            _explain(refusal, reference.move_blocks, pool, layers, row_ptr, source, destination)

    def pack_vnni(self, blocks: UInt8, shape: BlockShape, out: UInt8) -> None:
        """See kvsweep.kernels.packing.pack_vnni."""
        shape.check_packing(Packing.VNNI)
        sizes = (shape.kv_heads, shape.block_size, shape.head_dim)
        try:
            _native.pack_vnni(blocks, out, *sizes, _HEADS_FIRST, _BOTH, self._isa, self.threads)
        except _REFUSALS as refusal:
            _explain(refusal, reference.pack_vnni, blocks, shape, out)

    def unpack_vnni(self, blocks: UInt8, shape: BlockShape, out: UInt8) -> None:
        """See kvsweep.kernels.packing.unpack_vnni."""
        shape.check_packing(Packing.VNNI)
        sizes = (shape.kv_heads, shape.block_size, shape.head_dim)
        try:
            _native.unpack_vnni(blocks, out, *sizes, _HEADS_FIRST, _BOTH, self._isa, self.threads)
        except _REFUSALS as refusal:
            _explain(refusal, reference.unpack_vnni, blocks, shape, out)

    def pack_tokens(
        self,
        pool: UInt8,
        layers: Int32,
        row_ptr: Int32,
        tokens: Int32,
        destination: Int32,
        shape: BlockShape,
        packing: Packing,
    ) -> None:
        """See kvsweep.kernels.tokens.pack_tokens."""
        try:
            sizes = (shape.kv_heads, shape.block_size, shape.head_dim, shape.element_bytes)
            packed = packing is Packing.VNNI
            _native.pack_tokens(pool, layers, row_ptr, tokens, destination, *sizes, packed, self._isa)
        except _REFUSALS as refusal:
            _explain(refusal, reference.pack_tokens, pool, layers, row_ptr, tokens, destination, shape, packing)

    def plan_diff(self, want: Csr, tail: Csr, held: Csr, *, sequence_blocks: int, shared_table: bool) -> DiffPlan:
        """See kvsweep.kernels.diff.plan_diff."""
        # One allocation, and few steps: a short plan costs no more than these.
        try:
            limit = check_integer("sequence_blocks", sequence_blocks, least=0)
            want_ptr, want_ids = want.row_ptr, want.ids
            rows = want_ptr.size - 1
            capacity = _native.diff_capacity(want_ptr, want_ids) if shared_table else want_ids.size
            first = 5 * rows + 2
            room = np.empty(first + (2 * capacity if shared_table else capacity), dtype=np.int32)
            full, common, largest, uploads, pads = _native.plan_diff(
                want_ptr,
                want_ids,
                tail.row_ptr,
                tail.ids,
                held.row_ptr,
                held.ids,
                min(limit, _MOST_ID),
                bool(shared_table),
                room,
                self._isa,
            )
        except _REFUSALS as refusal:
            plan = {"sequence_blocks": sequence_blocks, "shared_table": shared_table}
            _explain(refusal, reference.plan_diff, want, tail, held, **plan)
        second = first + capacity
        pointers = rows + 1
        return DiffPlan(
            "full" if full else "diff",
            Csr(room[:pointers], room[first : first + uploads]),
            Csr(room[pointers : 2 * pointers], room[second : second + pads]),
            room[2 * pointers : first - 2 * rows],
            room[first - 2 * rows : first - rows],
            room[first - rows : first],
            common,
            largest,
        )

    def rank_blocks(self, scores: Float32) -> Int32:
        """See kvsweep.kernels.topk.rank_blocks."""
        try:
            return self._select(scores, scores.shape[1], _BEST_FIRST)
        except _REFUSALS as refusal:
            _explain(refusal, reference.rank_blocks, scores)

    def select_top(self, scores: Float32, k: int) -> Int32:
        """See kvsweep.kernels.topk.select_top."""
        try:
            return self._select(scores, k, _BEST_FIRST)
        except _REFUSALS as refusal:
            _explain(refusal, reference.select_top, scores, k)

    def select_ascending(self, scores: Float32, k: int) -> Int32:
        """See kvsweep.kernels.topk.select_ascending."""
        try:
            return self._select(scores, k, _ASCENDING)
        except _REFUSALS as refusal:
            _explain(refusal, reference.select_ascending, scores, k)

    def _select(self, scores: Float32, k: int, emit: int) -> Int32:
        rows, n = scores.shape
        # Before anything of that size is allocated.
        ids = np.empty((rows, check_integer("k", k, least=0, most=n)), dtype=np.int32)
        _native.select_top(scores, ids, emit, self._isa, self.threads)
        return ids

    def remap_rows(self, physical: Csr, keep: Csr) -> Csr:
        """See kvsweep.kernels.moves.remap_rows."""
        try:
            ids = np.empty(keep.ids.shape, dtype=np.int32)
            _native.remap_rows(physical.row_ptr, physical.ids, keep.row_ptr, keep.ids, ids, self._isa)
        except _REFUSALS as refusal:
            _explain(refusal, reference.remap_rows, physical, keep)
        return Csr(keep.row_ptr.copy(), ids)

    def row_classes(self, rows: Csr) -> Int32:
        """See kvsweep.kernels.retain.row_classes."""
        try:
            classes = np.empty(max(rows.row_ptr.size - 1, 0), dtype=np.int32)
            _native.row_classes(rows.row_ptr, rows.ids, classes, self._isa)
        except _REFUSALS as refusal:
            _explain(refusal, reference.row_classes, rows)
        return classes

    def retired_blocks(self, owned: Int32, referenced: Int32, *, blocks: int) -> Int32:
        """See kvsweep.kernels.retain.retired_blocks."""
        limit = check_integer("blocks", blocks, least=0)
        try:
            ids = np.empty(owned.shape, dtype=np.int32)
            found = _native.retired_blocks(owned, referenced, min(limit, _MOST_ID), ids, self._isa)
        except _REFUSALS as refusal:
            _explain(refusal, reference.retired_blocks, owned, referenced, blocks=blocks)
        return ids[:found]


def _explain(refusal: Exception, plain: Callable[..., Any], *arguments: Any, **named: Any) -> NoReturn:
    """Raise the reference's error for arguments that the native code refused."""
    plain(*arguments, **named)
    raise RuntimeError(f"native {plain.__name__} refused what the reference accepts: {refusal}") from refusal
