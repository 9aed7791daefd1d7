"""What one rank needs to score whole blocks by Quest: the bounds of each block's keys, and the last query of a step.

Bounds are taken when a block has become whole, from vLLM's own cache layer by layer; they stay when the block's bytes
go to the CPU tier. The query is copied where the attention of a layer begins: it is nowhere kept.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kvsweep.ledger.errors import LayoutError
from kvsweep.ledger.ids import RequestKey
from kvsweep.transports.vllm.messages import Scores

Float32 = npt.NDArray[np.float32]
Score = Callable[[Float32, Float32, Float32], Float32]
"""(queries [heads, w, D], smallest keys [kv_heads, blocks, D], largest keys) -> float32[blocks]"""

KEY_ORDERS = ("vec", "vec16", "amx")
"""Orders of K inside a block, by vLLM's names of its CPU kernels, that `key_bounds` reads."""


def key_bounds(block: Any, *, head_dim: int, block_size: int, order: str) -> tuple[Float32, Float32]:
    """The smallest and the largest key of one whole block, by dimension: float32[kv_heads, D] each.

    block  torch.Tensor [kv_heads, block_size, 2 * D]: one block of vLLM's CPU cache; K is its first half
    order  vec, vec16: [D, block_size] · amx: [block_size / 16, D / 2, 16, 2]
    Raises LayoutError for another order.
    """
    keys = block.reshape(block.shape[0], -1)[:, : block_size * head_dim]
    if order in ("vec", "vec16"):
        keys = keys.reshape(-1, head_dim, block_size)
    elif order == "amx":
        tiles = keys.reshape(-1, block_size // 16, head_dim // 2, 16, 2)
        keys = tiles.permute(0, 2, 4, 1, 3).reshape(-1, head_dim, block_size)
    else:
        raise LayoutError("order of keys", f"one of {KEY_ORDERS}", repr(order))
    return keys.amin(dim=2).float().numpy(), keys.amax(dim=2).float().numpy()


class _Bounds:
    """Bounds of one request's blocks: float32[layers, kv_heads, room, D], and how many layers have noted each block."""

    def __init__(self, layers: int, kv_heads: int, head_dim: int) -> None:
        self.low = np.zeros((layers, kv_heads, 16, head_dim), dtype=np.float32)
        self.high = np.zeros_like(self.low)
        self.noted = np.zeros(16, dtype=np.int32)

    def room(self, block: int) -> None:
        while block >= self.noted.size:
            self.low, self.high = (np.concatenate((one, np.zeros_like(one)), axis=2) for one in (self.low, self.high))
            self.noted = np.concatenate((self.noted, np.zeros_like(self.noted)))

    def whole(self, blocks: int, layers: int) -> bool:
        """Whether the first so many blocks are noted by every layer."""
        return 0 < blocks <= self.noted.size and bool((self.noted[:blocks] >= layers).all())


class Scoring:
    """Bounds and queries of one rank."""

    def __init__(
        self, *, rank: int, layers: int, kv_heads: int, head_dim: int, block_size: int, order: str, score: Score
    ) -> None:
        """order: see `key_bounds`. Raises LayoutError for one that is not read."""
        if order not in KEY_ORDERS:
            raise LayoutError("order of keys", f"one of {KEY_ORDERS} for policy quest", repr(order))
        self.rank, self.layers, self.kv_heads, self.head_dim = rank, layers, kv_heads, head_dim
        self.block_size, self.order, self._score = block_size, order, score
        self._bounds: dict[RequestKey, _Bounds] = {}
        self._asked: tuple[tuple[RequestKey, int], ...] = ()
        self._rows: Any = None
        self._queries: dict[int, Float32] = {}

    def note_layer(self, layer: int, cache: Any, sealed: Sequence[tuple[RequestKey, int, int]]) -> None:
        """These blocks are whole in this layer of vLLM's cache: (request, logical, physical)."""
        for request, logical, physical in sealed:
            bounds = self._bounds.get(request)
            if bounds is None:
                bounds = self._bounds[request] = _Bounds(self.layers, self.kv_heads, self.head_dim)
            bounds.room(logical)
            low, high = key_bounds(
                cache[physical], head_dim=self.head_dim, block_size=self.block_size, order=self.order
            )
            bounds.low[layer, :, logical], bounds.high[layer, :, logical] = low, high
            bounds.noted[logical] += 1

    def ask(self, asked: Sequence[tuple[RequestKey, int]], rows: Any) -> None:
        """Score these requests' first blocks in this step. rows: torch index of each one's last token in the batch."""
        self._asked, self._rows, self._queries = tuple(asked), rows, {}

    def note_query(self, layer: int, query: Any) -> None:
        """query torch.Tensor [tokens, heads, D] of a layer; the rows that are asked for are copied."""
        if self._asked:
            self._queries[layer] = query[self._rows].float().numpy()

    def take(self) -> tuple[Scores, ...]:
        """Scores of what was asked, for requests of which every layer knows every block and has seen a query."""
        asked, self._asked = self._asked, ()
        queries, self._queries = self._queries, {}
        if len(queries) < self.layers:
            return ()
        found = []
        for at, (request, blocks) in enumerate(asked):
            bounds = self._bounds.get(request)
            if bounds is None or not bounds.whole(blocks, self.layers):
                continue
            values = np.empty((self.layers, blocks), dtype="<f4")
            for layer in range(self.layers):
                low, high = bounds.low[layer, :, :blocks], bounds.high[layer, :, :blocks]
                query = np.ascontiguousarray(queries[layer][at][:, None, :])
                values[layer] = self._score(query, np.ascontiguousarray(low), np.ascontiguousarray(high))
            found.append(Scores(request=request, rank=self.rank, blocks=blocks, values=values.tobytes()))
        return tuple(found)

    def forget(self, request: RequestKey) -> None:
        """A life is closed."""
        self._bounds.pop(request, None)
