"""The tables that attention reads: the view's blocks, then vLLM's own; and shorter lengths where blocks are dropped."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from kvsweep.ledger.ids import Operation, RequestKey, Rows
from kvsweep.ledger.messages import MoveBlocks
from kvsweep.transports.vllm.attention import NoSuchRow, layer_tables, replaced_metadata
from kvsweep.transports.vllm.device import EngineDevice
from kvsweep.transports.vllm.memory import RankMemory
from kvsweep.transports.vllm.messages import Handed

KEY, BLOCK = RequestKey("b", 1), 4
TABLE = np.asarray([[1, 2, 0, 0, 0], [3, 4, 5, 6, 0], [7, 0, 0, 0, 0]], dtype=np.int32)
LENGTHS = np.asarray([7, 14, 2], dtype=np.int32)


def device(rows: dict[int, list[int]]) -> EngineDevice:
    made = EngineDevice(RankMemory([np.zeros((32, 8), dtype=np.uint8)] * 2, cpu_blocks=1, checksums=False))
    nothing: Rows[Any] = Rows.of({0: [], 1: []})
    made.queue(
        MoveBlocks(
            operation=Operation(request=KEY, operation_id=1, pool_generation=1, map_revision=0),
            ranks=((0, 1),),
            generation=5,
            row=1,
            mode="layer",
            source=nothing,
            destination=nothing,
            table=Rows.of(rows),
            floor=0,
        )
    )
    made.advance()
    return made


def handed(replaced: int, last_block: int = 6) -> list[Handed]:
    return [Handed(request=KEY, row=1, generation=5, replaced=replaced, last_block=last_block)]


def test_a_view_of_everything_only_changes_the_table() -> None:
    tables, shorter = layer_tables(TABLE, LENGTHS, handed(2), device({0: [20, 21], 1: [22, 23]}), BLOCK)
    assert shorter is None
    assert tables[0].tolist() == [[1, 2, 0, 0, 0], [20, 21, 5, 6, 0], [7, 0, 0, 0, 0]]
    assert tables[1].tolist() == [[1, 2, 0, 0, 0], [22, 23, 5, 6, 0], [7, 0, 0, 0, 0]]


def test_a_view_of_fewer_blocks_moves_the_rest_up_and_shortens_the_length() -> None:
    tables, shorter = layer_tables(TABLE, LENGTHS, handed(3), device({0: [20], 1: [21]}), BLOCK)
    assert tables[0, 1, :2].tolist() == [20, 6]
    assert tables[1, 1, :2].tolist() == [21, 6]
    assert shorter is not None
    assert shorter.tolist() == [[7, 6, 2], [7, 6, 2]]


def test_layers_may_keep_different_numbers_of_blocks() -> None:
    tables, shorter = layer_tables(TABLE, LENGTHS, handed(3), device({0: [20, 21], 1: [22]}), BLOCK)
    assert tables[0, 1, :3].tolist() == [20, 21, 6]
    assert tables[1, 1, :2].tolist() == [22, 6]
    assert shorter is not None
    assert shorter.tolist() == [[7, 10, 2], [7, 6, 2]]


def test_a_step_without_the_row_of_a_view_is_refused() -> None:
    with pytest.raises(NoSuchRow, match="b: expected a row whose last block is 9 among the 3 of the batch, got none"):
        layer_tables(TABLE, LENGTHS, handed(2, last_block=9), device({0: [20, 21], 1: [22, 23]}), BLOCK)


@dataclass
class Metadata:
    block_table: torch.Tensor
    seq_lens: torch.Tensor
    max_seq_len: int = 14
    scheduler_metadata: object = "vLLM's"


def metadata() -> Metadata:
    return Metadata(torch.from_numpy(TABLE.copy()), torch.from_numpy(LENGTHS.copy()))


def test_metadata_is_copied_a_layer_and_vllms_own_stays() -> None:
    own = metadata()
    layers = replaced_metadata(
        own, handed(2), device({0: [20, 21], 1: [22, 23]}), BLOCK, lambda *_: pytest.fail("no length differs")
    )
    assert [layer.block_table[1, 0].item() for layer in layers] == [20, 22]
    assert all(layer.scheduler_metadata == "vLLM's" and layer.seq_lens is own.seq_lens for layer in layers)
    assert own.block_table.tolist() == TABLE.tolist()


def test_the_kernels_data_is_made_once_for_each_vector_of_lengths() -> None:
    made: list[list[int]] = []

    def rebuild(_: Any, lengths: torch.Tensor) -> object:
        made.append(lengths.tolist())
        return f"for {lengths.tolist()}"

    even = replaced_metadata(metadata(), handed(3), device({0: [20], 1: [21]}), BLOCK, rebuild)
    assert made == [[7, 6, 2]]
    assert [(layer.max_seq_len, layer.scheduler_metadata) for layer in even] == [(7, "for [7, 6, 2]")] * 2
    made.clear()
    replaced_metadata(metadata(), handed(3), device({0: [20, 21], 1: [22]}), BLOCK, rebuild)
    assert made == [[7, 10, 2], [7, 6, 2]]
