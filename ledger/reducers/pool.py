"""Reducers of the pool stream."""

from typing import NoReturn

from msgspec.structs import replace

from kvsweep.ledger.draft import Draft
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


def _refuse(event: Event, reason: str) -> NoReturn:
    raise Refused(event.request, type(event).__name__, "pool", (), reason)


def configured(draft: Draft, event: RunConfigured) -> None:
    if draft.pool.run is not None:
        _refuse(event, "the pool is configured already")
    event.layout.check()
    ranks = [rank for rank, _ in event.ranks]
    if not ranks or ranks != list(range(len(ranks))):
        _refuse(event, f"expected ranks 0, 1, …, got {ranks}")
    if len(event.device_blocks) != event.layout.groups or min(event.device_blocks) < 1:
        _refuse(event, f"expected a pool size for each of {event.layout.groups} groups, got {event.device_blocks}")
    if not 0 < event.cpu_full_blocks <= event.cpu_total_blocks:
        _refuse(event, f"expected 0 < K <= N, got K={event.cpu_full_blocks}, N={event.cpu_total_blocks}")
    pool = draft.own_pool()
    pool.run = replace(event, implementation=Implementation())  # states are compared, whatever did the work
    pool.ranks, pool.producer_epoch = event.ranks, event.producer_epoch


def rank_lost(draft: Draft, event: RankLost) -> None:
    if draft.pool.process_epoch(event.rank) != event.process_epoch or event.rank in draft.pool.lost:
        _refuse(event, f"rank {event.rank} does not live in process epoch {event.process_epoch}")
    _expect_no_prefix(draft, event)
    _expect_generation(draft, event, event.pool_generation)
    pool = draft.own_pool()
    pool.pool_generation = event.pool_generation
    pool.lost = (*pool.lost, event.rank)


def rank_restarted(draft: Draft, event: RankRestarted) -> None:
    """The old epoch is over, whether its loss was seen before or only now."""
    known = draft.pool.process_epoch(event.rank)
    if known is None or event.process_epoch <= known:
        _refuse(event, f"expected a process epoch above {known}, got {event.process_epoch}")
    if event.rank not in draft.pool.lost:
        _expect_no_prefix(draft, event)
    _expect_generation(draft, event, event.pool_generation)
    pool = draft.own_pool()
    pool.ranks = tuple((rank, event.process_epoch if rank == event.rank else epoch) for rank, epoch in pool.ranks)
    pool.lost = tuple(rank for rank in pool.lost if rank != event.rank)
    pool.pool_generation = event.pool_generation


def _expect_no_prefix(draft: Draft, event: Event) -> None:
    """A process that ended took its part of every shared block with it."""
    if draft.pool.prefixes:
        _refuse(event, "shared prefixes are not whole any more: evict them first")


def _expect_generation(draft: Draft, event: Event, generation: int) -> None:
    if generation != draft.pool.pool_generation + 1:
        _refuse(event, f"expected pool generation {draft.pool.pool_generation + 1}, got {generation}")


def producer_restarted(draft: Draft, event: ProducerRestarted) -> None:
    """Every CPU block is invalid until registered again; the blocks stay held, and so do leases in flight."""
    if event.process_epoch <= draft.pool.producer_epoch:
        _refuse(event, f"expected a process epoch above {draft.pool.producer_epoch}, got {event.process_epoch}")
    if draft.pool.prefixes:
        _refuse(event, "shared prefixes stand on CPU blocks that are invalid now: evict them first")
    draft.own_pool().producer_epoch = event.process_epoch
    for request in draft.everybody():
        if request.source:
            mine = draft.own(request)
            mine.stale, mine.source = merged(request.stale, request.source), b""


def noted(draft: Draft, event: Event) -> None:
    """Recorded, and nothing else."""
    if isinstance(event, DigestRecorded) and event.position <= HOLE:
        _refuse(event, f"expected a position from 0, got {event.position}")
