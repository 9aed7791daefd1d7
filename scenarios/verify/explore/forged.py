"""Words that no rank can have said: each differs from an honest one in one field."""

from collections.abc import Iterator

from msgspec.structs import replace

from kvsweep.ledger.ids import Operation, RequestKey
from kvsweep.ledger.messages import Acknowledged, Done
from kvsweep.scenarios.verify.explore.coordinator import Coordinator


def forged_words(coordinator: Coordinator) -> Iterator[Done | Acknowledged]:
    """Of every open or settling operation, and of one that was never begun."""
    pool = coordinator.state.pool
    for request in coordinator.state.requests.values():
        for opened in (*request.open_operations(), *request.settling):
            for rank, epoch in opened.ranks:
                honest = Done(operation=opened.operation, rank=rank, process_epoch=epoch, outcome="completed")
                operation = opened.operation
                yield replace(honest, operation=replace(operation, pool_generation=operation.pool_generation + 1))
                yield replace(honest, operation=replace(operation, map_revision=operation.map_revision + 1))
                yield replace(honest, operation=replace(operation, operation_id=pool.next_operation_id))
                yield replace(honest, operation=replace(operation, request=_later(operation.request)))
                yield replace(honest, process_epoch=epoch + 1000)
                yield replace(honest, process_epoch=epoch - 1)
                yield replace(honest, outcome="epoch_ended")
                yield replace(honest, rank=rank + len(opened.ranks))
            yield Acknowledged(operation=opened.operation, process_epoch=pool.producer_epoch + 1)
            yield Acknowledged(operation=opened.operation, process_epoch=pool.producer_epoch - 1)
        never = Operation(
            request=request.key,
            operation_id=pool.next_operation_id,
            pool_generation=pool.pool_generation,
            map_revision=request.map_revision,
        )
        rank, epoch = pool.ranks[0]
        yield Done(operation=never, rank=rank, process_epoch=epoch, outcome="completed")


def _later(request: RequestKey) -> RequestKey:
    return RequestKey(request.request_id, request.request_epoch + 1)
