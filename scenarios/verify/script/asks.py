"""What a script asks of the coordinator: selections, keep lists, and the keys of calls."""

from __future__ import annotations

import numpy as np

from kvsweep.ledger.ids import Logical, Rows, Slot, int32_bytes
from kvsweep.ledger.messages import BlockSelection, Retain
from kvsweep.ledger.sources import leading
from kvsweep.runtime.core.upload_plan import adoptable, keep_slots
from kvsweep.runtime.selection import select_blocks
from kvsweep.runtime.settings import SelectionSettings
from kvsweep.scenarios.verify.script import steps as s
from kvsweep.scenarios.verify.script.cluster import Cluster
from kvsweep.scenarios.verify.script.readers import Member


class Asks:
    """Builds commands out of steps. Keys of calls are new unless a step gives one."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._keys = 0

    def key(self, given: str = "") -> str:
        self._keys += 1
        return given or f"call-{self._keys}"

    def _rows(self, given: s.ByLayer) -> dict[int, tuple[int, ...]]:
        return given if isinstance(given, dict) else dict.fromkeys(self._cluster.layout.active_layers, given)

    def next_revision(self, member: Member) -> int:
        return max(self._cluster.state_of(member.key).selection_revision, member.revision) + 1

    def _whole(self, member: Member) -> int:
        """Whole blocks that the CPU holds, from the first one on."""
        return leading(self._cluster.state_of(member.key).source)

    def choose(self, step: s.Select, member: Member) -> None:
        """Scores drawn from the run's seed, and what the policy makes of them."""
        layout = self._cluster.layout
        draw = np.random.Generator(np.random.PCG64(self._cluster.chance.getrandbits(64)))
        scores = draw.random((len(layout.active_layers), self._whole(member)), dtype=np.float32)
        if step.nan is not None:
            layer, block = step.nan
            scores[layout.active_layers.index(layer), block : block + 1] = np.nan
        member.choice = select_blocks(
            scores,
            request=member.key,
            revision=self.next_revision(member),
            layout=layout,
            policy=SelectionSettings(
                budget=step.budget, sink_blocks=step.sink, recent_blocks=step.recent, shared=step.shared
            ),
        )

    def selection(self, step: s.Upload | s.Round, member: Member) -> BlockSelection:
        """The step's blocks, or the last choice of the request under the next revision."""
        layout, given = self._cluster.layout, step if isinstance(step, s.Upload) else s.Upload(request=step.request)
        if step.want is None and member.choice is not None:
            want, tail = member.choice.logical_blocks_by_layer, member.choice.ranked_tail_by_layer
        else:
            want, tail = Rows[Logical].of(self._rows(step.want or ())), Rows[Logical].of(self._rows(given.tail))
        selection = BlockSelection(
            request=member.key,
            selection_revision=self.next_revision(member) if given.revision is None else given.revision,
            block_size=layout.block_size,
            logical_blocks_by_layer=want,
            ranked_tail_by_layer=tail,
            group_by_layer=int32_bytes([layout.layers[layer].group for layer in layout.active_layers]),
            whole_blocks=self._whole(member) if given.whole is None else given.whole,
            effective_budget_blocks=int(want.counts.max(initial=0)),
        )
        member.choice, member.revision = selection, max(member.revision, selection.selection_revision)
        return selection

    def retain(self, step: s.Retain | s.Round, member: Member) -> Retain:
        """Slots of the wanted blocks as they stand now, and the clean tail blocks among them."""
        request, layout = self._cluster.state_of(member.key), self._cluster.layout
        given = step if isinstance(step, s.Retain) else s.Retain(request=step.request)
        view, active = request.view, layout.active_layers
        if given.keep is not None:
            want = Rows[Logical].of(self._rows(given.keep))
        elif given.pack and view is not None:
            want = view.logical
        elif member.choice is not None:
            want = member.choice.logical_blocks_by_layer
        else:
            want = Rows[Logical].of(self._rows(()))
        adopt = adoptable(request, want, layout, shared_table=self._cluster.world.tables == "group")
        if view is not None:
            adopt = Rows.of({layer: np.setdiff1d(ids, view.logical.row(layer)) for layer, ids in adopt.items()})
        nothing = Rows[Logical].of(dict.fromkeys(active, ()))
        return Retain(
            request=member.key,
            keep=keep_slots(request, want) if given.slots is None else Rows[Slot].of(self._rows(given.slots)),
            adopt=adopt if given.adopt and not given.pack else nothing,
            map_revision=request.map_revision + given.map_revision,
            selection_revision=request.selection_revision,
            idempotency_key=self.key(given.key),
            pack=given.pack,
        )
