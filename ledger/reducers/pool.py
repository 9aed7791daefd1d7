"""Reducers of the pool stream."""

from msgspec.structs import replace

from kvsweep.ledger.errors import Refused
from kvsweep.ledger.events import (
    DigestRecorded,
    Event,
    Implementation,
    ProducerRestarted,
    RankLost,
    RankRestarted,
    RunConfigured,
)
from kvsweep.ledger.ids import HOLE
from kvsweep.ledger.sources import merged
from kvsweep.ledger.state import PoolState, State


def _refuse(state: State, event: Event, reason: str) -> None:
    raise Refused(event.request, type(event).__name__, "pool", (), reason)


def configured(state: State, event: RunConfigured) -> PoolState:
    if state.pool.run is not None:
        _refuse(state, event, "the pool is configured already")
    event.layout.check()
    ranks = [rank for rank, _ in event.ranks]
    if not ranks or ranks != list(range(len(ranks))):
        _refuse(state, event, f"expected ranks 0, 1, …, got {ranks}")
    if len(event.device_blocks) != event.layout.groups or min(event.device_blocks) < 1:
        _refuse(
            state, event, f"expected a pool size for each of {event.layout.groups} groups, got {event.device_blocks}"
        )
    if not 0 < event.cpu_full_blocks <= event.cpu_total_blocks:
        _refuse(state, event, f"expected 0 < K <= N, got K={event.cpu_full_blocks}, N={event.cpu_total_blocks}")
    run = replace(event, implementation=Implementation())  # states are compared, whatever did the work
    return replace(state.pool, run=run, ranks=event.ranks, producer_epoch=event.producer_epoch)


def rank_lost(state: State, event: RankLost) -> PoolState:
    if state.pool.process_epoch(event.rank) != event.process_epoch or event.rank in state.pool.lost:
        _refuse(state, event, f"rank {event.rank} does not live in process epoch {event.process_epoch}")
    _no_prefix(state, event)
    _generation(state, event, event.pool_generation)
    return replace(state.pool, pool_generation=event.pool_generation, lost=(*state.pool.lost, event.rank))


def rank_restarted(state: State, event: RankRestarted) -> PoolState:
    """The old epoch is over, whether its loss was seen before or only now."""
    known = state.pool.process_epoch(event.rank)
    if known is None or event.process_epoch <= known:
        _refuse(state, event, f"expected a process epoch above {known}, got {event.process_epoch}")
    if event.rank not in state.pool.lost:
        _no_prefix(state, event)
    _generation(state, event, event.pool_generation)
    ranks = tuple((rank, event.process_epoch if rank == event.rank else epoch) for rank, epoch in state.pool.ranks)
    lost = tuple(rank for rank in state.pool.lost if rank != event.rank)
    return replace(state.pool, ranks=ranks, lost=lost, pool_generation=event.pool_generation)


def _no_prefix(state: State, event: Event) -> None:
    """A process that ended took its part of every shared block with it."""
    if state.pool.prefixes:
        _refuse(state, event, "shared prefixes are not whole any more: evict them first")


def _generation(state: State, event: Event, generation: int) -> None:
    if generation != state.pool.pool_generation + 1:
        _refuse(state, event, f"expected pool generation {state.pool.pool_generation + 1}, got {generation}")


def producer_restarted(state: State, event: ProducerRestarted) -> State:
    """Every CPU block is invalid until registered again; the blocks stay held, and so do leases in flight."""
    if event.process_epoch <= state.pool.producer_epoch:
        _refuse(state, event, f"expected a process epoch above {state.pool.producer_epoch}, got {event.process_epoch}")
    if state.pool.prefixes:
        _refuse(state, event, "shared prefixes stand on CPU blocks that are invalid now: evict them first")
    requests = {
        name: replace(request, source=b"", stale=merged(request.stale, request.source))
        for name, request in state.requests.items()
    }
    return replace(state, pool=replace(state.pool, producer_epoch=event.process_epoch), requests=requests)


def noted(state: State, event: Event) -> PoolState:
    """Recorded, and nothing else."""
    if isinstance(event, DigestRecorded) and event.position <= HOLE:
        _refuse(state, event, f"expected a position from 0, got {event.position}")
    return state.pool
