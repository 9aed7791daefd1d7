"""Self-speculative decoding of one request over a coordinator: draft on the compacted view, verify with the full KV.

A step hands out committed generations only; a compaction round runs beside the steps and never stops them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import anyio.lowlevel
import numpy as np
import torch

from kvsweep.ledger.errors import PoolExhausted, Refused
from kvsweep.ledger.ids import HOLE, RequestKey, int32_view, no_rows
from kvsweep.ledger.messages import BlockSelection, OpenTail, SealTail
from kvsweep.ledger.ownership import blocks_by_group
from kvsweep.ledger.state import RequestState
from kvsweep.runtime.coordinator import Coordinator
from kvsweep.runtime.scorers import attention_mass, block_bounds, quest, recency
from kvsweep.runtime.selection import select_blocks
from kvsweep.runtime.upload_plan import adoptable, keep_slots
from kvsweep.scenarios.engine.model import Model
from kvsweep.scenarios.engine.paged import DraftKv, FullKv, QueryWindow, StepReads
from kvsweep.scenarios.engine.sampling import Sampler, verify_tokens

Scorer = Literal["attention", "quest", "recency"]
SCORE_WINDOW = {"attention": 32, "quest": 8, "recency": 1}  # query rows a score looks at
YIELDS_PER_STEP = 8  # turns that copies get beside each step


@dataclass
class Progress:
    """What one request's decoding did, for the closing table."""

    verifies: int = 0
    accepted: int = 0  # tokens emitted by verifies
    rounds: int = 0
    owned_blocks_max: int = 0
    owned_blocks: int = 0
    live_blocks: int = 0  # largest per-layer count of the view
    vacant_areas: int = 0
    packs: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def accepted_per_verify(self) -> float:
        """Draft tokens accepted a verify, of γ: each verify emits one token of its own."""
        return (self.accepted - self.verifies) / self.verifies if self.verifies else 0.0


class Session:
    """One request: its tokens, its lane through the coordinator and its rounds."""

    def __init__(
        self,
        kv: Coordinator,
        model: Model,
        sampler: Sampler,
        *,
        request_id: str,
        prompt: list[int],
        scorer: Scorer,
        every: int,
        draft_tokens: int = 4,
        selector: Callable[[Session], BlockSelection] | None = None,
    ) -> None:
        """selector: what each round selects; default `Session.select`. A recorded selection can be played again."""
        self.kv, self.model, self.sampler = kv, model, sampler
        self.scorer, self.every, self.draft_tokens = scorer, every, draft_tokens
        self.tokens = list(prompt)
        self.prompt_tokens = len(prompt)
        self.progress = Progress()
        self.layout = kv.driver.state.pool.layout
        self.key: RequestKey = kv.open_request(request_id)
        self._device = kv.devices[0]
        self._queries = QueryWindow(self.layout.active_layers, SCORE_WINDOW[scorer])
        self._selector = selector or Session.select
        self._revision = 0
        self._kept_live = 0
        self._fullest = 0  # areas that one layer held at most, the tail apart
        self._next_round = 0

    # ---- decoding

    @property
    def emitted(self) -> list[int]:
        return self.tokens[self.prompt_tokens :]

    def _room(self, tokens: int) -> None:
        self.kv.handle(OpenTail(request=self.key, until=-(-tokens // self.layout.block_size)))

    def prefill(self) -> None:
        """The prompt's KV is written on the device, its whole blocks are sealed and mirrored; emits one token."""
        self._room(len(self.tokens))
        number, reads = self._begin()
        positions = torch.arange(len(self.tokens))
        cache = FullKv(self.model.config, reads, self.kv.producer.memory, self._queries)
        logits = self.model.forward(torch.tensor(self.tokens), positions, cache, logits_for=slice(-1, None))
        self.kv.end_step(number)
        self.kv.handle(SealTail(request=self.key, confirmed_tokens=len(self.tokens)))
        self.tokens.append(self.sampler.sample(logits[0]))
        self._next_round = len(self.tokens)

    def _begin(self) -> tuple[int, StepReads]:
        number, handed = self.kv.begin_step([self.key])
        reads = StepReads(
            self.kv.driver.state,
            self.key,
            handed[self.key],
            self.kv.workers[0],
            self._device.memory,
            self.layout.block_size,
        )
        return number, reads

    def step(self) -> list[int]:
        """Draft, verify, accept. Returns the tokens emitted. The target's rows replace the draft's in the tail."""
        start = len(self.tokens) - 1
        self._room(start + self.draft_tokens + 1)
        number, reads = self._begin()
        draft = DraftKv(self.model.config, reads)
        drafted: list[int] = []
        token = self.tokens[-1]
        for ahead in range(self.draft_tokens):
            logits = self.model.forward(torch.tensor([token]), torch.tensor([start + ahead]), draft)
            token = self.sampler.propose(logits[0], ahead=ahead)
            drafted.append(token)
        target = FullKv(self.model.config, reads, self.kv.producer.memory, self._queries)
        fed = torch.tensor([self.tokens[-1], *drafted])
        logits = self.model.forward(fed, torch.arange(start, start + len(drafted) + 1), target)
        emitted = verify_tokens(logits, drafted, self.sampler)
        self.kv.end_step(number)
        self.tokens += emitted
        self.progress.verifies += 1
        self.progress.accepted += len(emitted)
        self.kv.handle(SealTail(request=self.key, confirmed_tokens=len(self.tokens) - 1))
        return emitted

    async def generate(self, tokens: int, *, rounds: int | None, on_step: Callable[[int], None]) -> None:
        """Emit `tokens` tokens (or stop after `rounds` rounds), with a compaction round every `every` tokens."""
        async with anyio.create_task_group() as beside:
            running = anyio.Event()
            running.set()
            while len(self.emitted) < tokens and (rounds is None or self.progress.rounds < rounds):
                if len(self.tokens) >= self._next_round:
                    await running.wait()  # one round at a time; it overlaps the steps, not the next round
                    self._next_round += self.every
                    running = anyio.Event()
                    beside.start_soon(self._round_then, running)
                emitted = self.step()
                self.measure()
                on_step(len(emitted))
                for _ in range(YIELDS_PER_STEP):
                    await anyio.lowlevel.checkpoint()
            await running.wait()
        del self.tokens[self.prompt_tokens + tokens :]

    async def _round_then(self, done: anyio.Event) -> None:
        try:
            await self.round()
        finally:
            done.set()

    # ---- a compaction round

    def _request(self) -> RequestState:
        request = self.kv.driver.state.request(self.key)
        if request is None:
            raise Refused(self.key, "round", "no such request", ())
        return request

    def mirrored_blocks(self) -> int:
        """Leading whole blocks that the CPU holds: what a selection may name."""
        source = int32_view(self._request().source)
        holes = np.flatnonzero(source == HOLE)
        return int(holes[0]) if holes.size else int(source.size)

    async def round(self) -> None:
        """Select, upload what is missing, keep what was selected, and pack where a keep shrank the view."""
        await self.kv.until(lambda: self._request().store.phase == "IDLE")
        selection = self._selector(self)
        upload = await self.kv.upload(selection, idempotency_key=f"select-{selection.selection_revision}")
        request, want = self._request(), selection.logical_blocks_by_layer
        keep = keep_slots(request, want)
        adopt = adoptable(request, want, self.layout, shared_table=not self.kv.driver.settings.retain.layer_tables)
        resident = upload.residency.logical_by_slot_by_layer
        self._fullest = max(self._fullest, int(resident.counts.max()))
        if keep.size < resident.size or adopt.size:
            await self.kv.retain(
                self.key,
                keep,
                adopt=adopt,
                selection_revision=selection.selection_revision,
                idempotency_key=f"retain-{selection.selection_revision}",
            )
        await self._pack_if_scattered(selection)
        self.progress.rounds += 1
        self.measure()

    async def _pack_if_scattered(self, selection: BlockSelection) -> None:
        """Gather the view in as few blocks as its fullest layer needs, where it lies in too many.

        A first keep, or one for a smaller budget, leaves a few areas in each of many blocks. Uploads do not: they fill
        vacant areas first. Adopted tail blocks do, round by round, as the layers drop them one after the other; that
        is let be until the view is in more blocks than one layer ever had areas, which is the bound without adoption.
        """
        request = self._request()
        view = request.view
        if view is None or self.kv.driver.settings.retain.pack == "never":
            return
        live = int(view.physical.counts.max())
        shrunk = self._kept_live == 0 or live < self._kept_live
        blocks = max(ids.size for ids in blocks_by_group(view.physical, self.layout))
        if blocks > (live if shrunk else self._fullest):
            try:
                await self.kv.retain(
                    self.key,
                    keep_slots(request, view.logical),
                    adopt=no_rows(self.layout.active_layers),
                    selection_revision=selection.selection_revision,
                    idempotency_key=f"pack-{selection.selection_revision}",
                    pack=True,
                )
            except PoolExhausted:
                return  # areas that an open step still reads are no room: the next round tries again
            self.progress.packs += 1
        self._kept_live = live

    def select(self) -> BlockSelection:
        """Score the mirrored blocks of every active layer and choose."""
        self._revision += 1
        whole = self.mirrored_blocks()
        return select_blocks(
            np.stack([self._score(layer, whole) for layer in self.layout.active_layers]),
            request=self.key,
            revision=self._revision,
            layout=self.layout,
            policy=self.kv.driver.settings.selection,
            incumbents=self.kv.residency(self.key).logical_by_slot_by_layer,
            kernels=self.kv.producer.memory.kernels,
        )

    def _score(self, layer: int, whole: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        if self.scorer == "recency":
            return recency(whole)
        queries, positions = self._queries.confirmed(layer, len(self.tokens) - 1)
        sources = int32_view(self._request().source)[:whole]
        keys = self.kv.producer.keys(layer, sources)
        if self.scorer == "attention":
            return attention_mass(queries, keys, positions, self.layout.block_size)
        return quest(queries, *block_bounds(keys, self.layout.block_size))

    def measure(self) -> None:
        """Owned blocks and vacant areas now; the tail and what drains count as owned."""
        ownership, progress = self.kv.driver.state.ownership, self.progress
        owned = vacant = 0
        for group in range(self.layout.groups):
            blocks, held = ownership.occupancy(self.key, group, self.layout)
            owned += int(blocks.size)
            vacant += int((~held).sum())
        view = self._request().view
        progress.owned_blocks, progress.vacant_areas = owned, vacant
        progress.owned_blocks_max = max(progress.owned_blocks_max, owned)
        progress.live_blocks = int(view.physical.counts.max()) if view else 0
