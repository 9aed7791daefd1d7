"""The one settings object: a wrong field is refused with its path and value, and combinations are checked at start."""

from pathlib import Path
from typing import Any

import pytest

from kvsweep.ledger.errors import SettingsError
from kvsweep.runtime.settings import Settings

LOG = {"url": "memory:"}


def test_d3_defaults_select_blocks_by_layer_without_a_copy_path() -> None:
    settings = Settings.of(log=LOG)
    assert (settings.selection.method, settings.selection.shared) == ("block", False)
    assert (settings.source.kind, settings.source.allow_copy) == ("source_only", False)
    assert settings.retain.table_rows == 3
    assert settings.seed == 20260916


def test_d3_the_method_is_fixed_once_the_settings_are_read() -> None:
    settings = Settings.of(log=LOG)
    with pytest.raises(AttributeError):
        settings.selection.method = "token"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("tables", "path", "got"),
    [
        ({"selection": {"bugdet": 0.5}}, "$.selection", "bugdet"),
        ({"selection": {"budget": 0.0}}, "$.selection.budget", "> 0.0"),
        ({"selection": {"budget": 1.5}}, "$.selection.budget", "<= 1.0"),
        ({"selection": {"sink_blocks": -1}}, "$.selection.sink_blocks", ">= 0"),
        ({"selection": {"incumbent_factor": 0.9}}, "$.selection.incumbent_factor", ">= 1.0"),
        ({"selection": {"method": "report"}}, "$.selection.method", "report"),
        ({"retain": {"table_rows": 1}}, "$.retain.table_rows", ">= 2"),
        ({"transfer": {"staging_slots": 0}}, "$.transfer.staging_slots", ">= 1"),
        ({"transfer": {"deadline_s": 0}}, "$.transfer.deadline_s", "> 0.0"),
        ({"limits": {"open_steps": 0}}, "$.limits.open_steps", ">= 1"),
        ({"log": {}}, "$.log", "url"),
        ({"sed": 1}, "$", "sed"),
    ],
)
def test_d3_a_wrong_field_is_refused_with_its_path(tables: dict[str, Any], path: str, got: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.of(**{"log": LOG, **tables})
    assert caught.value.path == path
    assert got in caught.value.got


def test_d3_the_token_method_copies_and_no_other_method_exists() -> None:
    assert Settings.of(log=LOG, selection={"method": "token"}, source={"kind": "copy", "allow_copy": True})
    with pytest.raises(SettingsError) as caught:
        Settings.of(log=LOG, selection={"method": "token"})
    assert str(caught.value) == (
        "$.source.kind: expected copy with the token method: it has no blocks to name, got source_only"
    )
    with pytest.raises(SettingsError, match=r"^\$\.selection\.method: .*'page'"):
        Settings.of(log=LOG, selection={"method": "page"})


def test_d5_copying_needs_an_explicit_copy_path() -> None:
    with pytest.raises(SettingsError, match=r"\$\.source\.kind: expected source_only unless .*, got copy"):
        Settings.of(log=LOG, source={"kind": "copy"})
    assert Settings.of(log=LOG, source={"kind": "copy", "allow_copy": True}).source.kind == "copy"


def test_b5_a_union_needs_a_shared_table() -> None:
    with pytest.raises(SettingsError, match=r"\$\.retain\.union"):
        Settings.of(log=LOG, retain={"union": True})
    assert Settings.of(log=LOG, retain={"union": True, "layer_tables": False}).retain.union


def test_d3_a_file_and_a_mapping_give_the_same_settings(tmp_path: Path) -> None:
    path = tmp_path / "kvsweep.toml"
    path.write_text('seed = 7\n[log]\nurl = "memory:"\n[selection]\nbudget = 0.5\n', encoding="utf-8")
    assert Settings.load(path) == Settings.load({"seed": 7, "log": LOG, "selection": {"budget": 0.5}})
    path.write_text("[log\n", encoding="utf-8")
    with pytest.raises(SettingsError, match="expected a readable TOML file"):
        Settings.load(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="expected a readable TOML file"):
        Settings.load(path)
    with pytest.raises(SettingsError, match=r"absent\.toml: expected a readable TOML file"):
        Settings.load(tmp_path / "absent.toml")
