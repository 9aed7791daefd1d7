"""Table rows of the requests that a device serves, given up only when nothing of a request is queued any more."""

from collections.abc import Mapping
from typing import Protocol

from kvsweep.ledger.errors import NotSettled
from kvsweep.ledger.ids import Int32, Operation, RequestKey


class Running(Protocol):
    """An operation that the device has been given and has not completed."""

    @property
    def operation(self) -> Operation: ...


class Tables(Protocol):
    """Rows by request and number, each with the generation that it shows."""

    def read(self, request: RequestKey, row: int, generation: int, layer: int) -> Int32: ...
    def forget(self, request: RequestKey) -> None: ...


class ServedRows:
    """What devices of every kind do with table rows. `_running` and `_tables` are the device's own."""

    _running: Mapping[int, Running]
    _tables: Tables

    def table(self, request: RequestKey, row: int, generation: int, layer: int) -> Int32:
        """int32[slots], read-only. Raises LayoutError unless the row shows this generation."""
        return self._tables.read(request, row, generation, layer)

    def forget(self, request: RequestKey) -> None:
        """Give up the table rows of a closed request. Raises NotSettled while an operation of it is queued."""
        open_ones = [number for number, running in self._running.items() if running.operation.request == request]
        if open_ones:
            raise NotSettled(tuple(f"operation {number} is queued" for number in open_ones))
        self._tables.forget(request)

    def try_forget(self, request: RequestKey) -> bool:
        """As `forget`; False, with nothing done, while an operation of the request is queued."""
        if any(running.operation.request == request for running in self._running.values()):
            return False
        self._tables.forget(request)
        return True
