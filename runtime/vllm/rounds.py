"""One request of vLLM's under the coordinator, and its compaction rounds: one thing a step."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from kvsweep.ledger.errors import KvsweepError
from kvsweep.ledger.ids import Logical, RequestKey, Rows, no_rows
from kvsweep.ledger.layout import Layout
from kvsweep.ledger.messages import BlockSelection, Retain, Select
from kvsweep.ledger.ownership import blocks_by_group
from kvsweep.ledger.ragged import even_rows
from kvsweep.ledger.sources import leading
from kvsweep.ledger.state import RequestState
from kvsweep.runtime.core.upload_plan import keep_slots
from kvsweep.runtime.driver import Driver
from kvsweep.runtime.scorers import recency
from kvsweep.runtime.selection import effective_budget, select_blocks
from kvsweep.runtime.vllm.counts import Counts
from kvsweep.runtime.vllm.pools import EngineBlock, EnginePools
from kvsweep.runtime.vllm.settings import ConnectorSettings


class EngineRequest(Protocol):
    """vLLM's Request, as far as it is looked at."""

    request_id: str
    num_computed_tokens: int
    num_prompt_tokens: int


@dataclass
class Managed:
    """`table` is vLLM's own list of the request's blocks: another list there means that it was preempted since."""

    request: EngineRequest
    key: RequestKey | None = None  # None: no life is open; vLLM serves it as it always does
    alone: bool = False  # no life can ever be opened for it: vLLM serves it alone
    table: list[EngineBlock] | None = None
    opened: int = 0  # logical blocks that the coordinator knows of
    sealed: int = 0  # of those: whole, and handed to a store
    replaced: int = 0  # leading logical blocks that the view stands for: vLLM's table does not name them any more
    revision: int = 0  # of its last selection
    next_round: int = 0  # engine step
    started: int = 0  # engine step in which its last upload began
    attempt: int = 0  # of a keep or a pack
    want: Rows[Logical] | None = None  # selected, and not yet kept
    kept_live: int = 0
    fullest: int = 0
    scores: dict[int, Any] = field(default_factory=dict)  # rank -> float32[layers, blocks] of this round
    scored: int = 0  # blocks that a round asked the ranks to score

    def begin(self, key: RequestKey, table: list[EngineBlock]) -> None:
        """A new life: nothing of it is known to the coordinator yet."""
        self.key, self.table = key, table
        self.opened = self.sealed = self.replaced = self.revision = self.kept_live = self.fullest = self.scored = 0
        self.want = None
        self.scores.clear()

    @property
    def decoding(self) -> bool:
        """Whether its whole prompt has been computed."""
        return self.request.num_computed_tokens >= self.request.num_prompt_tokens

    def last_block(self, tokens: int, block_size: int) -> int:
        """Id of the block that a step of so many tokens writes last; -1 for a request that has none."""
        last = (self.request.num_computed_tokens + tokens - 1) // block_size
        return self.table[last].block_id if self.table is not None else -1


DRAIN_STEPS = 2
"""Engine steps that an upload's destinations are on loan before the blocks that it replaces come back."""


class Rounds:
    """Moves one request on by at most one operation a step. Only whole blocks that the CPU tier holds are selected."""

    def __init__(
        self, settings: ConnectorSettings, driver: Driver, pools: EnginePools, layout: Layout, counts: Counts
    ) -> None:
        """counts: where a round that an error ended is counted, by the error's name."""
        self.settings, self.driver, self.pools, self.layout, self.counts = settings, driver, pools, layout, counts
        self.everything = settings.mode == "lossless" or settings.policy == "full"

    def advance(self, managed: Managed, step: int) -> None:
        """Begin what is due, if nothing of the request is under way. A full log or pool puts it off.

        An error ends this request's round and is counted; nothing is raised.
        """
        request = self._state(managed)
        if request is None or request.life != "RUNNING":
            return
        if request.upload.phase != "IDLE" or request.retain.phase != "IDLE":
            return
        try:
            if managed.want is not None:
                self._keep(managed, request, managed.want, step)
            elif step >= managed.next_round:
                self._select(managed, request, step)
        except KvsweepError as error:
            self.counts.note(error)
            managed.next_round = step + DRAIN_STEPS

    @property
    def needs_scores(self) -> bool:
        """Whether the ranks score blocks at all."""
        return self.settings.needs_scores

    def blocks_to_score(self, managed: Managed, step: int) -> int:
        """How many of the request's first blocks this step is to score, for a round in the next one; 0 for none."""
        request = self._state(managed)
        if request is None or request.life != "RUNNING" or not managed.decoding or managed.want is not None:
            return 0
        whole = leading(request.source)
        return whole if step + 1 >= managed.next_round and self._worth_a_round(managed, whole) else 0

    def to_score(
        self, live: Mapping[str, Managed], scheduled: Mapping[str, int], step: int
    ) -> Iterator[tuple[RequestKey, int, int]]:
        """(request, its first blocks to score, id of its last block) of each that this step is to score."""
        if not self.needs_scores or self.driver.read_only is not None:
            return
        for request_id, managed in live.items():
            blocks = self.blocks_to_score(managed, step)
            if managed.key is not None and blocks:
                yield managed.key, blocks, managed.last_block(scheduled[request_id], self.layout.block_size)

    def in_flight(self, managed: Managed, step: int) -> bool:
        """Whether an upload of the last steps will give back what it replaces before long."""
        request = self._state(managed)
        return request is not None and request.upload.phase != "IDLE" and step - managed.started <= DRAIN_STEPS

    # ---- inside

    def _state(self, managed: Managed) -> RequestState | None:
        return self.driver.state.request(managed.key) if managed.key is not None else None

    def _worth_a_round(self, managed: Managed, whole: int) -> bool:
        """Whether a selection can differ from what is kept. Scores of queries change from step to step."""
        _, _, budget = effective_budget(whole, self.driver.settings.selection)
        return whole > budget and (whole > managed.replaced or self.settings.policy == "quest")

    def _select(self, managed: Managed, request: RequestState, step: int) -> None:
        whole = leading(request.source)
        if self.everything:
            if whole <= managed.replaced:
                return  # the view has every whole block
            selection = self._all(managed, request, whole)
        else:
            if not managed.decoding or not self._worth_a_round(managed, whole):
                return
            found = self._scored(managed, request, whole)
            if found is None:
                return
            selection = found
        held = request.view.logical.counts if request.view else np.zeros(len(self.layout.layers), dtype=np.int32)
        if int((selection.logical_blocks_by_layer.counts - held).max()) > self.pools.room:
            return  # vLLM's own requests come first
        managed.next_round = step + self.settings.steps_between_rounds
        turn = self.driver.handle(
            Select(selection=selection, idempotency_key=f"select-{selection.selection_revision}", adopt=False)
        )
        if turn.operation is None:
            self._make_room(managed, request, selection.logical_blocks_by_layer, step)
            return
        managed.revision, managed.started = selection.selection_revision, step
        if not self.everything:
            managed.want = selection.logical_blocks_by_layer

    def _make_room(self, managed: Managed, request: RequestState, want: Rows[Logical], step: int) -> None:
        """No block is free: keep first what is wanted and resident, and upload into what the dropped blocks leave."""
        view = request.view
        if view is None or self.everything:
            return
        both = {layer: np.intersect1d(ids, view.logical.row(layer)).astype(np.int32) for layer, ids in want.items()}
        managed.want, managed.next_round = Rows.of(both), step + 1

    def _all(self, managed: Managed, request: RequestState, whole: int) -> BlockSelection:
        layers = self.layout.active_layers
        wanted: Rows[Logical] = even_rows(layers, np.tile(np.arange(whole, dtype=np.int32), (len(layers), 1)))
        return BlockSelection(
            request=request.key,
            selection_revision=managed.revision + 1,
            block_size=self.layout.block_size,
            logical_blocks_by_layer=wanted,
            ranked_tail_by_layer=no_rows(layers),
            group_by_layer=self.layout.active_group_bytes,
            whole_blocks=whole,
            effective_budget_blocks=whole,
        )

    def _scored(self, managed: Managed, request: RequestState, whole: int) -> BlockSelection | None:
        if self.settings.policy == "recency":
            scores = np.tile(recency(whole), (len(self.layout.active_layers), 1))
        else:
            ranks = len(self.driver.state.pool.ranks)
            if len(managed.scores) < ranks:
                return None
            parts = list(managed.scores.values())
            managed.scores = {}
            if any(part.shape[1] != whole for part in parts):
                return None  # a block became whole in between: the next step scores again
            scores = np.sum(parts, axis=0, dtype=np.float32)
        return select_blocks(
            scores,
            request=request.key,
            revision=managed.revision + 1,
            layout=self.layout,
            policy=self.driver.settings.selection,
            incumbents=request.view.logical if request.view else None,
            ranked_tail=False,
        )

    def _keep(self, managed: Managed, request: RequestState, want: Rows[Logical], step: int) -> None:
        """Drop what was not selected; then, where a keep left few areas in many blocks, gather them."""
        view = request.view
        keep = keep_slots(request, want)
        if view is None or keep.size < want.size:
            managed.want, managed.next_round = None, step + 1  # the upload did not commit: select again
            return
        if keep.size < view.logical.size:
            self._retain(managed, request, "retain", pack=False)
            return
        managed.want = None
        live = int(view.physical.counts.max())
        shrunk = managed.kept_live == 0 or live < managed.kept_live
        managed.fullest = max(managed.fullest, live)
        owned = self.driver.state.ownership.owned(request.key, self.layout)
        touched = blocks_by_group(view.physical, self.layout)
        blocks = max(np.intersect1d(ids, own).size for ids, own in zip(touched, owned, strict=True))
        managed.kept_live = live
        if blocks > (live if shrunk else managed.fullest):
            self._retain(managed, request, "pack", pack=True)

    def _retain(self, managed: Managed, request: RequestState, what: str, *, pack: bool) -> None:
        view = request.view
        if view is None:
            return
        wanted = view.logical if pack or managed.want is None else managed.want
        managed.attempt += 1
        self.driver.handle(
            Retain(
                request=request.key,
                keep=keep_slots(request, wanted),
                adopt=no_rows(self.layout.active_layers),
                map_revision=request.map_revision,
                selection_revision=managed.revision,
                idempotency_key=f"{what}-{managed.attempt}",
                pack=pack,
            )
        )
