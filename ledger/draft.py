"""A draft: what one message, or one event, makes of the state that stands.

It copies each record once before it changes it, so what it began from is untouched and a dropped draft has never been.
"""

from collections.abc import Mapping
from copy import copy
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
from msgspec import Struct

from kvsweep.ledger.areas import Areas, Shared, change, change_shared, first_counted, without
from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import HOLE, POOL, Operation, Physical, RequestKey, Rows, Slot, int32_view
from kvsweep.ledger.layout import Layout
from kvsweep.ledger.messages import Effect
from kvsweep.ledger.ownership import NO_HOLDERS, Holder, Holders, Holding, Ownership
from kvsweep.ledger.ragged import ids_at
from kvsweep.ledger.state import PoolState, RequestState

if TYPE_CHECKING:
    from kvsweep.ledger.standing import Index, Standing

NOTHING: Final = Areas()
_ABSENT: Final = RequestState(key=RequestKey("", 0))

Groups: TypeAlias = tuple[Areas, ...]
"""A request's own blocks, group by group."""


class Counted(Struct, frozen=True, gc=False):
    """What a change of pairs makes of the counts."""

    groups: Groups
    shared: tuple[Shared, ...]
    freed: tuple[bytes, ...]  # '<i4' blocks of each group that nobody holds any more, ascending


class Draft:
    """Records and pairs as they will be.

    events, effects  so far
    freed_device, freed_cpu  what lost its last holder: (group, '<i4' blocks), and '<i4' CPU blocks
    began, ended     operations that ranks may be spoken to about from here on, and no longer
    fences, opened   fences that closed, and that opened
    """

    __slots__ = (
        "_dropping", "_kept", "areas", "base", "began", "effects", "ended", "events", "fences", "freed_cpu",
        "freed_device", "held", "journal_from", "opened", "pool", "requests", "shared", "shared_sources",
    )  # fmt: skip

    def __init__(self, base: "Standing") -> None:
        self.base = base
        self.pool: PoolState = base.pool
        self.requests: dict[str, RequestState | None] = {}  # None: forgotten
        self.held: dict[RequestKey, Holders] = {}
        self.areas: dict[RequestKey, Groups] = {}
        self.shared, self.shared_sources = base.shared, base.shared_sources
        self.events: list[Event] = []
        self.effects: list[Effect] = []
        self.freed_device: list[tuple[int, bytes]] = []
        self.freed_cpu: list[bytes] = []
        self.began: list[int] = []
        self.ended: list[int] = []
        self.fences: list[tuple[RequestKey, int]] = []
        self.opened: list[tuple[RequestKey, int]] = []
        self.journal_from = base.journalled
        self._kept: tuple[Rows[Physical], Rows[Slot], Rows[Physical]] | None = None
        self._dropping: tuple[RequestKey, Holder, Groups, tuple[Shared, ...], Counted] | None = None

    def drop(self) -> None:
        """None of it happened."""
        self.base.undo(self.journal_from)

    # ---- records

    @property
    def layout(self) -> Layout:
        return self.pool.layout

    def latest(self, request_id: str) -> RequestState | None:
        """The latest life of this id, or None."""
        found = self.requests.get(request_id, _ABSENT)
        return self.base.requests.get(request_id) if found is _ABSENT else found

    def known(self, key: RequestKey) -> RequestState | None:
        """The state of exactly this life, or None."""
        found = self.latest(key.request_id)
        return found if found is not None and found.key == key else None

    def request(self, key: RequestKey) -> RequestState:
        found = self.known(key)
        if found is None:
            raise LookupError(f"{key} is not known")
        return found

    def everybody(self) -> list[RequestState]:
        """The latest life of every id, in the order in which they are kept."""
        return [one for one in map(self.latest, {**self.base.requests, **self.requests}) if one is not None]

    @property
    def living(self) -> int:
        """Requests that are not closed."""
        new = sum(name not in self.base.requests for name in self.requests)
        return len(self.base.requests) + new - len(self.pool.closed)

    def own(self, request: RequestState) -> RequestState:
        """This draft's own copy of the record, to be changed."""
        name = request.key.request_id
        mine = self.requests.get(name)
        if mine is None:
            mine = self.requests[name] = copy(request)
        return mine

    def mine(self, key: RequestKey) -> RequestState:
        """This draft's own copy of the record of a life. Raises LookupError where it is not known."""
        return self.own(self.request(key))

    def next_operation(self, request: RequestState) -> Operation:
        """The operation of this request that may begin now."""
        return Operation(
            request=request.key,
            operation_id=self.pool.next_operation_id,
            pool_generation=self.pool.pool_generation,
            map_revision=request.map_revision,
        )

    def own_pool(self) -> PoolState:
        """This draft's own copy of the pool's record, to be changed."""
        if self.pool is self.base.pool:
            self.pool = copy(self.pool)
        return self.pool

    # ---- the relation

    def holders(self, key: RequestKey) -> Holders:
        found = self.held.get(key)
        return self.base.held.get(key, NO_HOLDERS) if found is None else found

    def groups(self, key: RequestKey) -> Groups:
        """The request's own blocks, group by group."""
        found = self.areas.get(key)
        if found is None:
            found = self.base.areas.get(key)
        return found or (NOTHING,) * self.pool.layout.groups

    def rows(self, key: RequestKey) -> set[int]:
        """Table rows of the request that somebody holds."""
        return {row for holding in self.holders(key).values() for row in holding.rows}

    def index(self) -> "Index":
        """What anybody holds over the whole pool."""
        return self.base.index()

    def held_source(self, blocks: bytes) -> int:
        """The first of these CPU blocks ('<i4', in the pool) that somebody holds, or HOLE."""
        at = first_counted(self.index().cpu, blocks)
        return HOLE if at < 0 else int.from_bytes(blocks[4 * at : 4 * at + 4], "little", signed=True)

    def relation(self) -> Ownership:
        """The relation as it will be, as a value: for words about it."""
        base = self.base
        return Ownership(
            held={**base.held, **self.held},
            areas={key: groups for key, groups in {**base.areas, **self.areas}.items() if groups},
            shared=self.shared,
            shared_sources=self.shared_sources,
        )

    def holds_source(self, block: int) -> str:
        """Id of a request for which this CPU block is held."""
        return self.relation().holds_source(block)

    def who_holds(self, group: int, block: int) -> str:
        """Who has a device block that is not free, in words."""
        return self.relation().who_holds(group, block)

    def kept(self, physical: Rows[Physical], keep: Rows[Slot]) -> Rows[Physical]:
        """Ids at these slots, row for row. Kept: a retain is planned on them, and its event builds a table of them."""
        known = self._kept
        if known is None or known[0] is not physical or known[1] is not keep:
            known = self._kept = physical, keep, ids_at(physical, keep)
        return known[2]

    def freed_by(self, key: RequestKey, holder: Holder) -> Counted:
        """What dropping this holder would leave without any. Raises KeyError for a holder that is not there.

        Kept until it is dropped: an event says what is freed, and its reducer frees it.
        """
        groups, known = self.groups(key), self._dropping
        if known is not None and known[:2] == (key, holder) and known[2] is groups and known[3] is self.shared:
            return known[4]
        found = self._counted(groups, (), (), (self.holders(key)[holder],))
        self._dropping = (key, holder, groups, self.shared, found)
        return found

    def _counted(
        self, groups: Groups, reserve: tuple[bytes, ...], add: tuple[Holding, ...], drop: tuple[Holding, ...]
    ) -> Counted:
        more = [holding.areas for holding in add if holding.areas.id_bytes]
        less = [holding.areas for holding in drop if holding.areas.id_bytes]
        if not (more or less or any(reserve)):
            return Counted(groups, self.shared, (b"",) * len(groups))
        layout, own, shared, freed = self.pool.layout, [], [], []
        for group, one in enumerate(groups):
            row_of_layer = layout.rows_of_group(group)
            new, gone = change(one, row_of_layer, reserve=reserve[group] if reserve else b"", add=more, drop=less)
            own.append(new)
            if self.shared:
                left, gone_too = change_shared(self.shared[group], row_of_layer, add=more, drop=less)
                shared.append(left)
                gone = np.sort(int32_view(gone + gone_too)).tobytes() if gone_too else gone
            freed.append(gone)
        left_shared = tuple(shared) if any(one.blocks for one in shared) else ()
        return Counted(tuple(own), left_shared, tuple(freed))

    def change(
        self,
        key: RequestKey,
        *,
        put: Mapping[Holder, Holding] | None = None,
        drop: tuple[Holder, ...] = (),
        reserve: tuple[bytes, ...] = (),
        placed: Groups | None = None,
    ) -> None:
        """The only way to change the relation: pairs are added first, then removed, so nothing is free in between.

        put      adds a holder or replaces what it holds
        drop     holders that hold no more. Raises KeyError for one that is not there
        reserve  newly reserved blocks of each group, '<i4': from here on the request's own
        placed   the own blocks in which `reserve` and the areas of the first of `put` are counted already
        A block whose last area lost its holder leaves the request's own.
        """
        before, index = self.holders(key), self.index()
        added = tuple(put.values()) if put else ()
        dropped = tuple([before[holder] for holder in put if holder in before] if put else ()) + tuple(
            [before[holder] for holder in drop]
        )
        if len(drop) == 1 and not added and not reserve:
            counted = self.freed_by(key, drop[0])
        elif placed is not None:
            counted = self._counted(placed, (), added[1:], dropped)
        else:
            counted = self._counted(self.groups(key), reserve, added, dropped)
        more = b"".join([holding.sources for holding in added])
        less = b"".join([holding.sources for holding in dropped])
        for group, blocks in enumerate(reserve):
            if blocks:
                index.mark(group, blocks, True)
        if more or less:
            self._free_sources(index.count(more, less))
        holders = self.held[key] = dict(before)
        if put:
            holders.update(put)
        for holder in drop:
            del holders[holder]
        self.areas[key] = counted.groups if any(one.blocks for one in counted.groups) else ()
        self.shared = counted.shared
        for group, blocks in enumerate(counted.freed):
            if blocks:
                index.mark(group, blocks, False)
                self.freed_device.append((group, blocks))

    def _free_sources(self, freed: bytes) -> None:
        if not freed:
            return
        self.freed_cpu.append(freed)
        if self.shared_sources:
            self.shared_sources = np.setdiff1d(int32_view(self.shared_sources), int32_view(freed)).tobytes()

    def share(self, key: RequestKey, holder: Holder, blocks: tuple[int, ...], source: int) -> None:
        """A block of each group leaves the request's own, with those who hold it: the pool holds all its areas too."""
        layout, shared, groups = self.pool.layout, [], []
        for group, block in enumerate(blocks):
            left, total = without(self.groups(key)[group], block, len(layout.group_layers(group)))
            groups.append(left)
            known = self.shared[group] if self.shared else Shared()
            ids, totals = int32_view(known.blocks), np.frombuffer(known.total, dtype="<u4")
            at = int(np.searchsorted(ids, block))
            more = total + len(layout.group_layers(group))
            shared.append(
                Shared(
                    blocks=np.insert(ids, at, block).astype("<i4").tobytes(),
                    total=np.insert(totals, at, more).astype("<u4").tobytes(),
                )
            )
        areas: Rows[Physical] = Rows.of({layer.layer: [blocks[layer.group]] for layer in layout.layers})
        wire = source.to_bytes(4, "little")
        self.index().count(wire, b"")
        self.held[POOL] = {**self.holders(POOL), holder: Holding(areas=areas, sources=wire)}
        self.areas[key] = tuple(groups) if any(one.blocks for one in groups) else ()
        self.shared = tuple(shared)
        self.shared_sources = np.union1d(int32_view(self.shared_sources), int32_view(wire)).astype("<i4").tobytes()
