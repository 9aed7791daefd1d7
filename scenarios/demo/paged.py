"""Paged KV of one request in one step: the draft reads the compacted view and the tail, the target reads everything.

Keys are gathered by ascending logical block whatever the slot order is, so physical placement never changes a bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from kvsweep.ledger.ids import HOLE, RequestKey, Rows, Token, int32_view
from kvsweep.ledger.sources import leading
from kvsweep.ledger.state import RequestState, State
from kvsweep.runtime.core.steps import HandedOut
from kvsweep.scenarios.demo.attention import attention, gather_blocks_torch
from kvsweep.scenarios.demo.model import ModelConfig
from kvsweep.transports.blocks import BlockMemory
from kvsweep.transports.cuda.memory import CudaMemory
from kvsweep.transports.rank import RankWorker

NOWHERE = 2**62
"""Position of a place that holds no token: after every query, so that nothing reads it."""


def memory_view(memory: BlockMemory | CudaMemory, layer: int) -> Tensor:
    """[blocks, 2, kv_heads, B, D] in the model dtype: the memory itself, on the CPU or on a GPU."""
    typed = memory.typed(layer)
    plain = typed.view(np.int16) if typed.dtype == np.uint16 else typed
    view: Tensor = torch.from_numpy(plain) if isinstance(plain, np.ndarray) else from_dlpack(plain)
    return view.view(torch.bfloat16) if typed.dtype == np.uint16 else view


def as_numpy(rows: Tensor) -> npt.NDArray[Any]:
    """The rows as block memory takes them: float32, or uint16 bits of bfloat16."""
    rows = rows.contiguous()
    if rows.dtype == torch.bfloat16:
        bits: npt.NDArray[Any] = rows.view(torch.int16).numpy().view(np.uint16)
        return bits
    plain: npt.NDArray[Any] = rows.numpy()
    return plain


class RankPart(Protocol):
    """What attention needs of one rank: its tables and its memory."""

    worker: RankWorker
    memory: BlockMemory | CudaMemory


class StepReads:
    """What one open step was handed of one request: its view's table rows, as each rank shows them, and its tail."""

    def __init__(self, state: State, key: RequestKey, handed: HandedOut, parts: Sequence[RankPart]) -> None:
        request = state.request(key)
        if request is None:
            raise LookupError(f"{key} is not known")
        self.request: RequestState = request
        self.layout = state.pool.layout
        self.block_size = self.layout.block_size
        self.parts = parts
        view = next((view for view in request.views if view.generation == handed.generation), None)
        self.resident: list[dict[int, dict[int, int]]] = []  # rank -> layer -> logical block -> physical block
        for part in parts:
            rows: dict[int, dict[int, int]] = {}
            for layer in self.layout.active_layers if view else ():
                table = part.worker.table(key, handed.row, handed.generation, layer)
                rows[layer] = dict(zip(view.logical.row(layer).tolist(), table.tolist(), strict=True)) if view else {}
            self.resident.append(rows)
        self.tail = {
            group: {b.logical: b.physical[group] for b in request.tail if b.physical[group] != HOLE}
            for group in range(self.layout.groups)
        }

    def tail_of(self, layer: int) -> dict[int, int]:
        return self.tail[self.layout.layers[layer].group]

    def heads(self, layer: int, rank: int) -> slice:
        """KV heads of the layer that the rank holds."""
        return slice(*self.layout.heads_of_rank(layer, rank, len(self.parts)))

    def write(self, layer: int, k: Tensor, v: Tensor, first: int) -> None:
        """Write the rows of consecutive positions from `first` on into the tail blocks that cover them."""
        tail, size = self.tail_of(layer), self.block_size
        keys, values = as_numpy(k), as_numpy(v)
        done, count = 0, keys.shape[1]
        while done < count:
            logical, offset = divmod(first + done, size)
            take = min(size - offset, count - done)
            rows = slice(done, done + take)
            for rank, part in enumerate(self.parts):
                heads = self.heads(layer, rank)
                part.memory.write_tokens(layer, tail[logical], offset, keys[heads, rows], values[heads, rows])
            done += take


def memory_views(parts: Sequence[RankPart], layers: int) -> list[list[Tensor]]:
    """[layer][rank] views of device memory."""
    return [[memory_view(part.memory, layer) for part in parts] for layer in range(layers)]


def gather(views: list[Tensor], ids: list[Tensor], tokens: int) -> tuple[Tensor, Tensor]:
    """(k, v) [kv_heads, tokens, D] of one layer over all ranks, each by its own table; on the CPU."""
    rows = [_gather(view, part, tokens) for view, part in zip(views, ids, strict=True)]
    if len(rows) == 1:
        return rows[0]
    return torch.cat([k for k, _ in rows]), torch.cat([v for _, v in rows])


def _gather(view: Tensor, ids: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
    k, v = gather_blocks_torch(view, ids.to(view.device), tokens)
    return k.cpu(), v.cpu()  # no copy where they are there already


def _positions(logical: list[int], block_size: int, end: int) -> Tensor:
    blocks = torch.tensor(logical, dtype=torch.int64)
    return (blocks[:, None] * block_size + torch.arange(block_size)).reshape(-1)[:end]


@dataclass(frozen=True)
class Packed:
    """What the packed blocks of a view hold, token method: positions a layer, of the first `whole_blocks` blocks."""

    tokens: Rows[Token]
    whole_blocks: int


class DraftKv:
    """The compacted cache: resident blocks of the handed view, then the tail. Writes its rows into the tail."""

    def __init__(self, config: ModelConfig, reads: StepReads, packed: Packed | None = None) -> None:
        self.config = config
        self.reads = reads
        self.packed = packed
        self._ids: dict[int, tuple[list[int], list[Tensor], Tensor]] = {}
        self._memory = memory_views(reads.parts, len(config.layers))

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
        first, end = int(positions[0]), int(positions[-1]) + 1
        self.reads.write(layer, k, v, first)
        logical, ids, key_positions = self._blocks(layer, end)
        valid = key_positions.shape[0] - ((logical[-1] + 1) * self.reads.block_size - end)
        keys, values = gather(self._memory[layer], ids, valid)
        return attention(q, keys, values, positions, key_positions[:valid], self.config.layers[layer].window)

    def _blocks(self, layer: int, end: int) -> tuple[list[int], list[Tensor], Tensor]:
        """Logical blocks that this layer may read, ascending, with each rank's physical ids, and key positions."""
        size = self.reads.block_size
        last = (end - 1) // size
        known = self._ids.get(layer)
        if known is None or known[0][-1] != last:
            if self.packed is not None and layer in self.reads.layout.active_layers:
                known = self._ids[layer] = self._packed_blocks(layer, last, self.packed)
                return known
            tables = [{**self.reads.tail_of(layer), **rows.get(layer, {})} for rows in self.reads.resident]
            logical = sorted(block for block in tables[0] if block <= last)
            ids = [torch.tensor([table[block] for block in logical], dtype=torch.int64) for table in tables]
            known = (logical, ids, _positions(logical, size, len(logical) * size))
            self._ids[layer] = known
        return known

    def _packed_blocks(self, layer: int, last: int, packed: Packed) -> tuple[list[int], list[Tensor], Tensor]:
        """Packed blocks in order, then the tail blocks that no selection has seen. Nothing reads the empty places."""
        size, tail = self.reads.block_size, self.reads.tail_of(layer)
        positions = torch.from_numpy(packed.tokens.row(layer).astype(np.int64))
        blocks = -(-positions.shape[0] // size)
        later = sorted(block for block in tail if packed.whole_blocks <= block <= last)
        tables = [rows[layer] for rows in self.reads.resident]
        ids = [
            torch.tensor([*(table[block] for block in range(blocks)), *(tail[block] for block in later)])
            for table in tables
        ]
        empty = torch.full((blocks * size - positions.shape[0],), NOWHERE)
        return later, ids, torch.cat((positions, empty, _positions(later, size, len(later) * size)))


class FullKv:
    """Everything: blocks mirrored to the CPU from there, later ones from the tail. Writes its rows into the tail.

    Keeps the last `window` query rows of each active layer, from which attention-mass scores are made.
    """

    def __init__(self, config: ModelConfig, reads: StepReads, cpu: Sequence[BlockMemory], queries: QueryWindow) -> None:
        self.config = config
        self.reads = reads
        self.queries = queries
        self._cpu = [[memory_view(shard, layer) for shard in cpu] for layer in range(len(config.layers))]
        self._device = memory_views(reads.parts, len(config.layers))
        source = int32_view(reads.request.source)[: leading(reads.request.source)]
        self._sources = torch.from_numpy(source.astype(np.int64))

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
        first, end = int(positions[0]), int(positions[-1]) + 1
        self.reads.write(layer, k, v, first)
        self.queries.add(layer, q, positions)
        size, start = self.reads.block_size, self._sources.shape[0]
        tail = self.reads.tail_of(layer)
        ids = torch.tensor([tail[block] for block in range(start, (end - 1) // size + 1)], dtype=torch.int64)
        ranks = len(self.reads.parts)
        keys, values = gather(self._device[layer], [ids] * ranks, end - start * size)
        if start:
            cpu_keys, cpu_values = gather(self._cpu[layer], [self._sources] * ranks, start * size)
            keys, values = torch.cat((cpu_keys, keys), dim=1), torch.cat((cpu_values, values), dim=1)
        return attention(q, keys, values, positions, torch.arange(end), self.config.layers[layer].window)


class QueryWindow:
    """The last query rows of confirmed positions, layer by layer; a bounded ring by position."""

    def __init__(self, layers: tuple[int, ...], window: int) -> None:
        self.window = window
        self._rows: dict[int, tuple[Tensor, Tensor]] = {}
        self._layers = frozenset(layers)

    def add(self, layer: int, q: Tensor, positions: Tensor) -> None:
        if layer not in self._layers:
            return
        known = self._rows.get(layer)
        if known is not None:
            old, at = known
            keep = at < positions[0]
            q, positions = torch.cat((old[:, keep], q), dim=1), torch.cat((at[keep], positions))
        self._rows[layer] = (q[:, -self.window :].clone(), positions[-self.window :].clone())

    def confirmed(self, layer: int, tokens: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """(float32[heads, w, D], positions int64[w]) of positions below `tokens`."""
        rows, at = self._rows[layer]
        keep = at < tokens
        return np.ascontiguousarray(rows[:, keep].float().numpy()), at[keep].numpy()
