"""Restarts: what a process that ended can no longer do, and what a new one has to be told again."""

from kvsweep.ledger import events as e
from kvsweep.ledger.events import Difference, Implementation, RankEpochs
from kvsweep.ledger.ids import POOL, RequestKey, Rows, Slot, no_rows
from kvsweep.ledger.messages import Acknowledge, Cancel, ProcessLost, ProcessStarted, PublishKeepMap
from kvsweep.ledger.state import PREFIXES_KEPT
from kvsweep.runtime.core.batch import Batch
from kvsweep.runtime.core.follow import abort, abort_what_can_turn_back
from kvsweep.runtime.core.prefixes import evict


def process(batch: Batch, message: ProcessStarted | ProcessLost) -> str | None:
    """None, or why the word of this process is refused. A refusal is recorded."""
    if isinstance(message, ProcessLost):
        return _lost(batch, message)
    if message.rank is None:
        return _producer(batch, message.process_epoch)
    return _rank(batch, message.rank, message.process_epoch)


def _refused(batch: Batch, peer: str, expected: str, got: str) -> str:
    difference = Difference(field="process_epoch", expected=expected, got=got)
    batch.emit(e.HandshakeRefused, POOL, peer=peer, differences=(difference,))
    return f"{peer}: process_epoch: expected {expected}, got {got}"


def _lost(batch: Batch, message: ProcessLost) -> str | None:
    pool, rank = batch.state.pool, message.rank
    if pool.process_epoch(rank) != message.process_epoch or rank in pool.lost:
        known = pool.process_epoch(rank)
        return _refused(batch, f"rank {rank}", f"{known}, alive", str(message.process_epoch))
    _end_epoch(batch, rank, message.process_epoch)
    batch.emit(
        e.RankLost,
        POOL,
        rank=rank,
        process_epoch=message.process_epoch,
        pool_generation=pool.pool_generation + 1,
    )
    return None


def _rank(batch: Batch, rank: int, process_epoch: int) -> str | None:
    pool = batch.state.pool
    known = pool.process_epoch(rank)
    if process_epoch == known and rank not in pool.lost:
        return None  # a repeated announcement
    if known is None or process_epoch <= known:
        return _refused(batch, f"rank {rank}", f"above {known}", str(process_epoch))
    if rank not in pool.lost:
        _end_epoch(batch, rank, known)
    batch.emit(
        e.RankRestarted,
        POOL,
        rank=rank,
        process_epoch=process_epoch,
        pool_generation=batch.state.pool.pool_generation + 1,
    )
    return None


def _end_epoch(batch: Batch, rank: int, process_epoch: int) -> None:
    """One rank's memory is gone: every view and every shared block is incomplete, and the rank is quiet for ever."""
    for request in tuple(batch.state.requests.values()):
        if request.life == "CLOSED":
            continue
        key = request.key
        abort_what_can_turn_back(batch, key, ("upload", "retain", "store"), f"rank {rank} ended")
        for opened in batch.request(key).settling:
            if (rank, process_epoch) in opened.ranks and rank not in dict(opened.outcomes):
                batch.emit(
                    e.TransferSettled,
                    key,
                    operation=opened.operation,
                    rank=rank,
                    process_epoch=process_epoch,
                    outcome="epoch_ended",
                )
        if batch.request(key).life == "RUNNING":
            batch.emit(e.RequestPreempted, key)
        for block in batch.request(key).tail:
            if block.phase in ("open", "dirty") and batch.request(key).life == "PREEMPTED":
                batch.emit(e.BlockLost, key, logical=block.logical, reason=f"rank {rank} ended")
    evict(batch, PREFIXES_KEPT)


def recover(batch: Batch, evidence: str, kernels: str, ranks: RankEpochs, producer_epoch: int) -> None:
    """An earlier process of the coordinator has ended: so has every rank's epoch that it knew, and every step.

    What was open is aborted and settles, residency begins empty, and the producer hears again what waits for its word.
    """
    implementation = Implementation(kernels=kernels)
    batch.emit(e.CoordinatorRestarted, POOL, evidence=evidence, implementation=implementation)
    for rank, known in batch.state.pool.ranks:
        if rank in batch.state.pool.lost:
            _end_epoch(batch, rank, known)  # what began after it was lost has had no reader, and ends all the same
        else:
            _lost(batch, ProcessLost(rank=rank, process_epoch=known))
    for rank, process_epoch in ranks:
        _rank(batch, rank, process_epoch)
    if producer_epoch == batch.state.pool.producer_epoch:
        for request in batch.state.requests.values():
            _say_again(batch, request.key)
    else:
        _producer(batch, producer_epoch)
    # Nobody is left who could be told to stop.
    batch.effects = [effect for effect in batch.effects if not isinstance(effect, Cancel)]


def _producer(batch: Batch, process_epoch: int) -> str | None:
    pool = batch.state.pool
    if process_epoch == pool.producer_epoch:
        return None  # a repeated announcement
    if process_epoch < pool.producer_epoch:
        return _refused(batch, "producer", f"above {pool.producer_epoch}", str(process_epoch))
    for request in tuple(batch.state.requests.values()):
        if request.upload.phase == "MOVING":
            # Also where some ranks have completed: one that reports later may have read lost memory.
            abort(batch, request.key, "upload", "the producer restarted")
        if batch.request(request.key).store.phase == "MOVING":
            abort(batch, request.key, "store", "the producer restarted")
    evict(batch, PREFIXES_KEPT)
    batch.emit(e.ProducerRestarted, POOL, process_epoch=process_epoch)
    for request in batch.state.requests.values():
        _say_again(batch, request.key)
    return None


def _say_again(batch: Batch, key: RequestKey) -> None:
    """An acknowledgement that the old process may not have taken note of goes to the new one."""
    request = batch.request(key)
    upload, retain = request.upload, request.retain
    if upload.open is not None and upload.phase == "COMMITTED":
        batch.effect(Acknowledge(operation=upload.open.operation, generation=upload.open.generation))
    if upload.open is not None and upload.phase == "PUBLISHED":
        # A residency that was lost since has no slots: the map is void, and the producer still owes its word.
        keep: Rows[Slot] = request.keep_map.keep if request.keep_map else no_rows(batch.state.pool.layout.active_layers)
        revision = request.selection_revision
        batch.effect(PublishKeepMap(operation=upload.open.operation, selection_revision=revision, keep=keep))
    if retain.open is not None and retain.phase == "RETIRED":
        batch.effect(Acknowledge(operation=retain.open.operation, generation=retain.open.generation))
