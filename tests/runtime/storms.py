"""A driver in a storm without devices: commands, reports of ranks, restarts and steps are drawn from a seed.

Every batch that reached the log is kept, so that a run can be cut after any of them.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from tests.runtime.rig import PRODUCER, RANKS, Ids, free_sources, make_layout, make_settings, rows, selection

from kvsweep.ledger import events as e
from kvsweep.ledger.errors import Busy, Refused
from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import Operation, int32_bytes, no_rows
from kvsweep.ledger.messages import (
    Abort,
    Acknowledge,
    Acknowledged,
    AttachPrefix,
    Done,
    Effect,
    Finish,
    OpenTail,
    Preempt,
    ProcessLost,
    ProcessStarted,
    PublishKeepMap,
    PublishPrefix,
    RegisterSources,
    Release,
    Resume,
    Retain,
    SealTail,
    Select,
)
from kvsweep.ledger.state import RequestState
from kvsweep.ledger.store.log import Level, Position
from kvsweep.ledger.store.memory import MemoryLog
from kvsweep.runtime.core.core import Message
from kvsweep.runtime.core.upload_plan import keep_slots
from kvsweep.runtime.driver import Driver
from kvsweep.runtime.run_config import RunConfig

LAYOUT = make_layout(2, sliding=1)
WORLD = RunConfig(
    layout=LAYOUT, ranks=RANKS, producer_epoch=PRODUCER, device_blocks=(24, 24), cpu_full_blocks=48, cpu_total_blocks=56
)
NAMES = ("a", "b", "c")
WHOLE = 6


class Batches(MemoryLog):
    """A ledger in memory that remembers where each batch ended."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[tuple[Event, ...]] = []

    def append(self, batch: Sequence[Event], *, expected: Position | None = None, level: Level = "power") -> Position:
        position = super().append(batch, expected=expected, level=level)
        self.batches.append(tuple(batch))
        return position


class Storm:
    """`turn` does one drawn thing. What is illegal where it is drawn is refused, and recorded, as any mistake."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.Generator(np.random.PCG64(seed))
        self.log = Batches()
        self.driver = Driver.open(make_settings(log={"url": "memory:", "digest_every": 40}), WORLD, log=self.log)
        self.steps: list[int] = []
        self.seen: list[Operation] = []  # every operation that was ever sent
        self.owed: list[PublishKeepMap | Acknowledge] = []  # what the producer has not answered
        self.driver.watch(self._on_event)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, e.TransferStarted | e.ReadersDrained | e.StoreStarted):
            self.seen.append(event.operation)

    def run(self, turns: int) -> "Storm":
        for _ in range(turns):
            self.turn()
        return self

    # ---- drawing

    def chance(self, part: float) -> bool:
        return bool(self.rng.random() < part)

    def one(self, items: Sequence[Any]) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def some(self, low: int, high: int) -> Ids:
        return {
            layer: sorted(self.rng.permutation(WHOLE)[: int(self.rng.integers(low, high))].tolist())
            for layer in LAYOUT.active_layers
        }

    # ---- one turn

    def send(self, message: Message) -> None:
        with contextlib.suppress(Refused, Busy):
            self.driver.handle(message)

    def turn(self) -> None:
        state = self.driver.state
        known = [state.requests[name] for name in NAMES if name in state.requests]
        living = [request for request in known if request.life not in ("CLOSED", "FINISHING")]
        for effect in self.driver.poll():
            self._perform(effect)
        if len(living) < len(NAMES) and self.chance(0.2):
            self._open()
        elif self.chance(0.2 if state.pool.lost else 0.012):
            self._restart()
        elif self.steps and self.chance(0.15):
            self.driver.end_step(self.steps.pop(int(self.rng.integers(len(self.steps)))))
        elif len(self.steps) < 4 and not state.pool.lost and self.chance(0.1):
            running = [request.key for request in known if request.life == "RUNNING"]
            self.steps.append(self.driver.begin_step(running)[0])
        elif self.owed and self.chance(0.4):
            self._acknowledge()
        elif self.chance(0.45):
            self._answer(known)
        elif living:
            self._command(self.one(living))

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, Release):
            self.driver.release(effect)
        elif isinstance(effect, PublishKeepMap | Acknowledge):
            self.owed.append(effect)

    def _open(self) -> None:
        name = self.one(NAMES)
        try:
            key = self.driver.open_request(name)
        except (Refused, Busy):
            return
        given = free_sources(self.driver.pools, WHOLE)
        self.send(RegisterSources(request=key, logical=int32_bytes(range(WHOLE)), source=int32_bytes(given)))

    def _restart(self) -> None:
        pool = self.driver.state.pool
        if self.chance(0.3):
            self.send(ProcessStarted(process_epoch=pool.producer_epoch + 1))
            return
        rank, epoch = self.one(pool.ranks)
        if self.chance(0.5) and rank not in pool.lost:
            self.send(ProcessLost(rank=rank, process_epoch=epoch))
        else:
            self.send(ProcessStarted(rank=rank, process_epoch=epoch + 1))

    def _acknowledge(self) -> None:
        effect = self.owed.pop(0)
        self.send(Acknowledged(operation=effect.operation, process_epoch=self.driver.state.pool.producer_epoch))

    def _answer(self, known: list[RequestState]) -> None:
        """A rank's report on something that waits for it, now and then on anything that was ever sent."""
        ranks = self.driver.state.pool.ranks
        waits = [
            (opened.operation, rank)
            for request in known
            for opened in (*request.open_operations(), *request.settling)
            for rank, _ in opened.ranks
            if rank not in dict(opened.outcomes)
        ]
        if self.seen and self.chance(0.1):
            waits = [(self.one(self.seen), self.one(ranks)[0])]
        if waits:
            operation, rank = self.one(waits)
            outcome = self.one(("completed",) * 8 + ("failed", "cancelled"))
            self.send(Done(operation=operation, rank=rank, process_epoch=dict(ranks)[rank], outcome=outcome))

    def _command(self, request: RequestState) -> None:
        key = request.key
        tail = [block.logical for block in request.tail]
        stale = np.frombuffer(request.stale, dtype="<i4")
        if stale.size and self.chance(0.5):
            at = np.flatnonzero(stale >= 0)
            self.send(RegisterSources(request=key, logical=int32_bytes(at), source=int32_bytes(stale[at])))
            return
        if request.life == "PREEMPTED" and self.chance(0.6):
            self.send(Resume(request=key))
            return
        draw = self.rng.random()
        if draw < 0.3:
            wanted = selection(LAYOUT, key, request.selection_revision + 1, self.some(0, 4), whole=WHOLE)
            self.send(Select(selection=wanted, idempotency_key=f"s{len(self.seen)}"))
        elif draw < 0.5 and request.view is not None:
            self._retain(request)
        elif draw < 0.6:
            self.send(OpenTail(request=key, until=max([WHOLE, *(block + 1 for block in tail)]) + 1))
        elif draw < 0.7 and tail:
            self.send(SealTail(request=key, confirmed_tokens=(max(tail) + 1) * LAYOUT.block_size))
        elif draw < 0.8:
            self.send(PublishPrefix(request=key, keys=tuple((block, f"p{block}") for block in tail)))
        elif draw < 0.83:
            self.send(AttachPrefix(request=key, keys=("p0", "p1")))
        elif draw < 0.85 and request.open_operations():
            self.send(Abort(operation=self.one(request.open_operations()).operation, reason="the storm"))
        elif draw < 0.88:
            self.send(Preempt(request=key))
        elif draw < 0.9:
            self.send(Finish(request=key))

    def _retain(self, request: RequestState) -> None:
        view = request.view
        assert view is not None
        pack = self.chance(0.2)
        lists = view.logical.as_lists()
        wanted = lists if pack else {at: ids[: max(1, len(ids) - 1)] for at, ids in lists.items()}
        self.send(
            Retain(
                request=request.key,
                keep=keep_slots(request, rows(wanted)),
                adopt=no_rows(LAYOUT.active_layers),
                map_revision=request.map_revision,
                selection_revision=request.selection_revision,
                idempotency_key=f"r{len(self.seen)}",
                pack=pack,
            )
        )
