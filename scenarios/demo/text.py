"""The text a run starts from: the one that ships with the project, or a file of the user's."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path

SHIPPED = "constitution.txt"
SHIPPED_SOURCE = "constitution.source.txt"


class TextError(ValueError):
    """The text cannot be read."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text with the words that say where it comes from."""

    source: str
    body: str


def load_text(path: Path | None = None) -> Text:
    """The shipped public-domain text, or the UTF-8 file at `path`.

    Raises TextError when the file is absent, unreadable, not UTF-8 or blank.
    """
    if path is None:
        folder = resources.files("kvsweep.scenarios.demo") / "texts"
        source = (folder / SHIPPED_SOURCE).read_text(encoding="utf-8").strip()
        return Text(source=source, body=(folder / SHIPPED).read_text(encoding="utf-8"))
    try:
        body = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise TextError(f"text {path}: expected a readable file, got {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise TextError(
            f"text {path}: expected UTF-8, got byte 0x{error.object[error.start]:02x} at {error.start}"
        ) from (error)
    if not body.strip():
        raise TextError(f"text {path}: expected some text, got a blank file")
    return Text(source=str(path), body=body)
