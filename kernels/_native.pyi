"""The compiled kernels, as kernels/native/bind.cpp defines them. A refusal is a ValueError, before anything is written.

isa      0 scalar, 1 AVX2, 2 AVX-512; at most best_isa()
threads  1 to 1024
Arrays are C-contiguous numpy.ndarray of exactly the dtype named in kvsweep.kernels.reference.
"""

from kvsweep.kernels.csr import Int32
from kvsweep.kernels.moves import UInt8
from kvsweep.kernels.topk import Float32

def best_isa() -> int: ...
def gather_blocks(
    pool: UInt8, layers: Int32, row_ptr: Int32, source: Int32, out: UInt8, isa: int, threads: int, /
) -> None: ...
def scatter_blocks(
    staging: UInt8, pool: UInt8, layers: Int32, row_ptr: Int32, destination: Int32, isa: int, threads: int, /
) -> None: ...
def move_blocks(
    pool: UInt8, layers: Int32, row_ptr: Int32, source: Int32, destination: Int32, isa: int, threads: int, /
) -> None: ...

# order: 0 [2, head, token, dim], 1 [2, token, head, dim]; parts: 1 K, 2 V, 3 both. Arrays of half a block's width hold
# the one part alone.
def unpack_vnni(
    blocks: UInt8,
    out: UInt8,
    kv_heads: int,
    block_size: int,
    head_dim: int,
    order: int,
    parts: int,
    isa: int,
    threads: int,
    /,
) -> None: ...
def pack_vnni(
    blocks: UInt8,
    out: UInt8,
    kv_heads: int,
    block_size: int,
    head_dim: int,
    order: int,
    parts: int,
    isa: int,
    threads: int,
    /,
) -> None: ...

# packed: for matrix units, else natural order
def pack_tokens(
    pool: UInt8,
    layers: Int32,
    row_ptr: Int32,
    tokens: Int32,
    destination: Int32,
    kv_heads: int,
    block_size: int,
    head_dim: int,
    element_bytes: int,
    packed: bool,
    isa: int,
    /,
) -> None: ...

# Ids of the largest possible plan of a shared table.
def diff_capacity(row_ptr: Int32, ids: Int32, /) -> int: ...

# room: row pointers of upload and pad; new, truncated and unfilled a row; ids of upload, and of pad if shared.
# Returns (full, common_new_slots, largest_id, ids uploaded, ids of padding).
def plan_diff(
    want_ptr: Int32,
    want_ids: Int32,
    tail_ptr: Int32,
    tail_ids: Int32,
    held_ptr: Int32,
    held_ids: Int32,
    limit: int,
    shared_table: bool,
    room: Int32,
    isa: int,
    /,
) -> tuple[bool, int, int, int, int]: ...

# emit: 0 best first, 1 ascending; k is the length of out's rows
def select_top(scores: Float32, out: Int32, emit: int, isa: int, threads: int, /) -> None: ...
def remap_rows(
    physical_ptr: Int32, physical_ids: Int32, keep_ptr: Int32, keep_ids: Int32, out: Int32, isa: int, /
) -> None: ...
def row_classes(row_ptr: Int32, ids: Int32, out: Int32, isa: int, /) -> None: ...

# Returns how many of out were filled.
def retired_blocks(owned: Int32, referenced: Int32, blocks: int, out: Int32, isa: int, /) -> int: ...

# For measuring against: a copy past the caches, and one read.
def stream_copy(source: UInt8, out: UInt8, isa: int, /) -> None: ...
def read_all(source: UInt8, isa: int, /) -> int: ...
