"""Which implementation of the kernels runs: one object, chosen once and handed to whoever moves or plans."""

import functools
import hashlib
from pathlib import Path
from typing import Literal, Protocol

from kvsweep.kernels import reference
from kvsweep.kernels.csr import Csr, Int32
from kvsweep.kernels.diff import DiffPlan
from kvsweep.kernels.errors import KernelArgumentError
from kvsweep.kernels.layout import BlockShape, Packing
from kvsweep.kernels.moves import UInt8
from kvsweep.kernels.topk import Float32

KernelChoice = Literal["auto", "native", "numpy"]


class Kernels(Protocol):
    """The kernels that have more than one implementation; kvsweep.kernels.reference describes each function."""

    @property
    def name(self) -> str:
        """ "native" or "numpy"."""

    def gather_blocks(self, pool: UInt8, layers: Int32, row_ptr: Int32, source: Int32, out: UInt8) -> None: ...
    def scatter_blocks(
        self, staging: UInt8, pool: UInt8, layers: Int32, row_ptr: Int32, destination: Int32
    ) -> None: ...
    def move_blocks(self, pool: UInt8, layers: Int32, row_ptr: Int32, source: Int32, destination: Int32) -> None: ...
    def pack_vnni(self, blocks: UInt8, shape: BlockShape, out: UInt8) -> None: ...
    def unpack_vnni(self, blocks: UInt8, shape: BlockShape, out: UInt8) -> None: ...
    def pack_tokens(
        self,
        pool: UInt8,
        layers: Int32,
        row_ptr: Int32,
        tokens: Int32,
        destination: Int32,
        shape: BlockShape,
        packing: Packing,
    ) -> None: ...
    def plan_diff(self, want: Csr, tail: Csr, held: Csr, *, sequence_blocks: int, shared_table: bool) -> DiffPlan: ...
    def rank_blocks(self, scores: Float32) -> Int32: ...
    def select_top(self, scores: Float32, k: int) -> Int32: ...
    def select_ascending(self, scores: Float32, k: int) -> Int32: ...
    def remap_rows(self, physical: Csr, keep: Csr) -> Csr: ...
    def row_classes(self, rows: Csr) -> Int32: ...
    def retired_blocks(self, owned: Int32, referenced: Int32, *, blocks: int) -> Int32: ...


class NumpyKernels:
    """The reference. One thread, no state."""

    name = "numpy"
    gather_blocks = staticmethod(reference.gather_blocks)
    scatter_blocks = staticmethod(reference.scatter_blocks)
    move_blocks = staticmethod(reference.move_blocks)
    pack_vnni = staticmethod(reference.pack_vnni)
    unpack_vnni = staticmethod(reference.unpack_vnni)
    pack_tokens = staticmethod(reference.pack_tokens)
    plan_diff = staticmethod(reference.plan_diff)
    rank_blocks = staticmethod(reference.rank_blocks)
    select_top = staticmethod(reference.select_top)
    select_ascending = staticmethod(reference.select_ascending)
    remap_rows = staticmethod(reference.remap_rows)
    row_classes = staticmethod(reference.row_classes)
    retired_blocks = staticmethod(reference.retired_blocks)


def why_not_native() -> str | None:
    """Why the native kernels cannot run here; None where they can."""
    try:
        import kvsweep.kernels._native  # noqa: F401
    except ImportError as error:
        return f"the extension was not built or does not load ({error})"
    return None


@functools.cache
def choose_kernels(choice: KernelChoice = "auto", *, threads: int = 1) -> Kernels:
    """The implementation to use. "auto" takes the native one where it was built, else NumPy.

    threads  for the native one: at most this many share the work of a call
    Raises KernelArgumentError for "native" where it was not built, or another choice.
    """
    if choice not in ("auto", "native", "numpy"):
        raise KernelArgumentError("kernels", '"auto", "native" or "numpy"', repr(choice))
    missing = None if choice == "numpy" else why_not_native()
    if choice == "native" and missing:
        raise KernelArgumentError("kernels", '"auto" or "numpy" on this installation', f'"native": {missing}')
    if choice == "numpy" or missing:
        return NumpyKernels()
    from kvsweep.kernels.compiled import NativeKernels

    return NativeKernels(threads=threads)


def describe(kernels: Kernels) -> str:
    """What ran, as evidence: "numpy", or the native build with its instruction set, threads and SHA-256."""
    if kernels.name == "numpy":
        return kernels.name
    from kvsweep.kernels import _native, compiled

    if not isinstance(kernels, compiled.NativeKernels):
        raise KernelArgumentError("kernels", "numpy or native kernels", type(kernels).__name__)
    built = hashlib.sha256(Path(_native.__file__).read_bytes()).hexdigest()
    return f"native ({kernels.isa}, threads {kernels.threads}, extension SHA-256 {built})"
