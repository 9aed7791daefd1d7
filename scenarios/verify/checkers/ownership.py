"""Ownership oracle: recounts holders of every area, CPU block and table row from the event list alone.

A resource handed out while held, let go of while held, or let go of twice is a break that names resource, holder and
position. Steps are no events: who has them says so with `began` and `ended`, and they count as holders of what they
were handed.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from kvsweep.ledger import events as e
from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import RequestKey
from kvsweep.runtime.core.steps import HandedOut
from kvsweep.scenarios.verify.checkers import holdings, lanes
from kvsweep.scenarios.verify.checkers.account import LAW as LAW
from kvsweep.scenarios.verify.checkers.account import Account, areas_of, named
from kvsweep.scenarios.verify.checkers.lives import Life
from kvsweep.scenarios.verify.checkers.relation import Holder, Relation, Resource, TableRow


class Ownership(Account):
    """Feed it every event in order. It grows with what is open only."""

    def see(self, event: Event) -> None:
        """The next event of the ledger."""
        self.position += 1
        kind = type(event)
        if isinstance(event, e.RunConfigured):
            self.run = event
            self.relation = Relation({layer.layer: layer.group for layer in event.layout.layers})
            for layer in event.layout.layers:
                self.layers_of_group.setdefault(layer.group, []).append(layer.layer)
        elif isinstance(event, e.RequestOpened):
            if event.request in self.lives:
                self.add(LAW, f"{event.request} is opened a second time")
            self.lives[event.request] = Life(key=event.request, rows=event.rows)
        elif kind in _POOL:
            _POOL[kind](self, event)
        elif kind in _OF_A_LIFE:
            life = self.lives.get(event.request)
            if life is None:
                self.add(LAW, f"{kind.__name__}: {event.request} has no open life")
            else:
                _OF_A_LIFE[kind](self, life, event)

    def began(self, step: int, handed: Mapping[RequestKey, HandedOut]) -> None:
        """A step was handed these generations and tails."""
        self.steps[step] = dict(handed)
        for key, out in handed.items():
            life = self.lives.get(key)
            if life is None:
                self.add(LAW, f"step {step} was handed {key}, which has no open life")
                continue
            if out.generation != life.current:
                self.add(LAW, f"step {step} was handed generation {out.generation}, current is {life.current}")
            table = life.tables.get(out.generation)
            areas: list[Resource] = [] if table is None else [*areas_of(table.physical), TableRow(key, table.row)]
            for logical in out.tail:
                block = life.tail.get(logical)
                if block is None:
                    self.add(LAW, f"step {step} was handed tail block {logical} of {key.request_id}, which left")
                    continue
                areas += self.whole_blocks(block.physical.items())
            self.relation.put(Holder(key, "step", step), areas)

    def ended(self, step: int) -> None:
        """The step reads and writes nothing any more."""
        for key in self.steps.pop(step, {}):
            freed = self.relation.drop(Holder(key, "step", step))
            if freed:
                self.add(LAW, f"{named(freed)} had no holder left but step {step}")

    def at_rest(self) -> None:
        """Nothing is under way any more: no lease, fence or quarantine is left, and a closed life holds nothing."""
        for holder in self.relation.all_holders:
            if holder.kind in ("dst", "src", "fence", "step"):
                self.add("drained", f"{holder} still holds {named(self.relation.held_by(holder))}")
        for life in self.lives.values():
            for number in life.attempts:
                self.add("drained", f"operation {number} of {life.key.request_id} is open or settles")
            for fence in life.fences:
                self.add("drained", f"fence {fence} of {life.key.request_id} is closed")
            stale = [generation for generation in life.tables if generation != life.current]
            if stale:
                self.add("drained", f"{life.key.request_id}: generations {stale} were replaced and not retired")


_OF_A_LIFE: Final[dict[type[Event], Callable[[Account, Life, Any], None]]] = {
    e.UploadPlanned: lanes.planned_upload,
    e.KeepMapPublished: lanes.published_keep_map,
    e.UploadStaged: lanes.staged,
    e.BlocksLeased: lanes.leased,
    e.RetainPlanned: lanes.planned_retain,
    e.StoreStarted: lanes.started_store,
    e.TransferStarted: lanes.sent,
    e.ReadersDrained: lanes.sent,
    e.RankTransferred: lanes.reported,
    e.TablesApplied: lanes.reported,
    e.RankStored: lanes.reported,
    e.ResidencyCommitted: lanes.committed,
    e.OwnersCommitted: lanes.committed,
    e.UploadAcknowledged: lanes.acknowledged,
    e.RetainAcknowledged: lanes.acknowledged,
    e.StoreCompleted: lanes.completed_store,
    e.UploadAborted: lanes.aborted,
    e.RetainAborted: lanes.aborted,
    e.StoreAborted: lanes.aborted,
    e.TransferSettled: lanes.settled,
    e.RequestPreempted: holdings.preempted,
    e.RequestResumed: holdings.resumed,
    e.RequestFinished: holdings.finished,
    e.RequestClosed: holdings.closed,
    e.BlocksRetired: holdings.retired,
    e.TailOpened: holdings.opened_tail,
    e.TailSealed: holdings.sealed,
    e.BlockLost: holdings.lost,
    e.TailDropped: holdings.dropped,
    e.FenceOpened: holdings.fence_opened,
    e.SourcesRegistered: holdings.registered,
    e.PrefixPublished: holdings.published_prefix,
    e.PrefixAttached: holdings.attached,
}

_POOL: Final[dict[type[Event], Callable[[Account, Any], None]]] = {
    e.PrefixEvicted: holdings.evicted,
    e.ProducerRestarted: holdings.producer_restarted,
}
