"""The plain NumPy kernels: short, checked, and the truth that every faster kernel is tested against."""

from kvsweep.kernels.diff import HOLE, DiffPlan, plan_diff
from kvsweep.kernels.moves import gather_blocks, move_blocks, poison_blocks, remap_rows, scatter_blocks
from kvsweep.kernels.packing import pack_vnni, unpack_vnni
from kvsweep.kernels.retain import retired_blocks, row_classes
from kvsweep.kernels.tokens import pack_tokens
from kvsweep.kernels.topk import rank_blocks, select_ascending, select_top
from kvsweep.kernels.whole import validate_whole_blocks

__all__ = [
    "HOLE",
    "DiffPlan",
    "gather_blocks",
    "move_blocks",
    "pack_tokens",
    "pack_vnni",
    "plan_diff",
    "poison_blocks",
    "rank_blocks",
    "remap_rows",
    "retired_blocks",
    "row_classes",
    "scatter_blocks",
    "select_ascending",
    "select_top",
    "unpack_vnni",
    "validate_whole_blocks",
]
