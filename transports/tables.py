"""Block-table rows of one rank: where a generation's tables live, and when a row may be given up."""

from collections.abc import Mapping
from typing import Protocol

from kvsweep.ledger.errors import Busy, LayoutError, NotSettled
from kvsweep.ledger.ids import Int32, Operation, Physical, RequestKey, Rows


class TableRows:
    """(request, row) → (generation, tables). At most `limit` rows over all requests."""

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise LayoutError("rows", "at least 1", str(limit))
        self.limit = limit
        self._rows: dict[tuple[RequestKey, int], tuple[int, Rows[Physical]] | None] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def claim(self, request: RequestKey, row: int) -> None:
        """Make room for a row before anything is queued that writes it. Raises Busy at the limit."""
        if row < 0:
            raise LayoutError("row", "0 or more", str(row))
        if (request, row) in self._rows:
            return
        if len(self._rows) >= self.limit:
            raise Busy("table rows", self.limit)
        self._rows[request, row] = None

    def write(self, request: RequestKey, row: int, generation: int, table: Rows[Physical]) -> int:
        """Show a generation in a claimed row; what it showed before is gone. Returns the layer tables written."""
        self._rows[request, row] = (generation, table)
        return len(table)

    def read(self, request: RequestKey, row: int, generation: int, layer: int) -> Int32:
        """int32[slots], read-only: one layer's physical blocks. Raises LayoutError for another generation or layer."""
        shown = self._rows.get((request, row))
        if shown is None or shown[0] != generation:
            what = "nothing" if shown is None else f"generation {shown[0]}"
            raise LayoutError("generation", f"what row {row} of {request.request_id!r} shows ({what})", str(generation))
        return shown[1].row(layer)

    def shown(self, request: RequestKey, row: int) -> tuple[int, Rows[Physical]] | None:
        """(generation, tables) that a row shows now, whatever it is; None where nothing was written."""
        return self._rows.get((request, row))

    def forget(self, request: RequestKey) -> None:
        """Give up every row of a request that has closed."""
        for key in [key for key in self._rows if key[0] == request]:
            del self._rows[key]


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
