"""Events as Arrow tables, for notebooks and Parquet. The only module that needs pyarrow."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

import msgspec

from kvsweep.ledger.errors import SettingsError
from kvsweep.ledger.inspect.as_data import event_to_builtins
from kvsweep.ledger.inspect.sentences import sentence
from kvsweep.ledger.store.log import Record

try:
    import pyarrow as pa
except ImportError as error:
    wanted = "installed (the package's extra 'arrow')"
    raise SettingsError("pyarrow", wanted, str(error)) from error

BATCH: Final = 10_000  # rows

SCHEMA: Final = pa.schema(
    [
        pa.field("position", pa.int64(), nullable=False),
        pa.field("time", pa.timestamp("us", tz="UTC")),  # when its group was stored, where that is known
        pa.field("request", pa.string(), nullable=False),  # the whole id; "@pool" in epoch 0 for facts of the pool
        pa.field("epoch", pa.int64(), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("type", pa.dictionary(pa.int16(), pa.string()), nullable=False),
        pa.field("operation_id", pa.int64()),
        pa.field("rank", pa.int32()),
        pa.field("sentence", pa.string(), nullable=False),
        pa.field("event", pa.string(), nullable=False),  # JSON by field name
    ]
)
"""One row an event."""


def table_of(records: Iterable[Record]) -> pa.Table:
    """All of the records as one table."""
    return pa.Table.from_batches(batches_of(records), schema=SCHEMA)


def batches_of(records: Iterable[Record]) -> Iterator[pa.RecordBatch]:
    """The records in batches of at most BATCH rows: a long ledger need not fit into memory."""
    left = iter(records)
    while rows := [_row(record) for record in islice(left, BATCH)]:
        yield pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def writer(path: str) -> Any:
    """A Parquet file to write batches to, as a context manager."""
    from pyarrow import parquet

    return parquet.ParquetWriter(path, SCHEMA, compression="zstd")


def _row(record: Record) -> dict[str, Any]:
    event = record.event
    operation = getattr(event, "operation", None)
    return {
        "position": record.position,
        "time": record.time or None,
        "request": event.request.request_id,
        "epoch": event.request.request_epoch,
        "seq": event.seq,
        "type": type(event).__name__,
        "operation_id": operation.operation_id if operation else None,
        "rank": getattr(event, "rank", None),
        "sentence": sentence(event),
        "event": msgspec.json.encode(event_to_builtins(event)).decode(),
    }
