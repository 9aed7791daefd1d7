"""The laws of bytes: what readers, sources and copies under way may expect of a rank, held against its labels."""

from typing import TypeAlias

from msgspec import Struct

from kvsweep.ledger.event_base import RankEpochs
from kvsweep.ledger.ids import HOLE, int32_view
from kvsweep.ledger.state import RequestState
from kvsweep.scenarios.explore.contents import UNCONFIRMED, label, say
from kvsweep.scenarios.explore.coordinator import Cells, Coordinator
from kvsweep.scenarios.explore.rank import Rank

Cell: TypeAlias = tuple[int, int, int]
"""(layer, block, label)."""


class Expected(Struct, frozen=True, array_like=True):
    """What the coordinator's part of a state promises about every rank."""

    steps: tuple[tuple[RankEpochs, tuple[Cells, ...]], ...]  # on the processes that they began on
    ranks: RankEpochs  # processes that the coordinator takes to be alive
    views: tuple[Cells, ...]  # current ones: a step may begin on them at any moment
    device: tuple[Cell, ...]  # tails and shared prefixes
    cpu: tuple[Cell, ...]  # valid CPU blocks, on every rank whatever its process
    under_way: tuple[tuple[int, int], ...]  # (operation id, rank): copies whose areas are still held


def expected(coordinator: Coordinator) -> Expected:
    world, state = coordinator.world, coordinator.state
    views, device, cpu, under_way = [], [], [], []
    for request in state.requests.values():
        if request.view is not None:
            cells = coordinator.cells_of(request.key, request.view.logical, request.view.physical)
            views.append(
                Cells(request.key, request.view.row, request.current, request.view.physical, tuple(cells))
            )
        device += _tail_cells(coordinator, request)
        for logical, block in enumerate(int32_view(request.source).tolist()):
            if block != HOLE:
                cpu += [(layer, block, label(world, request.key, logical)) for layer in range(world.layers)]
        for opened in (*request.open_operations(), *request.settling):
            said = dict(opened.outcomes)
            under_way += [(opened.operation.operation_id, rank) for rank, _ in opened.ranks if rank not in said]
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
        under_way=tuple(sorted(under_way)),
    )


def _tail_cells(coordinator: Coordinator, request: RequestState) -> list[Cell]:
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
    for number in rank.device.queued:
        if (number, rank.number) not in promise.under_way:
            found.append(
                f"what a copy may still touch is held: rank {rank.number} has operation {number} under way, "
                f"and nothing is held for it"
            )
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
