"""Readers of a scripted run: open serving steps, and whoever might be handed the current view next. Bytes are held
against what was written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from kvsweep.ledger.errors import LayoutError, UsageError
from kvsweep.ledger.ids import HOLE, Int32, RequestKey, int32_view
from kvsweep.ledger.messages import BlockSelection
from kvsweep.ledger.state import View
from kvsweep.runtime.core.steps import HandedOut
from kvsweep.scenarios.verify.script.cluster import Cluster
from kvsweep.scenarios.verify.script.content import KV, rank_part, tag_of

TailRead = tuple[int, tuple[int, ...], int]
"""(logical block, physical block a group, tokens that are written in it)."""


@dataclass
class Member:
    """A request as the serving loop knows it."""

    key: RequestKey
    tokens: int = 0  # of the sequence, written at least once
    tags: dict[int, int] = field(default_factory=dict)  # logical block → whose tokens, where they are shared
    revision: int = 0
    choice: BlockSelection | None = None  # the last one

    def tag(self, logical: int) -> int:
        return self.tags.get(logical, tag_of(self.key))


@dataclass
class Reading:
    """One open serving step."""

    number: int
    captured: bool
    epochs: dict[int, int]  # process epoch of each living rank at its beginning
    views: dict[RequestKey, tuple[HandedOut, View | None]]
    tails: dict[RequestKey, list[TailRead]]


class Readers:
    """Open serving steps, and the check of all that may be read."""

    def __init__(self, cluster: Cluster, members: dict[str, Member]) -> None:
        self._cluster, self._members = cluster, members
        self.open: dict[str, Reading] = {}
        self._expected: dict[tuple[RequestKey, int], dict[int, KV]] = {}
        cluster.tags = self._tag

    def _tag(self, key: RequestKey, logical: int) -> int:
        member = self._members.get(key.request_id)
        return member.tag(logical) if member is not None and member.key == key else tag_of(key)

    def begin(self, name: str, keys: list[RequestKey], *, captured: bool) -> None:
        """Raises Refused as `Coordinator.begin_step` does."""
        cluster = self._cluster
        number, handed = cluster.kv.begin_step(keys)
        views, tails = {}, {}
        for key, out in handed.items():
            request = cluster.state_of(key)
            views[key] = (out, request.view)
            tokens, size = self._members[key.request_id].tokens, cluster.layout.block_size
            tails[key] = [
                (block.logical, block.physical, min(size, max(0, tokens - block.logical * size)))
                for block in request.tail
                if block.phase != "open" or block.logical * size < tokens
            ]
        self.open[name] = Reading(number, captured, self._epochs(), views, tails)

    def end(self, name: str) -> None:
        """Raises UsageError for a step whose beginning was refused."""
        if name not in self.open:
            raise UsageError(f"step {name!r}: expected an open serving step of {sorted(self.open)}")
        self.oracle_reads()
        self._cluster.kv.end_step(self.open.pop(name).number)

    def _epochs(self) -> dict[int, int]:
        ranks = self._cluster.driver.state.pool.ranks
        return {rank: epoch for rank, epoch in ranks if self._cluster.alive(rank)}

    def oracle_reads(self) -> None:
        """Show the byte oracle the ranks that every open step began on."""
        now = self._epochs()
        self._cluster.memory.devices = {
            rank: self._cluster.device(rank)
            for rank, epoch in now.items()
            if all(reading.epochs.get(rank) == epoch for reading in self.open.values())
        }

    # ---- the check

    def wrong(self) -> Iterator[str]:
        """What a reader sees that it must not see."""
        now = self._epochs()
        for name, reading in self.open.items():
            for rank, epoch in reading.epochs.items():
                if now.get(rank) != epoch:
                    continue  # its memory is gone: no step ends on it
                for key, (handed, view) in reading.views.items():
                    if view is not None:
                        yield from self._view(f"step {name}", key, view, rank, captured=reading.captured)
                    for logical, physical, tokens in reading.tails[key]:
                        if logical in handed.tail:
                            yield from self._tail(f"step {name}", key, logical, physical, tokens, rank)
        for member in self._members.values():
            request = self._cluster.driver.state.request(member.key)
            if request is not None and request.life == "RUNNING" and request.view is not None:
                for rank in now:
                    yield from self._view("a new step", member.key, request.view, rank, captured=False)

    def _rows(self, key: RequestKey, view: View, rank: int, layer: int, *, captured: bool) -> Int32:
        """The table as the rank shows it; a captured step follows the row, whatever generation stands there."""
        device = self._cluster.device(rank)
        if not captured:
            return device.table(key, view.row, view.generation, layer)
        shown = device.tables.shown(key, view.row)
        if shown is None:
            raise LayoutError("row", "a written row", "nothing")
        return shown[1].row(layer)

    def _view(self, who: str, key: RequestKey, view: View, rank: int, *, captured: bool) -> Iterator[str]:
        cluster = self._cluster
        expected = self._expected_of(key, view)
        for layer, logical in view.logical.items():
            where = f"{who} reads {key.request_id}, generation {view.generation}, rank {rank}, layer {layer}"
            try:
                table = self._rows(key, view, rank, layer, captured=captured)
            except LayoutError as error:
                yield f"{where}: {error}"
                continue
            if table.size != logical.size:
                yield f"{where}: the table has {table.size} slots, expected {logical.size}"
                continue
            read = cluster.node(rank).device.typed(layer)[table]
            part = rank_part(expected[layer], cluster.layout, layer, rank, cluster.world.ranks)
            wrong = np.flatnonzero((read != part).any(axis=(1, 2, 3, 4)))
            if wrong.size:
                yield f"{where}: wrong bytes of logical blocks {logical[wrong].tolist()}"

    def _expected_of(self, key: RequestKey, view: View) -> dict[int, KV]:
        known = self._expected.get((key, view.generation))
        if known is None:
            tag, kv = self._cluster.tags, self._cluster.kv_of
            known = {}
            for layer, logical in view.logical.items():
                blocks = [kv.block(tag(key, block), layer, block) for block in logical.tolist()]
                known[layer] = np.stack(blocks) if blocks else np.empty((0, *kv.shape(layer)), dtype=np.float32)
            self._expected[key, view.generation] = known
            if len(self._expected) > 256:
                del self._expected[next(iter(self._expected))]
        return known

    def _tail(
        self, who: str, key: RequestKey, logical: int, physical: tuple[int, ...], tokens: int, rank: int
    ) -> Iterator[str]:
        cluster = self._cluster
        for layer in cluster.layout.layers:
            area = physical[layer.group]
            if area == HOLE or not tokens:
                continue
            read = cluster.node(rank).device.typed(layer.layer)[area][:, :, :tokens]
            whole = cluster.kv_of.block(cluster.tags(key, logical), layer.layer, logical)
            part = rank_part(whole, cluster.layout, layer.layer, rank, cluster.world.ranks)[:, :, :tokens]
            if (read != part).any():
                yield (
                    f"{who} reads {key.request_id}, tail block {logical}, rank {rank}, layer {layer.layer}: wrong bytes"
                )

    def wrong_sources(self) -> Iterator[str]:
        """CPU blocks that are said to be valid and are not."""
        cluster = self._cluster
        for member in self._members.values():
            request = cluster.driver.state.request(member.key)
            if request is None or request.life == "CLOSED":
                continue
            table = int32_view(request.source)
            logical = np.flatnonzero(table != HOLE)
            for layer in cluster.layout.active_layers if logical.size else ():
                raw = cluster.stack.producer.read(layer, table[logical].astype(np.int32))
                read = raw.view(np.float32).reshape(logical.size, *cluster.kv_of.shape(layer))
                expected = np.stack([cluster.kv_of.block(member.tag(b), layer, b) for b in logical.tolist()])
                wrong = np.flatnonzero((read != expected).any(axis=(1, 2, 3, 4)))
                if wrong.size:
                    yield (
                        f"{member.key.request_id}, layer {layer}: the CPU has wrong bytes of logical blocks "
                        f"{logical[wrong].tolist()}"
                    )
