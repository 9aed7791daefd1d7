"""The coordinator's part of a state: the production core and its pools, what was sent, what open steps read."""

import copy
import pickle
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from kvsweep.ledger import events as e
from kvsweep.ledger.events import Event, RankEpochs
from kvsweep.ledger.ids import HOLE, POOL, Operation, Physical, RequestKey, Rows, int32_view
from kvsweep.ledger.messages import (
    Acknowledge,
    Acknowledged,
    Cancel,
    Done,
    Effect,
    Gather,
    MoveBlocks,
    PublishKeepMap,
    Release,
    Reserve,
    Reserved,
    SealTail,
    StoreBlocks,
    Transfer,
    Turn,
)
from kvsweep.ledger.state import RequestState, State
from kvsweep.runtime.core.core import Core, Message
from kvsweep.runtime.core.steps import HandedOut
from kvsweep.scenarios.verify.checkers.acks import Acks
from kvsweep.scenarios.verify.checkers.ownership import Ownership
from kvsweep.scenarios.verify.explore.device import NOTHING, UNCONFIRMED, label
from kvsweep.scenarios.verify.explore.digest import unordered
from kvsweep.scenarios.verify.explore.rank import CopyCpu, Poke, Write, freed
from kvsweep.scenarios.verify.explore.world import BLOCK_TOKENS, FIRST_EPOCHS, FIRST_PRODUCER_EPOCH, World
from kvsweep.transports.pools import CpuPool, DevicePools, FreeList, Pools


class Oracles:
    """Ownership and acknowledgements, recounted from events. Kept as bytes between two turns: `books`."""

    def __init__(self, books: bytes = b"") -> None:
        self.ownership: Ownership
        self.acks: Acks
        self.ownership, self.acks = pickle.loads(books) if books else (Ownership(), Acks())

    def books(self) -> bytes:
        return pickle.dumps((self.ownership, self.acks), pickle.HIGHEST_PROTOCOL)

    def hears(self, message: Message) -> None:
        """A message is on its way in."""
        if isinstance(message, Done | Acknowledged):
            self.acks.arrived(message)

    def sees(self, events: Iterable[Event]) -> None:
        """The events of the turn that took it."""
        for event in events:
            self.ownership.see(event)
            self.acks.see(event)
        self.acks.answered()

    def begins(self, step: int, handed: Mapping[RequestKey, HandedOut]) -> None:
        self.ownership.began(step, handed)

    def ends(self, step: int) -> None:
        self.ownership.ended(step)

    def rests(self) -> None:
        """Nothing is under way any more."""
        self.ownership.at_rest()

    def complaints(self) -> tuple[str, ...]:
        return tuple(f"{one.law}: {one.detail}" for one in (*self.ownership.found, *self.acks.found))


SENT = (Transfer, MoveBlocks, StoreBlocks, Cancel)


class Cells(Struct, frozen=True, array_like=True):
    """What one reader reads of one request: the row that must show a table, and the label in each (layer, block)."""

    request: RequestKey
    row: int
    generation: int
    table: Rows[Physical] | None
    cells: tuple[tuple[int, int, int], ...]  # (layer, block, label); a label with UNCONFIRMED stands for either


class Reads(Struct, frozen=True, array_like=True):
    """An open step: the processes that it runs on, and what it was handed."""

    ranks: RankEpochs
    requests: tuple[Cells, ...]


class CoordinatorState:
    """Changed only through `fork`. Messages that were sent stay under way for ever: they may come late or again.

    sent   commands to ranks
    acks   (operation, process epoch): the producer's reports
    reads  open step → what it reads
    books  what the oracles know of one history that leads here; no part of the state
    complaints  what they found in that history
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.core = Core(world.settings)
        self.pools = Pools(
            DevicePools(world.layout, (world.blocks,) * world.layout.groups),
            CpuPool(full_blocks=world.cpu_blocks, total_blocks=world.total_cpu_blocks),
        )
        self.sent: frozenset[Effect] = frozenset()
        self.acks: frozenset[tuple[Operation, int]] = frozenset()
        self.reads: dict[int, Reads] = {}
        turn = self.core.fact(
            e.RunConfigured(
                request=POOL,
                seq=0,
                layout=world.layout,
                ranks=tuple((rank, FIRST_EPOCHS[rank]) for rank in range(world.ranks)),
                producer_epoch=FIRST_PRODUCER_EPOCH,
                device_blocks=(world.blocks,) * world.layout.groups,
                cpu_full_blocks=world.cpu_blocks,
                cpu_total_blocks=world.total_cpu_blocks,
                evidence="{}",
            )
        )
        self.core.adopt(turn)
        oracles = Oracles()
        oracles.sees(turn.events)
        self._keep(oracles)

    def fork(self) -> "CoordinatorState":
        twin = CoordinatorState.__new__(CoordinatorState)
        twin.world, twin.core, twin.pools = self.world, self.core.fork(), self.pools
        twin.sent, twin.acks, twin.reads = self.sent, self.acks, dict(self.reads)
        twin.books, twin.complaints = self.books, self.complaints
        return twin

    @property
    def state(self) -> State:
        return self.core.state

    def request(self, name: str) -> RequestState:
        return self.state.requests[name]

    # ---- canonical form

    def canonical(self) -> object:
        """Everything that a rule reads. Left out: numbers of events and of steps, which only count."""
        steps = [(*what, self.reads[number]) for number, what in self.core.steps.described().items()]
        return [uncounted(self.state).canonical(), unordered(steps), *self._around()]

    def exact(self) -> object:
        """Everything, numbers that only count too."""
        steps = sorted((number, *what, self.reads[number]) for number, what in self.core.steps.described().items())
        return [self.state.canonical(), steps, *self._around()]

    def _around(self) -> list[object]:
        pools = (*self.pools.device.groups, self.pools.cpu.full, self.pools.cpu.copies)
        return [[vars(pool) for pool in pools], unordered(self.sent), unordered(self.acks)]

    # ---- what happens: each on a fork

    def handles(self, message: Message) -> tuple["CoordinatorState", Turn, tuple[Poke, ...]]:
        """One message through the one door, pools asked as the driver asks them; then the turn's effects."""
        twin, oracles = self.fork(), Oracles(self.books)
        oracles.hears(message)
        written = self._confirmed(message) if isinstance(message, SealTail) else []
        turn = twin.core.handle(message, Asked(twin))
        return twin._took(turn, oracles, written)

    def ends_step(self, number: int) -> tuple["CoordinatorState", Turn, tuple[Poke, ...]]:
        twin, oracles = self.fork(), Oracles(self.books)
        oracles.ends(number)
        turn = twin.core.end_step(number)
        del twin.reads[number]
        return twin._took(turn, oracles, [])

    def begins_step(self, keys: tuple[RequestKey, ...]) -> "CoordinatorState":
        """Raises Refused where the core does."""
        twin = self.fork()
        number, handed = twin.core.begin_step(keys)
        ranks = twin.state.pool.ranks
        found = tuple(self.handed_out(key, one.generation, one.row) for key, one in handed.items())
        twin.reads[number] = Reads(ranks, found)
        oracles = Oracles(self.books)
        oracles.begins(number, handed)
        twin._keep(oracles)
        return twin

    def _keep(self, oracles: Oracles) -> None:
        self.books, self.complaints = oracles.books(), oracles.complaints()

    def handed_out(self, key: RequestKey, generation: int, row: int) -> Cells:
        """What a step of this moment reads of one request."""
        request = self.state.requests[key.request_id]
        view = request.view
        cells = [] if view is None else self.cells_of(key, view.logical, view.physical)
        for block in request.tail:
            for layer in self.world.layout.layers:
                area = block.physical[layer.group]
                if area != HOLE and block.phase != "lost":
                    open_one = UNCONFIRMED if block.phase == "open" else 0
                    cells.append((layer.layer, area, label(self.world, key, block.logical) | open_one))
        return Cells(key, row, generation, view.physical if view else None, tuple(cells))

    def cells_of(self, key: RequestKey, logical: Rows[Any], physical: Rows[Any]) -> list[tuple[int, int, int]]:
        areas = dict(physical.items())
        return [
            (layer, block, label(self.world, key, text))
            for layer, texts in logical.items()
            for text, block in zip(texts.tolist(), areas[layer].tolist(), strict=True)
        ]

    # ---- effects

    def _took(
        self, turn: Turn, oracles: Oracles, pokes: list[Poke]
    ) -> tuple["CoordinatorState", Turn, tuple[Poke, ...]]:
        self.core.adopt(turn)
        oracles.sees(turn.events)
        self._keep(oracles)
        for event in turn.events:
            pokes += self._written(event)
        for effect in turn.effects:
            pokes += self._perform(effect)
        return self, turn, tuple(pokes)

    def _perform(self, effect: Effect) -> Iterable[Poke]:
        match effect:
            case Release():
                self.pools = _forked(self.pools)
                self.pools.release(effect)
                layout = self.world.layout
                pokes: list[Poke] = []
                for group, wire in enumerate(effect.device):
                    for block in int32_view(wire).tolist():
                        pokes += freed(layout.group_layers(group), block)
                for block in int32_view(effect.cpu).tolist():
                    pokes += [Write("cpu", layer.layer, block, NOTHING) for layer in layout.layers]
                return pokes
            case Transfer() | MoveBlocks() | StoreBlocks() | Cancel():
                self.sent |= {effect}
            case Acknowledge() | PublishKeepMap():
                self.acks |= {(effect.operation, self.state.pool.producer_epoch)}
            case Gather():
                targets = dict(effect.destination.items())
                return [
                    CopyCpu(layer, source, target)
                    for layer, sources in effect.source.items()
                    for source, target in zip(sources.tolist(), targets[layer].tolist(), strict=True)
                ]
            case _:
                raise TypeError(f"unknown effect {type(effect).__name__}")
        return []

    def _written(self, event: Event) -> Iterable[Poke]:
        """What decoding and the producer have written when the core hears of it."""
        world, layers = self.world, self.world.layout.layers
        match event:
            case e.TailOpened():
                areas = int32_view(event.physical_by_group).tolist()
                text = label(world, event.request, event.logical) | UNCONFIRMED
                return [Write("device", layer.layer, areas[layer.group], text) for layer in layers]
            case e.SourcesRegistered():
                pairs = zip(int32_view(event.logical).tolist(), int32_view(event.source).tolist(), strict=True)
                return [
                    Write("cpu", layer.layer, block, label(world, event.request, logical))
                    for logical, block in pairs
                    for layer in layers
                ]
            case e.ProducerRestarted():
                blocks = range(world.total_cpu_blocks)
                return [Write("cpu", layer.layer, block, NOTHING) for block in blocks for layer in layers]
        return []

    def _confirmed(self, message: SealTail) -> list[Poke]:
        """Decoding has ended in the blocks that the loop says are confirmed, whatever the core makes of it."""
        pokes: list[Poke] = []
        for block in self.state.requests[message.request.request_id].tail:
            if block.phase == "open" and (block.logical + 1) * BLOCK_TOKENS <= message.confirmed_tokens:
                text = label(self.world, message.request, block.logical)
                pokes += [
                    Write("device", layer.layer, block.physical[layer.group], text, over=text | UNCONFIRMED)
                    for layer in self.world.layout.layers
                ]
        return pokes


def _forked(pools: Pools) -> Pools:
    """The same free lists, each with memory of its own."""
    twin = copy.copy(pools)
    twin.device, twin.cpu = copy.copy(pools.device), copy.copy(pools.cpu)
    twin.device.groups = tuple(_forked_list(group) for group in pools.device.groups)
    twin.cpu.full, twin.cpu.copies = _forked_list(pools.cpu.full), _forked_list(pools.cpu.copies)
    return twin


def _forked_list(pool: FreeList) -> FreeList:
    twin = copy.copy(pool)
    for name, value in vars(pool).items():
        setattr(twin, name, copy.copy(value))
    return twin


def uncounted(state: State) -> State:
    """The state with every `seq` at 0: it only counts, and nothing but the check that it is dense reads it."""
    pool = replace(state.pool, seq=0, run=None)
    requests = {name: replace(request, seq=0) for name, request in state.requests.items()}
    return replace(state, pool=pool, requests=requests)


class Asked:
    """Asks a twin's own copy of the pools."""

    def __init__(self, twin: CoordinatorState) -> None:
        self._twin, self._before = twin, twin.pools

    def __call__(self, ask: Reserve) -> Reserved:
        self._twin.pools = _forked(self._twin.pools)
        return self._twin.pools.reserve(ask)

    def give_back(self) -> None:
        self._twin.pools = self._before
