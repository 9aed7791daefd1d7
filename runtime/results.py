"""What somebody who awaited an operation gets."""

from msgspec import Struct

from kvsweep.ledger.ids import Operation
from kvsweep.ledger.state import Residency
from kvsweep.runtime.metrics import Metrics


class UploadResult(Struct, frozen=True, kw_only=True):
    """A committed upload, or a published keep map (zero bytes): the residency after it and what it cost."""

    operation: Operation
    residency: Residency
    metrics: Metrics


class RetainResult(Struct, frozen=True, kw_only=True):
    """A committed retain: how it was done, and what it cost and freed (two independent figures)."""

    operation: Operation
    method: str  # "shared" | "layer" | "move" | "pack"
    attention: str  # "same" | "union": the union is not the same selected attention
    residency: Residency
    metrics: Metrics
