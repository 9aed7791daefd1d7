"""Coordinator of KV-cache compaction for LLM serving."""

from kvsweep.ledger.errors import KvsweepError
from kvsweep.ledger.ids import RequestKey, Rows
from kvsweep.ledger.inspect.replay import Ledger
from kvsweep.ledger.layout import Layout
from kvsweep.ledger.messages import BlockSelection
from kvsweep.ledger.store.open import open_log
from kvsweep.runtime.coordinator import Coordinator
from kvsweep.runtime.core.core import Core
from kvsweep.runtime.driver import Driver
from kvsweep.runtime.selection import select_blocks
from kvsweep.runtime.settings import Settings
from kvsweep.transports.handshake import Capabilities
from kvsweep.transports.rank import RankWorker

__version__ = "0.1.0"

__all__ = [
    "BlockSelection",
    "Capabilities",
    "Coordinator",
    "Core",
    "Driver",
    "KvsweepError",
    "Layout",
    "Ledger",
    "RankWorker",
    "RequestKey",
    "Rows",
    "Settings",
    "open_log",
    "select_blocks",
]
