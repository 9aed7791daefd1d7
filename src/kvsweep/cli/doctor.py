"""`kvsweep doctor`: what is active here, what is not, and why."""

from __future__ import annotations

import importlib.util
import os
import platform
import sqlite3
from importlib import metadata

from msgspec import Struct
from rich.console import Console
from rich.table import Table

import kvsweep
from kvsweep.cli.terminal import AsJson, answer
from kvsweep.kernels.cuda.nvidia import describe_device, why_no_device
from kvsweep.kernels.table import choose_kernels, describe, why_not_native
from kvsweep.ledger import compiled
from kvsweep.ledger.store import encoding

WAL_FIX = (3, 51, 3)  # first SQLite in which two connections can no longer corrupt a WAL that is reset


def doctor(as_json: AsJson = False) -> None:
    """What is active here, what is not, and why."""
    findings = examine()
    if as_json:
        answer(findings)
    else:
        Console().print(findings_table(findings))


class Finding(Struct, frozen=True, kw_only=True):
    part: str
    active: bool
    detail: str  # version, or why it is not active and what that means


def examine() -> list[Finding]:
    """Look at this machine and installation; starts nothing and writes nothing."""
    return [
        Finding(part="kvsweep", active=True, detail=kvsweep.__version__),
        Finding(
            part="python",
            active=True,
            detail=f"{platform.python_version()} on {platform.machine()}, {os.cpu_count()} cores",
        ),
        *(_library(name, why) for name, why in LIBRARIES.items()),
        _model(),
        _native(),
        _ledger(),
        _cuda(),
        _sqlite(),
    ]


LIBRARIES = {
    "numpy": "required",
    "msgspec": "required",
    "anyio": "required",
    "torch": "the demo's model needs it; the coordinator does not",
    "gguf": "the demo reads the model file with it",
    "tokenizers": "the demo's tokenizer",
}


def _library(name: str, why: str) -> Finding:
    try:
        return Finding(part=name, active=True, detail=metadata.version(name))
    except metadata.PackageNotFoundError:
        return Finding(part=name, active=False, detail=f"not installed: {why}")


def _model() -> Finding:
    if importlib.util.find_spec("gguf") is None or importlib.util.find_spec("torch") is None:
        return Finding(part="model", active=False, detail="gguf and torch are needed to look for it")
    from kvsweep.scenarios.demo.weights import MissingModel, find_model_file

    try:
        path = find_model_file()
    except MissingModel as error:
        return Finding(part="model", active=False, detail=str(error))
    return Finding(part="model", active=True, detail=f"{path.name}, {path.stat().st_size:,} bytes")


def _native() -> Finding:
    missing = why_not_native()
    if missing:
        return Finding(part="native kernels", active=False, detail=f"{missing}: the numpy kernels run instead")
    return Finding(part="native kernels", active=True, detail=describe(choose_kernels("native")))


def _ledger() -> Finding:
    missing = encoding.why_not_native() or compiled.why_not_compiled()
    if missing:
        detail = f"{missing}: Python does what it is for, at several times the cost"
        return Finding(part="native ledger", active=False, detail=detail)
    detail = "checks, encodes and packs events, answers questions about ids, folds, decides ordinary words"
    return Finding(part="native ledger", active=True, detail=detail)


def _cuda() -> Finding:
    missing = why_no_device()
    if missing:
        return Finding(part="cuda device", active=False, detail=f"{missing}: the host device runs instead")
    return Finding(part="cuda device", active=True, detail=describe_device())


def _sqlite() -> Finding:
    version = sqlite3.sqlite_version_info
    note = "" if version >= WAL_FIX else " (keep one writer a ledger: two can corrupt a WAL before 3.51.3)"
    return Finding(part="sqlite", active=True, detail=f"{sqlite3.sqlite_version}{note}")


def findings_table(findings: list[Finding]) -> Table:
    table = Table("part", "active", "detail", title="kvsweep doctor")
    for finding in findings:
        table.add_row(finding.part, "yes" if finding.active else "no", finding.detail)
    return table
