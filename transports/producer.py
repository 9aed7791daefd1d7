"""The producer: owner of the full KV in CPU memory. It names sources, or gathers copies; it learns what was kept."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from kvsweep.kernels.table import Kernels
from kvsweep.ledger.errors import Busy, LayoutError
from kvsweep.ledger.ids import Int32, RequestKey, Rows, Slot
from kvsweep.ledger.layout import Layout
from kvsweep.ledger.messages import Acknowledge, Acknowledged, Effect, Gather, ProducerWork, PublishKeepMap
from kvsweep.transports.blocks import BlockMemory, UInt8
from kvsweep.transports.chunks import check_ids, check_layers, check_pair, split

Float32 = npt.NDArray[np.float32]


class HostProducer:
    """The CPU side in this process. CPU blocks [0, K) hold full KV, [K, N) are copy destinations.

    memory                  the CPU pool, natural or VNNI by the layout; hand it to the device
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
        self.memory = BlockMemory.of_cpu(layout, total_blocks, kernels)
        self.cpu_gather_bytes = 0
        self.cpu_destination_blocks = 0
        self._limit = requests
        self._keep: dict[RequestKey, tuple[int, Rows[Slot]]] = {}
        self._due: list[Acknowledged] = []
        self._gathered: dict[int, int] = {}  # bytes of gathers that no acknowledgement has carried yet

    def perform(self, effects: Iterable[Effect]) -> None:
        """Do what is addressed to the producer, in order; other effects are passed over.

        A gather has copied when this returns, so a transfer that is started after it reads the copies. Raises
        LayoutError for a gather that does not fit, and Busy where more acknowledgements or keep maps would wait than
        there may be requests; nothing of the list is performed then.
        """
        ours = [effect for effect in effects if isinstance(effect, ProducerWork)]
        noted = [effect for effect in ours if not isinstance(effect, Gather)]
        if len(self._due) + len(noted) > self._limit:
            raise Busy("producer acknowledgements", self._limit)
        published = {effect.operation.request for effect in noted if isinstance(effect, PublishKeepMap)}
        if len(self._keep.keys() | published) > self._limit:
            raise Busy("producer keep maps", self._limit)
        for effect in ours:
            if isinstance(effect, Gather):
                self._check(effect)
        for effect in ours:
            if isinstance(effect, Gather):
                self._gather(effect)
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

    def read(self, layer: int, sources: Int32) -> UInt8:
        """uint8[n, block_bytes], natural order: a copy. sources int32[n] in [0, N). Raises LayoutError."""
        return self.memory.peek(layer, sources)

    def write_rows(self, layer: int, source: int, first_token: int, k: npt.NDArray[Any], v: npt.NDArray[Any]) -> None:
        """Write n tokens of one full block: k, v [kv_heads, n, head_dim]; see BlockMemory.write_tokens.

        Raises LayoutError, also for a copy destination: those are written by gathering only.
        """
        if not 0 <= source < self.full_blocks:
            raise LayoutError("source", f"a full block in [0, {self.full_blocks})", str(source))
        self.memory.write_tokens(layer, source, first_token, k, v)

    def keys(self, layer: int, sources: Int32) -> Float32:
        """float32[kv_heads, n * block_size, head_dim]: the K of these blocks, token after token, for scoring.

        sources int32[n] in [0, N), in sequence order. Raises LayoutError.
        """
        natural = self.read(layer, sources)
        shape = self.memory.shapes[self.memory.place(layer)[0]]
        heads, size, dim = shape.kv_heads, shape.block_size, shape.head_dim
        if shape.dtype == "float32":
            elements = natural.view(np.float32)
        else:
            elements = (natural.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        k = elements.reshape(-1, 2, heads, size, dim)[:, 0]
        return np.ascontiguousarray(k.transpose(1, 0, 2, 3)).reshape(heads, -1, dim)

    # ---- inside

    def _check(self, effect: Gather) -> None:
        check_pair(effect.source, effect.destination)
        check_layers("source", effect.source, self.layout.active_layers)
        check_ids("source", effect.source, self.memory)
        check_ids("destination", effect.destination, self.memory, unique=True)
        full, copies = effect.source.ids, effect.destination.ids
        if full.size and int(full.max()) >= self.full_blocks:
            raise LayoutError("source", f"full blocks in [0, {self.full_blocks})", str(int(full.max())))
        if copies.size and int(copies.min()) < self.full_blocks:
            raise LayoutError(
                "destination", f"copy destinations in [{self.full_blocks}, {self.total_blocks})", str(int(copies.min()))
            )

    def _gather(self, effect: Gather) -> None:
        everything = (effect.source.size + 1) * max(shape.block_bytes for shape in self.memory.shapes)
        copied = 0
        for chunk in split(self.memory, effect.source, effect.destination, everything):
            self.memory.move(chunk.group, chunk.layers, chunk.row_ptr, chunk.source, chunk.destination)
            copied += chunk.blocks * self.memory.shapes[chunk.group].block_bytes
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
