"""The store that a run's settings name."""

from kvsweep.ledger.store.log import LogStore, QueueBounds, Rotation
from kvsweep.ledger.store.open import open_log
from kvsweep.runtime.settings import Settings


def open_store(settings: Settings) -> LogStore:
    """The store that the settings name. Raises SettingsError or LogError as `open_log` does."""
    log = settings.log
    bounds = QueueBounds(bytes=log.queue_bytes, events=log.queue_events)
    rotation = Rotation(
        snapshot_events=log.snapshot_events,
        file_bytes=log.file_bytes,
        file_s=log.file_s,
        keep_bytes=log.keep_bytes,
        keep_s=log.keep_s,
    )
    return open_log(log.url, queue=bounds if log.writer == "thread" else None, rotation=rotation)
