"""The shell around the core: driver, coordinator, waiting, settings; what selects and scores blocks."""

from kvsweep.runtime.coordinator import RetainResult, UploadResult
from kvsweep.runtime.core.upload_plan import adoptable, keep_slots
from kvsweep.runtime.metrics import Metrics
from kvsweep.runtime.run_config import RunConfig
from kvsweep.transports.rank_server import serve_rank

__all__ = ["Metrics", "RetainResult", "RunConfig", "UploadResult", "adoptable", "keep_slots", "serve_rank"]
