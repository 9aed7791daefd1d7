"""Opening a ledger by its url."""

from kvsweep.ledger.errors import SettingsError
from kvsweep.ledger.store.log import LogStore, QueueBounds, Rotation
from kvsweep.ledger.store.memory import MemoryLog


def open_log(
    url: str, *, read_only: bool = False, queue: QueueBounds | None = None, rotation: Rotation | None = None
) -> LogStore:
    """Open "memory:" (new and empty) or "sqlite:PATH" (begun if it does not exist and may be written).

    queue  with bounds, a thread writes the file and `append` waits for nothing; None stores within `append`. A ledger
           in memory has nothing to wait for and never queues.
    rotation  of a file that is written; None: as the defaults say

    Raises SettingsError for any other url, LogError when the ledger cannot be opened, UnknownSchema when it was
    written by another version.
    """
    scheme, colon, path = url.partition(":")
    if url == "memory:":
        if read_only:
            raise SettingsError("log.url", "a ledger that outlives its process", repr(url))
        return MemoryLog()
    if scheme == "sqlite" and colon and path:
        # `import kvsweep` shall not load a database.
        from kvsweep.ledger.store.sqlite import SqliteLog

        if queue is None or read_only:
            return SqliteLog(path, read_only=read_only, rotation=rotation)
        from kvsweep.ledger.store.queue import QueuedLog

        writer = SqliteLog(path, any_thread=True, rotation=rotation)
        return QueuedLog(writer, reader=lambda: SqliteLog(path, read_only=True), bounds=queue)
    raise SettingsError("log.url", '"memory:" or "sqlite:PATH"', repr(url))
