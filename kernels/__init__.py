"""Kernels: moving and packing whole blocks of bytes, ranking blocks, planning sets of ids. NumPy in, NumPy out."""

from kvsweep.kernels.csr import Csr
from kvsweep.kernels.errors import KernelArgumentError, NonFiniteInput
from kvsweep.kernels.layout import BlockShape, Packing
from kvsweep.kernels.reference import (
    HOLE,
    DiffPlan,
    gather_blocks,
    move_blocks,
    pack_tokens,
    pack_vnni,
    plan_diff,
    poison_blocks,
    rank_blocks,
    remap_rows,
    scatter_blocks,
    select_top,
    unpack_vnni,
    validate_whole_blocks,
)

__all__ = [
    "HOLE",
    "BlockShape",
    "Csr",
    "DiffPlan",
    "KernelArgumentError",
    "NonFiniteInput",
    "Packing",
    "gather_blocks",
    "move_blocks",
    "pack_tokens",
    "pack_vnni",
    "plan_diff",
    "poison_blocks",
    "rank_blocks",
    "remap_rows",
    "scatter_blocks",
    "select_top",
    "unpack_vnni",
    "validate_whole_blocks",
]
