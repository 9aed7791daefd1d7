"""Self-speculative decoding of one request over a coordinator: draft on the compacted view, verify with the full KV.

A step hands out committed generations only; a compaction round runs beside the steps and never stops them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch

from kvsweep.ledger.errors import PoolExhausted, Refused
from kvsweep.ledger.ids import RequestKey, int32_view, no_rows
from kvsweep.ledger.messages import AttachPrefix, BlockSelection, OpenTail, PublishPrefix, Resume, SealTail
from kvsweep.ledger.ownership import blocks_by_group
from kvsweep.ledger.sources import leading
from kvsweep.ledger.state import RequestState, Residency
from kvsweep.runtime.core.upload_plan import adoptable, keep_slots
from kvsweep.runtime.scorers import attention_mass, block_bounds, quest, recency
from kvsweep.runtime.selection import select_blocks, select_tokens
from kvsweep.scenarios.demo.model import Model
from kvsweep.scenarios.demo.paged import DraftKv, FullKv, Packed, QueryWindow, StepReads
from kvsweep.scenarios.demo.sampling import Sampler, verify_tokens
from kvsweep.scenarios.demo.stack import Stack

Scorer = Literal["attention", "quest", "recency"]
SCORE_WINDOW = {"attention": 32, "quest": 8, "recency": 1}  # query rows a score looks at


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
    refused: dict[str, int] = field(default_factory=dict)  # rounds that ended early, by reason
    preemptions: int = 0
    shared_blocks: int = 0  # of the prompt, attached and not computed

    @property
    def accepted_per_verify(self) -> float:
        """Draft tokens accepted a verify, of γ: each verify emits one token of its own."""
        return (self.accepted - self.verifies) / self.verifies if self.verifies else 0.0


class Session:
    """One request: its tokens, its lane through the coordinator and its rounds."""

    def __init__(
        self,
        stack: Stack,
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
        self.stack, self.kv, self.model, self.sampler = stack, stack.kv, model, sampler
        self.scorer, self.every, self.draft_tokens = scorer, every, draft_tokens
        self.tokens = list(prompt)
        self.prompt_tokens = len(prompt)
        self.progress = Progress()
        self.layout = self.kv.driver.state.pool.layout
        self.key: RequestKey = self.kv.open_request(request_id)
        self._queries = QueryWindow(self.layout.active_layers, SCORE_WINDOW[scorer])
        self._selector = selector or Session.select
        self._revision = 0
        self._kept_live = 0
        self._fullest = 0  # areas that one layer held at most, the tail apart
        self._chosen: Packed | None = None  # token method: of the last selection
        self._packed: dict[int, Packed] = {}  # generation -> what its packed blocks hold
        self._next_round = 0
        self.fed = False  # every token but the last has its rows

    # ---- decoding

    @property
    def emitted(self) -> list[int]:
        return self.tokens[self.prompt_tokens :]

    @property
    def life(self) -> str:
        return self._request().life

    def room(self, tokens: int) -> None:
        """Tail blocks for positions below `tokens`. Raises PoolExhausted, with nothing changed."""
        turn = self.kv.handle(OpenTail(request=self.key, until=-(-tokens // self.layout.block_size)))
        if turn.outcome == "refused" and turn.refusal is not None:
            raise PoolExhausted(f"tail of {self.key.request_id}", tokens // self.layout.block_size + 1, 0)

    def _begin(self) -> tuple[int, StepReads]:
        number, handed = self.kv.begin_step([self.key])
        return number, StepReads(self.kv.driver.state, self.key, handed[self.key], self.stack.nodes)

    def _full(self, reads: StepReads) -> FullKv:
        return FullKv(self.model.config, reads, self.stack.producer.shards, self._queries)

    def prefix_keys(self, tokens: int) -> tuple[str, ...]:
        """Opaque names of the leading whole blocks of the first `tokens` tokens: what they and all before them hold."""
        size = self.layout.block_size
        names = []
        for end in range(size, tokens + 1, size):
            names.append(hashlib.sha256(repr(self.tokens[:end]).encode()).hexdigest())
        return tuple(names)

    def attach(self, prefix_tokens: int) -> int:
        """Refer to the shared blocks of the prompt's first tokens; returns how many blocks were there."""
        keys = self.prefix_keys(min(prefix_tokens, self.prompt_tokens - 1))
        if keys:
            self.kv.handle(AttachPrefix(request=self.key, keys=keys))
        return self.mirrored_blocks()

    def publish(self, prefix_tokens: int) -> None:
        """Share the blocks of the prompt's first tokens that are mirrored and whole."""
        keys = self.prefix_keys(min(prefix_tokens, self.prompt_tokens - 1))
        self.kv.handle(PublishPrefix(request=self.key, keys=tuple(enumerate(keys))))

    def feed(self) -> None:
        """Compute the rows of every token that has none on the CPU, as far as the last token but one.

        Prefill, and what a preemption or a lost rank left to be computed again. Rows go into the tail; whole blocks are
        sealed and mirrored. The first call emits the first token.
        """
        first = len(self.tokens) == self.prompt_tokens
        end = len(self.tokens) - (0 if first else 1)
        start = min(self.mirrored_blocks() * self.layout.block_size, end - 1 if first else end)
        self.room(end)
        if start < end:
            number, reads = self._begin()
            fed = torch.tensor(self.tokens[start:end])
            rows = slice(-1, None)
            logits = self.model.forward(fed, torch.arange(start, end), self._full(reads), logits_for=rows)
            self.kv.end_step(number)
            if first:
                self.tokens.append(self.sampler.sample(logits[0]))
        self._seal()
        self._next_round = len(self.tokens)
        self._kept_live = 0
        self.fed = True

    def _seal(self) -> None:
        self.kv.handle(SealTail(request=self.key, confirmed_tokens=len(self.tokens) - 1))

    def step(self, *, end: bool = True) -> int:
        """Draft, verify, accept; returns the step's number, still open unless `end`.

        The target's rows replace the draft's in the tail.
        """
        start = len(self.tokens) - 1
        self.room(start + self.draft_tokens + 1)
        number, reads = self._begin()
        draft = DraftKv(self.model.config, reads, self._packed_view())
        drafted: list[int] = []
        token = self.tokens[-1]
        for ahead in range(self.draft_tokens):
            logits = self.model.forward(torch.tensor([token]), torch.tensor([start + ahead]), draft)
            token = self.sampler.propose(logits[0], ahead=ahead)
            drafted.append(token)
        fed = torch.tensor([self.tokens[-1], *drafted])
        logits = self.model.forward(fed, torch.arange(start, start + len(drafted) + 1), self._full(reads))
        emitted = verify_tokens(logits, drafted, self.sampler)
        if end:
            self.kv.end_step(number)
        self.tokens += emitted
        self.progress.verifies += 1
        self.progress.accepted += len(emitted)
        self._seal()
        return number

    def resume(self) -> bool:
        """After a preemption: once what was written is stored or lost, run again and compute what is missing."""
        request = self._request()
        if request.life == "PREEMPTED":
            self.fed = False
            if request.tail or request.store.phase != "IDLE":
                self._seal()  # dirty blocks are stored first; then they leave the tail
                return False
            self.kv.handle(Resume(request=self.key))
        if not self.fed:
            self.feed()  # raises PoolExhausted where there is no room yet: to be called again
        return True

    @property
    def due(self) -> bool:
        """Whether the next round has been reached."""
        return len(self.tokens) >= self._next_round

    def began_round(self) -> None:
        self._next_round = len(self.tokens) + self.every

    # ---- a compaction round

    def _request(self) -> RequestState:
        request = self.kv.driver.state.request(self.key)
        if request is None:
            raise Refused(self.key, "round", "no such request", ())
        return request

    def mirrored_blocks(self) -> int:
        """Leading whole blocks that the CPU holds: what a selection may name."""
        return leading(self._request().source)

    async def round(self) -> None:
        """Select, upload what is missing, keep what was selected, and pack where a keep shrank the view."""
        await self.kv.until(lambda: self._request().store.phase == "IDLE", self.key)
        selection = self._selector(self)
        upload = await self.kv.upload(selection, idempotency_key=f"select-{selection.selection_revision}")
        self._fullest = max(self._fullest, int(upload.residency.logical_by_slot_by_layer.counts.max()))
        if selection.tokens_by_layer is None:
            await self._keep(selection, upload.residency)
        else:
            self._packed_view()  # before another selection is made
        await self._pack_if_scattered(selection)
        self.progress.rounds += 1
        self.measure()

    async def _keep(self, selection: BlockSelection, residency: Residency) -> None:
        """Drop what is not selected, adopt what stands in the tail."""
        request, want = self._request(), selection.logical_blocks_by_layer
        keep = keep_slots(request, want)
        adopt = adoptable(request, want, self.layout, shared_table=not self.kv.driver.settings.retain.layer_tables)
        resident = residency.logical_by_slot_by_layer
        if keep.size < resident.size or adopt.size:
            await self.kv.retain(
                self.key,
                keep,
                adopt=adopt,
                map_revision=request.map_revision,
                selection_revision=selection.selection_revision,
                idempotency_key=f"retain-{selection.selection_revision}",
            )

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
        owned = self.kv.driver.state.ownership.owned(self.key, self.layout)
        touched = blocks_by_group(view.physical, self.layout)
        blocks = max(np.intersect1d(ids, own).size for ids, own in zip(touched, owned, strict=True))
        if blocks > (live if shrunk else self._fullest):
            try:
                await self.kv.retain(
                    self.key,
                    keep_slots(request, view.logical),
                    adopt=no_rows(self.layout.active_layers),
                    map_revision=request.map_revision,
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
        if self.kv.driver.settings.selection.method == "token":
            return self._select_tokens(whole)
        return select_blocks(
            np.stack([self._score(layer, whole) for layer in self.layout.active_layers]),
            request=self.key,
            revision=self._revision,
            layout=self.layout,
            policy=self.kv.driver.settings.selection,
            incumbents=self.kv.residency(self.key).logical_by_slot_by_layer,
            kernels=self.stack.producer.shards[0].kernels,
        )

    def _select_tokens(self, whole: int) -> BlockSelection:
        selection = select_tokens(
            np.stack([self._score(layer, whole, size=1) for layer in self.layout.active_layers]),
            request=self.key,
            revision=self._revision,
            layout=self.layout,
            policy=self.kv.driver.settings.selection,
            kernels=self.stack.producer.shards[0].kernels,
        )
        if selection.tokens_by_layer is not None:
            self._chosen = Packed(tokens=selection.tokens_by_layer, whole_blocks=whole)
        return selection

    def _packed_view(self) -> Packed | None:
        """Token method: what the current view holds. A view that has not been seen is of the last selection."""
        request = self._request()
        if request.view is None or self._chosen is None:
            return None
        self._packed = {view.generation: self._packed.get(view.generation, self._chosen) for view in request.views}
        return self._packed[request.current]

    def _score(
        self, layer: int, whole: int, size: int | None = None
    ) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        """Of the whole blocks, or of pieces of `size` tokens."""
        size = size or self.layout.block_size
        if self.scorer == "recency":
            return recency(whole * self.layout.block_size // size)
        queries, positions = self._queries.confirmed(layer, len(self.tokens) - 1)
        sources = int32_view(self._request().source)[:whole]
        keys = self.stack.producer.keys(layer, sources)
        if self.scorer == "attention":
            return attention_mass(queries, keys, positions, size)
        return quest(queries, *block_bounds(keys, size))

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
