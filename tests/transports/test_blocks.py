"""Block memory: views without a copy, writes of tokens, poison, refusals."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kvsweep.ledger.errors import LayoutError
from kvsweep.transports.blocks import BlockMemory, aligned


def i32(*values: int) -> npt.NDArray[np.int32]:
    return np.array(values, dtype=np.int32)


def test_a_typed_view_is_the_memory_itself(world: Any) -> None:
    view = world.device.typed(3)
    assert view.shape == (8, 2, 1, 4, 3)
    assert view.dtype == np.float32
    view[5] = 1.5
    assert np.frombuffer(world.device_bytes(3, 5), dtype=np.float32).tolist() == [1.5] * 24


def test_new_memory_reads_as_nan(world: Any, packed_world: Any) -> None:
    fresh = BlockMemory.of_device(world.layout, (2, 2, 2))
    assert all(np.isnan(fresh.typed(layer)).all() for layer in range(5))
    packed = BlockMemory.of_device(packed_world.layout, (1,))
    wide = packed.typed(0).astype(np.uint32) << 16  # bfloat16 is the upper half of a float32
    assert np.isnan(wide.view(np.float32)).all()


def test_staging_begins_at_a_line_of_the_cache() -> None:
    """Unaligned results cannot be written past the caches: half the speed of an unpack."""
    assert aligned(100).ctypes.data % 64 == 0


def test_every_group_has_pages_of_its_own(world: Any) -> None:
    """A GPU's driver locks them in place, and no page twice."""
    taken: set[int] = set()
    for memory in (BlockMemory.of_cpu(world.layout, 3), BlockMemory.of_cpu(world.layout, 3)):
        for group in memory.groups:
            assert group.ctypes.data % 4096 == 0
            pages = set(range(group.ctypes.data // 4096, (group.ctypes.data + group.nbytes - 1) // 4096 + 1))
            assert not pages & taken
            taken |= pages


def test_poison_covers_every_layer_of_its_group_and_nothing_else(world: Any) -> None:
    before = {(layer, block): world.device_bytes(layer, block) for layer in range(5) for block in range(8)}
    world.device.poison(2, i32(0, 7))
    changed = {key for key, old in before.items() if world.device_bytes(*key) != old}
    assert changed == {(3, 0), (3, 7), (4, 0), (4, 7)}
    assert all(set(world.device_bytes(*key)) == {255} for key in changed)
    with pytest.raises(LayoutError, match=r"group: expected a group in \[0, 3\), got 3"):
        world.device.poison(3, i32(0))
    with pytest.raises(LayoutError, match=r"blocks: expected ids in \[0, 8\) in layer 3, got 8"):
        world.device.poison(2, i32(8))


def test_written_tokens_stand_where_attention_reads_them(world: Any) -> None:
    k = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    before = world.device.typed(0).copy()
    world.device.write_rows(0, 6, 1, k, k + 100)
    expected = before
    for head in range(2):
        for token in range(2):
            for dim in range(3):
                expected[6, 0, head, 1 + token, dim] = k[head, token, dim]
                expected[6, 1, head, 1 + token, dim] = k[head, token, dim] + 100
    assert (world.device.typed(0).view(np.uint32) == expected.view(np.uint32)).all()


def test_tokens_are_packed_where_the_cpu_keeps_packed_blocks(
    packed_world: Any, vnni_by_element: Callable[[npt.NDArray[np.uint16]], npt.NDArray[np.uint16]]
) -> None:
    rng = np.random.default_rng(20260916)
    natural = rng.integers(0, 2**16, (2, 2, 32, 32), dtype=np.uint16)
    memory = packed_world.cpu
    untouched = memory.areas(0)[[0, 2]].copy()
    memory.write_tokens(0, 1, 0, natural[0][:, :7].copy(), natural[1][:, :7].copy())
    memory.write_tokens(0, 1, 7, natural[0][:, 7:].copy(), natural[1][:, 7:].copy())
    assert (memory.areas(0)[1].view(np.uint16) == vnni_by_element(natural)).all()
    assert memory.peek(0, i32(1)).tobytes() == natural.tobytes()
    assert (memory.areas(0)[[0, 2]] == untouched).all()
    with pytest.raises(LayoutError) as caught:
        memory.typed(0)
    assert str(caught.value) == "packing: expected natural, for a view by element, got vnni"


@pytest.mark.parametrize(
    ("first", "k", "v", "message"),
    [
        (3, (2, 2, 3), (2, 2, 3), "first_token: expected tokens inside [0, 4), got 3 … 4"),
        (-1, (2, 1, 3), (2, 1, 3), "first_token: expected tokens inside [0, 4), got -1 … -1"),
        (0, (1, 1, 3), (1, 1, 3), "k: expected float32 of shape (2, n, 3), n as in k, got float32 of shape (1, 1, 3)"),
        (0, (2, 2, 3), (2, 1, 3), "v: expected float32 of shape (2, n, 3), n as in k, got float32 of shape (2, 1, 3)"),
        (0, (2, 3), (2, 3), "k: expected float32 of shape (2, n, 3), n as in k, got float32 of shape (2, 3)"),
    ],
)
def test_tokens_that_do_not_fit_a_block_are_refused(
    world: Any, first: int, k: tuple[int, ...], v: tuple[int, ...], message: str
) -> None:
    before = world.device_bytes(0, 0)
    with pytest.raises(LayoutError) as caught:
        world.device.write_rows(0, 0, first, np.zeros(k, dtype=np.float32), np.zeros(v, dtype=np.float32))
    assert str(caught.value) == message
    assert world.device_bytes(0, 0) == before


def test_ids_are_checked_before_anything_is_read(world: Any) -> None:
    with pytest.raises(LayoutError, match=r"layer: expected a layer in \[0, 5\), got 5"):
        world.device.read(5, i32(0))
    with pytest.raises(LayoutError, match=r"blocks: expected ids in \[0, 8\) in layer 0, got -1"):
        world.device.read(0, i32(-1))
    with pytest.raises(LayoutError, match=r"blocks: expected int32\[n\] block ids, got int64 of shape \(1,\)"):
        world.device.read(0, np.array([0]))
    with pytest.raises(LayoutError, match=r"block: expected ids in \[0, 8\) in layer 0, got 8"):
        world.device.write_rows(0, 8, 0, np.zeros((2, 1, 3), np.float32), np.zeros((2, 1, 3), np.float32))


def test_a_read_is_a_copy(world: Any) -> None:
    kept = world.device.read(0, i32(1, 2))
    before = kept.copy()
    world.device.poison(0, i32(1, 2))
    assert kept.shape == (2, 192)
    assert (kept == before).all()
