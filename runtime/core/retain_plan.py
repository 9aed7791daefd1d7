"""How a new view is built from kept slots: rewrite the shared table, rewrite each layer's table, or move bytes."""

from collections import Counter
from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from kvsweep.ledger.draft import Groups
from kvsweep.ledger.errors import LayoutError, PoolExhausted
from kvsweep.ledger.events import Attention, RetainMode
from kvsweep.ledger.ids import Int32, Physical, Rows, Slot, int32_view
from kvsweep.ledger.layout import Layout
from kvsweep.ledger.ragged import empty_like, same_rows
from kvsweep.runtime.core.placement import VacantAreas


class RetainPlan(Struct, frozen=True, kw_only=True):
    """The kept slots and what has to be copied, row for row; targets below 0 stand for newly reserved blocks.

    Target −1 − i is the i-th new block of the layer's group: ids are known once the pool has given them.
    """

    mode: RetainMode
    attention: Attention
    keep: Rows[Slot]
    moved_from: Rows[Physical]
    moved_to: Rows[Physical]
    new_blocks: tuple[int, ...]

    def targets(self, reserved: tuple[Int32, ...], layout: Layout) -> Rows[Physical]:
        """`moved_to` with the new blocks filled in."""
        if not self.moved_to.id_bytes:
            return self.moved_to
        rows = {}
        for layer, ids in self.moved_to.items():
            new = reserved[layout.layers[layer].group]
            rows[layer] = [int(new[-1 - area]) if area < 0 else area for area in ids.tolist()]
        return Rows.of(rows)


def plan_retain(
    table: Rows[Physical],
    keep: Rows[Slot],
    own: Groups,
    layout: Layout,
    *,
    layer_tables: bool,
) -> RetainPlan:
    """Choose the cheapest way that keeps every layer's own selection.

    table  physical ids of the new view in slot order (kept slots, then adopted blocks), before any move
    Shared remap only where the ordered rows of all layers of a group are equal (B1), never because of the method;
    else one table a layer where the backend reads such (B3); else bytes move. Never in place.
    """
    if all(same_rows(table, layout.group_layers(group)) for group in range(layout.groups)):
        return _remap("shared", keep, layout)
    if layer_tables:
        return _remap("layer", keep, layout)
    return _byte_move(dict(table.items()), keep, own, layout)


def union_keep(keep: Rows[Slot], counts: Mapping[int, int]) -> Rows[Slot]:
    """Every layer keeps what any layer keeps (B5): the same table for all, not the same selected attention."""
    union = np.unique(keep.ids)
    for layer in keep.layers.tolist():
        if union.size and int(union[-1]) >= counts[layer]:
            raise LayoutError(f"keep[{layer}]", f"slots that every layer has, below {counts[layer]}", str(union[-1]))
    return Rows.of(dict.fromkeys(keep.layers.tolist(), union))


def _remap(mode: RetainMode, keep: Rows[Slot], layout: Layout) -> RetainPlan:
    nothing: Rows[Physical] = empty_like(keep.layer_bytes)
    return RetainPlan(
        mode=mode,
        attention="same",
        keep=keep,
        moved_from=nothing,
        moved_to=nothing,
        new_blocks=(0,) * layout.groups,
    )


def _byte_move(table: Mapping[int, Int32], keep: Rows[Slot], own: Groups, layout: Layout) -> RetainPlan:
    """Give every slot one physical block in all layers of its group, copying as few areas as that takes.

    A slot that already has one is kept by reference. Otherwise it stays in the block where most of its layers are, if
    that block is vacant in the others; otherwise another owned block vacant in all of them; otherwise a new one.
    """
    moved_from: dict[int, list[int]] = {layer: [] for layer in layout.active_layers}
    moved_to: dict[int, list[int]] = {layer: [] for layer in layout.active_layers}
    new_blocks = []
    for group in range(layout.groups):
        layers = tuple(layer for layer in layout.group_layers(group) if layer in table)
        vacant = VacantAreas(own[group], group, layout)
        new = 0
        for slot in range(max((table[layer].size for layer in layers), default=0)):
            areas = {layer: int(table[layer][slot]) for layer in layers if slot < table[layer].size}
            target = _slot_target(areas, vacant)
            if target is None:
                new += 1
                target = -new
            for layer, area in areas.items():
                if area != target:
                    moved_from[layer].append(area)
                    moved_to[layer].append(target)
                    if target >= 0:
                        vacant.take(layer, target)
        new_blocks.append(new)
    return RetainPlan(
        mode="move",
        attention="same",
        keep=keep,
        moved_from=Rows.of(moved_from),
        moved_to=Rows.of(moved_to),
        new_blocks=tuple(new_blocks),
    )


def _slot_target(areas: dict[int, int], vacant: VacantAreas) -> int | None:
    for block, _ in sorted(Counter(areas.values()).items(), key=lambda item: (-item[1], item[0])):
        if all(area == block or vacant.is_vacant(layer, block) for layer, area in areas.items()):
            return block
    free = vacant.of_all(tuple(areas))
    return int(free[0]) if free.size else None


def plan_pack(rows: Rows[Physical], own: Groups, layout: Layout) -> RetainPlan:
    """Gather the view's areas in as few blocks as its fullest layer needs; no new block is taken.

    M is the largest number of live areas of any layer. The M fullest blocks stay; per layer, the areas of the others
    move into vacant areas of those M. With nothing draining or quarantined this always fits; otherwise PoolExhausted.
    Areas in shared prefix blocks stay where they are: moving them away would free nothing.
    """
    table = dict(rows.items())
    moved_from: dict[int, list[int]] = {layer: [] for layer in layout.active_layers}
    moved_to: dict[int, list[int]] = {layer: [] for layer in layout.active_layers}
    for group in range(layout.groups):
        layers = tuple(layer for layer in layout.group_layers(group) if layer in table)
        blocks = int32_view(own[group].blocks)
        unshared = {layer: table[layer][np.isin(table[layer], blocks)] for layer in layers}
        live = Counter(int(block) for layer in layers for block in unshared[layer])
        most = max((unshared[layer].size for layer in layers), default=0)
        kept = [block for block, _ in sorted(live.items(), key=lambda item: (-item[1], item[0]))[:most]]
        vacant = VacantAreas(own[group], group, layout)
        for layer in layers:
            victims = [area for area in unshared[layer].tolist() if area not in kept]
            room = [block for block in kept if vacant.is_vacant(layer, block)]
            if len(room) < len(victims):
                raise PoolExhausted(f"vacant areas of layer {layer}", len(victims), len(room))
            moved_from[layer] += victims
            moved_to[layer] += room[: len(victims)]
    return RetainPlan(
        mode="pack",
        attention="same",
        keep=Rows.of({layer: np.arange(table[layer].size, dtype=np.int32) for layer in layout.active_layers}),
        moved_from=Rows.of(moved_from),
        moved_to=Rows.of(moved_to),
        new_blocks=(0,) * layout.groups,
    )
