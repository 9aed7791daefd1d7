"""The connector's settings: what is refused, and in which words."""

from typing import Any

import pytest

from kvsweep.ledger.errors import SettingsError
from kvsweep.runtime.vllm.settings import ConnectorSettings


def test_nothing_has_to_be_set() -> None:
    settings = ConnectorSettings.load({})
    assert settings.mode == "lossless"
    core = settings.core(requests=8)
    assert core.log.url == "memory:"
    assert core.selection.budget == 1.0
    assert core.transfer.scatter
    assert settings.steps_between_rounds == 1
    assert settings.cpu_tier(100) == 400


def test_compact_mode_takes_the_policy_and_scatters_nothing() -> None:
    settings = ConnectorSettings.load(
        {
            "mode": "compact",
            "policy": "quest",
            "budget": 0.5,
            "sink": 2,
            "recent": 3,
            "hysteresis": 1.5,
            "tables": "shared",
        }
    )
    core = settings.core(requests=8)
    assert (core.selection.budget, core.selection.sink_blocks, core.selection.recent_blocks) == (0.5, 2, 3)
    assert core.selection.shared
    assert core.selection.incumbent_factor == 1.5
    assert not core.transfer.scatter
    assert settings.needs_scores
    assert settings.steps_between_rounds == 16
    assert ConnectorSettings.load({"mode": "compact"}).core(requests=8).selection.budget == 1.0


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (
            {"budgte": 0.5},
            "kv_connector_extra_config: expected fields among budget, checksums, cpu_blocks, deadline_s, faults, "
            "headroom, hysteresis, interval, ledger, log_ack, mode, poison, policy, recent, scatter, sink, summary, "
            "tables, got budgte",
        ),
        ({"budget": 1.5}, "kv_connector_extra_config.budget: expected float <= 1.0, got 1.5"),
        ({"budget": "half"}, "kv_connector_extra_config.budget: expected float, got 'half'"),
        ({"sink": -1}, "kv_connector_extra_config.sink: expected int >= 0, got -1"),
        ({"interval": 0}, "kv_connector_extra_config.interval: expected int >= 1, got 0"),
        ({"mode": "fast"}, "kv_connector_extra_config.mode: expected one of 'lossless', 'compact', got 'fast'"),
        (
            {"policy": "recency"},
            "kv_connector_extra_config.policy: expected full in lossless mode, where nothing is dropped, got recency",
        ),
        ({"faults": {"drop": 2}}, "kv_connector_extra_config.faults.drop: expected float <= 1.0, got 2"),
        (
            {"faults": {"dorp": 0.1}},
            "kv_connector_extra_config.faults: expected fields among delay, delay_steps, drop, duplicate, seed, "
            "got dorp",
        ),
    ],
)
def test_a_wrong_setting_is_named(extra: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as error:
        ConnectorSettings.load(extra)
    assert str(error.value) == message
