"""Events of legal rounds, as a coordinator makes them: 18 a round at 2 ranks, in the turns that append them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from kvsweep.ledger import events as e
from kvsweep.ledger.events import Event
from kvsweep.ledger.fold import apply
from kvsweep.ledger.ids import POOL, Operation, RequestKey, Rows, int32_bytes, no_rows
from kvsweep.ledger.layout import LayerLayout, Layout
from kvsweep.ledger.state import CLOSED_KEPT, EMPTY, State
from kvsweep.ledger.store.digest import Digest

RANKS = ((0, 101), (1, 102))
PRODUCER = 7
EVENTS_A_ROUND = 19
OPENING = 2  # events that open a request
SIDE_BY_SIDE = 64


class Rounds:
    """Folds what it makes, so every round is legal. All layers keep the same blocks; half of them change each round.

    keep  blocks that a request keeps in each layer
    """

    def __init__(self, *, requests: int, layers: int, keep: int, blocks: int, seed: int) -> None:
        self.state: State = EMPTY
        self.digest = Digest()
        self.turns: list[list[Event]] = []  # each is one append
        self._rng = np.random.default_rng(seed)
        self._layers, self._keep, self._blocks = layers, keep, blocks
        self._free = deque(range(requests * keep * 2))
        self._resident: dict[RequestKey, dict[int, int]] = {}  # logical block -> physical, in slot order
        layout = Layout.of(
            model_hash="none", dtype="bfloat16", block_size=16,
            layers=tuple(
                LayerLayout(layer=layer, group=0, kind="full", kv_heads=8, head_dim=128) for layer in range(layers)
            ),
        )  # fmt: skip
        run = e.RunConfigured(
            request=POOL, seq=0, layout=layout, ranks=RANKS, producer_epoch=PRODUCER,
            device_blocks=(len(self._free),), cpu_full_blocks=requests * blocks, cpu_total_blocks=requests * blocks,
            evidence="{}",
        )  # fmt: skip
        self._turn(run)
        self.keys = [RequestKey(f"request-{number:04}", 1) for number in range(requests)]
        for number, key in enumerate(self.keys):
            self._resident[key] = {}
            logical = np.arange(blocks)
            self._turn(
                e.RequestOpened(request=key, seq=0, pool_generation=1, rows=3),
                e.SourcesRegistered(
                    request=key, seq=1, logical=int32_bytes(logical), source=int32_bytes(logical + number * blocks)
                ),
            )

    def round(self, key: RequestKey) -> None:
        """One selection, its upload and the retain that follows it."""
        number, held = self.keys.index(key), self._resident[key]
        new = self._keep if not held else self._keep // 2
        choice = np.setdiff1d(np.arange(self._blocks), list(held))
        wanted = np.sort(self._rng.permutation(choice)[:new]).tolist()
        places = [self._free.popleft() for _ in wanted]
        request = self.state.requests[key.request_id]
        upload = self._operation(key)
        generation, rows, used = request.next_generation, self._rows, request.view.row if request.view else -1
        row = next(row for row in range(3) if row != used)
        self._turn(
            self._event(
                e.BlocksSelected, key, selection_revision=generation, digest="d" * 32, whole_blocks=self._blocks,
                effective_budget_blocks=self._keep,
            ),
            self._event(
                e.UploadPlanned, key, operation=upload, kind="diff", source_kind="source_only", logical=rows(wanted),
            ),
            self._event(e.UploadStaged, key, operation=upload, generation=generation, row=row),
            self._event(
                e.BlocksLeased, key, operation=upload, adopted=rows([]), reserved=(int32_bytes(places),),
                source=rows([number * self._blocks + block for block in wanted]), destination=rows(places),
            ),
            self._event(e.TransferStarted, key, operation=upload, ranks=RANKS),
        )  # fmt: skip
        moved = {"h2d_bytes": new * 4096, "unpack_bytes": new * 4096, "table_updates": new}
        self._turn(self._event(e.RankTransferred, key, operation=upload, rank=0, process_epoch=101, **moved))
        before = request.current
        self._turn(
            self._event(e.RankTransferred, key, operation=upload, rank=1, process_epoch=102, **moved),
            self._event(e.TransferCompleted, key, operation=upload),
            self._event(e.ResidencyCommitted, key, operation=upload, generation=generation),
            *([self._retired(key, before, "upload", [])] if before else []),
        )
        self._turn(self._event(e.UploadAcknowledged, key, operation=upload, process_epoch=PRODUCER))
        held.update(zip(wanted, places, strict=True))
        self._retain(key, held, [] if not before else list(held)[: len(held) - self._keep])

    def _retain(self, key: RequestKey, held: dict[int, int], dropped: list[int]) -> None:
        retain, rows = self._operation(key), self._rows
        request = self.state.requests[key.request_id]
        used = {view.row for view in request.views}
        row = next(row for row in range(3) if row not in used)
        slots = [slot for slot, block in enumerate(held) if block not in set(dropped)]
        generation = request.next_generation
        self._turn(
            self._event(
                e.RetainPlanned, key, operation=retain, generation=generation, mode="layer", attention="same",
                keep=rows(slots), adopted=rows([]), moved_from=rows([]), moved_to=rows([]), row=row, reserved=(b"",),
                selection_revision=request.selection_revision,
            ),
            self._event(e.ReadersDrained, key, operation=retain, row=row, ranks=RANKS),
        )  # fmt: skip
        freed = sorted(held.pop(block) for block in dropped)
        self._free.extend(freed)
        applied = {"resident_moved_bytes": 0, "table_updates": len(slots)}
        self._turn(self._event(e.TablesApplied, key, operation=retain, rank=0, process_epoch=101, **applied))
        self._turn(
            self._event(e.TablesApplied, key, operation=retain, rank=1, process_epoch=102, **applied),
            self._event(e.AllRanksApplied, key, operation=retain),
            self._event(e.OwnersCommitted, key, operation=retain, generation=generation),
            self._retired(key, request.current, "retain", freed),
        )
        self._turn(self._event(e.RetainAcknowledged, key, operation=retain, process_epoch=PRODUCER))

    def _rows(self, ids: Sequence[int]) -> Rows[Any]:
        if not len(ids):
            return no_rows(range(self._layers))
        return Rows.of(dict.fromkeys(range(self._layers), np.asarray(ids, dtype=np.int32)))

    def _operation(self, key: RequestKey) -> Operation:
        pool = self.state.pool
        return Operation(
            request=key,
            operation_id=pool.next_operation_id,
            pool_generation=pool.pool_generation,
            map_revision=self.state.requests[key.request_id].map_revision,
        )

    def _retired(self, key: RequestKey, generation: int, cause: str, freed: list[int]) -> Event:
        return self._event(e.BlocksRetired, key, generation=generation, cause=cause, freed=(int32_bytes(freed),))

    def _event(self, fact: type[Event], key: RequestKey, /, **fields: Any) -> Event:
        return fact(request=key, seq=0, **fields)

    def _turn(self, *events: Event) -> None:
        """Number them, fold them, keep them."""
        turn = []
        for event in events:
            known = self.state.request(event.request)
            if known is not None:
                event = replace(event, seq=known.seq)
            self.state = apply(self.state, event)
            self.digest.update(event)
            turn.append(event)
        self.turns.append(turn)


def rounds(count: int, *, requests: int, layers: int, keep: int, seed: int) -> Rounds:
    """`count` rounds of each request, one request after the other in each."""
    made = Rounds(requests=requests, layers=layers, keep=keep, blocks=4 * keep, seed=seed)
    for _ in range(count):
        for key in made.keys:
            made.round(key)
    return made


def endless(turns: Sequence[Sequence[Event]]) -> Iterator[list[Event]]:
    """The turns again and again, each time as lives of their own. Only the first time do they fold."""
    repeat = 0
    while True:
        keys: dict[RequestKey, RequestKey] = {}
        for turn in turns:
            again = []
            for event in turn:
                key = event.request
                if key not in keys:
                    keys[key] = key if not repeat else RequestKey(f"{key.request_id}/{repeat}", 1)
                again.append(replace(event, request=keys[key]))
            yield again
        repeat += 1


def rounds_of(turns: Sequence[list[Event]]) -> Iterator[list[list[Event]]]:
    """Round after round, each as its turns, without what opened the requests."""
    group: list[list[Event]] = []
    for turn in endless(turns):
        if isinstance(turn[0], e.RunConfigured | e.RequestOpened):
            continue
        group.append([replace(event, seq=event.seq - OPENING) for event in turn])
        if isinstance(turn[0], e.RetainAcknowledged):
            yield group
            group = []


def life_key(number: int) -> RequestKey:
    """Of the number-th plain life. The state forgets old closed lives, and their epochs raise those of new ones."""
    forgotten = max(0, number // SIDE_BY_SIDE * SIDE_BY_SIDE - CLOSED_KEPT)
    epoch = 1 + (life_key(forgotten - 1).request_epoch if forgotten else 0)
    return RequestKey(f"life-{number}", epoch)


def plain_lives(lives: int, life: int, run: Event) -> Iterator[Event]:
    """`lives` lives of `life` events of about 500 bytes, 64 side by side, after the run's configuration. They fold."""
    yield run
    for start in range(0, lives, SIDE_BY_SIDE):
        keys = [life_key(number) for number in range(start, min(start + SIDE_BY_SIDE, lives))]
        for key in keys:
            yield e.RequestOpened(request=key, seq=0, pool_generation=1, rows=2)
        for seq in range(1, life - 2, EVENTS_A_ROUND):
            for key in keys:
                for number in range(seq, min(seq + EVENTS_A_ROUND, life - 2)):
                    yield e.CommandRefused(request=key, seq=number, command="c", state="s", reason="r" * 470)
        for key in keys:
            yield e.RequestFinished(request=key, seq=life - 2)
            yield e.RequestClosed(request=key, seq=life - 1)


def batches(turns: Iterator[list[Event]], size: int) -> Iterator[list[Event]]:
    """Groups of `size` events, cut from the turns as they come."""
    group: list[Event] = []
    for turn in turns:
        group += turn
        while len(group) >= size:
            yield group[:size]
            group = group[size:]
