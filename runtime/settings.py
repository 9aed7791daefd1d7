"""The one settings object: frozen, checked, read once. No environment variable is read anywhere else, nor here."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from kvsweep.ledger.errors import SettingsError
from kvsweep.ledger.store.log import QueueBounds, Rotation

Fraction: TypeAlias = Annotated[float, Meta(gt=0.0, le=1.0)]
Count: TypeAlias = Annotated[int, Meta(ge=0)]
Positive: TypeAlias = Annotated[int, Meta(ge=1)]
Seconds: TypeAlias = Annotated[float, Meta(gt=0.0)]


class SelectionSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    method: Literal["block", "token"] = "block"  # what a selection names; both sides hold the same (D3)
    budget: Fraction = 0.25  # of the whole blocks
    sink_blocks: Count = 1
    recent_blocks: Count = 2
    shared: bool = False  # one list for all layers: a policy, not something that occurs by itself
    incumbent_factor: Annotated[float, Meta(ge=1.0)] = 1.0  # resident blocks' scores are raised by this: hysteresis
    on_tight_budget: Literal["record", "refuse"] = "record"  # sink + recent above the budget (E7)


class SourceSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    kind: Literal["source_only", "copy"] = "source_only"  # offered; the plan still decides by E8
    allow_copy: bool = False  # a copy pool [K, N) exists and copying is wanted explicitly (D5)


class TransferSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    staging_bytes: Positive = 64 * 2**20  # a rank, over all slots
    staging_slots: Annotated[int, Meta(ge=1)] = 2
    deadline_s: Seconds = 5.0  # then the operation is aborted; nothing is freed by time
    scatter: bool = False  # each layer begins at another new block: shows that no layer reads another's table


class RetainSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    layer_tables: bool = True  # the attention backend reads one table a layer; false: one table a group, bytes move
    union: bool = False  # keep the union of the layers' slots under a shared table: labelled as not the same attention
    pack: Literal["auto", "never"] = "auto"
    table_rows: Annotated[int, Meta(ge=2)] = 3


class LimitSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    open_requests: Positive = 1024
    open_steps: Positive = 64


class KernelSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    choice: Literal["auto", "native", "numpy"] = "auto"  # auto: native where it was built; both give the same bytes
    threads: Annotated[int, Meta(ge=1, le=1024)] = 1  # that share one large copy; native only


class LogSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    url: str  # "sqlite:PATH" or "memory:": losing a ledger or littering a directory must be a choice
    ack: Literal["process", "power"] = "process"  # what a batch survives before what follows from it leaves
    writer: Literal["thread", "inline"] = "thread"  # of a file; inline stores within each call: runs repeat exactly
    queue_bytes: Positive = QueueBounds().bytes  # of encoded events that wait for the writer; then Busy
    queue_events: Positive = QueueBounds().events
    digest_every: Positive = 20_000  # events between recorded digests; each is worked out over some turns
    snapshot_events: Positive = Rotation().snapshot_events  # between snapshots of the fold, at the least
    file_bytes: Positive = Rotation().file_bytes  # the next snapshot begins another file: by size, by age
    file_s: Seconds = Rotation().file_s
    keep_bytes: Positive = Rotation().keep_bytes  # of all files; older ones go, once their lives are closed
    keep_s: Seconds = Rotation().keep_s


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    log: LogSettings
    selection: SelectionSettings = SelectionSettings()
    source: SourceSettings = SourceSettings()
    transfer: TransferSettings = TransferSettings()
    retain: RetainSettings = RetainSettings()
    limits: LimitSettings = LimitSettings()
    kernels: KernelSettings = KernelSettings()
    seed: Count = 20260916  # simulation and demo only: serving draws nothing

    @classmethod
    def load(cls, source: str | Path | Mapping[str, Any]) -> "Settings":
        """From a TOML file or a mapping. Raises SettingsError with the path of the field."""
        if isinstance(source, Mapping):
            return _checked(dict(source), cls)
        try:
            return _checked(tomllib.loads(Path(source).read_text(encoding="utf-8")), cls)
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise SettingsError(str(source), "a readable TOML file", str(error)) from error

    @classmethod
    def of(cls, **fields: Any) -> "Settings":
        """From keyword arguments, through the same check as a file."""
        return cls.load(fields)


def _checked(data: dict[str, Any], kind: type[Settings]) -> Settings:
    try:
        settings = msgspec.convert(msgspec.to_builtins(data), kind)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `")
        raise SettingsError(path.rstrip("`") or "$", "a field and value of the settings table", message) from error
    if settings.source.kind == "copy" and not settings.source.allow_copy:
        raise SettingsError("$.source.kind", "source_only unless $.source.allow_copy is true", "copy")
    if settings.selection.method == "token" and settings.source.kind != "copy":
        raise SettingsError(
            "$.source.kind", "copy with the token method: it has no blocks to name", settings.source.kind
        )
    if settings.transfer.scatter and not settings.retain.layer_tables:
        raise SettingsError("$.transfer.scatter", "false where one table serves all layers", "true")
    if settings.retain.union and settings.retain.layer_tables:
        raise SettingsError("$.retain.union", "false where every layer has its own table", "true")
    return settings
