"""What attention reads in one step: per layer a block table of its own and, where blocks were dropped, shorter lengths.

vLLM gives every layer of a group one metadata object. A layer whose request has a view gets a copy of it, put in its
place before the layer's attention runs: the table begins with the view's blocks of that layer, and goes on with the
blocks of vLLM's own row that the view does not stand for.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kvsweep.ledger.errors import KvsweepError
from kvsweep.ledger.ids import Int32, RequestKey
from kvsweep.transports.vllm.device import EngineDevice
from kvsweep.transports.vllm.messages import Handed

Rebuild = Callable[[Any, Any], Any]
"""(vLLM's metadata, seq_lens tensor) -> the scheduling data of the kernel for those lengths."""


class NoSuchRow(KvsweepError):
    """A request that has a view is not in the batch: to run the step would read blocks that are not its own."""

    def __init__(self, request: RequestKey, block: int, rows: int) -> None:
        self.request, self.block = request, block
        super().__init__(
            f"{request.request_id}: expected a row whose last block is {block} among the {rows} of the batch, got none"
        )


def rows_by_last_block(table: Int32, lengths: Int32, block_size: int) -> dict[int, int]:
    """Id of the block that each row writes last -> the row. A row of length 0 is padding.

    table int32[rows, width] · lengths int32[rows], tokens
    """
    filled = np.flatnonzero(lengths > 0)
    ids = table[filled, (lengths[filled] - 1) // block_size]
    return dict(zip(ids.tolist(), filled.tolist(), strict=True))


def layer_tables(
    table: Int32, lengths: Int32, handed: Sequence[Handed], device: EngineDevice, block_size: int
) -> tuple[Int32, Int32 | None]:
    """(int32[layers, rows, width], int32[layers, rows] or None): tables, and lengths where any layer's differ.

    table    int32[rows, width]: vLLM's own rows
    lengths  int32[rows]: tokens, this step's included
    Raises NoSuchRow where a handed request is in no row, LayoutError where its table shows another generation.
    """
    layers = len(device.memory.layers)
    tables = np.empty((layers, *table.shape), dtype=np.int32)
    tables[:] = table
    shorter: Int32 | None = None
    rows = rows_by_last_block(table, lengths, block_size)
    for one in handed:
        row = rows.get(one.last_block)
        if row is None:
            raise NoSuchRow(one.request, one.last_block, len(rows))
        view, replaced = device.tables(one.request, one.row, one.generation), one.replaced
        used = (int(lengths[row]) - 1) // block_size + 1
        if view.even:
            count = int(view.counts[0])
            tables[:, row, :count] = view.blocks
            if count != replaced:
                tables[:, row, count : count + used - replaced] = table[row, replaced:used]
        else:
            for layer, count in enumerate(view.counts.tolist()):
                tables[layer, row, :count] = view.blocks[layer, :count]
                tables[layer, row, count : count + used - replaced] = table[row, replaced:used]
        if not view.even or int(view.counts[0]) != replaced:
            if shorter is None:
                shorter = np.repeat(lengths[None, :].astype(np.int32), layers, axis=0)
            shorter[:, row] -= (replaced - view.counts) * block_size
    return tables, shorter


def replaced_metadata(
    metadata: Any, handed: Sequence[Handed], device: EngineDevice, block_size: int, rebuild: Rebuild
) -> list[Any]:
    """One metadata object a layer, in layer order, for a step in which some request has a view.

    metadata  vLLM's, of the whole group: block_table int32[rows, width] and seq_lens int32[rows] on the CPU
    rebuild   called once for each distinct vector of lengths that is not vLLM's own
    """
    import torch

    table, lengths = metadata.block_table.numpy(), metadata.seq_lens.numpy()
    tables, shorter = layer_tables(table, lengths, handed, device, block_size)
    parts = torch.from_numpy(tables).unbind(0)
    if shorter is None:
        return [_copy(metadata, part) for part in parts]
    found, built = [], dict[bytes, tuple[Any, int, Any]]()
    for part, row in zip(parts, shorter, strict=True):
        key = row.tobytes()
        if key not in built:
            tensor = torch.from_numpy(np.ascontiguousarray(row))
            built[key] = tensor, _longest(row), rebuild(metadata, tensor)
        one = _copy(metadata, part)
        one.seq_lens, one.max_seq_len, one.scheduler_metadata = built[key]
        found.append(one)
    return found


def _copy(metadata: Any, table: Any) -> Any:
    one = object.__new__(type(metadata))  # copy.copy takes ten times as long, once a layer and step
    one.__dict__.update(metadata.__dict__)
    one.block_table = table
    return one


def _longest(lengths: npt.NDArray[np.int32]) -> int:
    return int(lengths.max()) if lengths.size else 0
