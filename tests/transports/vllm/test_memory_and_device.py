"""The rank's memory and device: views over tensors, checksums that see a changed byte, operations that run whole."""

import numpy as np
import pytest
import torch

from kvsweep.ledger.errors import LayoutError
from kvsweep.ledger.ids import Operation, RequestKey, Rows
from kvsweep.ledger.messages import MoveBlocks, StoreBlocks, Transfer
from kvsweep.transports.vllm.device import EngineDevice
from kvsweep.transports.vllm.memory import POISON, RankMemory, blocks_of_tensor, memory_of

KEY = RequestKey("r", 1)
RANKS = ((0, 1),)


def operation(number: int) -> Operation:
    return Operation(request=KEY, operation_id=number, pool_generation=1, map_revision=0)


def make(layers: int = 2, blocks: int = 6, size: int = 16) -> EngineDevice:
    random = np.random.default_rng(20260916)
    data = [random.integers(0, 256, (blocks, size)).astype(np.uint8) for _ in range(layers)]
    return EngineDevice(RankMemory(data, cpu_blocks=4, checksums=True))


def store(number: int, source: dict[int, list[int]], destination: dict[int, list[int]]) -> StoreBlocks:
    return StoreBlocks(
        operation=operation(number), ranks=RANKS, source=Rows.of(source), destination=Rows.of(destination), floor=0
    )


def transfer(number: int, source: dict[int, list[int]], destination: dict[int, list[int]]) -> Transfer:
    return Transfer(
        operation=operation(number),
        ranks=RANKS,
        generation=number,
        row=0,
        source_kind="source_only",
        source=Rows.of(source),
        destination=Rows.of(destination),
        table=Rows.of(destination),
        floor=0,
    )


def test_a_tensor_is_seen_as_blocks_and_not_copied() -> None:
    whole = torch.zeros(3, 2, 4, 5, dtype=torch.bfloat16)
    blocks = blocks_of_tensor("l", whole, blocks=3, block_bytes=80)
    blocks[1] = 0xFF
    assert torch.isnan(whole[1]).all()
    assert not whole[0].any()
    apart = torch.zeros(3, 2, 2, 4, dtype=torch.float32)[:, 0]  # blocks with a gap between them
    assert blocks_of_tensor("l", apart, blocks=3, block_bytes=32).strides == (64, 1)


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (torch.zeros(3, 4, 2).transpose(1, 2), "l: expected the elements of a block without a gap"),
        (torch.zeros(2, 8), "l: expected 3 blocks of 32 bytes, got 2 blocks of 32 bytes"),
    ],
)
def test_a_tensor_of_another_layout_is_refused(tensor: torch.Tensor, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        blocks_of_tensor("l", tensor, blocks=3, block_bytes=32)


def test_a_layer_without_a_tensor_is_named() -> None:
    with pytest.raises(LayoutError, match=r"none: \['b'\]"):
        memory_of({"a": torch.zeros(2, 4)}, ["a", "b"], blocks=2, block_bytes=16, cpu_blocks=1, checksums=True)


def test_stored_then_uploaded_bytes_are_the_same_in_each_layers_own_place() -> None:
    device = make()
    before = [layer.copy() for layer in device.memory.layers]
    device.queue(store(1, {0: [1, 2], 1: [1, 2]}, {0: [3, 0], 1: [3, 0]}))
    device.queue(transfer(2, {0: [3, 0], 1: [3, 0]}, {0: [4, 5], 1: [5, 4]}))
    assert device.queued == 2
    assert (device.memory.layers[0][4] == before[0][4]).all(), "nothing runs before advance"
    assert device.advance() == 2
    assert (device.memory.layers[0][[4, 5]] == before[0][[1, 2]]).all()
    assert (device.memory.layers[1][[5, 4]] == before[1][[1, 2]]).all()
    stored, uploaded = device.poll()
    assert (stored.d2h_bytes, uploaded.h2d_bytes, uploaded.table_updates) == (64, 64, 2)
    assert device.digests[1] == device.digests[2], "the same blocks in the same order"
    assert device.table(KEY, 0, 2, 1).tolist() == [5, 4]
    assert (device.memory.checked, device.memory.wrong) == (4, 0)


def test_a_byte_that_changed_in_the_cpu_tier_fails_the_upload_and_shows_no_table() -> None:
    device = make()
    device.queue(store(1, {0: [1], 1: [1]}, {0: [0], 1: [0]}))
    device.advance()
    device.memory.cpu[1, 0, 7] ^= 1
    device.queue(transfer(2, {0: [0], 1: [0]}, {0: [4], 1: [4]}))
    device.advance()
    failed = device.poll()[1]
    assert (failed.outcome, failed.reason) == ("failed", "1 blocks differ from what was stored")
    assert device.memory.wrong == 1
    with pytest.raises(LayoutError, match="what row 0 of 'r' shows"):
        device.table(KEY, 0, 2, 0)


def test_moves_are_never_in_place_and_ids_are_inside() -> None:
    device = make()
    work = MoveBlocks(
        operation=operation(1),
        ranks=RANKS,
        generation=1,
        row=0,
        mode="pack",
        source=Rows.of({0: [1], 1: []}),
        destination=Rows.of({0: [1], 1: []}),
        table=Rows.of({0: [1], 1: [2]}),
        floor=0,
    )
    with pytest.raises(LayoutError, match=r"destination\[0\]: expected no source of its layer, got 1"):
        device.queue(work)
    with pytest.raises(LayoutError, match=r"destination\[0\]: expected ids in \[0, 4\), got 4 … 4"):
        device.queue(store(2, {0: [1]}, {0: [4]}))
    assert device.queued == 0


def test_a_cancelled_operation_does_not_run_and_a_closed_life_gives_up_its_rows() -> None:
    device = make()
    before = [layer.copy() for layer in device.memory.layers]
    device.queue(transfer(1, {0: [0], 1: [0]}, {0: [4], 1: [4]}))
    assert not device.try_forget(KEY)
    assert device.cancel(1)
    assert not device.cancel(1)
    device.advance()
    assert all((now == then).all() for now, then in zip(device.memory.layers, before, strict=True))
    assert device.poll() == []
    assert device.try_forget(KEY)


def test_poison_fills_the_whole_block_in_every_layer_and_no_other() -> None:
    device = make()
    before = [layer.copy() for layer in device.memory.layers]
    device.poison(0, np.asarray([2], dtype=np.int32))
    for now, then in zip(device.memory.layers, before, strict=True):
        assert (now[2] == POISON).all()
        assert (now[[0, 1, 3, 4, 5]] == then[[0, 1, 3, 4, 5]]).all()
