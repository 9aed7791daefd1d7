"""The producer: owner of the full KV in CPU memory. It names sources, or gathers copies; it learns what was kept."""

from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kvsweep.kernels.table import Kernels
from kvsweep.ledger.errors import Busy, LayoutError
from kvsweep.ledger.ids import Int32, RequestKey, Rows, Slot
from kvsweep.ledger.layout import Layout
from kvsweep.ledger.messages import (
    Acknowledge,
    Acknowledged,
    Effect,
    Gather,
    PackTokens,
    ProducerWork,
    PublishKeepMap,
)
from kvsweep.transports.blocks import BlockMemory, UInt8
from kvsweep.transports.chunks import check_ids, check_layers, check_pair, split
from kvsweep.transports.space import element_type

Float32 = npt.NDArray[np.float32]


class Producer(Protocol):
    """Holds the full KV; names sources, or gathers copies. `poll` may answer late."""

    def perform(self, effects: Iterable[Effect]) -> None: ...

    def poll(self) -> list[Acknowledged]: ...

    def forget(self, request: RequestKey) -> None: ...


class HostProducer:
    """The CPU side in this process. CPU blocks [0, K) hold full KV, [K, N) are copy destinations.

    shards                  one memory a tensor-parallel rank with its KV heads, natural or VNNI by the layout; a rank's
                            device is handed its own
    cpu_gather_bytes        bytes that gathering copied
    cpu_destination_blocks  copy destinations that gathering filled; neither figure is derived from the other
    """

    def __init__(
        self,
        layout: Layout,
        *,
        full_blocks: int,
        total_blocks: int,
        process_epoch: int,
        ranks: int = 1,
        requests: int = 4096,
        kernels: Kernels | None = None,
    ) -> None:
        """full_blocks K ≥ 1, total_blocks N ≥ K; requests bounds keep maps and waiting answers. Raises LayoutError."""
        if full_blocks < 1 or total_blocks < full_blocks:
            raise LayoutError("total_blocks", "N ≥ K ≥ 1", f"N {total_blocks}, K {full_blocks}")
        if requests < 1:
            raise LayoutError("requests", "at least 1", str(requests))
        self.layout = layout
        self.full_blocks = full_blocks
        self.total_blocks = total_blocks
        self.process_epoch = process_epoch
        self.shards = tuple(
            BlockMemory.of_cpu(layout.shard(rank, ranks), total_blocks, kernels) for rank in range(ranks)
        )
        self.cpu_gather_bytes = 0
        self.cpu_destination_blocks = 0
        self._limit = requests
        self._keep: dict[RequestKey, tuple[int, Rows[Slot]]] = {}
        self._due: list[Acknowledged] = []
        self._gathered: dict[int, int] = {}  # bytes of gathers that no acknowledgement has carried yet

    def perform(self, effects: Iterable[Effect]) -> None:
        """Do what is addressed to the producer, in order; other effects are passed over.

        A gather, or a packing of tokens, has copied when this returns, so a transfer that is started after it reads
        the copies. Raises LayoutError for one that does not fit, and Busy where more acknowledgements or keep maps
        would wait than there may be requests; nothing of the list is performed then.
        """
        ours = [effect for effect in effects if isinstance(effect, ProducerWork)]
        noted = [effect for effect in ours if not isinstance(effect, Gather | PackTokens)]
        if len(self._due) + len(noted) > self._limit:
            raise Busy("producer acknowledgements", self._limit)
        published = {effect.operation.request for effect in noted if isinstance(effect, PublishKeepMap)}
        if len(self._keep.keys() | published) > self._limit:
            raise Busy("producer keep maps", self._limit)
        for effect in ours:
            if isinstance(effect, Gather):
                self._check(effect)
            elif isinstance(effect, PackTokens):
                self._check_tokens(effect)
        for effect in ours:
            if isinstance(effect, Gather):
                self._gather(effect)
            elif isinstance(effect, PackTokens):
                self._pack(effect)
            else:
                self._note(effect)

    def poll(self) -> list[Acknowledged]:
        """Acknowledgements of what was performed since the last call."""
        due, self._due = self._due, []
        return due

    def keep_map(self, request: RequestKey) -> Rows[Slot] | None:
        """Ordered keep slots per layer, as last published; None where nothing was."""
        known = self._keep.get(request)
        return None if known is None else known[1]

    def forget(self, request: RequestKey) -> None:
        """The request has finished: drop its keep map."""
        self._keep.pop(request, None)

    @property
    def memory(self) -> BlockMemory:
        """The only shard of a producer for one rank."""
        (memory,) = self.shards
        return memory

    def read(self, layer: int, sources: Int32) -> UInt8:
        """uint8[n, block_bytes], natural order, all heads: a copy. sources int32[n] in [0, N). Raises LayoutError."""
        parts = []
        for memory in self.shards:
            shape = memory.shapes[memory.place(layer)[0]]
            raw = memory.peek(layer, sources).view(element_type(shape))
            parts.append(raw.reshape(-1, 2, shape.kv_heads, shape.block_size, shape.head_dim))
        whole = np.ascontiguousarray(np.concatenate(parts, axis=2))
        return whole.view(np.uint8).reshape(-1, self.layout.block_bytes(layer))

    def write_rows(self, layer: int, source: int, first_token: int, k: npt.NDArray[Any], v: npt.NDArray[Any]) -> None:
        """Write n tokens of one full block: k, v [kv_heads, n, head_dim], all heads; see BlockMemory.write_tokens.

        Raises LayoutError, also for a copy destination: those are written by gathering only.
        """
        if not 0 <= source < self.full_blocks:
            raise LayoutError("source", f"a full block in [0, {self.full_blocks})", str(source))
        heads = self.layout.layers[layer].kv_heads
        for name, rows in (("k", k), ("v", v)):  # a shard sees only its part, and would not miss the rest
            if rows.ndim != 3 or rows.shape != (heads, k.shape[1], k.shape[2]):
                raise LayoutError(name, f"shape ({heads}, n, head_dim), as k", f"shape {rows.shape}")
        for rank, memory in enumerate(self.shards):
            part = slice(*self.layout.heads_of_rank(layer, rank, len(self.shards)))
            memory.write_tokens(layer, source, first_token, k[part], v[part])

    def keys(self, layer: int, sources: Int32) -> Float32:
        """float32[kv_heads, n * block_size, head_dim]: the K of these blocks, token after token, for scoring.

        sources int32[n] in [0, N), in sequence order. Raises LayoutError.
        """
        natural = self.read(layer, sources)
        one = self.layout.layers[layer]
        if self.layout.dtype == "float32":
            elements = natural.view(np.float32)
        else:
            elements = (natural.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        k = elements.reshape(-1, 2, one.kv_heads, self.layout.block_size, one.head_dim)[:, 0]
        return np.ascontiguousarray(k.transpose(1, 0, 2, 3)).reshape(one.kv_heads, -1, one.head_dim)

    # ---- inside

    def _check(self, effect: Gather) -> None:
        check_pair(effect.source, effect.destination)
        check_layers("source", effect.source, self.layout.active_layers)
        check_ids("source", effect.source, self.shards[0])
        check_ids("destination", effect.destination, self.shards[0], unique=True)
        full = effect.source.ids
        if full.size and int(full.max()) >= self.full_blocks:
            raise LayoutError("source", f"full blocks in [0, {self.full_blocks})", str(int(full.max())))
        self._check_copies(effect.destination.ids)

    def _check_tokens(self, effect: PackTokens) -> None:
        size, places = self.layout.block_size, effect.tokens.ids
        check_layers("tokens", effect.tokens, self.layout.active_layers)
        check_ids("destination", effect.destination, self.shards[0], unique=True)
        wanted = dict(zip(effect.tokens.layers.tolist(), (-(-effect.tokens.counts // size)).tolist(), strict=True))
        given = dict(zip(effect.destination.layers.tolist(), effect.destination.counts.tolist(), strict=True))
        if given != wanted:
            raise LayoutError("destination", f"blocks that the tokens of each layer fill, {wanted}", str(given))
        end = self.full_blocks * size
        if places.size and (int(places.min()) < 0 or int(places.max()) >= end):
            raise LayoutError("tokens", f"places of full blocks in [0, {end})", f"{places.min()} … {places.max()}")
        self._check_copies(effect.destination.ids)

    def _check_copies(self, copies: Int32) -> None:
        if copies.size and int(copies.min()) < self.full_blocks:
            raise LayoutError(
                "destination", f"copy destinations in [{self.full_blocks}, {self.total_blocks})", str(int(copies.min()))
            )

    def _gather(self, effect: Gather) -> None:
        copied = 0
        for memory in self.shards:
            everything = (effect.source.size + 1) * max(shape.block_bytes for shape in memory.shapes)
            for chunk in split(memory, effect.source, effect.destination, everything):
                memory.move(chunk.group, chunk.layers, chunk.row_ptr, chunk.source, chunk.destination)
                copied += chunk.blocks * memory.shapes[chunk.group].block_bytes
        self._count(effect, copied)

    def _pack(self, effect: PackTokens) -> None:
        copied = 0
        for memory in self.shards:
            for group in range(self.layout.groups):
                layers = [layer for layer in effect.tokens.layers.tolist() if memory.place(layer)[0] == group]
                tokens = [effect.tokens.row(layer) for layer in layers]
                if tokens:
                    copied += memory.pack_tokens(
                        group,
                        np.asarray([memory.place(layer)[1] for layer in layers], dtype=np.int32),
                        np.cumsum([0, *(row.size for row in tokens)]).astype(np.int32),
                        np.concatenate(tokens),
                        np.concatenate([effect.destination.row(layer) for layer in layers]),
                    )
        self._count(effect, copied)

    def _count(self, effect: Gather | PackTokens, copied: int) -> None:
        """CPU bytes and destinations of one operation; its acknowledgement carries the bytes."""
        self.cpu_gather_bytes += copied
        self._gathered[effect.operation.operation_id] = copied
        if len(self._gathered) > self._limit:  # operations that were aborted are never acknowledged
            del self._gathered[next(iter(self._gathered))]
        self.cpu_destination_blocks += int(np.unique(effect.destination.ids).size)

    def _note(self, effect: PublishKeepMap | Acknowledge) -> None:
        if isinstance(effect, PublishKeepMap):
            request = effect.operation.request
            known = self._keep.get(request)
            # A map that was overtaken on its way must not replace the newer one.
            if known is None or known[0] <= effect.selection_revision:
                self._keep[request] = (effect.selection_revision, effect.keep)
        self._due.append(
            Acknowledged(
                operation=effect.operation,
                process_epoch=self.process_epoch,
                cpu_gather_bytes=self._gathered.pop(effect.operation.operation_id, 0),
            )
        )
