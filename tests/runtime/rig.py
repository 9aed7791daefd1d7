"""A core with pools and nothing else: two ranks and a producer that say only what a test makes them say."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from kvsweep.ledger import events as e
from kvsweep.ledger import laws
from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import POOL, Int32, Logical, Operation, RequestKey, Rows, Slot, int32_bytes, int32_view
from kvsweep.ledger.layout import LayerLayout, Layout
from kvsweep.ledger.messages import (
    Acknowledged,
    BlockSelection,
    Done,
    Effect,
    OpenRequest,
    OpenTail,
    RegisterSources,
    Release,
    Reserve,
    Retain,
    SealTail,
    Select,
    Turn,
)
from kvsweep.ledger.state import RequestState, State, View
from kvsweep.runtime.core.core import Core, Message
from kvsweep.runtime.core.upload_plan import keep_slots
from kvsweep.runtime.settings import Settings
from kvsweep.transports.pools import CpuPool, DevicePools, Pools

RANKS = ((0, 10), (1, 11))
PRODUCER = 5
BLOCK = 4  # tokens

Ids = Mapping[int, Sequence[int]]


def make_layout(full: int = 2, *, sliding: int = 0, window_tokens: int = 8, block_size: int = BLOCK) -> Layout:
    """`full` layers in group 0, then `sliding` layers in group 1."""
    layers = [LayerLayout(layer=n, group=0, kind="full", kv_heads=1, head_dim=2) for n in range(full)]
    layers += [
        LayerLayout(layer=full + n, group=1, kind="sliding", kv_heads=1, head_dim=2, window_tokens=window_tokens)
        for n in range(sliding)
    ]
    return Layout.of(model_hash="toy", dtype="float32", block_size=block_size, layers=tuple(layers))


def make_settings(**tables: Any) -> Settings:
    return Settings.of(**{"log": {"url": "memory:"}, **tables})


def rows(ids: Ids) -> Rows[Any]:
    return Rows.of({layer: list(row) for layer, row in ids.items()})


def free_sources(pools: Pools, count: int) -> Int32:
    """int32[count]: the lowest CPU blocks that nobody holds; a registration claims them."""
    ids = pools.cpu.full.reserve(count)
    assert ids is not None
    pools.cpu.full.release(ids)
    return ids


def frozen(state: State) -> bytes:
    """The whole state as bytes: equal bytes, equal state."""
    return msgspec.msgpack.encode(state.canonical(), order="deterministic")


def selection(
    layout: Layout,
    request: RequestKey,
    revision: int,
    want: Ids,
    *,
    tail: Ids | None = None,
    whole: int = 8,
    block_size: int = BLOCK,
) -> BlockSelection:
    """A selection written by hand: exactly these blocks, and this tail (default: none), in every active layer."""
    return BlockSelection(
        request=request,
        selection_revision=revision,
        block_size=block_size,
        logical_blocks_by_layer=rows(want),
        ranked_tail_by_layer=rows(tail if tail is not None else dict.fromkeys(want, ())),
        group_by_layer=int32_bytes([layout.layers[layer].group for layer in sorted(want)]),
        whole_blocks=whole,
        effective_budget_blocks=min(whole, max((len(row) for row in want.values()), default=0)),
    )


class CoreRig:
    """Every turn is adopted at once; effects pile up in `effects`, events in `events`."""

    def __init__(
        self,
        layout: Layout | None = None,
        *,
        device_blocks: int = 16,
        cpu: tuple[int, int] = (32, 40),
        **settings: Any,
    ) -> None:
        self.layout = layout or make_layout()
        self.core = Core(make_settings(**settings))
        self.pools = Pools(
            DevicePools(self.layout, (device_blocks,) * self.layout.groups),
            CpuPool(full_blocks=cpu[0], total_blocks=cpu[1]),
        )
        self.events: list[Event] = []
        self.effects: list[Effect] = []
        configured = e.RunConfigured(
            request=POOL,
            seq=0,
            layout=self.layout,
            ranks=RANKS,
            producer_epoch=PRODUCER,
            device_blocks=(device_blocks,) * self.layout.groups,
            cpu_full_blocks=cpu[0],
            cpu_total_blocks=cpu[1],
            evidence="{}",
        )
        self._adopt(self.core.fact(configured))

    # ---- the door

    def _adopt(self, turn: Turn) -> Turn:
        self.core.adopt(turn)
        self.events += turn.events
        self.effects += turn.effects
        for effect in turn.effects:
            if isinstance(effect, Release):
                self.pools.release(effect)
        return turn

    def send(self, message: Message) -> Turn:
        turn = self.core.handle(message)
        while turn.outcome == "reserve":
            (ask,) = turn.effects
            assert isinstance(ask, Reserve)
            turn = self.core.handle(self.pools.reserve(ask))
        return self._adopt(turn)

    def end_step(self, number: int) -> Turn:
        return self._adopt(self.core.end_step(number))

    def begin_step(self, *keys: RequestKey) -> int:
        return self.core.begin_step(keys)[0]

    # ---- what the state says

    @property
    def state(self) -> State:
        return self.core.state

    def request(self, key: RequestKey) -> RequestState:
        found = self.state.request(key)
        assert found is not None
        return found

    def view(self, key: RequestKey) -> View:
        found = self.request(key).view
        assert found is not None
        return found

    def owned(self, key: RequestKey, group: int = 0) -> list[int]:
        return self.state.ownership.owned(key, self.layout)[group].tolist()

    def free(self, group: int = 0) -> int:
        return self.pools.device.free[group]

    def lawful(self) -> None:
        """The laws hold, and what the pools gave away is exactly what the relation says is owned."""
        assert laws.check(self.state) == []
        for group, pool in enumerate(self.pools.device.groups):
            owned = sum(len(int32_view(own[group])) for own in self.state.ownership.own.values())
            shared = self.state.ownership.shared_blocks(self.layout)[group].size
            assert pool.blocks - pool.free == owned + shared, "the pool and the relation disagree about what is owned"

    def since(self, mark: int) -> list[str]:
        """Names of the events after the mark."""
        return [type(event).__name__ for event in self.events[mark:]]

    def last(self, kind: type[Any]) -> Any:
        """The newest event or effect of this type."""
        return [item for item in (*self.events, *self.effects) if isinstance(item, kind)][-1]

    def effects_of(self, kind: type[Any]) -> list[Any]:
        return [effect for effect in self.effects if isinstance(effect, kind)]

    # ---- steps that many tests take

    def register(self, key: RequestKey, logical: Sequence[int], source: Sequence[int] | Int32) -> Turn:
        return self.send(RegisterSources(request=key, logical=int32_bytes(logical), source=int32_bytes(source)))

    def open(self, name: str = "a", *, blocks: int = 8) -> RequestKey:
        """A request whose first whole blocks the CPU holds, in CPU blocks that were free."""
        key: RequestKey = self.send(OpenRequest(request_id=name)).events[0].request
        if blocks:
            reversed_ids = free_sources(self.pools, blocks)[
                ::-1
            ]  # none has the number of its logical block by accident
            self.register(key, range(blocks), reversed_ids)
        return key

    def select(
        self, key: RequestKey, want: Ids, *, idempotency_key: str = "", revision: int | None = None, **fields: Any
    ) -> Turn:
        revision = self.request(key).selection_revision + 1 if revision is None else revision
        chosen = selection(self.layout, key, revision, want, **fields)
        return self.send(Select(selection=chosen, idempotency_key=idempotency_key))

    def started(self, turn: Turn) -> Operation:
        assert turn.outcome == "accepted", turn.refusal
        assert turn.operation is not None
        return turn.operation

    def done(self, operation: Operation, rank: int, outcome: str = "completed", **fields: Any) -> Turn:
        epoch = fields.pop("process_epoch", dict(RANKS).get(rank, 0))
        return self.send(Done(operation=operation, rank=rank, process_epoch=epoch, outcome=outcome, **fields))

    def all_done(self, operation: Operation, **fields: Any) -> None:
        for rank, _ in RANKS:
            assert self.done(operation, rank, **fields).outcome == "accepted"

    def acknowledge(self, operation: Operation, **fields: Any) -> Turn:
        epoch = fields.pop("process_epoch", PRODUCER)
        return self.send(Acknowledged(operation=operation, process_epoch=epoch, **fields))

    def upload(self, key: RequestKey, want: Ids, *, producer_epoch: int = PRODUCER, **fields: Any) -> Operation:
        """Selected, moved by both ranks, committed and acknowledged."""
        operation = self.started(self.select(key, want, **fields))
        self.all_done(operation)
        self.acknowledge(operation, process_epoch=producer_epoch)
        return operation

    def keep(self, key: RequestKey, want: Ids) -> Rows[Slot]:
        return keep_slots(self.request(key), rows(want))

    def start_retain(
        self,
        key: RequestKey,
        keep: Rows[Slot],
        *,
        adopt: Ids | None = None,
        idempotency_key: str = "",
        pack: bool = False,
        revision: int | None = None,
        map_revision: int | None = None,
    ) -> Turn:
        adopted: Rows[Logical] = rows(adopt or dict.fromkeys(self.layout.active_layers, ()))
        revision = self.request(key).selection_revision if revision is None else revision
        return self.send(
            Retain(
                request=key,
                keep=keep,
                adopt=adopted,
                map_revision=self.request(key).map_revision if map_revision is None else map_revision,
                selection_revision=revision,
                idempotency_key=idempotency_key,
                pack=pack,
            )
        )

    def retain(self, key: RequestKey, want: Ids, **fields: Any) -> Operation:
        """Keep the slots that hold these logical blocks; applied by both ranks, retired and acknowledged."""
        operation = self.started(self.start_retain(key, self.keep(key, want), **fields))
        self.all_done(operation)
        self.acknowledge(operation)
        return operation

    def pack(self, key: RequestKey) -> Operation:
        every = self.keep(key, self.view(key).logical.as_lists())
        operation = self.started(self.start_retain(key, every, pack=True))
        self.all_done(operation)
        self.acknowledge(operation)
        return operation

    def clean_tail(self, key: RequestKey, blocks: int) -> None:
        """Device-written whole blocks up to logical block `blocks`, sealed and stored on both ranks."""
        self.send(OpenTail(request=key, until=blocks))
        turn = self.send(SealTail(request=key, confirmed_tokens=blocks * self.layout.block_size))
        self.all_done(self.started(turn))
