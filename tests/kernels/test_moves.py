"""Gather, scatter, move, remap and poison against plain loops over Python bytes."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from kvsweep.kernels import (
    Csr,
    KernelArgumentError,
    gather_blocks,
    move_blocks,
    poison_blocks,
    remap_rows,
    scatter_blocks,
)

Int32 = npt.NDArray[np.int32]
UInt8 = npt.NDArray[np.uint8]


def i32(*values: int) -> Int32:
    return np.array(values, dtype=np.int32)


def random_pool(rng: np.random.Generator, layers: int, blocks: int, block_bytes: int) -> UInt8:
    return rng.integers(0, 256, (layers, blocks, block_bytes), dtype=np.uint8)


def random_rows(rng: np.random.Generator, rows: int, blocks: int) -> Csr:
    """Ragged unique ids: some rows empty, both ends of the pool among them."""
    lists = [rng.permutation(blocks)[: rng.integers(0, blocks + 1)].tolist() for _ in range(rows)]
    lists[-1] = [blocks - 1, 0] if blocks > 1 else [0]
    return Csr.of(lists)


SHAPES = [
    (4, 9, tokens * 2 * 3 * 8 * width, seed) for seed, (tokens, width) in enumerate([(1, 4), (2, 2), (32, 2), (64, 4)])
] + [(1, 1, 1, 4), (3, 5, 7, 5)]
"""(layers, blocks, bytes a block, seed): block sizes 1, 2, 32 and 64, then one block of one byte, and odd counts."""


@pytest.mark.parametrize(("layers", "blocks", "block_bytes", "seed"), SHAPES)
def test_c2_a4_gather_and_scatter_move_exactly_the_named_bytes_of_each_layer(
    layers: int, blocks: int, block_bytes: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    pool = random_pool(rng, layers, blocks, block_bytes)
    active = i32(*range(layers - 1, layers)) if layers == 1 else i32(*range(1, layers))
    rows = random_rows(rng, active.size, blocks)
    expected = [pool[layer, block].tobytes() for layer, ids in zip(active, rows.lists(), strict=True) for block in ids]

    before = pool.tobytes()
    out = np.zeros((rows.ids.size, block_bytes), dtype=np.uint8)
    gather_blocks(pool, active, rows.row_ptr, rows.ids, out)
    assert [row.tobytes() for row in out] == expected, f"seed {seed}"
    assert pool.tobytes() == before

    other = random_pool(rng, layers, blocks, block_bytes)
    model = {(layer, block): other[layer, block].tobytes() for layer in range(layers) for block in range(blocks)}
    named = [(int(layer), block) for layer, ids in zip(active, rows.lists(), strict=True) for block in ids]
    model.update(zip(named, expected, strict=True))
    scatter_blocks(out, other, active, rows.row_ptr, rows.ids)
    assert {key: other[key].tobytes() for key in model} == model, f"seed {seed}"


def test_gather_may_name_a_block_twice() -> None:
    pool = np.arange(6, dtype=np.uint8).reshape(1, 3, 2)
    out = np.zeros((3, 2), dtype=np.uint8)
    gather_blocks(pool, i32(0), i32(0, 3), i32(2, 0, 2), out)
    assert out.tolist() == [[4, 5], [0, 1], [4, 5]]


@pytest.mark.parametrize("seed", range(5))
def test_c2_move_copies_within_a_layer_and_keeps_the_sources(seed: int) -> None:
    rng = np.random.default_rng(seed)
    layers, blocks, block_bytes = 3, 11, 24
    pool = random_pool(rng, layers, blocks, block_bytes)
    model = {(layer, block): pool[layer, block].tobytes() for layer in range(layers) for block in range(blocks)}
    sources, destinations = [], []
    for layer in range(layers):
        order, count = rng.permutation(blocks).tolist(), int(rng.integers(0, blocks // 2 + 1))
        sources.append(order[:count])
        destinations.append(order[count : 2 * count])
        for source, destination in zip(sources[-1], destinations[-1], strict=True):
            model[layer, destination] = model[layer, source]
    source, destination = Csr.of(sources), Csr.of(destinations)
    move_blocks(pool, i32(0, 1, 2), source.row_ptr, source.ids, destination.ids)
    assert {key: pool[key].tobytes() for key in model} == model, f"seed {seed}"


def test_a4_a_block_may_be_source_in_one_layer_and_destination_in_another() -> None:
    pool = np.arange(4, dtype=np.uint8).reshape(2, 2, 1)
    move_blocks(pool, i32(0, 1), i32(0, 1, 2), i32(0, 1), i32(1, 0))
    assert pool.reshape(-1).tolist() == [0, 0, 3, 3]


def test_g3_move_in_place_is_refused_and_writes_nothing() -> None:
    pool = np.arange(8, dtype=np.uint8).reshape(2, 4, 1)
    before = pool.copy()
    with pytest.raises(KernelArgumentError) as caught:
        move_blocks(pool, i32(0, 1), i32(0, 1, 3), i32(0, 2, 3), i32(1, 0, 2))
    assert str(caught.value) == "destination: expected no source of its row, got 2 in row 1"
    assert np.array_equal(pool, before)


def test_poison_fills_only_the_named_blocks() -> None:
    pool = np.zeros((2, 3, 4), dtype=np.uint8)
    poison_blocks(pool, i32(1), i32(0, 2), i32(2, 0), 255)
    assert pool[:, :, 0].tolist() == [[0, 0, 0], [255, 0, 255]]
    assert np.isnan(pool[1, 2].view(np.float32)).all()
    assert np.isnan((pool[1, 2].view(np.uint16).astype(np.uint32) << 16).view(np.float32)).all()


def test_b1_b2_remap_goes_by_the_kept_slots_and_not_by_their_number() -> None:
    """Layer 0 keeps slots 0 and 2, layer 1 keeps 1 and 2: equal counts, different tables."""
    physical = Csr.of([[10, 11, 12], [10, 11, 12]])
    assert remap_rows(physical, Csr.of([[0, 2], [1, 2]])).lists() == [[10, 12], [11, 12]]


@pytest.mark.parametrize("seed", range(5))
def test_b2_remap_equals_picking_slot_by_slot(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tables = [rng.permutation(50)[: rng.integers(0, 20)].tolist() for _ in range(6)]
    keeps = [sorted(rng.permutation(len(table))[: rng.integers(0, len(table) + 1)].tolist()) for table in tables]
    expected = [[table[slot] for slot in keep] for table, keep in zip(tables, keeps, strict=True)]
    physical = Csr.of(tables)
    remapped = remap_rows(physical, Csr.of(keeps))
    assert remapped.lists() == expected, f"seed {seed}"
    assert remapped.ids.dtype == np.int32
    assert physical.lists() == tables


def test_remap_skips_a_hole_that_is_not_kept_and_refuses_one_that_is() -> None:
    physical = Csr.of([[5], [7, -1, 9]])
    assert remap_rows(physical, Csr.of([[0], [0, 2]])).lists() == [[5], [7, 9]]
    with pytest.raises(KernelArgumentError) as caught:
        remap_rows(physical, Csr.of([[0], [0, 1]]))
    assert str(caught.value) == "keep.ids: expected slots that hold a block, got empty slot 1 in row 1"


@pytest.mark.parametrize(
    ("physical", "keep", "message"),
    [
        ([[1], [2]], [[0]], "keep: expected 2 rows, as many as physical, got 1 rows"),
        ([[1], [2]], [[0], [1]], "keep.ids: expected slots in [0, 1), got 1 in row 1"),
        ([[1], [2]], [[-1], []], "keep.ids: expected slots in [0, 1), got -1 in row 0"),
        ([[], [2, 3]], [[], [1, 0]], "keep.ids: expected ascending slots, each once, got 0 after 1 in row 1"),
        ([[], [2, 3]], [[], [1, 1]], "keep.ids: expected ascending slots, each once, got 1 after 1 in row 1"),
    ],
)
def test_b2_bad_keep_rows_are_refused(physical: list[list[int]], keep: list[list[int]], message: str) -> None:
    with pytest.raises(KernelArgumentError) as caught:
        remap_rows(Csr.of(physical), Csr.of(keep))
    assert str(caught.value) == message


POOL = np.zeros((2, 4, 8), dtype=np.uint8)
OUT = np.zeros((2, 8), dtype=np.uint8)


def frozen(array: UInt8) -> UInt8:
    copy = array.copy()
    copy.flags.writeable = False
    return copy


BAD_CALLS: list[tuple[Callable[[], None], str]] = [
    (
        lambda: gather_blocks(POOL.view(np.int8), i32(0), i32(0, 2), i32(0, 1), OUT),
        "pool: expected a C-contiguous uint8 array with 3 axes, got dtype int8",
    ),
    (
        lambda: gather_blocks(POOL[0], i32(0), i32(0, 2), i32(0, 1), OUT),
        "pool: expected a C-contiguous uint8 array with 3 axes, got shape (4, 8)",
    ),
    (
        lambda: gather_blocks(POOL[:, ::2], i32(0), i32(0, 2), i32(0, 1), OUT),
        "pool: expected a C-contiguous uint8 array with 3 axes, got strides (32, 16, 1) for shape (2, 2, 8)",
    ),
    (
        lambda: gather_blocks(POOL, i32(0), i32(0, 2), [0, 1], OUT),  # type: ignore[arg-type]
        "source: expected a C-contiguous int32 array with 1 axes, got list",
    ),
    (
        lambda: gather_blocks(POOL, i32(0), np.array([0, 2]), i32(0, 1), OUT),
        "row_ptr: expected a C-contiguous int32 array with 1 axes, got dtype int64",
    ),
    (
        lambda: gather_blocks(POOL, i32(), i32(), i32(), OUT),
        "row_ptr: expected rows + 1 entries, got an empty array",
    ),
    (
        lambda: gather_blocks(POOL, i32(0), i32(1, 2), i32(0, 1), OUT),
        "row_ptr: expected 0 as the first entry, got 1",
    ),
    (
        lambda: gather_blocks(POOL, i32(0, 1), i32(0, 3, 2), i32(0, 1), OUT),
        "row_ptr: expected entries that never fall, got 2 after 3 at entry 2",
    ),
    (
        lambda: gather_blocks(POOL, i32(0), i32(0, 3), i32(0, 1), OUT),
        "row_ptr: expected 2 (the size of source) last, got 3",
    ),
    (
        lambda: gather_blocks(POOL, i32(0, 1), i32(0, 2), i32(0, 1), OUT),
        "layers: expected shape (1,), got shape (2,)",
    ),
    (
        lambda: gather_blocks(POOL, i32(2), i32(0, 2), i32(0, 1), OUT),
        "layers: expected layers in [0, 2), got 2 in row 0",
    ),
    (
        lambda: gather_blocks(POOL, i32(-1), i32(0, 2), i32(0, 1), OUT),
        "layers: expected layers in [0, 2), got -1 in row 0",
    ),
    (
        lambda: gather_blocks(POOL, i32(1, 1), i32(0, 1, 2), i32(0, 1), OUT),
        "layers: expected ascending layers, each once, got 1 after 1",
    ),
    (
        lambda: gather_blocks(POOL, i32(0, 1), i32(0, 1, 2), i32(0, 4), OUT),
        "source: expected ids in [0, 4), got 4 in row 1",
    ),
    (
        lambda: gather_blocks(POOL, i32(0), i32(0, 2), i32(-1, 1), OUT),
        "source: expected ids in [0, 4), got -1 in row 0",
    ),
    (
        lambda: gather_blocks(POOL, i32(0), i32(0, 1), i32(0), OUT),
        "out: expected shape (1, 8), got shape (2, 8)",
    ),
    (
        lambda: gather_blocks(POOL, i32(0), i32(0, 2), i32(0, 1), POOL[1, 2:]),
        "out: expected memory apart from pool, got memory that overlaps pool",
    ),
    (
        lambda: gather_blocks(POOL, i32(0), i32(0, 2), i32(0, 1), frozen(OUT)),
        "out: expected a writable array, got a read-only array",
    ),
    (
        lambda: scatter_blocks(OUT, frozen(POOL), i32(0), i32(0, 2), i32(0, 1)),
        "pool: expected a writable array, got a read-only array",
    ),
    (
        lambda: scatter_blocks(OUT, POOL, i32(1), i32(0, 2), i32(3, 3)),
        "destination: expected each id once in a row, got 3 twice in row 0",
    ),
    (
        lambda: scatter_blocks(OUT, POOL, i32(0), i32(0, 2), i32(0, 4)),
        "destination: expected ids in [0, 4), got 4 in row 0",
    ),
    (
        lambda: scatter_blocks(POOL[0, :2], POOL, i32(0), i32(0, 2), i32(2, 3)),
        "staging: expected memory apart from pool, got memory that overlaps pool",
    ),
    (
        lambda: scatter_blocks(OUT[:, :4].copy(), POOL, i32(0), i32(0, 2), i32(2, 3)),
        "staging: expected shape (2, 8), got shape (2, 4)",
    ),
    (
        lambda: move_blocks(POOL, i32(0), i32(0, 2), i32(0, 1), i32(2)),
        "destination: expected shape (2,), got shape (1,)",
    ),
    (
        lambda: move_blocks(POOL, i32(0), i32(0, 2), i32(0, 1), i32(2, 2)),
        "destination: expected each id once in a row, got 2 twice in row 0",
    ),
    (
        lambda: move_blocks(POOL, i32(0), i32(0, 2), i32(0, 1), i32(2, -1)),
        "destination: expected ids in [0, 4), got -1 in row 0",
    ),
    (
        lambda: move_blocks(frozen(POOL), i32(0), i32(0, 2), i32(0, 1), i32(2, 3)),
        "pool: expected a writable array, got a read-only array",
    ),
    (
        lambda: poison_blocks(POOL, i32(0), i32(0, 2), i32(0, 1), 256),
        "pattern: expected an integer in [0, 255], got 256",
    ),
    (
        lambda: poison_blocks(POOL, i32(0), i32(0, 2), i32(1, 1), 0),
        "ids: expected each id once in a row, got 1 twice in row 0",
    ),
    (
        lambda: poison_blocks(frozen(POOL), i32(0), i32(0, 2), i32(0, 1), 0),
        "pool: expected a writable array, got a read-only array",
    ),
]


@pytest.mark.parametrize(("call", "message"), BAD_CALLS, ids=[message for _, message in BAD_CALLS])
def test_bad_argument_is_refused_with_its_name(call: Callable[[], None], message: str) -> None:
    with pytest.raises(KernelArgumentError) as caught:
        call()
    assert str(caught.value) == message
    assert not POOL.any()
    assert not OUT.any()


@pytest.mark.parametrize("rows", [0, 2])
def test_empty_selection_touches_nothing(rows: int) -> None:
    pool = np.ones((2, 3, 4), dtype=np.uint8)
    before = pool.copy()
    layers, row_ptr, none = i32(*range(rows)), np.zeros(rows + 1, dtype=np.int32), i32()
    blocks = np.zeros((0, 4), dtype=np.uint8)
    gather_blocks(pool, layers, row_ptr, none, blocks)
    scatter_blocks(blocks, pool, layers, row_ptr, none)
    move_blocks(pool, layers, row_ptr, none, none)
    poison_blocks(pool, layers, row_ptr, none, 9)
    assert np.array_equal(pool, before)
    assert remap_rows(Csr(row_ptr, none), Csr(row_ptr, none)).rows == rows
