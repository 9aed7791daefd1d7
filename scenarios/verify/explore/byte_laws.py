"""The laws of bytes: what readers, sources and copies under way may expect of a rank, held against its labels."""

from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from kvsweep.ledger.events import RankEpochs
from kvsweep.ledger.ids import HOLE, int32_view
from kvsweep.ledger.messages import MoveBlocks, StoreBlocks
from kvsweep.ledger.ownership import Holder, HolderKind
from kvsweep.ledger.state import RequestState
from kvsweep.scenarios.verify.explore.coordinator_state import Cells, CoordinatorState
from kvsweep.scenarios.verify.explore.device import UNCONFIRMED, label, say
from kvsweep.scenarios.verify.explore.rank import Rank
from kvsweep.transports.device import DeviceWork

KINDS: tuple[HolderKind, ...] = ("dst", "src")

Cell: TypeAlias = tuple[int, int, int]
"""(layer, block, label)."""


class Leased(Struct, frozen=True, array_like=True):
    """What is held for one operation that a rank has not sent its last report on."""

    operation_id: int
    rank: int
    areas: frozenset[tuple[int, int]]  # (layer, block)
    cpu: frozenset[int]
    rows: tuple[int, ...]


class Expected(Struct, frozen=True, array_like=True):
    """What the coordinator's part of a state promises about every rank."""

    steps: tuple[tuple[RankEpochs, tuple[Cells, ...]], ...]  # on the processes that they began on
    ranks: RankEpochs  # processes that the coordinator takes to be alive
    views: tuple[Cells, ...]  # current ones: a step may begin on them at any moment
    device: tuple[Cell, ...]  # tails and shared prefixes
    cpu: tuple[Cell, ...]  # valid CPU blocks, on every rank whatever its process
    under_way: tuple["Leased", ...]


def expected(coordinator: CoordinatorState) -> Expected:
    world, state = coordinator.world, coordinator.state
    views, device, cpu, under_way = [], [], [], []
    for request in state.requests.values():
        if request.view is not None:
            cells = coordinator.cells_of(request.key, request.view.logical, request.view.physical)
            views.append(Cells(request.key, request.view.row, request.current, request.view.physical, tuple(cells)))
        device += _tail_cells(coordinator, request)
        for logical, block in enumerate(int32_view(request.source).tolist()):
            if block != HOLE:
                cpu += [(layer, block, label(world, request.key, logical)) for layer in range(len(world.layout.layers))]
        for opened in (*request.open_operations(), *request.settling):
            said = dict(opened.outcomes)
            leased = _leased(coordinator, request, opened.operation.operation_id)
            under_way += [replace(leased, rank=rank) for rank, _ in opened.ranks if rank not in said]
    for prefix in state.pool.prefixes:
        for layer in world.layout.layers:
            content = 1 + prefix.logical  # only a text that requests share is published
            device.append((layer.layer, prefix.physical[layer.group], content))
            cpu.append((layer.layer, prefix.source, content))
    return Expected(
        steps=tuple(sorted({(reads.ranks, reads.requests) for reads in coordinator.reads.values()}, key=repr)),
        ranks=tuple(pair for pair in state.pool.ranks if pair[0] not in state.pool.lost),
        views=tuple(views),
        device=tuple(sorted(set(device))),
        cpu=tuple(sorted(set(cpu))),
        under_way=tuple(under_way),
    )


def _leased(coordinator: CoordinatorState, request: RequestState, number: int) -> Leased:
    holders = coordinator.state.ownership.holders(request.key)
    held = [holders[Holder(kind, number)] for kind in KINDS if Holder(kind, number) in holders]
    return Leased(
        operation_id=number,
        rank=0,
        areas=frozenset((layer, block) for one in held for layer, ids in one.areas.items() for block in ids.tolist()),
        cpu=frozenset(block for one in held for block in int32_view(one.sources).tolist()),
        rows=tuple(row for one in held for row in one.rows),
    )


def _tail_cells(coordinator: CoordinatorState, request: RequestState) -> list[Cell]:
    """A confirmed tail block is whole; one that decoding still writes is its own."""
    found = []
    for block in request.tail:
        if block.phase != "lost":
            text = label(coordinator.world, request.key, block.logical) | (UNCONFIRMED if block.phase == "open" else 0)
            found += [
                (layer.layer, block.physical[layer.group], text)
                for layer in coordinator.world.layout.layers
                if block.physical[layer.group] != HOLE
            ]
    return found


def broken(promise: Expected, rank: Rank) -> tuple[str, ...]:
    """Every promise that this rank does not keep, as 'law: what is wrong'."""
    found: list[str] = []
    for ranks, requests in promise.steps:
        if (rank.number, rank.process_epoch) in ranks:
            for cells in requests:
                found += _misread(rank, cells, "a step")
    if (rank.number, rank.process_epoch) in promise.ranks:
        for cells in promise.views:
            found += _misread(rank, cells, "the current view")
        found += _wrong(rank, promise.device, "a tail or shared block")
    for layer, block, content in promise.cpu:
        got = rank.device.cpu[layer * rank.device.cpu_blocks + block]
        if got != content:
            found.append(
                f"a valid CPU block has its bytes on every rank: rank {rank.number}, layer {layer}, CPU block {block}: "
                f"expected {say(content)}, found {say(got)}"
            )
    leases = {one.operation_id: one for one in promise.under_way if one.rank == rank.number}
    for number, (work, _) in rank.device.queued.items():
        found += _not_held(rank, work, leases.get(number))
    return tuple(found)


def _misread(rank: Rank, cells: Cells, who: str) -> list[str]:
    reader = f"{who} of {cells.request.request_id} (generation {cells.generation})"
    found = _wrong(rank, cells.cells, reader)
    if cells.table is not None:
        shown = rank.device.tables.get((cells.request, cells.row))
        if shown != (cells.generation, cells.table):
            what = "nothing" if shown is None else f"generation {shown[0]}"
            found.append(
                f"a reader's row shows its generation: rank {rank.number}, row {cells.row}: {reader} finds {what}"
            )
    return found


def _wrong(rank: Rank, cells: tuple[Cell, ...], reader: str) -> list[str]:
    found = []
    for layer, block, content in cells:
        got = rank.device.memory[layer * rank.device.blocks + block]
        if got != content and got | UNCONFIRMED != content:  # a block may be confirmed while a step reads it
            found.append(
                f"a reader finds what it was handed: rank {rank.number}, layer {layer}, block {block}: {reader} "
                f"expects {say(content)}, finds {say(got)}"
            )
    return found


def _not_held(rank: Rank, work: DeviceWork, lease: Leased | None) -> list[str]:
    """What a copy may still write, its row and the CPU blocks that it reads are held for its operation."""
    what = (
        f"what a copy may still touch is held: rank {rank.number} has operation {work.operation.operation_id} under way"
    )
    if lease is None:
        return [f"{what}, and nothing is held for it"]
    sources = {(layer, block) for layer, ids in work.source.items() for block in ids.tolist()}
    targets = {(layer, block) for layer, ids in work.destination.items() for block in ids.tolist()}
    areas, cpu = targets, sources
    if isinstance(work, StoreBlocks):
        areas, cpu = sources, targets
    elif isinstance(work, MoveBlocks):
        cpu = set()
    found = [f"{what}: area (layer, block) {area} is not held for it" for area in sorted(areas - lease.areas)]
    found += [f"{what}: CPU block {block} is not held for it" for block in sorted({b for _, b in cpu} - lease.cpu)]
    if not isinstance(work, StoreBlocks) and work.row not in lease.rows:
        found.append(f"{what}: row {work.row} is not held for it")
    return found
