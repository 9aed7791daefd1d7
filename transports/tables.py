"""Block-table rows of one rank: where a generation's tables live. A row is a resource that the coordinator owns."""

from kvsweep.ledger.errors import Busy, LayoutError
from kvsweep.ledger.ids import Int32, Physical, RequestKey, Rows


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
