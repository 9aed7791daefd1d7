"""docs/vllm.md names every setting of the connector with its default, and no other; its checks are the script's."""

import re
from pathlib import Path

import msgspec

from kvsweep.runtime.vllm.settings import ConnectorSettings

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/vllm.md").read_text(encoding="utf-8")


def rows() -> dict[str, str]:
    """Setting -> default, as the page's table has them; one row may name several."""
    table = PAGE.split("| setting | default |")[1].split("\n\n")[0]
    found = {}
    for line in table.splitlines()[2:]:
        names, default, _ = (cell.strip() for cell in line.strip("|").split("|", 2))
        defaults = default.split(", ")
        for index, name in enumerate(re.findall(r"`([a-z_]+)`", names)):
            found[name] = defaults[min(index, len(defaults) - 1)]
    return found


def test_every_setting_is_explained() -> None:
    assert set(rows()) == set(ConnectorSettings.__struct_fields__)


def test_defaults_are_those_of_the_code() -> None:
    defaults = msgspec.to_builtins(ConnectorSettings())
    words = {True: "true", False: "off", "": "none"}
    for name, shown in rows().items():
        value = defaults[name]
        if name in ("interval", "faults"):  # in words: it depends on the mode; switched off
            continue
        plain = shown.strip("`").strip('"')
        assert plain == words.get(value, str(value)) if isinstance(value, bool | str) else float(plain) == value, name


def test_the_checks_that_the_page_names_are_the_scripts() -> None:
    script = (ROOT / "scripts/test_vllm.py").read_text(encoding="utf-8")
    checks = re.findall(r'^        "([a-z]+)": (?:check_|lambda)', script, re.MULTILINE)
    assert len(checks) == 10
    named = re.findall(r"^### `([a-z]+)`", PAGE, re.MULTILINE)
    assert named == checks
