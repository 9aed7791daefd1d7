"""The connector's last calls, over stand-ins for vLLM's base classes: what cannot be written ends no engine."""

import enum
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.runtime.vllm.engine import BLOCK, Engine

from kvsweep.ledger.errors import LogError, SettingsError
from kvsweep.runtime.vllm import connector
from kvsweep.runtime.vllm.settings import ConnectorSettings

BASE = "vllm.distributed.kv_transfer.kv_connector.v1.base"


class Output:
    kv_connector_worker_meta = None


def full(*_: object, **__: object) -> None:
    raise LogError("no space left")


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Any:
    """(engine) -> a connector of its scheduler half."""
    parts = BASE.split(".")
    for end in range(1, len(parts) + 1):
        name = ".".join(parts[:end])
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    base: Any = sys.modules[BASE]
    base.KVConnectorBase_V1, base.SupportsHMA = type("Base", (), {}), type("Supports", (), {})
    base.KVConnectorRole = enum.Enum("KVConnectorRole", "SCHEDULER WORKER")
    made = connector._connector_class()

    def of(engine: Engine) -> Any:
        one = object.__new__(made)
        one.half, one.settings, one.worker = engine.half, engine.settings, None
        return one

    return of


def test_a_summary_that_cannot_be_written_is_counted_and_the_engine_goes_on(connect: Any, tmp_path: Path) -> None:
    engine = Engine(blocks=40, ranks=1, extra={"summary": str(tmp_path / "gone" / "summary.json")})
    one = connect(engine)
    engine.add("r", prompt=3 * BLOCK, output=20)
    one.update_connector_output(Output)
    engine.run()
    assert one.has_pending_push_work() is False
    assert engine.half.summary()["refused"] == {"summary: FileNotFoundError": 2}
    one.shutdown()
    assert one.half is None


def test_a_shutdown_whose_ledger_cannot_be_written_says_so_in_the_summary(
    connect: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "summary.json"
    engine = Engine(blocks=40, ranks=1, extra={"summary": str(path)})
    engine.add("r", prompt=3 * BLOCK, output=20)
    for _ in range(3):
        engine.step()
    one = connect(engine)
    monkeypatch.setattr(engine.half.driver.log, "append", full)
    one.shutdown()
    assert one.half is None
    pending = json.loads(path.read_text())["pending"]
    assert [reason for reason in pending if "no space left" in reason]


@pytest.mark.parametrize("fails", ["append", "flush"])
def test_a_ledger_that_fails_at_its_end_raises_nothing(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(blocks=40, ranks=1)
    monkeypatch.setattr(engine.half.driver.log, fails, full)
    engine.half.close()
    (reason,) = engine.half.summary()["pending"]
    assert "no space left" in reason


def test_the_folder_of_the_summary_is_asked_for_at_the_start(tmp_path: Path) -> None:
    ConnectorSettings.load({"summary": str(tmp_path / "summary.json")}).expect_summary_folder()
    ConnectorSettings.load({}).expect_summary_folder()
    path = tmp_path / "gone" / "summary.json"
    with pytest.raises(
        SettingsError, match=r"summary: expected a path in a folder that exists and can be written, got"
    ):
        ConnectorSettings.load({"summary": str(path)}).expect_summary_folder()
