"""Settings of the connector: vLLM's `kv_connector_extra_config`, checked once at start."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct

from kvsweep.ledger.errors import SettingsError
from kvsweep.runtime.settings import Count, Fraction, Positive, Seconds, Settings
from kvsweep.transports.vllm.faults import FaultSettings

WHERE = "kv_connector_extra_config"


class ConnectorSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a user may set. Every field has a default; that of `ledger` keeps no file, as littering is a choice."""

    ledger: str = "memory:"  # or "sqlite:PATH"; in memory a million events at most, then nothing is compacted any more
    mode: Literal["lossless", "compact"] = "lossless"
    policy: Literal["full", "recency", "quest"] = "full"  # compact mode: what scores the blocks
    budget: Fraction = 0.25  # compact mode: of a request's whole blocks
    sink: Count = 1  # blocks
    recent: Count = 2  # blocks
    interval: Positive | None = None  # engine steps between two rounds of a request; default 1 lossless, 16 compact
    hysteresis: Annotated[float, Meta(ge=1.0)] = 1.0  # resident blocks' scores are raised by this
    tables: Literal["layer", "shared"] = "layer"  # shared: one list of blocks for all layers
    cpu_blocks: Count = 0  # of the CPU tier; 0 = four times as many as vLLM's pool has (memory is used as it fills)
    headroom: Count = 1  # free blocks of vLLM's pool that a round never takes
    scatter: bool = True  # lossless mode: each layer of a block goes to another place
    poison: bool = False  # overwrite blocks that are given back: a late reader then computes nonsense
    checksums: bool = True  # compare every block that is uploaded with what was stored
    summary: str = ""  # path of a JSON file with the counts of the run; "" writes none
    deadline_s: Seconds = 5.0  # then an operation is aborted; nothing is freed by time
    log_ack: Literal["process", "power"] = "process"
    faults: FaultSettings = FaultSettings()  # of the way back, for tests

    def cpu_tier(self, device_blocks: int) -> int:
        """Blocks of the CPU tier beside a pool of so many."""
        return self.cpu_blocks or 4 * device_blocks

    @property
    def needs_scores(self) -> bool:
        """Whether ranks score blocks by their queries."""
        return self.mode == "compact" and self.policy == "quest"

    @property
    def steps_between_rounds(self) -> int:
        return self.interval if self.interval is not None else (1 if self.mode == "lossless" else 16)

    @classmethod
    def load(cls, extra: Mapping[str, Any]) -> "ConnectorSettings":
        """From vLLM's mapping. Raises SettingsError naming the field, what was expected and what came."""
        try:
            settings = msgspec.convert(dict(extra), cls)
        except msgspec.ValidationError as error:
            message, _, path = str(error).partition(" - at `")
            fields = path.rstrip("`").removeprefix("$").strip(".")
            raise _named(fields.split(".") if fields else [], message, dict(extra)) from error
        if settings.mode == "lossless" and settings.policy != "full":
            raise SettingsError(f"{WHERE}.policy", "full in lossless mode, where nothing is dropped", settings.policy)
        return settings

    def expect_summary_folder(self) -> None:
        """Raise SettingsError where the summary could not be written. For the one process that writes it."""
        folder = Path(self.summary).parent
        if self.summary and not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
            raise SettingsError(f"{WHERE}.summary", "a path in a folder that exists and can be written", self.summary)

    def core(self, *, requests: int) -> Settings:
        """The coordinator's own settings. requests: lives that may be open at once. Raises SettingsError."""
        full = self.mode == "lossless" or self.policy == "full"
        return Settings.of(
            log={"url": self.ledger, "ack": self.log_ack},
            selection={
                "budget": 1.0 if full else self.budget,
                "sink_blocks": self.sink,
                "recent_blocks": self.recent,
                "shared": self.tables == "shared",
                "incumbent_factor": self.hysteresis,
            },
            transfer={
                "deadline_s": self.deadline_s,
                "scatter": self.scatter and self.mode == "lossless" and self.tables == "layer",
            },
            limits={"open_requests": requests},
        )


def _named(fields: list[str], message: str, extra: Mapping[str, Any]) -> SettingsError:
    """The error of the field at this path: what would have been right there, and what came."""
    came: Any = extra
    kind: Any = ConnectorSettings
    for field in fields:
        came, kind = came[field], get_type_hints(kind)[field]
    where = ".".join((WHERE, *fields))
    if message.startswith("Object contains unknown field"):
        return SettingsError(where, f"fields among {', '.join(sorted(kind.__struct_fields__))}", message.split("`")[1])
    if get_origin(kind) is Literal:
        return SettingsError(where, f"one of {', '.join(map(repr, get_args(kind)))}", repr(came))
    expected = message.removeprefix("Expected ").partition(", got")[0].replace("`", "")
    return SettingsError(where, expected, repr(came))
