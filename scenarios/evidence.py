"""What is needed to repeat a run (contract J1), as one JSON text: the first event of its ledger carries it.

No time, no duration and no output path stands here: two runs of one command with one seed have equal evidence.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import kvsweep

FOLDERS = ("ledger", "kernels", "transports", "runtime", "scenarios")
SOURCES = ("*.py", "*.cu")
LIBRARIES = ("numpy", "torch", "msgspec", "anyio", "gguf", "tokenizers")


def source_hashes() -> dict[str, str]:
    """SHA-256 of every source file of the installed package."""
    # Not importlib.resources: an editable installation has a second folder, with the compiled part in it.
    root = Path(kvsweep.__file__).parent
    found = sorted(path for folder in FOLDERS for kind in SOURCES for path in (root / folder).rglob(kind))
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def active_parts() -> dict[str, str]:
    """Libraries with their versions; the device and the kernels are recorded apart, and stand in no digest."""
    return {
        **{name: _version(name) for name in LIBRARIES},
        "python": platform.python_version(),
        "kvsweep": kvsweep.__version__,
    }


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def evidence(
    *,
    command: Sequence[str],
    seed: int,
    configuration: Mapping[str, Any],
    model: Mapping[str, Any],
    checks: Sequence[str],
    not_run: Sequence[str],
) -> str:
    """The JSON text. `checks` names what the run verifies about itself; `not_run` what it leaves unproven (J2)."""
    return json.dumps(
        {
            "command": list(command),
            "seed": seed,
            "configuration": dict(configuration),
            "active": active_parts(),
            "model": dict(model),
            "sources_sha256": source_hashes(),
            "checks": list(checks),
            "not_run": list(not_run),
        },
        sort_keys=True,
    )
