"""Random walks of the fold: batches drawn from a seed, most of them legal, some spoiled in one field."""

import contextlib
import itertools
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from tests.ledger.chance import WORDS, Chance
from tests.ledger.pairs import Owner, Pairs
from tests.ledger.worlds import DEVICE_BLOCKS, K, N, World

from kvsweep.ledger import events as e
from kvsweep.ledger.draft import Draft
from kvsweep.ledger.errors import KvsweepError
from kvsweep.ledger.events import Event
from kvsweep.ledger.fold import apply_all, take
from kvsweep.ledger.ids import HOLE, POOL, Operation, RequestKey, Rows, int32_bytes
from kvsweep.ledger.layout import Layout
from kvsweep.ledger.phases import ABORTABLE
from kvsweep.ledger.standing import Standing
from kvsweep.ledger.state import RequestState, State

Step = tuple[type[Event], dict[str, Any]]
ABORTS = {"upload": e.UploadAborted, "retain": e.RetainAborted, "store": e.StoreAborted}
REPORTS: dict[str, tuple[type[Event], dict[str, int]]] = {
    "upload": (e.RankTransferred, {"h2d_bytes": 0, "unpack_bytes": 0, "table_updates": 0}),
    "retain": (e.TablesApplied, {"resident_moved_bytes": 0, "table_updates": 0}),
    "store": (e.RankStored, {"d2h_bytes": 0}),
}


# ---- how a batch becomes part of what stands; refused, none of it has


def in_one_draft(standing: Standing, batch: list[Event]) -> None:
    draft = standing.draft()
    try:
        for event in batch:
            take(draft, event)
    except KvsweepError:
        draft.drop()
        raise
    standing.stage(draft)
    standing.adopt()


def in_a_draft_each(standing: Standing, batch: list[Event]) -> None:
    for event in batch:
        draft = standing.draft()
        try:
            take(draft, event)
        except KvsweepError:
            draft.drop()
            standing.discard()
            raise
        standing.stage(draft)
    standing.adopt()


def at_the_second_try(standing: Standing, batch: list[Event]) -> None:
    """Dropped, then discarded, then taken."""
    draft = standing.draft()
    with contextlib.suppress(KvsweepError):
        for event in batch:
            take(draft, event)
    draft.drop()
    for event in batch:
        draft = standing.draft()
        try:
            take(draft, event)
        except KvsweepError:
            draft.drop()
            break
        standing.stage(draft)
    standing.discard()
    in_one_draft(standing, batch)


def without_an_index(standing: Standing, batch: list[Event]) -> None:
    standing.forget_index()
    in_one_draft(standing, batch)


def refused_in_a_draft(standing: Standing, batch: list[Event]) -> tuple[object, object]:
    """What a draft holds after the event that is refused, and what one holds that never met it."""
    found = []
    legal = batch
    for _ in range(2):
        draft, taken = standing.draft(), 0
        with contextlib.suppress(KvsweepError):
            for event in legal:
                take(draft, event)
                taken += 1
        legal = legal[:taken]
        found.append(contents(draft))
        draft.drop()
    return found[0], found[1]


def contents(draft: Draft) -> object:
    index = draft.index()
    return (
        draft.everybody(), draft.pool, draft.relation(), draft.freed_device, draft.freed_cpu, draft.began, draft.ended,
        draft.fences, draft.opened, [bytes(marks) for marks in index.device], bytes(index.cpu),
    )  # fmt: skip


WAYS = (in_one_draft, in_a_draft_each, at_the_second_try, in_one_draft, in_a_draft_each, without_an_index)


class Walk(Chance):
    """`batch` draws the next batch, `take` applies it and lets it stand; `pairs` hears every fact that was taken."""

    def __init__(self, seed: int, layout: Layout, spoil: float) -> None:
        super().__init__(seed)
        self.spoil, self.layout = spoil, layout
        self.state: State = World(layout, opened=False).state
        self.standing = Standing(self.state)
        self.ways = itertools.cycle(WAYS)
        self.pairs = Pairs(layout)
        self.taken: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    # ---- the next batch

    def batch(self) -> list[Event]:
        """One batch of one stream."""
        batch: list[Event] = []
        while not batch:
            batch = self.draw()
        return batch

    def draw(self) -> list[Event]:
        """A batch; empty where the drawn step has no sense in this state."""
        name = self.one("ab")
        request = self.state.requests.get(name)
        if request is None or (request.life == "CLOSED" and self.chance(0.9)):
            if name == "b" and not self.pairs.prefixes and self.chance(0.99):
                return []  # so that it often begins with something to attach
            key = RequestKey(name, request.key.request_epoch + 1 if request else 1)
            row_count = int(self.rng.integers(2, 5))
            fields = {"pool_generation": self.state.pool.pool_generation, "rows": row_count}
            shared = sorted((at, number) for number, (at, *_) in self.pairs.prefixes.items())
            attached: list[Step] = [(e.PrefixAttached, {"logical": at, "number": number}) for at, number in shared]
            return self.events(key, 0, [(e.RequestOpened, fields), *attached])
        if self.chance(0.0025):
            evicted = self.evictions(99) if self.chance(0.9) else []
            return self.events(POOL, self.state.pool.seq, [*evicted, *self.restart()])
        if self.chance(0.004):
            return self.events(POOL, self.state.pool.seq, self.evictions(1))
        draw: Callable[[RequestState], list[Step]] = self.one((
            self.life, self.start, self.start, self.publish, self.plan_retain, self.plan_retain,
            self.upload, self.upload, self.upload, self.retain, self.retain, self.retain, self.retain,
            self.settle, self.settle, self.retire, self.tail, self.tail, self.store, self.store, self.leave,
            self.register, self.abort, self.share, self.attach,
        ))  # fmt: skip
        return self.events(request.key, request.seq, draw(request))

    def events(self, key: RequestKey, seq: int, steps: list[Step]) -> list[Event]:
        made = [fact(request=key, seq=seq + at, **fields) for at, (fact, fields) in enumerate(steps)]
        if made and self.chance(self.spoil):
            at = int(self.rng.integers(len(made)))
            made[at] = self.spoiled(made[at])
        return made

    def take(self, batch: list[Event]) -> str:
        """'taken' or 'refused'; any other error than a refusal is a fault of the fold."""
        way = next(self.ways)
        try:
            after = apply_all(self.state, batch)
        except KvsweepError as error:
            with pytest.raises(type(error), match=re.escape(str(error))):
                way(self.standing, batch)
            self.refused.update(type(event).__name__ for event in batch)
            return "refused"
        way(self.standing, batch)
        self.state = after
        for event in batch:
            self.pairs.hear(event)
            self.taken[type(event).__name__] += 1
        return "taken"

    # ---- facts about what is free, of the brute-force relation

    def free_blocks(self, group: int) -> list[int]:
        """Blocks that nobody holds; now and then shared ones are taken for free as well, which must be refused."""
        taken = {*self.pairs.own} if self.chance(0.1) else {*self.pairs.own, *self.pairs.shared}
        return [block for block in range(DEVICE_BLOCKS) if (group, block) not in taken]

    def free_cpu(self, low: int, high: int) -> list[int]:
        held = {resource[1] for resource, _ in self.pairs.hold if resource[0] == "cpu"}
        return [block for block in range(low, high) if block not in held]

    def free_row(self, request: RequestState) -> int:
        held = {r[2] for r, _ in self.pairs.hold if r[0] == "row" and r[1] == request.key}
        free = [row for row in range(request.rows) if row not in held]
        return int(self.one(free)) if free else 0

    def place(self, key: RequestKey, counts: dict[int, int]) -> tuple[Rows[Any], tuple[bytes, ...]]:
        """Vacant areas of owned blocks and areas of newly reserved ones, in random order."""
        held = {(r[1], r[2]) for r, _ in self.pairs.hold if r[0] == "area"}
        to: dict[int, list[int]] = {}
        reserved: list[list[int]] = [[] for _ in range(self.layout.groups)]
        for layer, count in counts.items():
            group = self.pairs.group[layer]
            own = [block for (of, block), who in self.pairs.own.items() if of == group and who == key]
            vacant = [block for block in own if (layer, block) not in held]
            room = [*vacant, *reserved[group]]
            fresh = [block for block in self.free_blocks(group) if block not in reserved[group]]
            more = fresh[: max(0, count - len(room))]
            reserved[group] += more
            room += more
            self.rng.shuffle(room)
            to[layer] = room[:count]
        return Rows.of(to), tuple(int32_bytes(sorted(blocks)) for blocks in reserved)

    # ---- steps

    def operation(self, request: RequestState) -> Operation:
        pool = self.state.pool
        return Operation(
            request=request.key, operation_id=pool.next_operation_id, pool_generation=pool.pool_generation,
            map_revision=request.map_revision,
        )  # fmt: skip

    def restart(self) -> list[Step]:
        pool = self.state.pool
        if self.chance(0.4):
            return [(e.ProducerRestarted, {"process_epoch": pool.producer_epoch + 1})]
        rank, epoch = self.one(pool.ranks)
        generation = pool.pool_generation + 1
        if self.chance(0.5):
            return [(e.RankLost, {"rank": rank, "process_epoch": epoch, "pool_generation": generation})]
        return [(e.RankRestarted, {"rank": rank, "process_epoch": epoch + 1, "pool_generation": generation})]

    def turned_back(self, request: RequestState, names: tuple[str, ...]) -> list[Step]:
        lanes = {name: getattr(request, name) for name in names}
        return [
            (ABORTS[name], {"operation": lane.open.operation, "reason": "turned back"})
            for name, lane in lanes.items() if lane.phase in ABORTABLE[name]
        ]  # fmt: skip

    def life(self, request: RequestState) -> list[Step]:
        if request.life == "RUNNING" and self.chance(0.12):
            return [*self.turned_back(request, ("upload", "retain")), (e.RequestPreempted, {})]
        if request.life == "PREEMPTED" and self.chance(0.8):
            return [(e.RequestResumed, {})]
        if request.life == "FINISHING" and self.chance(0.7):
            return [(e.RequestClosed, {})]
        if self.chance(0.1):
            return [*self.turned_back(request, ("upload", "retain", "store")), (e.RequestFinished, {})]
        return []

    def select(self, request: RequestState) -> Step:
        fields = {"digest": "d", "whole_blocks": 12, "effective_budget_blocks": 4}
        return e.BlocksSelected, {"selection_revision": request.selection_revision + 1, **fields}

    def clean(self, request: RequestState) -> Rows[Any]:
        found = {
            layer: [
                b.logical for b in request.tail if b.phase == "clean" and b.physical[self.pairs.group[layer]] != HOLE
            ]
            for layer in self.layout.active_layers
        }
        return Rows.of({layer: self.some(blocks) if self.chance(0.5) else [] for layer, blocks in found.items()})

    def start(self, request: RequestState) -> list[Step]:
        """The facts of a start, in one batch."""
        if self.unlikely(request):
            return []
        full = self.chance(0.2)
        sources = self.pairs.source.get(request.key, {})
        view = {} if full else self.pairs.views.get(request.key, {})
        adopted = self.clean(request)
        logical: dict[int, list[int]] = {}
        for layer in self.layout.active_layers:
            have = {block for block, _ in view.get(layer, [])} | set(adopted.row(layer).tolist())
            logical[layer] = self.some(set(sources) - have, 3)
        to, reserved = self.place(request.key, {layer: len(ids) for layer, ids in logical.items()})
        logical = {layer: ids[: to.row(layer).size] for layer, ids in logical.items()}
        copies = self.free_cpu(K, N) if self.chance(0.2) else []
        read = {layer: [sources[block] for block in ids] for layer, ids in logical.items()}
        if copies:
            read = {layer: [int(self.one(copies)) for _ in ids] for layer, ids in logical.items()}
        op = self.operation(request)
        return [
            self.select(request),
            (e.UploadPlanned, {
                "operation": op, "kind": "full" if full else "diff",
                "source_kind": "copy" if copies else "source_only", "logical": Rows.of(logical),
            }),
            (e.UploadStaged, {
                "operation": op, "generation": request.next_generation, "row": self.free_row(request),
            }),
            (e.BlocksLeased, {
                "operation": op, "source": Rows.of(read), "destination": to, "adopted": adopted,
                "reserved": reserved, "copies": int32_bytes(copies),
            }),
            (e.TransferStarted, {"operation": op, "ranks": self.state.pool.ranks}),
        ]  # fmt: skip

    def unlikely(self, request: RequestState) -> bool:
        """Whether a start would be refused for the phases; it is tried all the same now and then."""
        idle = request.life == "RUNNING" and request.upload.phase == request.retain.phase == "IDLE"
        return not idle and self.chance(0.9)

    def publish(self, request: RequestState) -> list[Step]:
        if self.chance(0.5) or self.unlikely(request):
            return []
        view = self.pairs.views.get(request.key, {})
        keep = Rows.of({layer: self.some(range(len(slots))) for layer, slots in view.items()})
        fields = {"operation": self.operation(request), "selection_revision": request.selection_revision + 1}
        return [self.select(request), (e.KeepMapPublished, {**fields, "keep": keep})]

    def report(self, request: RequestState, lane: str) -> list[Step]:
        opened = getattr(request, lane).open
        fact, counted = REPORTS[lane]
        rank, epoch = self.one(opened.ranks)
        return [(fact, {"operation": opened.operation, "rank": rank, "process_epoch": epoch, **counted})]

    def upload(self, request: RequestState) -> list[Step]:
        opened = request.upload.open
        if opened is None:
            return []
        same: dict[str, Any] = {"operation": opened.operation}
        if request.upload.phase == "MOVING":
            full = len(opened.outcomes) == len(opened.ranks)
            return [(e.TransferCompleted, same)] if full else self.report(request, "upload")
        if request.upload.phase == "MOVED":
            return [(e.ResidencyCommitted, {**same, "generation": opened.generation})]
        return [(e.UploadAcknowledged, {**same, "process_epoch": self.state.pool.producer_epoch})]

    def plan_retain(self, request: RequestState) -> list[Step]:
        if self.unlikely(request):
            return []
        view = self.pairs.views.get(request.key, {})
        kept = {layer: self.some(range(len(view.get(layer, [])))) for layer in self.layout.active_layers}
        moved = {
            layer: [view[layer][slot][1] for slot in slots if self.chance(0.5)] if self.chance(0.3) else []
            for layer, slots in kept.items()
        }
        to, reserved = self.place(request.key, {layer: len(blocks) for layer, blocks in moved.items()})
        moved = {layer: blocks[: to.row(layer).size] for layer, blocks in moved.items()}
        return [(e.RetainPlanned, {
            "operation": self.operation(request), "generation": request.next_generation,
            "mode": "move" if to.size else self.one(("layer", "shared")), "attention": "same", "keep": Rows.of(kept),
            "adopted": self.clean(request), "moved_from": Rows.of(moved), "moved_to": to,
            "row": self.free_row(request), "reserved": reserved, "selection_revision": 1,
        })]  # fmt: skip

    def retain(self, request: RequestState) -> list[Step]:
        opened, phase = request.retain.open, request.retain.phase
        if opened is None:
            return []
        same: dict[str, Any] = {"operation": opened.operation}
        if phase == "PLANNED":
            return [(e.ReadersDrained, {**same, "row": opened.row, "ranks": self.state.pool.ranks})]
        if phase == "APPLYING":
            full = len(opened.outcomes) == len(opened.ranks)
            return [(e.AllRanksApplied, same)] if full else self.report(request, "retain")
        if phase == "APPLIED":
            return [(e.OwnersCommitted, {**same, "generation": opened.generation})]
        if phase == "COMMITTED":
            return self.retired(request, opened.replaced, "retain")
        return [(e.RetainAcknowledged, {**same, "process_epoch": self.state.pool.producer_epoch})]

    def abort(self, request: RequestState) -> list[Step]:
        old = any(o.operation.pool_generation != self.state.pool.pool_generation for o in request.open_operations())
        return self.turned_back(request, (self.one(ABORTS),)) if self.chance(1.0 if old else 0.3) else []

    def settle(self, request: RequestState) -> list[Step]:
        if not request.settling:
            return []
        opened = self.one(request.settling)
        rank, epoch = self.one(opened.ranks)
        outcome = self.one(WORDS["outcome"])
        fields = {"operation": opened.operation, "rank": rank, "process_epoch": epoch, "outcome": outcome}
        return [(e.TransferSettled, fields)]

    def freed(self, owner: Owner) -> tuple[bytes, ...]:
        return tuple(int32_bytes(blocks) for blocks in self.pairs.alone(owner))

    def retired(self, request: RequestState, generation: int, cause: str) -> list[Step]:
        freed = self.freed(("view", request.key, generation, 0))
        return [(e.BlocksRetired, {"generation": generation, "cause": cause, "freed": freed})]

    def retire(self, request: RequestState) -> list[Step]:
        old = [view.generation for view in request.views]
        return self.retired(request, self.one(old), self.one(("upload", "preempt", "finish"))) if old else []

    def tail(self, request: RequestState) -> list[Step]:
        unsealed = [block.logical for block in request.tail if block.phase == "open"]
        if unsealed and self.chance(0.6):
            fact = e.BlockLost if self.chance(0.2) else e.TailSealed
            return [(fact, {"logical": self.one(unsealed), **({"reason": "x"} if fact is e.BlockLost else {})})]
        if len(request.tail) > 2:
            return []
        free = [self.free_blocks(group) for group in range(self.layout.groups)]
        if not all(free):
            return []
        newest = max([*(b.logical for b in request.tail), *self.pairs.source.get(request.key, {}), -1])
        return [(e.TailOpened, {
            "logical": newest + 1, "physical_by_group": int32_bytes([int(self.one(blocks)) for blocks in free])
        })]  # fmt: skip

    def store(self, request: RequestState) -> list[Step]:
        opened = request.store.open
        if opened is not None:
            full = len(opened.outcomes) == len(opened.ranks)
            same = {"operation": opened.operation}
            return [(e.StoreCompleted, same)] if full else self.report(request, "store")
        dirty = self.some([block.logical for block in request.tail if block.phase == "dirty"])
        source = self.free_cpu(0, K)[: len(dirty)]
        if not dirty:
            return []
        return [(e.StoreStarted, {
            "operation": self.operation(request), "logical": int32_bytes(dirty), "source": int32_bytes(source),
            "ranks": self.state.pool.ranks,
        })]  # fmt: skip

    def leave(self, request: RequestState) -> list[Step]:
        """Out of the tail, or out of a fence."""
        if request.fences and self.chance(0.5):
            fence = self.one(request.fences)
            return [(e.FenceOpened, {"fence": fence, "freed": self.freed(("fence", request.key, fence, 0))})]
        group = int(self.rng.integers(self.layout.groups))
        settled = ("clean", "lost") if request.life != "FINISHING" else ("clean", "lost", "open", "dirty")
        there = [b.logical for b in request.tail if b.phase in settled and b.physical[group] != HOLE]
        leaving = self.some(there)
        if not leaving:
            return []
        return [(e.TailDropped, {"group": group, "logical": int32_bytes(leaving), "fence": request.next_fence})]

    def register(self, request: RequestState) -> list[Step]:
        """New blocks, and after a restart of the producer often the very blocks that it named before."""
        known, stale = self.pairs.source.get(request.key, {}), self.pairs.stale.get(request.key, {})
        logical = self.some((set(range(4)) | set(stale)) - set(known))
        free = self.free_cpu(0, K)[: len(logical)]
        if not logical or len(free) < len(logical):
            return []
        source = [stale[block] if block in stale and self.chance(0.7) else free[at] for at, block in enumerate(logical)]
        return [(e.SourcesRegistered, {"logical": int32_bytes(logical), "source": int32_bytes(source)})]

    # ---- shared prefix blocks

    def share(self, request: RequestState) -> list[Step]:
        """A clean tail block; names come again, so that one is known already now and then."""
        clean = [block.logical for block in request.tail if block.phase == "clean"]
        clean = [
            at for at in clean if self.chance(0.1) or self.pairs.tail[request.key, at].items() <= self.mine(request)
        ]
        if not clean or len(self.pairs.prefixes) > 2:
            return []
        number = self.state.pool.next_prefix
        return [(e.PrefixPublished, {"logical": self.one(clean), "number": number, "key": f"k{number % 5}"})]

    def mine(self, request: RequestState) -> set[tuple[int, int]]:
        return {block for block, who in self.pairs.own.items() if who == request.key}

    def attach(self, request: RequestState) -> list[Step]:
        newest = max((block.logical for block in request.tail), default=-1)
        known = self.pairs.source.get(request.key, {})
        fits = [n for n, (at, *_) in self.pairs.prefixes.items() if at > newest and at not in known]
        if self.chance(0.1):
            fits = list(self.pairs.prefixes)
        if not fits:
            return []
        number = self.one(fits)
        return [(e.PrefixAttached, {"logical": self.pairs.prefixes[number][0], "number": number})]

    def evictions(self, most: int) -> list[Step]:
        """The oldest ones."""
        return [
            (e.PrefixEvicted, {"number": number, "freed": self.freed(("prefix", POOL, number, 0))})
            for number in sorted(self.pairs.prefixes)[:most]
        ]
