"""Restarts: what a process that ended can no longer do, and what a new one has to be told again."""

from kvsweep.ledger import events as e
from kvsweep.ledger.draft import Draft
from kvsweep.ledger.events import Difference, Implementation, LaneName, RankEpochs
from kvsweep.ledger.fold import emit, emit_in
from kvsweep.ledger.ids import POOL, Rows, Slot, no_rows
from kvsweep.ledger.messages import Acknowledge, Cancel, ProcessLost, ProcessStarted, PublishKeepMap
from kvsweep.ledger.state import PREFIXES_KEPT, RequestState
from kvsweep.runtime.core.follow import abort, abort_what_can_turn_back
from kvsweep.runtime.core.prefixes import evict_oldest


def process(draft: Draft, message: ProcessStarted | ProcessLost) -> str | None:
    """None, or why the word of this process is refused. A refusal is recorded."""
    if isinstance(message, ProcessLost):
        return _lost(draft, message)
    if message.rank is None:
        return _producer(draft, message.process_epoch)
    return _rank(draft, message.rank, message.process_epoch)


def _refused(draft: Draft, peer: str, expected: str, got: str) -> str:
    difference = Difference(field="process_epoch", expected=expected, got=got)
    emit_in(draft, e.HandshakeRefused, POOL, peer=peer, differences=(difference,))
    return f"{peer}: process_epoch: expected {expected}, got {got}"


def _lost(draft: Draft, message: ProcessLost) -> str | None:
    pool, rank = draft.pool, message.rank
    if pool.process_epoch(rank) != message.process_epoch or rank in pool.lost:
        known = pool.process_epoch(rank)
        return _refused(draft, f"rank {rank}", f"{known}, alive", str(message.process_epoch))
    _end_epoch(draft, rank, message.process_epoch)
    emit_in(
        draft,
        e.RankLost,
        POOL,
        rank=rank,
        process_epoch=message.process_epoch,
        pool_generation=pool.pool_generation + 1,
    )
    return None


def _rank(draft: Draft, rank: int, process_epoch: int) -> str | None:
    pool = draft.pool
    known = pool.process_epoch(rank)
    if process_epoch == known and rank not in pool.lost:
        return None  # a repeated announcement
    if known is None or process_epoch <= known:
        return _refused(draft, f"rank {rank}", f"above {known}", str(process_epoch))
    if rank not in pool.lost:
        _end_epoch(draft, rank, known)
    emit_in(
        draft,
        e.RankRestarted,
        POOL,
        rank=rank,
        process_epoch=process_epoch,
        pool_generation=draft.pool.pool_generation + 1,
    )
    return None


def _end_epoch(draft: Draft, rank: int, process_epoch: int) -> None:
    """One rank's memory is gone: every view and every shared block is incomplete, and the rank is quiet for ever."""
    for known in draft.everybody():
        if known.life == "CLOSED":
            continue
        request = draft.own(known)
        abort_what_can_turn_back(draft, request, ("upload", "retain", "store"), f"rank {rank} ended")
        for opened in request.settling:
            if (rank, process_epoch) in opened.ranks and rank not in dict(opened.outcomes):
                emit(
                    draft,
                    e.TransferSettled,
                    request,
                    operation=opened.operation,
                    rank=rank,
                    process_epoch=process_epoch,
                    outcome="epoch_ended",
                )
        if request.life == "RUNNING":
            emit(draft, e.RequestPreempted, request)
        for block in request.tail:
            if block.phase in ("open", "dirty") and request.life == "PREEMPTED":
                emit(draft, e.BlockLost, request, logical=block.logical, reason=f"rank {rank} ended")
    evict_oldest(draft, PREFIXES_KEPT)


def recover(draft: Draft, evidence: str, kernels: str, ranks: RankEpochs, producer_epoch: int) -> None:
    """An earlier process of the coordinator has ended: so has every rank's epoch that it knew, and every step.

    What was open is aborted and settles, residency begins empty, and the producer hears again what waits for its word.
    """
    implementation = Implementation(kernels=kernels)
    emit_in(draft, e.CoordinatorRestarted, POOL, evidence=evidence, implementation=implementation)
    for rank, known in draft.pool.ranks:
        if rank in draft.pool.lost:
            _end_epoch(draft, rank, known)  # what began after it was lost has had no reader, and ends all the same
        else:
            _lost(draft, ProcessLost(rank=rank, process_epoch=known))
    for rank, process_epoch in ranks:
        _rank(draft, rank, process_epoch)
    if producer_epoch == draft.pool.producer_epoch:
        for request in draft.everybody():
            _say_again(draft, request)
    else:
        _producer(draft, producer_epoch)
    # Nobody is left who could be told to stop.
    draft.effects = [effect for effect in draft.effects if not isinstance(effect, Cancel)]


def _producer(draft: Draft, process_epoch: int) -> str | None:
    pool = draft.pool
    if process_epoch == pool.producer_epoch:
        return None  # a repeated announcement
    if process_epoch < pool.producer_epoch:
        return _refused(draft, "producer", f"above {pool.producer_epoch}", str(process_epoch))
    lanes: tuple[LaneName, ...] = ("upload", "store")
    for known in draft.everybody():
        for lane in lanes:
            if known.lane(lane).phase == "MOVING":
                # Also where some ranks have completed: one that reports later may have read lost memory.
                abort(draft, draft.own(known), lane, "the producer restarted")
    evict_oldest(draft, PREFIXES_KEPT)
    emit_in(draft, e.ProducerRestarted, POOL, process_epoch=process_epoch)
    for request in draft.everybody():
        _say_again(draft, request)
    return None


def _say_again(draft: Draft, request: RequestState) -> None:
    """An acknowledgement that the old process may not have taken note of goes to the new one."""
    upload, retain = request.upload, request.retain
    if upload.open is not None and upload.phase == "COMMITTED":
        draft.effects.append(Acknowledge(operation=upload.open.operation, generation=upload.open.generation))
    if upload.open is not None and upload.phase == "PUBLISHED":
        # A residency that was lost since has no slots: the map is void, and the producer still owes its word.
        keep: Rows[Slot] = request.keep_map.keep if request.keep_map else no_rows(draft.pool.layout.active_layers)
        revision = request.selection_revision
        draft.effects.append(PublishKeepMap(operation=upload.open.operation, selection_revision=revision, keep=keep))
    if retain.open is not None and retain.phase == "RETIRED":
        draft.effects.append(Acknowledge(operation=retain.open.operation, generation=retain.open.generation))
